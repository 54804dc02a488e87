"""The wait that a request of a pipeline would have if it arrived now; nothing is changed by asking."""

from sluice.batcher.fleet.partition_group import start_after_backlog_ns
from sluice.batcher.state import ModelState, PipelineState
from sluice.models.units import INFINITE_NS


def predicted_wait_ns(pipeline: PipelineState, now_ns: int) -> int | None:
    """The time that a request which arrived now would take beyond that on idle partitions, behind all that is planned.

    That is the longest wait of the stages at which requests have to wait; to join an open batch can be quicker. None
    while a model of these stages is on no partition. O(stages * partitions).
    """
    steps = pipeline.steps
    if not steps:  # before its first request
        steps = [(stage, stage.model, pipeline.critical_path_ns) for stage in pipeline.roots if stage.model is not None]
    done_ns = idle_ns = now_ns + pipeline.critical_path_ns
    for _, model, rest_ns in steps:
        start_ns = _start_ns(model, now_ns)
        if start_ns >= INFINITE_NS:
            return None
        done_ns = max(done_ns, start_ns + rest_ns)
    return done_ns - idle_ns


def _start_ns(model: ModelState, now_ns: int) -> int:
    start_ns = INFINITE_NS
    for group in model.groups:
        if group.partitions:
            start_ns = min(start_ns, start_after_backlog_ns(group, now_ns))
    return start_ns
