"""The policy `deadline`, the default: batches as large as is efficient and as deadlines allow, without a fixed delay.

Its objective decides how slack is used: `latency` (the default) answers soon, `cost` waits for fuller batches.
"""

import enum
from typing import Annotated

from msgspec import Meta

from sluice.batcher.estimates.latency import DEEP, FULL_ENOUGH, LatencyEstimate
from sluice.batcher.interface.config import Limits
from sluice.batcher.interface.decisions import ReleaseReason
from sluice.batcher.policies.base import (
    BatchContext,
    BatchPolicy,
    Choice,
    EntryView,
    PolicySettings,
    QueueView,
    worthwhile_rows,
)
from sluice.batcher.policies.registry import batch_policy
from sluice.batcher.queues.queue import Queue

# Module constants, because looking up a member of an enum is slow (see `sluice.batcher.scheduler.scheduler`).
FULL, IDLE = ReleaseReason.FULL, ReleaseReason.IDLE
DELAY, DEADLINE = ReleaseReason.DELAY, ReleaseReason.DEADLINE
URGENT = 2
"""The head waits for an idle partition while this many batches of the expected size still fit before its deadline."""


class Objective(enum.StrEnum):
    """Use of slack: answer soon, or wait for fuller (cheaper) batches."""

    LATENCY = "latency"
    COST = "cost"


class DeadlineSettings(PolicySettings, frozen=True, tag="deadline"):
    """Batches as large as is efficient and as deadlines allow, without a fixed delay."""

    objective: Annotated[
        Objective, Meta(description="`latency` answers as soon as possible, `cost` waits for fuller batches.")
    ] = Objective.LATENCY

    @property
    def defers(self) -> bool:
        """As in `PolicyConfig`."""
        return self.objective is Objective.COST

    def longest_wait_ns(self, rate: float) -> int | None:
        """As in `PolicyConfig`; deferral ends at the deadline, so without traffic to fill batches none is planned."""
        return None if self.defers and rate > 0 else 0


class DeadlinePolicy:
    """Adaptive batching that never taxes a lone request.

    A batch starts at once when the queue holds the rows that are expected to come together (the decayed peak of
    outstanding rows, at most the efficient batch size). Otherwise an idle partition gathers rows for at most
    `gather_fraction` of the predicted service time, never beyond the head's slack, and not at all when that time is
    below `gather_floor_ns`. The size is the largest that still meets the first deadline that can be met. This is
    adaptive batching under a latency objective as in Clipper (NSDI'17, §4.3), with sizes from a measured table instead
    of additive increase. With two efficient batches queued or more, batches stay efficient even if the head is then
    late: a small batch for the head would lower the rate, and the next heads would be as tight. (Nexus, SOSP'19, drops
    early for the same reason.)

    A stage may use only its share of the time left to the request: its predicted time in proportion to that of all
    stages still ahead, on the path that leaves it the least (the slack of Llama, SoCC'21). Early stages leave enough
    for later ones.
    """

    by_deadline = True
    mixes_keys = False

    def __init__(self, limits: Limits) -> None:
        self._hand_off_ns = limits.hand_off_ns
        self._gather_fraction = limits.gather_fraction
        self._gather_floor_ns = limits.gather_floor_ns

    def new_queue(self, model: str, batch_key: str) -> Queue:
        """An empty queue of a batch key."""
        return Queue(model, batch_key)

    def full_rows(self, estimate: LatencyEstimate) -> int:
        """The efficient batch size."""
        return estimate.efficient_rows

    def choose(self, queue: QueueView, context: BatchContext) -> Choice:
        """Decide by the rows queued, the rows expected, and the slack of the first deadline that can be met."""
        now_ns, start_ns, estimate = context.now_ns, context.start_ns, context.estimate
        pending, head = queue.rows, queue.head()
        worthwhile = worthwhile_rows(head, estimate)
        if pending >= DEEP * worthwhile and not head.planned_rows:
            return Choice(worthwhile, FULL)
        expected = min(worthwhile, context.expected_rows)
        service_ns = estimate.service_ns(expected)
        gather_ns = int(self._gather_fraction * service_ns)
        if pending >= expected or gather_ns < self._gather_floor_ns:
            reason = FULL if pending >= worthwhile else IDLE
            return Choice(self._size(queue, context, min(pending, worthwhile)), reason)
        away_ns = self._hand_off_ns + context.way_ns(expected)
        if context.has_more_planned or head.follows:
            return Choice(self._size(queue, context, pending), IDLE)
        if context.is_busy:
            # Other models may keep the partition busy forever, so an urgent head does not wait until it is idle.
            urgent_ns = head.stage_deadline_ns - away_ns - URGENT * service_ns
            if start_ns < urgent_ns:
                return Choice(0, DEADLINE, now_ns + urgent_ns - start_ns, expected, gather_ns)
            return Choice(self._size(queue, context, pending), DEADLINE)
        gathered_ns = max(context.idle_since_ns, head.enqueued_ns) + gather_ns
        latest_ns = head.stage_deadline_ns - away_ns - service_ns
        if now_ns >= min(gathered_ns, latest_ns):
            reason = DELAY if now_ns >= gathered_ns else DEADLINE
            return Choice(self._size(queue, context, pending), reason)
        return Choice(0, DELAY, min(gathered_ns, latest_ns), expected)

    def _size(self, queue: QueueView, context: BatchContext, limit: int) -> int:
        """Rows to take: `limit`, or fewer if the first deadline that can be met needs that; late heads set no limit.

        With more than a full batch queued, the size keeps most of the best rate (`LatencyEstimate.enough_rows`).
        Otherwise every head would be as tight as the one before, and batches would stay small as long as the load
        lasts.
        """
        estimate = context.estimate
        ready_ns = context.start_ns + self._hand_off_ns
        first = queue.first_not_before(ready_ns + estimate.service_ns(1) + context.way_ns(1))
        if first is None:
            return limit
        left_ns = self._stage_end_ns(first, context, ready_ns) - ready_ns
        rows = estimate.rows_within(left_ns - context.way_ns(1), limit) or 1
        if context.row_way_ns:
            while rows > 1 and estimate.service_ns(rows) + context.way_ns(rows) > left_ns:
                rows -= 1
        if planned := min(first.planned_rows, limit):
            return max(rows, planned)
        return max(rows, estimate.enough_rows) if queue.rows > estimate.efficient_rows else rows

    def _stage_end_ns(self, entry: EntryView, context: BatchContext, since_ns: int) -> int:
        """The time by which the entry's stage should end: its share of the time that is left from `since_ns` on."""
        deadline_ns = entry.deadline_ns
        rest_ns = deadline_ns - entry.stage_deadline_ns
        if not rest_ns:
            return deadline_ns
        estimate = context.estimate
        own_ns = estimate.service_ns(min(int(context.typical_rows + 0.5), estimate.max_rows) or 1) + self._hand_off_ns
        own_ns += context.way_ns(max(int(context.typical_rows + 0.5), 1))
        return min(since_ns + stage_slack_ns(deadline_ns - since_ns, own_ns, rest_ns), entry.stage_deadline_ns)


