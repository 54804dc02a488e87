"""Variants: which models of their families run the stages of a request that asks for an accuracy.

The first of the candidates that can do it in time is taken (INFaaS, ATC '21, model selection). Here candidates come in
the order of their costs: none is dearer than the request needs, and the rest of a partition's time is left to others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sluice.batcher.state import ModelState, PartitionState, PipelineState, StageState
from sluice.models.units import INFINITE_NS

TRIED = 3
"""The variants of a stage that are tried for a request: INFaaS looks at three candidates, or a few more."""
KNOWN = 16
"""The accuracies that are remembered for a pipeline: clients ask for few different ones."""

Choice = Sequence[ModelState | None]
"""A model for each stage; None for a combiner."""


class _Known(NamedTuple):
    """The candidates of a pipeline while its predictions stay the same.

    `ordered` are by stage the variants that a partition holds, with their accuracies, the cheapest first. `choices` are
    by the accuracy that was asked for, and so are those `to_load`.
    """

    predictions: int
    ordered: list[list[tuple[float, ModelState | None]]]
    choices: dict[float, list[Choice]]
    to_load: dict[float, list[Choice]]


class Variants:
    """Chooses variants among all `models`, by key; remembers its choices until predictions change.

    `partitions` are all partitions, by name.
    """

    def __init__(self, models: Mapping[str, ModelState], partitions: Mapping[str, PartitionState]) -> None:
        self._models = models
        self._partitions = partitions
        self._known: dict[PipelineState, _Known] = {}

    def choices(self, pipeline: PipelineState, min_accuracy: float) -> list[Choice]:
        """The models to try for the stages of a request, the cheapest first; empty if a stage has none.

        Variants count that are accurate enough and on a partition that is up.
        """
        known = self._look_up(pipeline)
        choices = known.choices.get(min_accuracy)
        if choices is None:
            choices = _choose(known.ordered, min_accuracy)
            _remember(known.choices, min_accuracy, choices)
        return choices

    def to_load(self, pipeline: PipelineState, min_accuracy: float) -> list[Choice]:
        """As `choices`, with variants that no partition holds: those that are expected to be the cheapest come first.

        A stage takes one of them only where no partition holds a variant that is accurate enough.
        """
        known = self._look_up(pipeline)
        choices = known.to_load.get(min_accuracy)
        if choices is None:
            ordered = [
                variants if any(accuracy >= min_accuracy for accuracy, _ in variants) else self._all(stage)
                for stage, variants in zip(pipeline.stages, known.ordered, strict=True)
            ]
            choices = _choose(ordered, min_accuracy)
            _remember(known.to_load, min_accuracy, choices)
        return choices

    def _look_up(self, pipeline: PipelineState) -> _Known:
        known = self._known.get(pipeline)
        if known is None or known.predictions != pipeline.predicted_changes:
            ordered = [self._ordered(stage) for stage in pipeline.stages]
            known = self._known[pipeline] = _Known(pipeline.predicted_changes, ordered, {}, {})
        return known

    def most_accurate(self, pipeline: PipelineState) -> Choice:
        """The models that the stages are configured with: of a family, the most accurate."""
        configured = [stage.config.model for stage in pipeline.stages]
        return [None if key is None else self._models[key] for key in configured]

    def forget(self, pipeline: PipelineState) -> None:
        """Forget a pipeline that is gone."""
        self._known.pop(pipeline, None)

    def _ordered(self, stage: StageState) -> list[tuple[float, ModelState | None]]:
        """The variants of a stage that a partition holds, with their accuracies; one that has no choice is enough."""
        config = stage.config
        if not config.accuracies:
            return [(1.0, stage.model)] if stage.model is None or stage.model.served else []
        models = [self._models[key] for key in config.variants]
        served = [each for each in zip(config.accuracies, models, strict=True) if each[1].served]
        return [(accuracy, model) for accuracy, model in sorted(served, key=lambda each: _row_cost(each[1]))]

    def _all(self, stage: StageState) -> list[tuple[float, ModelState | None]]:
        """All variants of a stage; of those whose costs are not known, the least accurate come first."""
        config = stage.config
        if not config.accuracies:
            return [(1.0, stage.model)]
        models = [self._models[key] for key in config.variants]
        costs = [self._expected_cost(model) for model in models]
        order = sorted(zip(costs, config.accuracies, range(len(models)), strict=True))
        return [(accuracy, models[number]) for _, accuracy, number in order]

    def _expected_cost(self, model: ModelState) -> float:
        """As `_row_cost`, on any partition of a kind that the speed of the model is known for; O(partitions)."""
        prices: dict[str, float] = {}
        for partition in self._partitions.values():
            if partition.kind in model.estimates:
                prices[partition.kind] = min(partition.price, prices.get(partition.kind, partition.price))
        return min([price * model.row_ns(kind) for kind, price in prices.items()], default=float(INFINITE_NS))


def _remember(known: dict[float, list[Choice]], min_accuracy: float, choices: list[Choice]) -> None:
    if len(known) >= KNOWN:
        del known[next(iter(known))]
    known[min_accuracy] = choices


def _choose(ordered: list[list[tuple[float, ModelState | None]]], min_accuracy: float) -> list[Choice]:
    """The first `TRIED` variants of each stage that are accurate enough, joined to choices for all stages."""
    candidates = []
    for variants in ordered:
        enough = [model for accuracy, model in variants if accuracy >= min_accuracy]
        if not enough:
            return []
        candidates.append(enough[:TRIED])
    count = max(map(len, candidates))
    return [[each[min(rank, len(each) - 1)] for each in candidates] for rank in range(count)]


def _row_cost(model: ModelState) -> float:
    """The cost of a row in batches under load, on the cheapest kind of partition that is up."""
    costs = [group.price * model.row_ns(group.kind) for group in model.groups if group.ready_count]
    return min(costs, default=float(INFINITE_NS))
