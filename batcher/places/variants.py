"""Variants: which models of their families run the stages of a request that asks for an accuracy.

The first of the candidates that can do it in time is taken (INFaaS, ATC '21, model selection). Here candidates come in
the order of their costs: none is dearer than the request needs, and the rest of a partition's time is left to others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sluice.batcher.state import ModelState, PipelineState, StageState
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
    by the accuracy that was asked for.
    """

    predictions: int
    ordered: list[list[tuple[float, ModelState | None]]]
    choices: dict[float, list[Choice]]


class Variants:
    """Chooses variants among all `models`, by key; remembers its choices until predictions change."""

    def __init__(self, models: Mapping[str, ModelState]) -> None:
        self._models = models
        self._known: dict[PipelineState, _Known] = {}

    def choices(self, pipeline: PipelineState, min_accuracy: float) -> list[Choice]:
        """The models to try for the stages of a request, the cheapest first; empty if a stage has none.

        Variants count that are accurate enough and on a partition that is up.
        """
        known = self._known.get(pipeline)
        if known is None or known.predictions != pipeline.predicted_changes:
            ordered = [self._ordered(stage) for stage in pipeline.stages]
            known = self._known[pipeline] = _Known(pipeline.predicted_changes, ordered, {})
        choices = known.choices.get(min_accuracy)
        if choices is None:
            if len(known.choices) >= KNOWN:
                del known.choices[next(iter(known.choices))]
            choices = known.choices[min_accuracy] = _choose(known.ordered, min_accuracy)
        return choices

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
