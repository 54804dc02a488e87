"""The chosen pipeline in the document: its history, its stages, and its plan beside what is seen."""

import math
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import orjson

from sluice.batcher.interface.plan_data import StagePlan, kind_over
from sluice.batcher.state import PartitionState
from sluice.gateway.overview.counters import Track
from sluice.gateway.overview.history import HISTORY_STEPS, History, HistorySteps
from sluice.gateway.overview.pieces import MAX_TEXT, cut, rounded
from sluice.gateway.overview.plans import PlanBoard, rule_in_force
from sluice.gateway.overview.sampled import Sampled
from sluice.gateway.overview.shape import kind_of, outputs_of, stage_shape
from sluice.models.pipelines.pipeline import REQUEST, Pipeline
from sluice.models.spec import public_key
from sluice.models.units import ns_to_ms

MAX_STAGES = 24
"""Stages of a plan that are shown."""
_STAGES_BYTES = 4_500
_OUTPUTS_BYTES = 2_000


class Detail:
    """Writes the chosen pipeline from what was sampled."""

    def __init__(self, sampled: Sampled, plans: PlanBoard) -> None:
        self._sampled = sampled
        self._plans = plans

    def json(self, about: dict[str, Any], name: str, since_s: float | None, room: int) -> Generator[None, None, bytes]:
        """A pipeline, and `about` it; its history since a time of day, as far as it fits into `room` bytes.

        It is written in slices.
        """
        pipeline, track = self._sampled.served[name], self._sampled.recorder.tracks.get(name)
        stages = list(self._stages(pipeline, track))
        shown = cut(map(orjson.dumps, stages), _STAGES_BYTES)
        outputs = cut(map(orjson.dumps, outputs_of(pipeline)), _OUTPUTS_BYTES)
        plan = orjson.dumps(self._plan(pipeline, track, stages))
        begin = orjson.dumps({"name": name, "kind": kind_of(pipeline), "objective_ms": pipeline.slo_ms, **about})[:-1]
        yield
        room -= len(begin) + len(shown.json) + len(plan) + len(outputs.json) + 100
        return b'%b,"history":%b,"stages":%b,"stages_more":%d,"outputs":%b,"plan":%b}' % (
            begin,
            self._history(track, since_s, room),
            shown.json,
            shown.left_out,
            outputs.json,
            plan,
        )

    def _history(self, track: Track | None, since_s: float | None, room: int) -> bytes:
        last = self._sampled.step
        first = max(self._sampled.first_step, last - HISTORY_STEPS) + 1
        if since_s is not None:
            first = max(first, math.floor(since_s) + 1)
        history = None if track is None else track.history
        history = History(self._sampled.first_step) if history is None else history
        while True:
            steps = history.steps(first, last)
            json = orjson.dumps({"start_s": steps.first - 1, "step_s": 1, **_columns(steps)})
            length = last - steps.first + 1
            if len(json) <= room or length <= 0:
                return json
            first = last - min(length - 1, int(0.9 * length * room / len(json))) + 1

    def _stages(self, pipeline: Pipeline, track: Track | None) -> Iterator[dict[str, Any]]:
        state = self._sampled.state(pipeline)
        window_s = self._sampled.recorder.window_s
        rows = track.window.stage_rows if track is not None and len(track.window.stage_rows) else []
        roots = [
            rows[index]
            for index, stage in enumerate(pipeline.stages)
            if index < len(rows) and stage.when is None and all(each.stage == REQUEST for each in stage.inputs.values())
        ]
        whole = max(roots, default=0)
        dispatcher = self._sampled.sources.scheduler.dispatcher
        for index, stage in enumerate(pipeline.stages):
            shape = stage_shape(stage)
            model = None if state is None or index >= len(state.stages) else state.stages[index].model
            ran = rows[index] if index < len(rows) else 0
            work = None
            if model is not None:
                shape["model"] = public_key(model.config.key)
                work = self._sampled.recorder.model(shape["model"])
            yield {
                **shape,
                "rows_per_s": rounded(ran / window_s) if window_s else None,
                "share": rounded(ran / whole) if whole else None,
                "mean_batch": None if work is None else rounded(work.mean_rows),
                "queued_requests": 0 if model is None else dispatcher.queue_depth(model.config.key),
                "latency_ms": None if work is None else rounded(work.mean_ms),
            }

    def _plan(self, pipeline: Pipeline, track: Track | None, seen: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """The plan of a pipeline beside what is seen; None for one that the scheduler does not know yet."""
        found = self._plans.of(pipeline)
        if found is None:
            return None
        plan, predicted = found.plan, found.forecast
        if plan is None:
            return {"in_force": False, "reason": found.reason[:MAX_TEXT]}
        figures = predicted.configuration if predicted is not None and predicted.is_of(plan) else None
        window = None if track is None or not track.window else track.window
        stages = []
        for index, (stage, ran) in enumerate(zip(plan.stages, seen, strict=False)):
            answer = None if figures is None else figures.stages[index]
            arithmetic = None if answer is None else answer.arithmetic
            stages.append(
                {
                    "stage": ran["name"],
                    "batch": stage.batch,
                    "kinds": [] if not stage.kind else [self._on_kind(stage)],
                    "predicted_ms": None if arithmetic is None else rounded(arithmetic.compute_ms),
                    "seen_ms": ran["latency_ms"],
                    "predicted_share": None if answer is None else rounded(answer.probability),
                    "seen_share": ran["share"],
                    "rule": rule_in_force(stage),
                }
            )
        return {
            "in_force": True,
            "reason": found.reason,
            "planner": self._sampled.sources.scheduler.spec.planner.name,
            "built_s": self._sampled.day_s(found.since_ns),
            "rate": rounded(found.rate),
            "highest_rate": None if predicted is None else rounded(predicted.highest_rate),
            "headroom": rounded(self._plans.headroom(pipeline)),
            "cost_per_1000": rounded(1000 * plan.cost),
            "predicted_p50_ms": None if figures is None else rounded(figures.p50_ms),
            "predicted_p99_ms": rounded(ns_to_ms(plan.latency_ns) if figures is None else figures.p99_ms),
            "seen_p50_ms": None if window is None else rounded(window.quantile_ms(0.5)),
            "seen_p99_ms": None if window is None else rounded(window.quantile_ms(0.99)),
            "stages": stages[:MAX_STAGES],
            "stages_more": max(len(stages) - MAX_STAGES, 0),
        }

    def _on_kind(self, stage: StagePlan) -> dict[str, Any]:
        """Where a stage is planned to run: the partitions of the kind that are up and hold the model."""
        partitions = self._sampled.sources.scheduler.dispatcher.fleet.partitions.values()
        ready = sum(each.ready and _kind(each) == stage.kind and stage.model in each.models for each in partitions)
        return {"kind": stage.kind, "partitions": ready, "batch": stage.batch}


def _kind(partition: PartitionState) -> str:
    """The kind of a partition, as plans name it."""
    return kind_over(partition.kind, partition.link.text) if partition.link.distance else partition.kind


def _columns(steps: HistorySteps) -> dict[str, Any]:
    return {name: getattr(steps, name) for name in steps._fields[1:]}
