"""MLPerf's SingleStream scenario: one query after the other, each sent when the one before is answered."""

from sluice.loadgen.records.record import Record
from sluice.loadgen.scenarios.base import Score
from sluice.loadgen.scenarios.closed_loop import closed_loop, follow_answers
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.scenarios.streams import stream_score
from sluice.loadgen.traffic.pacing import Pacing
from sluice.loadgen.traffic.schedule import Schedule


class SingleStream:
    """A closed loop of one client without pauses; latency counts from issue."""

    takes: frozenset[str] = frozenset()
    is_paced = False

    def schedule(self, config: RunConfig, samples: int) -> Schedule:
        """Samples drawn uniformly with replacement, or each once, in random order."""
        return follow_answers(config, samples)

    def pacing(self, config: RunConfig, schedule: Schedule) -> Pacing:
        """One query at a time."""
        return closed_loop(config, 1)

    def score(self, record: Record, config: RunConfig) -> Score:
        """MLPerf's metric is the early-stopping estimate of a percentile of the latency: officially the 90th."""
        return stream_score(record, config, 1)
