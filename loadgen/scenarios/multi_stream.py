"""MLPerf's MultiStream scenario: one query of several samples after the other."""

from sluice.loadgen.records.record import Record
from sluice.loadgen.scenarios.base import Score
from sluice.loadgen.scenarios.closed_loop import closed_loop, follow_answers
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.scenarios.streams import stream_score
from sluice.loadgen.traffic.pacing import Pacing
from sluice.loadgen.traffic.schedule import Schedule

_SAMPLES_PER_QUERY = 8


class MultiStream:
    """A closed loop of queries of successive samples, which are sent together.

    Each sample is a request of its own. The latency of a query is that of its slowest sample, from issue.
    """

    takes = frozenset({"samples_per_query"})
    is_paced = False

    def schedule(self, config: RunConfig, samples: int) -> Schedule:
        """Successive samples from one drawn uniformly on, or each once, in random order."""
        return follow_answers(config, samples, config.samples_per_query or _SAMPLES_PER_QUERY)

    def pacing(self, config: RunConfig, schedule: Schedule) -> Pacing:
        """One query of all its samples at a time."""
        return closed_loop(config, 1, group=schedule.group)

    def score(self, record: Record, config: RunConfig) -> Score:
        """MLPerf's metric is the early-stopping estimate of a percentile of the queries' latency."""
        return stream_score(record, config, config.samples_per_query or _SAMPLES_PER_QUERY)
