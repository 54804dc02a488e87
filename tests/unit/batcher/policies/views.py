"""The views that batch policies get, as plain values."""

from collections.abc import Iterator
from typing import NamedTuple

from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.policies.base import BatchContext
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import US, S


class Waiting(NamedTuple):
    """The rows of a request that came at 0 ns, whose later stages need `rest_ns`."""

    stage_deadline_ns: int = S
    rows: int = 1
    enqueued_ns: int = 0
    planned_rows: int = 0
    follows: bool = False
    rest_ns: int = 0

    @property
    def deadline_ns(self) -> int:
        return self.stage_deadline_ns + self.rest_ns


class WaitingQueue:
    """Entries in the order of their deadlines."""

    def __init__(self, *entries: Waiting) -> None:
        self._entries = entries

    @property
    def rows(self) -> int:
        return sum(entry.rows for entry in self._entries)

    @property
    def live(self) -> int:
        return len(self._entries)

    def head(self) -> Waiting:
        return self._entries[0]

    def companions(self) -> Iterator[Waiting]:
        return iter(self._entries)

    def first_not_before(self, order_ns: int) -> Waiting | None:
        return next((entry for entry in self._entries if entry.stage_deadline_ns >= order_ns), None)


def idle(table: LatencyTable) -> BatchContext:
    """A partition that was never busy, at 0 ns, and a model with batches of at most 8 rows; 150 us of hand-off."""
    return BatchContext(
        now_ns=0,
        start_ns=0,
        idle_since_ns=0,
        is_busy=False,
        runs_own=False,
        has_more_planned=False,
        estimate=LatencyEstimate(table, 8, 150 * US),
        quickest_ns=table.latency_ns(1),
        expected_rows=1,
        typical_rows=1.0,
    )
