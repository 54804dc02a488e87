"""The cost of a request: the price of the time that batches of its own would take of their partitions.

Batches that it shares cost less, but nobody can count on that.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.places.search import Groups
from sluice.batcher.state import ModelState, PartitionGroup, PipelineState
from sluice.models.units import NS_PER_S


def stage_cost(model: ModelState, group: PartitionGroup, rows: int) -> float:
    """The cost of a stage of `rows` rows by itself."""
    return group.price * model.estimates[group.kind].expected_ns(rows) / NS_PER_S


def cheapest_groups(
    event: RequestArrived, pipeline: PipelineState, models: Sequence[ModelState | None] = ()
) -> tuple[list[Groups | None], float]:
    """The cheapest group for each stage, and what they cost together, if the `models` run them (empty: their own).

    Where the batch policy chooses the partition, the dearest group counts.
    """
    found: list[Groups | None] = []
    total = 0.0
    for stage in pipeline.stages:
        model = models[stage.index] if models else stage.model
        if model is None:
            found.append(None)
            continue
        costs = {group: stage_cost(model, group, event.rows) for group in model.groups}
        if model.by_deadline:
            group = min(costs, key=costs.__getitem__)
            found.append([group])
            total += costs[group]
        else:
            found.append(model.groups)
            total += max(costs.values())
    return found, total


def most_cost(pipeline: PipelineState, rows: int) -> float:
    """The most that a request costs, by itself on the dearest partitions, if its stages compete as much as they may."""
    total = 0.0
    for stage in pipeline.stages:
        model, compete = stage.model, stage.config.compete
        if model is not None and model.groups:
            copies = 1 if compete is None else compete.copies
            total += copies * max([stage_cost(model, group, rows) for group in model.groups])
    return total


def affordable_groups(event: RequestArrived, pipeline: PipelineState) -> list[Groups | None]:
    """The groups of each stage that keep the request's cost within its limit if all others are the cheapest."""
    _, least = cheapest_groups(event, pipeline)
    assert event.max_cost is not None, "only requests with a limit are looked at"
    spare = event.max_cost - least
    found: list[Groups | None] = []
    stages = sum(stage.model is not None for stage in pipeline.stages)
    for stage in pipeline.stages:
        model = stage.model
        if model is None or not model.by_deadline:
            found.append(None if model is None else model.groups)
            continue
        costs = {group: stage_cost(model, group, event.rows) for group in model.groups}
        most = min(costs.values()) + spare / stages
        found.append([group for group, cost in costs.items() if cost <= most])
    return found
