"""The document: what the server does now, in at most MAX_BYTES of JSON.

A tick takes the counters and writes the parts that all viewers share, in slices. A call then only puts the parts
together, and those that depend on the question are kept for others who ask the same until the next tick.
"""

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Any, NamedTuple

import orjson

from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.plan_data import StagePlan
from sluice.batcher.places.outlook import next_batches
from sluice.batcher.state import PartitionState, PipelineState
from sluice.gateway.observability.explanation import explain
from sluice.gateway.observability.trace import Trace
from sluice.gateway.overview.counters import HISTORY_STEPS, Recorder, Step, Track, Window
from sluice.gateway.overview.pieces import cut, exhaust, rounded
from sluice.gateway.overview.plans import Forecast, forecast, planned
from sluice.gateway.overview.shape import kind_of, outputs_of, public_name, stage_shape
from sluice.gateway.overview.sources import Sources
from sluice.gateway.overview.timeline import Bar, Timeline
from sluice.gateway.partitions.inventory import Enforcement
from sluice.gateway.version import is_compiled
from sluice.models.pipelines.pipeline import PERCENTILE, REQUEST, Pipeline
from sluice.models.spec import public_key
from sluice.models.units import NS_PER_S, NS_PER_US, ns_to_ms

MAX_BYTES = 20_000
MAX_PIPELINES = 50
MAX_PARTITIONS = 32
MAX_TROUBLES = 20
MAX_REASONS = 5
MAX_STAGES = 24
MAX_RESIDENT = 4
MAX_PLANNED = 3
"""Planned batches of a partition that are shown."""
MOST_BARS, LEAST_BARS = 240, 96
"""Bars of a step: fewer where many pipelines are listed."""
FIRST_BARS = 128
"""Bars of a document that says nothing of those before."""
MAX_TEXT = 300
OVERLOAD_SHARE = 0.01
"""The share of requests that are refused from which the server counts as overloaded."""
_OVERLOAD = (
    Outcome.REJECTED_DEADLINE,
    Outcome.REJECTED_QUEUE_FULL,
    Outcome.REJECTED_MEMORY,
    Outcome.EVICTED_DEADLINE,
)
_OUTCOMES = tuple(Outcome)

_STAGES_BYTES = 4_500
_PARTITIONS_BYTES = 4_000
_TROUBLES_BYTES = 3_000
_NOT_SERVED_BYTES = 1_200
_BARS_BYTES = 7_000
_FEW_PIPELINES_BYTES = 2_500
"""Bytes that are kept for the list of pipelines before the history and the timeline take theirs."""
_STATIC_STEPS = 10
"""Steps after which is looked again at what seldom changes."""


class Question(NamedTuple):
    """What a viewer asks for: the details of a `pipeline` ("": the busiest), and what it has not seen yet.

    Steps of the history that ended after `since_s` (of the time of day), and bars with a number above `bars_since`;
    None: all that there are. Without `explains`, no requests are shown.
    """

    pipeline: str = ""
    since_s: float | None = None
    bars_since: int | None = None
    explains: bool = True


class Reply(NamedTuple):
    """A document, and the question that asks for what comes after it."""

    body: bytes
    following: Question


class _Planned(NamedTuple):
    """A batch that a partition has yet to start."""

    partition: str
    model: str
    start_ns: int
    length_ns: int
    rows: int


class _Shared(NamedTuple):
    """The parts of a tick that all documents have."""

    now_s: float
    head: bytes
    pipelines: Sequence[bytes]
    listed_out: int
    partitions: Sequence[bytes]
    partition_names: Sequence[str]
    partitions_out: int
    running: Sequence[Bar]
    planned: Sequence[_Planned]
    troubles: Sequence[bytes]
    not_served: Sequence[bytes]


class _Drawn(NamedTuple):
    """The parts of a timeline as JSON."""

    about: bytes
    models: bytes
    bars: Sequence[bytes]
    planned: bytes

    @property
    def other_bytes(self) -> int:
        """The bytes of all that is not a bar."""
        return len(self.about) + len(self.models) + len(self.planned) + 60


