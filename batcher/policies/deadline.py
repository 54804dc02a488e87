"""The policy `deadline`, the default: batches as big as is worthwhile and as deadlines allow, without a fixed delay.

Its objective says what to do with slack: `latency` (the default) answers soon, `cost` waits for fuller batches.
"""

import enum

from sluice.batcher.estimates.latency import DEEP, FULL_ENOUGH, LatencyEstimate
from sluice.batcher.interface.config import Limits
from sluice.batcher.interface.decisions import ReleaseReason
from sluice.batcher.policies.base import BatchPolicy, Choice, PolicySettings
from sluice.batcher.policies.registry import batch_policy
from sluice.batcher.queues.fair_queue import NOBODY, Queue
from sluice.batcher.state.model import ModelState, PartitionState
from sluice.batcher.state.request import Entry

# Names of their own, since the look-up of an enum's member is slow (see `sluice.batcher.scheduler.scheduler`).
FULL, IDLE = ReleaseReason.FULL, ReleaseReason.IDLE
DELAY, DEADLINE = ReleaseReason.DELAY, ReleaseReason.DEADLINE
URGENT = 2
"""Batches of the expected size that would just be in time when a head no longer waits for a partition to be idle."""


class Objective(enum.StrEnum):
    """Use of slack: answer soon, or wait for fuller (cheaper) batches."""

    LATENCY = "latency"
    COST = "cost"


class DeadlineSettings(PolicySettings, frozen=True, tag="deadline"):
    """Batches as large as is efficient and as deadlines allow, without a fixed delay."""

    objective: Objective = Objective.LATENCY

    @property
    def defers(self) -> bool:
        """As in `PolicyConfig`."""
        return self.objective is Objective.COST

    def longest_wait_ns(self, rate: float) -> int | None:
        """As in `PolicyConfig`; deferral ends at the deadline, so without traffic to fill batches none is planned."""
        return None if self.defers and rate > 0 else 0


class DeadlinePolicy:
    """Adaptive batching that never taxes a lone request.

    A batch starts at once when the queue holds as many rows as may be expected together (the decayed peak of
    outstanding rows, at most the efficient batch size). Otherwise an idle partition gathers for at most
    `gather_fraction` of the predicted service time, or not at all when that is below `gather_floor_ns`, and never
    beyond the head's slack. The size is the largest that still meets the first deadline that can be met: adaptive
    batch sizes under a latency objective as in Clipper (NSDI'17, §4.3), chosen from a measured table instead of by
    additive increase. With two efficient batches queued or more, batches stay efficient, and heads that these make
    late are late: small ones for their sake would lower the rate, and the next heads would be as tight. (To drop
    early and keep batches large is the rule of Nexus, SOSP'19.)

    While a batch runs whose rows go on to a more urgent stage on the same partition, as a batch that is worthwhile,
    nothing else is closed ahead of its end, behind which they would have to wait; unless the partition would then be
    idle for more than `gather_fraction` of the batch's time.
    """

    by_deadline = True
    mixes_keys = False

    def __init__(self, limits: Limits) -> None:
        self._hand_off_ns = limits.hand_off_ns
        self._gather_fraction = limits.gather_fraction
        self._gather_floor_ns = limits.gather_floor_ns

    def new_queue(self, model: str, batch_key: str) -> Queue:
        """A queue shared fairly between pipelines."""
        return Queue(model, batch_key)

    def full_rows(self, estimate: LatencyEstimate) -> int:
        """The efficient batch size."""
        return estimate.efficient_rows

    def choose(
        self, queue: Queue, model: ModelState, partition: PartitionState, estimate: LatencyEstimate, now_ns: int
    ) -> Choice:
        """Decide by the rows queued, those expected, and the slack of the first deadline that can be met."""
        pending = queue.rows
        worthwhile = estimate.efficient_rows
        if partition.batches and self._yields(queue, partition):
            until_ns = now_ns + partition.batches[0].median_ns
            return Choice(0, IDLE, until_ns, NOBODY, after_idle_ns=0)
        if pending >= DEEP * worthwhile:
            return Choice(worthwhile, FULL)
        expected = min(worthwhile, max(int(model.peak), 1))
        service_ns = estimate.service_ns(expected)
        gather_ns = int(self._gather_fraction * service_ns)
        start_ns = partition.start_ns(now_ns)
        if pending >= expected or gather_ns < self._gather_floor_ns:
            reason = FULL if pending >= worthwhile else IDLE
            return Choice(self._size(queue, estimate, min(pending, worthwhile), start_ns), reason)
        head = queue.head()
        if partition.batches:
            # Others may keep the partition busy for ever, so what is urgent does not wait until it is idle.
            urgent_ns = head.stage_deadline_ns - self._hand_off_ns - URGENT * service_ns
            if start_ns < urgent_ns:
                return Choice(0, DEADLINE, now_ns + urgent_ns - start_ns, expected, gather_ns)
            return Choice(self._size(queue, estimate, pending, start_ns), DEADLINE)
        gathered_ns = max(partition.idle_since_ns, head.enqueued_ns) + gather_ns
        latest_ns = head.stage_deadline_ns - self._hand_off_ns - service_ns
        if now_ns >= min(gathered_ns, latest_ns):
            reason = DELAY if now_ns >= gathered_ns else DEADLINE
            return Choice(self._size(queue, estimate, pending, start_ns), reason)
        return Choice(0, DELAY, min(gathered_ns, latest_ns), expected)

    def _yields(self, queue: Queue, partition: PartitionState) -> bool:
        """Whether the queue is to wait until the running batch has ended, for what its rows go on to."""
        batch = partition.batches[0]
        entry = batch.entries[0]
        request = entry.request
        if request.settled or partition.hand_off_ns > self._gather_fraction * batch.median_ns:
            return False
        before_ns = queue.head().stage_deadline_ns
        stages = request.pipeline.stages
        for index in stages[entry.stage].dependents:
            following = stages[index]
            if request.missing[index] == 1 and request.deadline_ns - following.tail_ns < before_ns:
                model = following.model
                if model is not None and model.config.key in partition.models:
                    rows = batch.rows * following.probability
                    return rows >= model.estimates[partition.kind].enough_rows
        return False

    def _size(self, queue: Queue, estimate: LatencyEstimate, limit: int, start_ns: int) -> int:
        """Rows to take: `limit`, or fewer where that makes the first reachable deadline; late ones set no limit.

        With more than a full batch queued it keeps most of the best rate (`LatencyEstimate.enough_rows`): else every
        head would be as tight as the one before, and batches would stay small for as long as the load lasts.
        """
        ready_ns = start_ns + self._hand_off_ns
        first = queue.first_not_before(ready_ns + estimate.service_ns(1))
        if first is None:
            return limit
        rows = estimate.rows_within(first.stage_deadline_ns - ready_ns, limit) or 1
        return max(rows, estimate.enough_rows) if queue.rows > estimate.efficient_rows else rows


