"""The document: what the server does now, in at most MAX_BYTES of JSON.

A tick takes the counters and writes the parts that all viewers share, in slices. A call then only puts the parts
together, and those that depend on the question are kept for others who ask the same until the next tick.
"""

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.places.outlook import next_batches
from sluice.batcher.state import PartitionState, PipelineState
from sluice.gateway.observability.explanation import explain
from sluice.gateway.observability.trace import Trace
from sluice.gateway.overview.counters import HISTORY_STEPS, Recorder, Step, Track, Window
from sluice.gateway.overview.lists import cut, rounded
from sluice.gateway.overview.shape import kind_of, outputs_of, public_name, stage_shape
from sluice.gateway.overview.sources import Sources
from sluice.gateway.overview.timeline import Bar, Timeline
from sluice.gateway.partitions.inventory import Enforcement
from sluice.gateway.version import is_compiled
from sluice.models.pipelines.pipeline import PERCENTILE, REQUEST, Pipeline
from sluice.models.spec import public_key
from sluice.models.units import NS_PER_S, ns_to_ms

MAX_BYTES = 20_000
MAX_PIPELINES = 50
MAX_PARTITIONS = 32
MAX_TROUBLES = 20
MAX_REASONS = 5
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
_PLAN_BYTES = 4_500
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


