"""The speed of models and partitions as observed: estimates, batch limits and hand-off times."""

from sluice.batcher.estimates.batch_limit import BatchLimit
from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.queues.queue import Queue
from sluice.batcher.state import ModelState, NodeState, PartitionState, PipelineState
from sluice.models.units import NS_PER_MS, NS_PER_S

HAND_OFF_WEIGHT = 0.05
"""Weight of one batch in the smoothed hand-off time."""
OUTLIER = 8
"""A hand-off counts as at most this many times the usual one, since a machine may stall once."""
MAX_HAND_OFF_NS = 10 * NS_PER_MS
"""Upper bound of a learned hand-off time."""
MAX_REMOTE_HAND_OFF_NS = NS_PER_S
"""The same for a partition on another node, where it includes what its link takes beyond what was measured."""
KNOWN = 20
"""A partition of a node has a hand-off time of its own after this many batches."""
UNLIKE = 1.5
"""That counts where it differs by this factor from its node's: the partitions of a node share what is learned."""


def outdate(pipeline: PipelineState) -> None:
    """Renew the predictions of a pipeline when its next request arrives."""
    pipeline.changes += 1


def outdate_pipelines(model: ModelState) -> None:
    """As `outdate`, for all pipelines of a model."""
    for pipeline in model.pipelines:
        pipeline.changes += 1


def set_estimate(model: ModelState, kind: str, estimate: LatencyEstimate) -> None:
    """Set the estimate of a model on a kind of partition; a known batch limit still applies."""
    model.estimates[kind] = estimate
    if (batch_limit := model.batch_limits.get(kind)) is not None:
        estimate.limit(batch_limit.rows)
    _update_quickest(model)


def forget_kind(model: ModelState, kind: str) -> None:
    """Forget the estimate of a kind of partition that no longer exists."""
    if model.estimates.pop(kind, None) is not None and model.estimates:
        _update_quickest(model)


def observe_batch(model: ModelState, kind: str, rows: int, took_ns: int) -> bool:
    """Correct the estimate by a batch; False if there is no estimate, because the partition's kind has changed."""
    estimate = model.estimates.get(kind)
    if estimate is None:
        return False
    estimate.observe(rows, took_ns)
    _update_quickest(model)
    return True


def observe_hand_off(
    partition: PartitionState, dispatched_ns: int, started_ns: int, ended_ns: int, now_ns: int, way_ns: int = 0
) -> int | None:
    """Learn the hand-off time of a batch, and return it; None if the batch waited for another batch.

    What the way to the partition's node is predicted to take (`way_ns`) is no part of it. All partitions of a node
    learn together.
    """
    took_ns = None
    most_ns = MAX_HAND_OFF_NS if partition.node is None else MAX_REMOTE_HAND_OFF_NS
    if dispatched_ns < partition.last_end_ns:
        gap_ns = min(max(started_ns - partition.last_end_ns, 0), most_ns)
        partition.between_ns += HAND_OFF_WEIGHT * (gap_ns - partition.between_ns)
    else:
        took_ns = (started_ns - dispatched_ns) + (now_ns - ended_ns) - way_ns
        if partition.node is None:
            partition.hand_off_ns = _learned(partition, partition.hand_off_ns, took_ns, most_ns)
        else:
            _learn_of_node(partition, partition.node, max(took_ns, 0))
    partition.last_end_ns = ended_ns
    return took_ns


def _learned(partition: PartitionState, known_ns: int, took_ns: int, most_ns: int) -> int:
    """A smoothed hand-off time after one more batch."""
    seen_ns = min(took_ns, OUTLIER * known_ns)
    learned_ns = known_ns + int(HAND_OFF_WEIGHT * (seen_ns - known_ns))
    return min(max(learned_ns, partition.least_hand_off_ns), most_ns)


