"""The chosen pipeline in the document: its history, its stages, and its plan beside what is seen."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from sluice.batcher.interface.plan_data import StagePlan
from sluice.gateway.overview.counters import HISTORY_STEPS, Step, Track
from sluice.gateway.overview.pieces import MAX_TEXT, cut, rounded
from sluice.gateway.overview.plans import PlanBoard
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

    def json(self, about: dict[str, Any], name: str, since_s: float | None, room: int) -> bytes:
        """A pipeline, and `about` it; its history since a time of day, as far as it fits into `room` bytes."""
        pipeline, track = self._sampled.served[name], self._sampled.recorder.tracks.get(name)
        stages = list(self._stages(pipeline, track))
        shown = cut(map(orjson.dumps, stages), _STAGES_BYTES)
        outputs = cut(map(orjson.dumps, outputs_of(pipeline)), _OUTPUTS_BYTES)
        plan = orjson.dumps(self._plan(pipeline, track, stages))
        begin = orjson.dumps({"name": name, "kind": kind_of(pipeline), "objective_ms": pipeline.slo_ms, **about})[:-1]
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
        first = max(self._sampled.first_step, self._sampled.step - HISTORY_STEPS) + 1
        if since_s is not None:
            first = max(first, math.floor(since_s) + 1)
        last = self._sampled.step
        steps: Iterable[Step] = () if track is None or track.history is None else track.history
        kept = [each for each in steps if each.number >= first]
        while True:
            json = orjson.dumps(_series(kept, first, last))
            if len(json) <= room or first >= last:
                return json
            first += max((last - first) // 4, 1)
            kept = [each for each in kept if each.number >= first]

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
        plan, told = found.plan, found.forecast
        if plan is None:
            return {"in_force": False, "reason": found.reason[:MAX_TEXT]}
        figures = told.configuration if told is not None and told.is_of(plan) else None
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
                }
            )
        return {
            "in_force": True,
            "reason": found.reason,
            "built_s": self._sampled.day_s(found.since_ns),
            "rate": rounded(found.rate),
            "highest_rate": None if told is None else rounded(told.highest_rate),
            "headroom": None if told is None else rounded(told.headroom(found.rate)),
            "cost_per_1000": rounded(1000 * plan.cost),
            "predicted_p50_ms": None if figures is None else rounded(figures.p50_ms),
            "predicted_p99_ms": rounded(ns_to_ms(plan.latency_ns)),
            "seen_p50_ms": None if window is None else rounded(window.quantile_ms(0.5)),
            "seen_p99_ms": None if window is None else rounded(window.quantile_ms(0.99)),
            "stages": stages[:MAX_STAGES],
            "stages_more": max(len(stages) - MAX_STAGES, 0),
        }

    def _on_kind(self, stage: StagePlan) -> dict[str, Any]:
        """Where a stage is planned to run: the partitions of the kind that are up and hold the model."""
        partitions = self._sampled.sources.scheduler.dispatcher.fleet.partitions.values()
        ready = sum(each.ready and each.kind == stage.kind and stage.model in each.models for each in partitions)
        return {"kind": stage.kind, "partitions": ready, "batch": stage.batch}


def _series(steps: Sequence[Step], first: int, last: int) -> dict[str, Any]:
    """The history from one step to another; nothing ended in the steps that are missing."""
    length = last - first + 1
    counts = [[0] * length for _ in range(5)]
    p50: list[float | None] = [None] * length
    p99: list[float | None] = [None] * length
    for step in steps:
        at = step.number - first
        for series, count in zip(counts, step.ended, strict=True):
            series[at] = count
        p50[at], p99[at] = rounded(step.p50_ms, 3), rounded(step.p99_ms, 3)
    good, late, refused, failed, cancelled = counts
    return {
        "start_s": first - 1,
        "step_s": 1,
        "good": good,
        "late": late,
        "refused": refused,
        "failed": failed,
        "cancelled": cancelled,
        "p50_ms": p50,
        "p99_ms": p99,
    }
