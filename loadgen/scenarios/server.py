"""MLPerf's Server scenario: queries arrive on their own, whatever the target does with earlier ones."""

from sluice.loadgen.records.record import Record
from sluice.loadgen.scenarios.base import Figure, Score
from sluice.loadgen.scenarios.bounds import unmet_minima
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.scenarios.mlperf import is_mlperf, mlperf_times
from sluice.loadgen.scenarios.open_loop import arrival_times
from sluice.loadgen.scenarios.queries import MeasuredQueries, percentile_ms
from sluice.loadgen.scenarios.sample_choice import choose_samples
from sluice.loadgen.traffic.pacing import OPEN_LOOP, Pacing
from sluice.loadgen.traffic.schedule import Schedule


class ServerScenario:
    """An open loop with the arrivals of the configuration; latency counts from the time a query is due."""

    takes = frozenset({"rate"})
    is_paced = True

    def schedule(self, config: RunConfig, samples: int) -> Schedule:
        """Samples drawn uniformly with replacement, or each at most once, in random order."""
        if is_mlperf(config):
            due_ns = mlperf_times(config, samples)
        else:
            due_ns = arrival_times(config, samples if config.each_once else None)
        return Schedule(due_ns, choose_samples(config, samples, len(due_ns)))

    def pacing(self, config: RunConfig, schedule: Schedule) -> Pacing:
        """An open loop."""
        return OPEN_LOOP

    def score(self, record: Record, config: RunConfig) -> Score:
        """MLPerf's metric is the rate of the answers; a percentile of the latency has to meet the objective."""
        queries = MeasuredQueries(record, config.warmup_s)
        return Score(
            figures=(
                Figure("completed queries", queries.completed_per_s, "/s"),
                Figure(f"latency p{config.percentile:g}", percentile_ms(queries.latency_ns, config.percentile), "ms"),
            ),
            queries=len(queries),
            good=int(queries.good.sum()),
            is_sample=not config.each_once,
            unmet=unmet_minima(record, config, 1, int(record.due_ns[-1]) if len(record) else 0),
        )