def _learn_of_node(partition: PartitionState, node: NodeState, took_ns: int) -> None:
    """Learn the hand-off time of a batch for its partition and its node; O(partitions of the node)."""
    before_ns = node.hand_off_ns
    node.hand_off_ns = _learned(partition, before_ns, took_ns, MAX_REMOTE_HAND_OFF_NS)
    partition.own_hand_off_ns = _learned(partition, partition.own_hand_off_ns, took_ns, MAX_REMOTE_HAND_OFF_NS)
    partition.hand_offs = min(partition.hand_offs + 1, KNOWN)
    _choose_hand_off(partition, node)
    if node.hand_off_ns != before_ns:
        for other in node.partitions.values():
            _choose_hand_off(other, node)


def _choose_hand_off(partition: PartitionState, node: NodeState) -> None:
    """Count on the hand-off time of a partition's node, or on its own where that is known to differ."""
    own_ns, its_ns = partition.own_hand_off_ns, node.hand_off_ns
    differs = partition.hand_offs >= KNOWN and not its_ns <= UNLIKE * own_ns <= UNLIKE * UNLIKE * its_ns
    partition.hand_off_ns = own_ns if differs else its_ns


def forget_hand_off(partition: PartitionState) -> None:
    """Begin to learn the hand-off time of a partition whose worker is on another node now."""
    known_ns = partition.least_hand_off_ns if partition.node is None else partition.node.hand_off_ns
    partition.hand_off_ns = partition.own_hand_off_ns = known_ns
    partition.hand_offs = 0


def decay_corrections(model: ModelState) -> None:
    """Let the corrections that no batch confirms decay: those of estimates, and the hand-offs of idle partitions."""
    for group in model.groups:
        for partition in group.partitions.values():
            if not partition.batches:
                _decay_hand_off(partition)
    for estimate in model.estimates.values():
        estimate.decay()
        _update_quickest(model)
    outdate_pipelines(model)


def _decay_hand_off(partition: PartitionState) -> None:
    """Let the hand-off time of an idle partition decay, and that of its node if no batch is there."""
    least_ns, node = partition.least_hand_off_ns, partition.node
    if node is None:
        partition.hand_off_ns = (partition.hand_off_ns + least_ns) // 2
        return
    partition.own_hand_off_ns = (partition.own_hand_off_ns + least_ns) // 2
    if not any(each.batches for each in node.partitions.values()):
        node.hand_off_ns = (node.hand_off_ns + least_ns) // 2
    _choose_hand_off(partition, node)


def ran_out_of_memory(model: ModelState, kind: str, rows: int, now_ns: int) -> bool:
    """Record that a batch ran out of memory on a kind of partition; True if batches there become smaller."""
    limit = model.batch_limits.setdefault(kind, BatchLimit(model.config.max_batch))
    if not limit.ran_out(rows, now_ns):
        return False
    _apply_limit(model, kind, limit)
    return True


def raise_limits(model: ModelState, now_ns: int) -> bool:
    """Raise the batch limits that have held for long enough; True if there are any."""
    raised = [kind for kind, limit in model.batch_limits.items() if limit.held(now_ns)]
    for kind in raised:
        limit = model.batch_limits[kind]
        _apply_limit(model, kind, limit)
        if limit.lapsed:
            del model.batch_limits[kind]
    return bool(raised)


def fits_elsewhere(model: ModelState, rows: int, kind: str) -> bool:
    """True if partitions of other kinds that are up hold the model and may have memory for a batch of `rows` rows."""
    return any(group.ready_count and group.kind != kind and rows <= _room(model, group.kind) for group in model.groups)


def is_left_to_others(model: ModelState, queue: Queue, kind: str) -> bool:
    """True if the first batch of a queue does not fit into the memory of this kind, but may fit elsewhere."""
    rows = sum(entry.rows for entry in queue.retries[0]) if queue.retries else queue.head().rows
    return rows > _room(model, kind) and fits_elsewhere(model, rows, kind)


def _room(model: ModelState, kind: str) -> int:
    limit = model.batch_limits.get(kind)
    return model.config.max_batch if limit is None else limit.room


def _apply_limit(model: ModelState, kind: str, limit: BatchLimit) -> None:
    if (estimate := model.estimates.get(kind)) is not None:
        estimate.limit(limit.rows)
        model.limit_changes += 1
        outdate_pipelines(model)


def _update_quickest(model: ModelState) -> None:
    model.quickest_ns = min([estimate.expected_ns(1) for estimate in model.estimates.values()])
