"""MLPerf's Offline scenario: all samples are there at the start."""

from sluice.loadgen.records.record import Record
from sluice.loadgen.scenarios.base import Figure, Score
from sluice.loadgen.scenarios.bounds import unmet_minima
from sluice.loadgen.scenarios.closed_loop import closed_loop, follow_answers
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.scenarios.queries import NEVER, MeasuredQueries
from sluice.loadgen.traffic.pacing import Pacing
from sluice.loadgen.traffic.schedule import Schedule
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S

OFFLINE_CONCURRENCY = 256
"""Default number of samples that are with the target at a time."""


class Offline:
    """One query of all samples, from which the target is kept busy; latency counts from the start of the run.

    MLPerf fixes the number of samples before a run from a rate that its user expects. Here samples are sent as long as
    the bounds of the run say, so that no rate has to be expected.
    """

    takes = frozenset({"concurrency"})
    is_paced = False

    def schedule(self, config: RunConfig, samples: int) -> Schedule:
        """Samples drawn uniformly with replacement, or each once, in random order."""
        if config.warmup_s:
            raise ConfigError(f"--warmup: offline counts all samples; expected 0, got {config.warmup_s:g} s")
        if config.slo_ms is not None:
            raise ConfigError("--slo-ms: offline has a rate and no latency; expected the option to be left out")
        return follow_answers(config, samples)

    def pacing(self, config: RunConfig, schedule: Schedule) -> Pacing:
        """As many samples with the target as it may be given at a time."""
        return closed_loop(config, config.concurrency or OFFLINE_CONCURRENCY, from_issue=False)

    def score(self, record: Record, config: RunConfig) -> Score:
        """MLPerf's metric is the number of samples over the time until the last answer."""
        queries = MeasuredQueries(record, 0.0)
        answered = queries.latency_ns[queries.latency_ns < NEVER]
        lasted_ns = int(answered.max(initial=0))
        return Score(
            figures=(Figure("samples", len(answered) / lasted_ns * NS_PER_S if lasted_ns else None, "/s"),),
            queries=len(queries),
            good=int(queries.good.sum()),
            is_sample=False,
            unmet=unmet_minima(record, config, 1, lasted_ns),
        )