class DeferringPolicy(DeadlinePolicy):
    """The policy `deadline` with objective `cost`: a batch that is not worthwhile yet starts as late as it safely can.

    That is the deadline of the head's stage, less the time of a batch with one row more and once more that of the batch
    as it is: so much is kept for another batch that is in the way when the time has come, as it will be when models
    share partitions. (Symphony, arXiv 2308.07470, defers without this guard.) A batch with most of the best rate
    (`FULL_ENOUGH`) is not deferred: to wait for the rest of it would save little, and leave it in the way of a burst.
    It starts as with objective `latency`, which gathers for a moment where more may be expected: under a burst batches
    would never be full otherwise. A lone request waits like any other.

    A stage may use up only its share of what is left to the request, as its predicted time is to that of all that is
    ahead of the request (the slack of Llama, SoCC'21): early stages leave as much for later ones.
    """

    def choose(
        self, queue: Queue, model: ModelState, partition: PartitionState, estimate: LatencyEstimate, now_ns: int
    ) -> Choice:
        """Decide by the rows queued and the last moment at which they can safely start."""
        pending = queue.rows
        worthwhile = estimate.efficient_rows
        size = min(pending, worthwhile)
        # Rates compared by cross-multiplication.
        best_ns, batch_ns = estimate.service_ns(worthwhile), estimate.service_ns(size)
        if size * (best_ns + self._hand_off_ns) >= FULL_ENOUGH * worthwhile * (batch_ns + self._hand_off_ns):
            return super().choose(queue, model, partition, estimate, now_ns)
        start_ns = partition.start_ns(now_ns)
        reserve_ns = estimate.service_ns(pending + 1) + batch_ns
        latest_ns = self._stage_end_ns(queue.head(), model, estimate) - self._hand_off_ns - reserve_ns
        if start_ns >= latest_ns:
            return Choice(self._size(queue, estimate, pending, start_ns), DEADLINE)
        # Others may keep the partition busy for ever, so it is asked again when it would just be in time.
        return Choice(0, DEADLINE, now_ns + latest_ns - start_ns)

    def _stage_end_ns(self, entry: Entry, model: ModelState, estimate: LatencyEstimate) -> int:
        """When the entry's stage is to have ended, so that those after it have their shares of the time left."""
        deadline_ns = entry.request.deadline_ns
        rest_ns = deadline_ns - entry.stage_deadline_ns
        if not rest_ns:
            return deadline_ns
        own_ns = estimate.service_ns(min(int(model.typical_rows + 0.5), estimate.max_rows) or 1) + self._hand_off_ns
        allowed_ns = (deadline_ns - entry.enqueued_ns) * own_ns // (own_ns + rest_ns)
        return min(entry.enqueued_ns + allowed_ns, entry.stage_deadline_ns)


@batch_policy(DeadlineSettings)
def build(settings: DeadlineSettings, limits: Limits) -> BatchPolicy:
    """The policy for an objective."""
    return DeferringPolicy(limits) if settings.objective is Objective.COST else DeadlinePolicy(limits)
