"""A closed loop of several clients, as perf_analyzer of Triton offers it."""

from sluice.loadgen.records.record import Record
from sluice.loadgen.scenarios.base import Figure, Score
from sluice.loadgen.scenarios.bounds import unmet_minima
from sluice.loadgen.scenarios.closed_loop import closed_loop, follow_answers
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.scenarios.open_loop import arrival_times
from sluice.loadgen.scenarios.queries import MeasuredQueries, mean_ms, percentile_ms
from sluice.loadgen.scenarios.sample_choice import choose_samples
from sluice.loadgen.traffic.pacing import Pacing
from sluice.loadgen.traffic.schedule import Schedule


class Concurrency:
    """A number of queries is kept open; latency counts from issue.

    With a rate, a query leaves no earlier than the arrival process has it due.
    """

    takes = frozenset({"rate", "concurrency"})
    is_paced = False

    def schedule(self, config: RunConfig, samples: int) -> Schedule:
        """Samples drawn uniformly with replacement, or each once, in random order."""
        if not config.rate:
            return follow_answers(config, samples)
        due_ns = arrival_times(config, samples if config.each_once else None)
        return Schedule(due_ns, choose_samples(config, samples, len(due_ns)))

    def pacing(self, config: RunConfig, schedule: Schedule) -> Pacing:
        """The configured number of queries at a time, by default one."""
        return closed_loop(config, config.concurrency or 1)

    def score(self, record: Record, config: RunConfig) -> Score:
        """The rate of the answers is what the number of clients achieves; the latency is what it costs."""
        queries = MeasuredQueries(record, config.warmup_s)
        return Score(
            figures=(
                Figure("completed queries", queries.completed_per_s, "/s"),
                Figure("mean latency", mean_ms(queries.latency_ns), "ms"),
                Figure(f"latency p{config.percentile:g}", percentile_ms(queries.latency_ns, config.percentile), "ms"),
            ),
            queries=len(queries),
            good=int(queries.good.sum()),
            is_sample=record.has_objectives and not config.each_once,
            unmet=unmet_minima(record, config, 1, int(record.due_ns[-1]) if len(record) else 0),
        )