class DeferringPolicy(DeadlinePolicy):
    """The policy `deadline` with objective `cost`: a batch that is not efficient yet starts as late as it safely can.

    The latest start is the deadline of the head's stage, less the time of a batch with one row more, less the time of
    the batch as it is. The second time is a guard: when models share partitions, another batch may be in the way at
    that moment. (Symphony, arXiv 2308.07470, defers without this guard.) A batch with most of the best rate
    (`FULL_ENOUGH`) is not deferred: waiting for its last rows would save little and leave it in the way of a burst. It
    starts as with objective `latency`, which gathers briefly where more rows are expected; otherwise batches would
    never be full during a burst. A lone request waits like any other. The share of a stage is of the time that was left
    when it began to wait, so that a batch does not wait for what later stages need for theirs.
    """

    def choose(self, queue: QueueView, context: BatchContext) -> Choice:
        """Decide by the rows queued and the latest time at which they can safely start."""
        start_ns, estimate = context.start_ns, context.estimate
        pending = queue.rows
        worthwhile = estimate.efficient_rows
        size = min(pending, worthwhile)
        # Rates compared by cross-multiplication.
        best_ns, batch_ns = estimate.service_ns(worthwhile), estimate.service_ns(size)
        if size * (best_ns + self._hand_off_ns) >= FULL_ENOUGH * worthwhile * (batch_ns + self._hand_off_ns):
            return super().choose(queue, context)
        head = queue.head()
        reserve_ns = estimate.service_ns(pending + 1) + batch_ns + context.way_ns(size)
        latest_ns = self._stage_end_ns(head, context, head.enqueued_ns) - self._hand_off_ns - reserve_ns
        # It yields to nothing: it has left others their turn until now, and has no time left for them from then on.
        if start_ns >= latest_ns:
            return Choice(self._size(queue, context, pending), DEADLINE, yields=False)
        # Other models may keep the partition busy forever, so ask again when a start would just be in time.
        return Choice(0, DEADLINE, context.now_ns + latest_ns - start_ns, yields=False)


def stage_slack_ns(left_ns: int, own_ns: int, rest_ns: int) -> int:
    """The part of the time left that a stage may take, in proportion to its own time and that of the longest way on.

    No other way on leaves it less, so that stages which take all that they may are in time on every path
    (Llama, SoCC'21).
    """
    return left_ns * own_ns // (own_ns + rest_ns)


@batch_policy(DeadlineSettings)
def build(settings: DeadlineSettings, limits: Limits) -> BatchPolicy:
    """The policy for an objective."""
    return DeferringPolicy(limits) if settings.objective is Objective.COST else DeadlinePolicy(limits)
