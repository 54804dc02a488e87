"""The speed of models and partitions as observed: estimates, batch limits and hand-off times."""

from sluice.batcher.estimates.batch_limit import BatchLimit
from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.queues.queue import Queue
from sluice.batcher.state import ModelState, PartitionState, PipelineState
from sluice.models.units import NS_PER_MS

HAND_OFF_WEIGHT = 0.05
"""Weight of one batch in the smoothed hand-off time."""
OUTLIER = 8
"""A hand-off counts as at most this many times the usual one, since a machine may stall once."""
MAX_HAND_OFF_NS = 10 * NS_PER_MS
"""Upper bound of a learned hand-off time."""


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
    partition: PartitionState, dispatched_ns: int, started_ns: int, ended_ns: int, now_ns: int
) -> int | None:
    """Learn the hand-off time of a batch, and return it; None if the batch waited for another batch."""
    took_ns = None
    if dispatched_ns < partition.last_end_ns:
        gap_ns = min(max(started_ns - partition.last_end_ns, 0), MAX_HAND_OFF_NS)
        partition.between_ns += HAND_OFF_WEIGHT * (gap_ns - partition.between_ns)
    else:
        took_ns = (started_ns - dispatched_ns) + (now_ns - ended_ns)
        seen_ns = min(took_ns, OUTLIER * partition.hand_off_ns)
        learned_ns = partition.hand_off_ns + int(HAND_OFF_WEIGHT * (seen_ns - partition.hand_off_ns))
        partition.hand_off_ns = min(max(learned_ns, partition.least_hand_off_ns), MAX_HAND_OFF_NS)
    partition.last_end_ns = ended_ns
    return took_ns


def decay_corrections(model: ModelState) -> None:
    """Let the corrections that no batch confirms decay: those of estimates, and the hand-offs of idle partitions."""
    for group in model.groups:
        for partition in group.partitions.values():
            if not partition.batches:
                partition.hand_off_ns = (partition.hand_off_ns + partition.least_hand_off_ns) // 2
    for estimate in model.estimates.values():
        estimate.decay()
        _update_quickest(model)
    outdate_pipelines(model)


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
