"""A request by itself: its stages run in parallel as far as there are partitions for them."""

from collections.abc import Callable, Sequence

from sluice.batcher.state import ModelState, PartitionGroup, StageState

Span = tuple[int, int]
"""When a stage begins and ends, in nanoseconds from the request's arrival."""


def unloaded_run(
    stages: Sequence[StageState], in_the_way: Sequence[bool], took_ns: Callable[[ModelState, PartitionGroup], int]
) -> list[Span]:
    """The span of each stage: it starts as early as possible, where it ends first, in the order of the list.

    Only stages `in_the_way` delay others. Stages of the same model that can begin at the same time run in one batch if
    the model batches. Only running partitions count, or all partitions of a model if none is running.
    O(stages^2 * groups).
    """
    spans: list[Span] = []
    free_ns: dict[PartitionGroup, list[int]] = {}
    together: dict[tuple[ModelState, int], Span] = {}
    for stage, counts in zip(stages, in_the_way, strict=True):
        ready_ns = max((spans[source][1] for source in stage.waits_for), default=0)
        model = stage.model
        if model is None or not model.groups:
            spans.append((ready_ns, ready_ns))
            continue
        span = together.get((model, ready_ns)) if model.config.max_batch > 1 else None
        if span is None:
            span, hosts, host = min(
                (
                    _soonest(free_ns, group, len(stages), ready_ns, took_ns(model, group))
                    for group in [group for group in model.groups if group.ready_count] or model.groups
                ),
                key=lambda found: found[0][1],
            )
            if counts:
                hosts[host] = span[1]
                together[model, ready_ns] = span
        spans.append(span)
    return spans


def _soonest(
    free_ns: dict[PartitionGroup, list[int]], group: PartitionGroup, most: int, ready_ns: int, took_ns: int
) -> tuple[Span, list[int], int]:
    """The span of a stage on a group, and its partition: of the free ones, the last to become free."""
    if group not in free_ns:
        free_ns[group] = [0] * min(group.counted, most)
    hosts = free_ns[group]
    host = min(range(len(hosts)), key=lambda host: (max(hosts[host], ready_ns), -hosts[host]))
    begin_ns = max(hosts[host], ready_ns)
    return (begin_ns, begin_ns + took_ns), hosts, host