class _Shared(NamedTuple):
    """The parts of a tick that all documents have."""

    now_s: float
    head: bytes
    pipelines: Sequence[bytes]
    listed_out: int
    partitions: Sequence[bytes]
    partition_names: Sequence[str]
    partitions_out: int
    running: Sequence[tuple[Bar, int]]
    planned: Sequence[tuple[int, str, int, int, int]]
    troubles: Sequence[bytes]
    not_served: Sequence[bytes]


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
        self._chosen: dict[str, int] = {}
        self._explained: dict[int, bytes] = {}
        self._memory: dict[str, tuple[object, int]] = {}
        self._not_served: list[bytes] = []
        self._shared: _Shared | None = None
        self._replies: dict[Question, Reply] = {}

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
        listed = self._busiest()
        yield
        rows: list[bytes] = []
        for name in listed[:MAX_PIPELINES]:
            rows.append(orjson.dumps(self._row(name)))
            yield
        names = self._sources.inventory.names[:MAX_PARTITIONS]
        partitions: list[bytes] = []
        running: list[tuple[Bar, int]] = []
        planned: list[tuple[int, str, int, int, int]] = []
        for index, name in enumerate(names):
            partitions.append(orjson.dumps(self._partition(name, now_ns)))
            self._outlook(index, name, now_ns, running, planned)
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
        head = self._head(now_ns, queued_rows, listed)
        out = len(self._sources.inventory.names) - len(names)
        self._shared = _Shared(
            round((now_ns + self._offset_ns) / NS_PER_S, 3),
            head,
            rows,
            len(listed) - len(rows),
            partitions,
            names,
            out,
            running,
            planned,
            troubles,
            self._not_served,
        )
        self._replies = {}

    def _busiest(self) -> list[str]:
        """All pipelines that are served, those with most requests in the window first."""
        tracks = self._recorder.tracks
        active = {
            name: track.window.ended.total for name, track in tracks.items() if track.window and name in self._served
        }
        busy = sorted(active, key=lambda name: (-active[name], name))
        return busy + [name for name in self._order if name not in active]

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

    def _head(self, now_ns: int, queued_rows: int, listed: Sequence[str]) -> bytes:
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
            "headroom": None,
        }
        del row["cancelled_per_s"]
        return row

    def _percentile(self, pipeline: Pipeline) -> float:
        state = self._sources.scheduler.pipelines.get(pipeline.key)
        return PERCENTILE if state is None else state.config.percentile

    def _partition(self, name: str, now_ns: int) -> dict[str, Any]:
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

    def _outlook(
        self,
        index: int,
        name: str,
        now_ns: int,
        running: list[tuple[Bar, int]],
        planned: list[tuple[int, str, int, int, int]],
    ) -> None:
        """Add what a partition runs, and what it is to run next."""
        partition = self._sources.scheduler.dispatcher.fleet.partitions[name]
        if partition.batches:
            batch = partition.batches[0]
            start_ns = max(batch.dispatched_ns, partition.last_end_ns)
            running.append((Bar(0, batch.identity, name, batch.queue_key[0], start_ns, 0, batch.rows), index))
        coming = next_batches(partition, now_ns, MAX_PLANNED)
        planned += [(index, each.model, each.start_ns, each.length_ns, each.rows) for each in coming]

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
        timeline, last = self._timeline(question.bars_since, shared, min(room, _BARS_BYTES))
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
        return Reply(body, question._replace(since_s=float(self.step), bars_since=last))

    def _choose(self, asked: str) -> tuple[str, str]:
        """The name of the pipeline that is shown, and what was asked for if it is not known."""
        if asked in self._served:
            return asked, ""
        latest = self._sources.registry.serving.get((asked, "")) if asked else None
        if latest is not None:
            return public_name(latest), ""
        return next(iter(self._busiest()), ""), asked[:MAX_TEXT]

    def _pipeline(self, name: str, asked: str, since_s: float | None, room: int) -> bytes:
        pipeline, track = self._served[name], self._recorder.tracks.get(name)
        state = self._sources.scheduler.pipelines.get(pipeline.key)
        stages = cut([orjson.dumps(each) for each in self._stages(pipeline, state, track)], _STAGES_BYTES)
        plan = orjson.dumps(None)
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

    def _timeline(self, since: int | None, shared: _Shared, room: int) -> tuple[bytes, int]:
        """The timeline, and the number of the latest bar in it or before."""
        timeline = self.timeline
        bars = timeline.bars(since, MOST_BARS if since is not None else FIRST_BARS)
        to_ns = round(shared.now_s * NS_PER_S) - self._offset_ns
        indices = {name: index for index, name in enumerate(shared.partition_names)}
        running = [bar for bar, _ in shared.running]
        from_ns = min([bar.start_ns for bar in (*bars, *running)], default=to_ns)
        models: dict[str, int] = {}

        def model(key: str) -> int:
            return models.setdefault(public_key(key), len(models))

        rows = [
            orjson.dumps(
                [
                    bar.batch,
                    indices[bar.partition],
                    model(bar.model),
                    round((bar.start_ns - from_ns) / NS_PER_S, 4),
                    round(ns_to_ms(bar.busy_ns), 3) if bar.number else -1,
                    bar.rows,
                    bar.merged,
                ]
            )
            for bar in (*running, *reversed(bars))
            if bar.partition in indices
        ]
        planned = [
            [index, model(key), round((start_ns - from_ns) / NS_PER_S, 4), round(ns_to_ms(length_ns), 3), count]
            for index, key, start_ns, length_ns, count in shared.planned
        ]
        planned_json, names = orjson.dumps(planned), orjson.dumps(list(models))
        shown = cut(rows, room - len(planned_json) - len(names) - 200)
        about = orjson.dumps(
            {
                "from_s": round((from_ns + self._offset_ns) / NS_PER_S, 4),
                "to_s": shared.now_s,
                "last": timeline.last,
                "merged": any(bar.merged > 1 for bar in bars),
            }
        )[:-1]
        return b'%b,"models":%b,"bars":%b,"bars_more":%d,"planned":%b}' % (
            about,
            names,
            shown.json,
            shown.left_out + timeline.left_out,
            planned_json,
        ), timeline.last


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


def _proof(status: Any) -> str:
    """Whether the limits of a partition are enforced, in words."""
    if status is None:
        return "not known: Sluice does not start this server"
    if status.enforcement is Enforcement.ENFORCED:
        return "enforced"
    if status.enforcement is Enforcement.UNENFORCED:
        return f"not enforced: {'; '.join(status.reasons)}"[:MAX_TEXT]
    return "not known yet"
