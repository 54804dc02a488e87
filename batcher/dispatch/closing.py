"""When a batch closes for a partition: the policy decides, unless the partition is kept for what is planned before."""

from collections.abc import Mapping

from sluice.batcher.interface.config import Limits
from sluice.batcher.interface.decisions import ReleaseReason
from sluice.batcher.policies.base import BatchContext, BatchPolicy, Choice, number_error, worthwhile_rows
from sluice.batcher.policies.registry import policy_name
from sluice.batcher.queues.progress import planned_order
from sluice.batcher.queues.queue import NO_WAITERS, Queue
from sluice.batcher.state import ModelState, PartitionState
from sluice.models.errors import ConfigError
from sluice.models.units import INFINITE_NS

# Module constants, because looking up a member of an enum is slow (see `sluice.batcher.scheduler.scheduler`).
IDLE, DEADLINE = ReleaseReason.IDLE, ReleaseReason.DEADLINE


class Closing:
    """Asks the `policies` of the models, by model key.

    While a batch runs whose rows go on to a more urgent stage on the same partition, nothing else is closed before it
    ends, because those rows would have to wait behind it. This holds only if the partition is not idle for more than
    `gather_fraction` of the batch's time. A partition is also kept for a batch that is planned before the head and
    waits for rows of the stage before, if that would be late behind the head's.
    """

    __slots__ = ("_gather_fraction", "_policies")

    def __init__(self, policies: Mapping[str, BatchPolicy], limits: Limits) -> None:
        self._policies = policies
        self._gather_fraction = limits.gather_fraction

    def choose(self, queue: Queue, model: ModelState, partition: PartitionState, now_ns: int) -> Choice:
        """Close a batch of a queue that is not empty, for a partition that is idle or about to be, or wait.

        Raises ConfigError for a choice whose numbers are not ints.
        """
        batches = partition.batches
        has_more_planned = len(partition.planned) > 1
        context = BatchContext(
            now_ns,
            partition.start_ns(now_ns),
            partition.idle_since_ns,
            bool(batches),
            bool(batches) and batches[0].queue_key == queue.key,
            has_more_planned,
            model.estimates[partition.kind],
            model.quickest_ns,
            max(int(model.peak_rows), 1),
            model.typical_rows,
            partition.round_trip_ns,
            partition.ns_per_byte * model.config.row_bytes if partition.ns_per_byte else 0.0,
            partition.name,
            model.under_way,
        )
        choice = self._policies[queue.model].choose(queue, context)
        if (problem := number_error(choice)) is not None:
            raise wrong_choice(model, problem)
        if model.by_deadline and choice.yields:
            if batches and self._brings_more_urgent(partition, queue):
                return Choice(0, IDLE, now_ns + batches[0].expected_ns, NO_WAITERS, after_idle_ns=0)
            if has_more_planned and (until_ns := _kept_until_ns(partition, queue, context)):
                return Choice(0, DEADLINE, until_ns, NO_WAITERS, after_idle_ns=0)
        return choice

    def _brings_more_urgent(self, partition: PartitionState, queue: Queue) -> bool:
        """True if rows of the running batch go on here to a stage that comes before a queue, or fills its batch."""
        batch = partition.batches[0]
        entry = batch.entries[0]
        request = entry.request
        if request.settled or partition.hand_off_ns + batch.way_ns > self._gather_fraction * batch.expected_ns:
            return False
        head = queue.head()
        before = planned_order(head)
        incomplete = queue.rows < head.planned_rows
        stages = request.pipeline.stages
        for index in stages[entry.stage].dependents:
            following = stages[index]
            model = following.model
            if request.missing[index] == 1 and model is not None and model.config.key in partition.models:
                place = request.places[index] if request.places else None
                deadline_ns = request.deadline_ns - following.remaining_path_ns
                if ((deadline_ns, 0) if place is None else (place[0].order_ns, place[0].serial)) < before:
                    return True
                if incomplete and model.config.key == queue.model:
                    return True
        return False


def wrong_choice(model: ModelState, problem: str) -> ConfigError:
    """The error of a policy that makes a choice which cannot be carried out."""
    return ConfigError(f"policy {policy_name(model.config.policy)}: model {model.config.key}: {problem}")


def _kept_until_ns(partition: PartitionState, queue: Queue, context: BatchContext) -> int:
    """Until when a partition is kept for what is planned before the head, and would be late behind it; 0 if nothing is.

    Such a batch waits for rows of the stage before. It is waited for until its latest start, on an idle partition only
    until its rows should have come if none has, unless the head is planned for this partition and would be late then.
    """
    now_ns, estimate = context.now_ns, context.estimate
    is_own = any(planned.queue_key == queue.key for planned in partition.planned)
    head = queue.head()
    order = planned_order(head)
    place = head.place
    latest_end_ns = head.stage_deadline_ns if place is None or place[0].partition is partition else INFINITE_NS
    took_ns = estimate.expected_ns(min(queue.rows, worthwhile_rows(head, estimate)))
    end_ns = context.start_ns + took_ns
    before_ns = 0
    for planned in partition.planned:
        if planned.queue_key == queue.key or (not is_own and (planned.order_ns, planned.serial) >= order):
            return 0
        latest_ns = planned.latest_ns - planned.length_ns
        waits = partition.batches or planned.model.outstanding
        until_ns = latest_ns if waits else min(latest_ns, planned.ready_ns or latest_ns)
        before_ns += planned.length_ns
        if latest_ns < end_ns and now_ns <= until_ns and until_ns + before_ns + took_ns <= latest_end_ns:
            return until_ns + 1
        end_ns += planned.length_ns
    return 0