class Overview:
    """Samples a server and writes documents about it. It reads no clock: ticks pass the time in."""

    def __init__(self, sources: Sources, started_day_ns: int) -> None:
        self._sources = sources
        self._started_s = round(started_day_ns / NS_PER_S, 3)
        self._recorder = Recorder(sources.meters)
        self.timeline = Timeline(MOST_BARS)
        self._first_step = 0
        self.step = 0
        self._offset_ns = 0
        self._served: dict[str, Pipeline] = {}
        self._served_of: object = None
        self._order: list[str] = []
        self._listed: list[str] = []
        self._chosen: dict[str, int] = {}
        self._explained: dict[int, bytes] = {}
        self._forecasts: dict[str, Forecast] = {}
        self._memory: dict[str, tuple[object, int]] = {}
        self._not_served: list[bytes] = []
        self._shared: _Shared | None = None
        self._replies: dict[Question, Reply] = {}
        self._bars: dict[int | None, _Drawn] = {}
        self._drawn_to = 0

    @property
    def draining(self) -> bool:
        """True if the server is stopping."""
        return self._sources.registry.draining

    # -- sampling

    def begin(self, now_ns: int, day_ns: int) -> Iterator[None]:
        """Take the counters that the first step is compared with; `day_ns` is the time of day."""
        self._first_step = self.step = day_ns // NS_PER_S
        self._offset_ns = day_ns - now_ns
        self._find_served()
        yield from self._recorder.begin(now_ns)
        yield from self._share(now_ns)

    def tick(self, now_ns: int, day_ns: int) -> Iterator[None]:
        """End the step that contains a time of day, and write the parts that all documents have."""
        self.step = max(day_ns // NS_PER_S, self.step + 1)
        self._find_served()
        self._chosen = {name: step for name, step in self._chosen.items() if self.step - step < HISTORY_STEPS}
        models = {
            public_key(key)
            for name in self._chosen
            if name in self._served
            for stage in self._served[name].stages
            for key in stage.models
        }
        self.timeline.limit = max(MOST_BARS - 4 * min(len(self._order), MAX_PIPELINES), LEAST_BARS)
        self.timeline.end_step()
        yield from self._recorder.sample(self.step, now_ns, self._chosen, models)
        yield from self._share(now_ns)

    def drifted(self, now_ns: int, day_ns: int) -> bool:
        """True if the time of day has moved against the clock, as when the machine has slept: steps would be wrong."""
        return abs(day_ns - now_ns - self._offset_ns) > NS_PER_S // 2

    def _find_served(self) -> None:
        serving = self._sources.registry.serving
        if serving is not self._served_of:
            self._served_of = serving
            self._served = {public_name(pipeline): pipeline for pipeline in serving.values()}
            self._order = sorted(self._served, key=lambda name: (len(self._served[name].stages) < 2, name))

    def _share(self, now_ns: int) -> Iterator[None]:
        yield from self._find_listed()
        rows: list[bytes] = []
        for name in self._listed:
            rows.append(orjson.dumps(self._row(name)))
            yield
        names = self._sources.inventory.names[:MAX_PARTITIONS]
        partitions: list[bytes] = []
        running: list[Bar] = []
        planned: list[_Planned] = []
        for name in names:
            partitions.append(orjson.dumps(self._partition(name)))
            partition = self._sources.scheduler.dispatcher.fleet.partitions[name]
            running += _running(partition)
            planned += [_Planned(name, *each) for each in next_batches(partition, now_ns, MAX_PLANNED)]
            yield
        if self.step % _STATIC_STEPS == 0 or self._shared is None:
            yield from self._list_not_served()
        troubles: list[bytes] = []
        traces = self._sources.traces.missed(MAX_TROUBLES)
        known = self._explained
        self._explained = {}
        for trace in traces:
            number = trace.arrival.request
            troubles.append(known.get(number) or orjson.dumps(self._trouble(trace)))
            self._explained[number] = troubles[-1]
            yield
        queued_rows = yield from self._queued_rows()
        head = self._head(now_ns, queued_rows)
        out = len(self._sources.inventory.names) - len(names)
        self._shared = _Shared(
            round((now_ns + self._offset_ns) / NS_PER_S, 3),
            head,
            rows,
            len(self._served) - len(rows),
            partitions,
            names,
            out,
            running,
            planned,
            troubles,
            self._not_served,
        )
        self._replies, self._bars = {}, {}
        yield from self._draw(self._drawn_to, self._shared)
        self._drawn_to = self.timeline.last

    def _find_listed(self) -> Iterator[None]:
        """Find the pipelines that are listed: those with most requests in the window, then the others in order."""
        served = self._served
        active: list[tuple[int, str]] = []
        for name, track in self._recorder.tracks.items():
            if track.window and name in served:
                active.append((-track.window.requests, name))
            yield
        busiest = [name for _, name in nsmallest(MAX_PIPELINES, active)]
        yield
        shown = set(busiest)
        idle = (name for name in self._order if name not in shown)
        self._listed = [*busiest, *islice(idle, MAX_PIPELINES - len(busiest))]

    def _queued_rows(self) -> Generator[None, None, int]:
        """The rows that wait for models, counted in slices."""
        queued = 0
        for number, model in enumerate(list(self._sources.scheduler.dispatcher.models.values())):
            queued += model.outstanding
            if number % 64 == 63:
                yield
        for partition in self._sources.scheduler.dispatcher.fleet.partitions.values():
            queued -= sum(batch.rows for batch in partition.batches)
        return max(queued, 0)

    # -- parts that all documents have

    def _head(self, now_ns: int, queued_rows: int) -> bytes:
        sources, window = self._sources, self._recorder.totals
        state, reasons = self._state()
        server = {
            "name": sources.registry.server_name,
            "version": sources.registry.server_version,
            "compiled": is_compiled(),
            "now_s": round((now_ns + self._offset_ns) / NS_PER_S, 3),
            "started_s": self._started_s,
            "tick_s": 1.0,
            "state": state,
            "reasons": [reason[:MAX_TEXT] for reason in reasons[:MAX_REASONS]],
            "front_ends": sources.front_ends,
            "currency": "",
        }
        totals = {**self._rates(window), "in_flight": sources.in_flight(), "queued_rows": queued_rows}
        return b'"server":%b,"totals":%b' % (orjson.dumps(server), orjson.dumps(totals))

    def _rates(self, window: Window | None) -> dict[str, float | None]:
        """The numbers of the strip, and of a row of the list."""
        window_s = self._recorder.window_s
        ended = None if window is None else window.ended

        def per_s(count: int) -> float | None:
            return rounded(count / window_s) if window_s else None

        return {
            "requests_per_s": per_s(ended.total if ended else 0),
            "in_time": rounded(ended.in_time) if ended else None,
            "p50_ms": rounded(window.quantile_ms(0.5)) if window else None,
            "p99_ms": rounded(window.quantile_ms(0.99)) if window else None,
            "late_per_s": per_s(ended.late if ended else 0),
            "refused_per_s": per_s(ended.refused if ended else 0),
            "failed_per_s": per_s(ended.failed if ended else 0),
            "cancelled_per_s": per_s(ended.cancelled if ended else 0),
            "cost_per_1000_good": rounded(window.cost_per_1000_good) if window else None,
        }

    def _state(self) -> tuple[str, list[str]]:
        """The state of the server in a word, and the reasons why it is not ready."""
        sources = self._sources
        inventory, registry = sources.inventory, sources.registry
        if sources.has_failed():
            return "failed", ["the scheduler failed; the server stops"]
        if registry.draining:
            return "draining", ["the server is stopping: it finishes the open requests"]
        down = [name for name in inventory.names if not inventory.is_up(name)]
        reasons = [self._why_down(name) for name in down]
        if not inventory.in_service.is_set():
            return "starting", reasons
        if not registry.server_ready():
            return "degraded", reasons or ["nothing is served"]
        if down:
            return "degraded", reasons
        counts = self._recorder.totals.sums
        refused = {each: counts[_OUTCOMES.index(each)] for each in _OVERLOAD}
        total = self._recorder.totals.ended.total
        if total and sum(refused.values()) > OVERLOAD_SHARE * total:
            most = max(refused, key=refused.__getitem__)
            share = sum(refused.values()) / total
            return "overloaded", [f"{share:.1%} of the requests of the last seconds were refused, most as {most.value}"]
        return "ready", []

    def _why_down(self, name: str) -> str:
        if (quarantined := self._sources.quarantined().get(name)) is not None:
            return f"partition {name} is in quarantine: {quarantined.reason}"
        status = self._sources.inventory.statuses.get(name)
        if status is None:
            return f"Triton server {name} is not reachable"
        return f"partition {name} is down: {status.lost}" if status.lost else f"partition {name} is starting"

    def _row(self, name: str) -> dict[str, Any]:
        pipeline, track = self._served[name], self._recorder.tracks.get(name)
        row = {
            "name": name,
            "kind": kind_of(pipeline),
            **self._rates(track.window if track is not None and track.window else None),
            "objective_ms": pipeline.slo_ms,
            "percentile": self._percentile(pipeline),
            "headroom": rounded(self._headroom(pipeline.key)),
        }
        del row["cancelled_per_s"]
        return row

    def _headroom(self, key: str) -> float | None:
        told, in_force = self._forecasts.get(key), self._sources.scheduler.served.replanner.in_force
        return None if told is None or in_force is None else told.headroom(in_force.observed.rates.get(key, 0.0))

    def _percentile(self, pipeline: Pipeline) -> float:
        state = self._sources.scheduler.pipelines.get(pipeline.key)
        return PERCENTILE if state is None else state.config.percentile

    def _partition(self, name: str) -> dict[str, Any]:
        sources = self._sources
        status, quarantined = sources.inventory.statuses.get(name), sources.quarantined().get(name)
        partition = sources.scheduler.dispatcher.fleet.partitions[name]
        ready = sources.inventory.is_up(name)
        state, reason = "ready", ""
        if quarantined is not None:
            state, reason = "quarantined", quarantined.reason
        elif not ready:
            lost = "" if status is None else status.lost
            state, reason = ("lost", lost) if lost else ("starting", "")
        resident = self._resident(partition)
        limit = self._memory_limit(name)
        held = self._held_bytes(partition)
        running = partition.batches[0] if partition.batches else None
        return {
            "name": name,
            "kind": partition.kind,
            "ready": ready,
            "state": state,
            "reason": reason[:MAX_TEXT],
            "proof": _proof(status),
            "busy": rounded(self._recorder.busy(name)),
            "running": None if running is None else {"model": public_key(running.queue_key[0]), "rows": running.rows},
            "memory_bytes": limit,
            "memory_free_bytes": None if limit is None else max(limit - held, 0),
            "models": len(partition.models),
            "resident": resident,
            "resident_more": len(partition.models) - len(resident),
        }

    def _resident(self, partition: PartitionState) -> list[str]:
        """Some models that a partition holds, those that ran last first."""
        recent = [public_key(key) for key in self.timeline.recent_models(partition.name) if key in partition.models]
        found = dict.fromkeys(recent[:MAX_RESIDENT])
        for key in () if len(found) >= MAX_RESIDENT else sorted(partition.models)[: 2 * MAX_RESIDENT]:
            if len(found) < MAX_RESIDENT:
                found[public_key(key)] = None
        return list(found)

    def _memory_limit(self, name: str) -> int | None:
        limit = next((each.memory_bytes for each in self._sources.scheduler.spec.partitions if each.name == name), 0)
        return limit or None

    def _held_bytes(self, partition: PartitionState) -> int:
        """The memory of the models that a partition holds; counted again from time to time."""
        known = self._memory.get(partition.name)
        if known is None or known[0] is not partition.models or self.step % _STATIC_STEPS == 0:
            models = self._sources.scheduler.dispatcher.fleet.models
            held = sum(models[key].config.memory_on(partition.kind) for key in partition.models)
            known = self._memory[partition.name] = (partition.models, held)
        return known[1]

    def _trouble(self, trace: Trace) -> dict[str, Any]:
        told = explain(trace, trace.ended_ns)
        return {
            "id": told.id[:MAX_TEXT],
            "pipeline": public_key(told.pipeline),
            "outcome": told.outcome,
            "at_s": round((trace.ended_ns + self._offset_ns) / NS_PER_S, 3),
            "total_ms": told.total_ms,
            "deadline_ms": told.deadline_ms,
            "cause": told.cause,
            "sentence": told.sentence[:MAX_TEXT],
        }

    def _list_not_served(self) -> Iterator[None]:
        found: list[bytes] = []
        for name, version, reason in self._sources.registry.not_served():
            if name:
                found.append(orjson.dumps({"name": name, "version": version, "reason": reason[:MAX_TEXT]}))
            yield
        self._not_served = found

    # -- documents

    def reply(self, question: Question) -> Reply:
        """The document for a question, as of the last tick; there must have been one."""
        assert self._shared is not None, "a document needs a tick"
        found = self._replies.get(question)
        if found is None:
            found = self._replies[question] = self._write(question, self._shared)
        return found

    def _write(self, question: Question, shared: _Shared) -> Reply:
        name, asked = self._choose(question.pipeline)
        room = MAX_BYTES - len(shared.head) - 400
        if name:
            self._chosen[name] = self.step
        partitions = cut(shared.partitions, _PARTITIONS_BYTES)
        troubles = cut(shared.troubles if question.explains else (), _TROUBLES_BYTES)
        not_served = cut(shared.not_served, _NOT_SERVED_BYTES)
        room -= len(partitions.json) + len(troubles.json) + len(not_served.json) + _FEW_PIPELINES_BYTES
        chosen = self._pipeline(name, asked, question.since_s, room - 1_000) if name else b"null"
        room -= len(chosen)
        timeline = self._timeline(question.bars_since, shared, min(room, _BARS_BYTES))
        room += _FEW_PIPELINES_BYTES - len(timeline)
        pipelines = cut(shared.pipelines, room)
        body = (
            b'{%b,"pipelines":%b,"pipelines_more":%d,"pipeline":%b,"partitions":%b,"partitions_more":%d,'
            b'"timeline":%b,"troubles":%b,"not_served":%b,"not_served_more":%d}'
        ) % (
            shared.head,
            pipelines.json,
            pipelines.left_out + shared.listed_out,
            chosen,
            partitions.json,
            partitions.left_out + shared.partitions_out,
            timeline,
            troubles.json,
            not_served.json,
            not_served.left_out,
        )
        return Reply(body, question._replace(since_s=float(self.step), bars_since=self.timeline.last))

    def _choose(self, asked: str) -> tuple[str, str]:
        """The name of the pipeline that is shown, and what was asked for if it is not known."""
        if asked in self._served:
            return asked, ""
        latest = self._sources.registry.serving.get((asked, "")) if asked else None
        if latest is not None:
            return public_name(latest), ""
        return next(iter(self._listed), ""), asked[:MAX_TEXT]

    def _pipeline(self, name: str, asked: str, since_s: float | None, room: int) -> bytes:
        pipeline, track = self._served[name], self._recorder.tracks.get(name)
        state = self._sources.scheduler.pipelines.get(pipeline.key)
        stages = cut([orjson.dumps(each) for each in self._stages(pipeline, state, track)], _STAGES_BYTES)
        plan = orjson.dumps(self._plan(pipeline, state, track))
        outputs = cut(map(orjson.dumps, outputs_of(pipeline)), _STAGES_BYTES // 2)
        begin = orjson.dumps(
            {
                "name": name,
                "asked": asked,
                "kind": kind_of(pipeline),
                "objective_ms": pipeline.slo_ms,
                "percentile": self._percentile(pipeline),
            }
        )[:-1]
        room -= len(begin) + len(stages.json) + len(plan) + len(outputs.json) + 100
        return b'%b,"history":%b,"stages":%b,"stages_more":%d,"outputs":%b,"plan":%b}' % (
            begin,
            self._history(track, since_s, room),
            stages.json,
            stages.left_out,
            outputs.json,
            plan,
        )

    def _history(self, track: Track | None, since_s: float | None, room: int) -> bytes:
        first = max(self._first_step, self.step - HISTORY_STEPS) + 1
        if since_s is not None and not math.isnan(since_s):
            first = max(first, math.floor(min(since_s, self.step)) + 1)
        steps: Iterable[Step] = () if track is None or track.history is None else track.history
        kept = [each for each in steps if each.number >= first]
        while True:
            json = orjson.dumps(_series(kept, first, self.step))
            if len(json) <= room or first >= self.step:
                return json
            first += max((self.step - first) // 4, 1)
            kept = [each for each in kept if each.number >= first]

    def _stages(self, pipeline: Pipeline, state: PipelineState | None, track: Track | None) -> Iterator[dict[str, Any]]:
        window_s = self._recorder.window_s
        rows = track.window.stage_rows if track is not None and len(track.window.stage_rows) else []
        roots = [
            rows[index]
            for index, stage in enumerate(pipeline.stages)
            if index < len(rows) and stage.when is None and all(each.stage == REQUEST for each in stage.inputs.values())
        ]
        whole = max(roots, default=0)
        dispatcher = self._sources.scheduler.dispatcher
        for index, stage in enumerate(pipeline.stages):
            shape = stage_shape(stage)
            model = None if state is None or index >= len(state.stages) else state.stages[index].model
            ran = rows[index] if index < len(rows) else 0
            work = None
            if model is not None:
                shape["model"] = public_key(model.config.key)
                work = self._recorder.model(shape["model"])
            yield {
                **shape,
                "rows_per_s": rounded(ran / window_s) if window_s else None,
                "share": rounded(ran / whole) if whole else None,
                "mean_batch": None if work is None else rounded(work.mean_rows),
                "queued_requests": 0 if model is None else dispatcher.queue_depth(model.config.key),
                "latency_ms": None if work is None else rounded(work.mean_ms),
            }

    def _plan(self, pipeline: Pipeline, state: PipelineState | None, track: Track | None) -> dict[str, Any] | None:
        """The plan of a pipeline beside what is seen; None for one that the scheduler does not know yet."""
        if state is None:
            return None
        in_force = self._sources.scheduler.served.replanner.in_force
        plan, reason = planned(in_force, state.config)
        if plan is None or in_force is None:
            return {"in_force": False, "reason": reason[:MAX_TEXT]}
        told = self._forecasts.get(state.config.name)
        rate = in_force.observed.rates.get(state.config.name, 0.0)
        figures = told.configuration if told is not None and told.is_of(plan) else None
        window = None if track is None or not track.window else track.window
        stages = []
        seen = self._stages(pipeline, state, track)
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
            "reason": reason,
            "built_s": round((in_force.since_ns + self._offset_ns) / NS_PER_S, 3),
            "rate": rounded(rate),
            "highest_rate": None if told is None else rounded(told.highest_rate),
            "headroom": None if told is None else rounded(told.headroom(rate)),
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
        partitions = self._sources.scheduler.dispatcher.fleet.partitions.values()
        ready = sum(each.ready and each.kind == stage.kind and stage.model in each.models for each in partitions)
        return {"kind": stage.kind, "partitions": ready, "batch": stage.batch}

    # -- forecasts

    def next_forecast(self) -> Callable[[], Forecast] | None:
        """Computes a forecast that is missing, beside the loop; `take_forecast` is to get it. None if none is missing.

        Pipelines that somebody looks at come first, then the busiest of the others.
        """
        scheduler = self._sources.scheduler
        in_force = scheduler.served.replanner.in_force
        if in_force is None:
            return None
        self._forecasts = {name: each for name, each in self._forecasts.items() if name in scheduler.pipelines}
        for name in (*self._chosen, *self._listed):
            pipeline = self._served.get(name)
            state = None if pipeline is None else scheduler.pipelines.get(pipeline.key)
            if state is None or not state.config.slo_ns:
                continue
            known = self._forecasts.get(state.config.name)
            if known is not None and known.since_ns == in_force.since_ns:
                continue
            plan, _ = planned(in_force, state.config)
            rate = in_force.observed.rates.get(state.config.name, 0.0)
            if plan is not None and (rate or name in self._chosen):
                return partial(forecast, scheduler.spec, in_force, state.config, plan)
        return None

    def take_forecast(self, told: Forecast) -> None:
        """Show a forecast from now on."""
        self._forecasts[told.pipeline] = told

    def _timeline(self, since: int | None, shared: _Shared, room: int) -> bytes:
        """The timeline with the bars that are new since a number, in about so many bytes."""
        found = self._bars.get(since)
        if found is None:
            exhaust(self._draw(since, shared))
            found = self._bars[since]
        shown = cut(found.bars, max(room - found.other_bytes, 0))
        return b'%b,"models":%b,"bars":%b,"bars_more":%d,"planned":%b}' % (
            found.about,
            found.models,
            shown.json,
            shown.left_out + self.timeline.left_out,
            found.planned,
        )

    def _draw(self, since: int | None, shared: _Shared) -> Iterator[None]:
        """Write the bars that are new since a number, the latest first after those that run."""
        timeline = self.timeline
        bars = timeline.bars(since, FIRST_BARS if since is None else MOST_BARS)
        to_ns = round(shared.now_s * NS_PER_S) - self._offset_ns
        from_ns = min([bar.start_ns for bar in (*bars, *shared.running)], default=to_ns)
        from_ns = min(from_ns, to_ns)
        partitions = {name: index for index, name in enumerate(shared.partition_names)}
        models: dict[str, int] = {}

        def model(key: str) -> int:
            return models.setdefault(public_key(key), len(models))

        def place(start_ns: int) -> float:
            return (start_ns - from_ns) // (100 * NS_PER_US) / 10_000

        rows: list[bytes] = []
        for bar in (*shared.running, *reversed(bars)):
            if bar.partition in partitions:
                length_ms = bar.busy_ns // NS_PER_US / 1_000 if bar.number else -1
                about = (partitions[bar.partition], model(bar.model), place(bar.start_ns))
                rows.append(orjson.dumps((bar.batch, *about, length_ms, bar.rows, bar.merged)))
            yield
        planned = [
            (partitions[partition], model(key), place(start_ns), length_ns // NS_PER_US / 1_000, count)
            for partition, key, start_ns, length_ns, count in shared.planned
        ]
        whole = {
            "from_s": round((from_ns + self._offset_ns) / NS_PER_S, 4),
            "to_s": shared.now_s,
            "last": timeline.last,
            "merged": any(bar.merged > 1 for bar in bars),
        }
        self._bars[since] = _Drawn(orjson.dumps(whole)[:-1], orjson.dumps(list(models)), rows, orjson.dumps(planned))


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


def _running(partition: PartitionState) -> list[Bar]:
    """The batch that a partition runs, as a bar without a number."""
    if not partition.batches:
        return []
    batch = partition.batches[0]
    start_ns = max(batch.dispatched_ns, partition.last_end_ns)
    return [Bar(0, batch.identity, partition.name, batch.queue_key[0], start_ns, 0, batch.rows)]


def _proof(status: Any) -> str:
    """Whether the limits of a partition are enforced, in words."""
    if status is None:
        return "not known: Sluice does not start this server"
    if status.enforcement is Enforcement.ENFORCED:
        return "enforced"
    if status.enforcement is Enforcement.UNENFORCED:
        return f"not enforced: {'; '.join(status.reasons)}"[:MAX_TEXT]
    return "not known yet"
