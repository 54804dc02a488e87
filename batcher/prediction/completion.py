"""Completion: when a request that arrives now is predicted to be complete."""

from collections.abc import Callable

from sluice.batcher.fleet.partition_group import start_after_backlog_ns
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.prediction.fair_share import rows_ahead
from sluice.batcher.queues.fair_queue import Queue
from sluice.batcher.queues.progress import request_batch_key
from sluice.batcher.queues.queue_table import QueueTable
from sluice.batcher.state import PartitionGroup, PipelineState

LITTLE = 0.25
"""A pipeline's share of a model counts once a request waits for others for this share of its remaining time."""

Soonest = Callable[[PartitionGroup, int, int], int]
"""When an entry could start in a group, given its stage's deadline and the present; all in ns."""


def completion_ns(
    event: RequestArrived, pipeline: PipelineState, queues: QueueTable, now_ns: int, soonest_ns: Soonest | None = None
) -> int:
    """When the request is predicted to be complete.

    Each stage runs after the work that is promised before it on its groups; the stages after it do not wait. With
    `soonest_ns`, it runs before work in later reserved slots.
    """
    done_ns = now_ns + pipeline.critical_path_ns
    for stage, model, rest_ns, row_ns in pipeline.steps:
        groups = model.groups
        start_ns = start_after_backlog_ns(groups[0], now_ns)
        if soonest_ns is not None:
            order_ns = event.deadline_ns - stage.remaining_path_ns
            start_ns = min([soonest_ns(group, order_ns, now_ns) for group in groups])
        elif len(groups) > 1:
            start_ns = min(start_ns, *[start_after_backlog_ns(group, now_ns) for group in groups[1:]])
        if not stage.is_keyed or model.mixes_keys:
            queue: Queue | None = queues.default[model]
        elif stage.config.source_keyed:
            queue = None
        else:
            queue = queues.find((model.config.key, request_batch_key(event, stage.config)))
        if queue is not None:
            order_ns = event.deadline_ns - stage.remaining_path_ns
            if (
                pipeline.shared
                and queue.live
                and start_ns - now_ns > LITTLE * (left_ns := event.deadline_ns - rest_ns - now_ns)
                and queue.flows
            ):
                ahead = rows_ahead(pipeline, model, queue, order_ns, max(left_ns, 0), now_ns)
                start_ns += int((ahead - queue.rows) * row_ns)
            elif order_ns < queue.last_ns or queue.late:
                if model.by_deadline:
                    start_ns -= int(queue.rows * queue.behind(order_ns) // max(queue.live, 1) * row_ns)
                else:
                    start_ns -= int(queue.rows_behind(event.priority) * row_ns)
        if start_ns + rest_ns > done_ns:
            done_ns = start_ns + rest_ns
    return done_ns
