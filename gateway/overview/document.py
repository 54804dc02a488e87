"""The document: what the server does now, in at most MAX_BYTES of JSON.

A tick takes the counters and writes the parts that all viewers share, in slices. A call then only puts the parts
together, and those that depend on the question are kept for others who ask the same until the next tick.
"""

from collections.abc import Generator, Sequence
from typing import NamedTuple

import orjson

from sluice.gateway.overview.detail import Detail
from sluice.gateway.overview.drawing import Drawing
from sluice.gateway.overview.pieces import MAX_TEXT, Slices, cut
from sluice.gateway.overview.plans import PlanBoard
from sluice.gateway.overview.rows import Rows
from sluice.gateway.overview.sampled import Sampled
from sluice.gateway.overview.shape import public_name
from sluice.gateway.overview.sources import Sources
from sluice.gateway.overview.timeline import Timeline
from sluice.models.units import NS_PER_S

MAX_BYTES = 20_000
MAX_PARTITIONS = 32
MAX_TROUBLES = 20
MAX_REPLIES = 64
"""Documents of a tick, for different questions, that are kept until the next one."""

_PARTITIONS_BYTES = 4_000
_TROUBLES_BYTES = 3_000
_NOT_SERVED_BYTES = 1_200
_BARS_BYTES = 7_000
_BARS_LEAST_BYTES = 1_000
_PIPELINES_LEAST_BYTES = 2_500
"""Bytes that are kept for the list of pipelines before the history and the timeline take theirs."""
_KEYS_BYTES = 400
_NOT_SERVED_STEPS = 10
"""Steps after which is looked again for what is not served."""


class Question(NamedTuple):
    """The wish of a viewer: the details of a `pipeline` ("": the busiest), and what it has not seen yet.

    Steps of the history that ended after `since_s` (of the time of day), and bars with a number above `bars_since`;
    None: all that there are. Without `explains`, no requests are shown.
    """

    pipeline: str = ""
    since_s: float | None = None
    bars_since: int | None = None
    explains: bool = True


class Reply(NamedTuple):
    """A document, and the question that asks for what comes after it; the last one says that the server stops."""

    body: bytes
    following: Question
    is_last: bool


class _Shared(NamedTuple):
    """The parts of a tick that all documents have; `listed_out` pipelines are not listed."""

    head: bytes
    pipelines: Sequence[bytes]
    listed_out: int
    partitions: Sequence[bytes]
    partitions_out: int
    troubles: Sequence[bytes]
    not_served: Sequence[bytes]
    draining: bool


class Overview:
    """Samples a server and writes documents about it. It reads no clock: ticks pass the time in."""

    def __init__(self, sources: Sources, started_day_ns: int) -> None:
        self._sources = sources
        self._sampled = Sampled(sources)
        self.plans = PlanBoard(self._sampled)
        self._rows = Rows(self._sampled, self.plans, round(started_day_ns / NS_PER_S, 3))
        self._detail = Detail(self._sampled, self.plans)
        self._drawing = Drawing(self._sampled)
        self._explained: dict[int, bytes] = {}
        self._not_served: list[bytes] = []
        self._shared: _Shared | None = None
        self._replies: dict[Question, Reply] = {}

    @property
    def timeline(self) -> Timeline:
        """The timeline, which is to get the batches that complete."""
        return self._sampled.timeline

    def begin(self, now_ns: int, day_ns: int) -> Slices:
        """Take the counters that the first step is compared with; `day_ns` is the time of day."""
        yield from self._sampled.begin(now_ns, day_ns)
        yield from self._share(now_ns)

    def tick(self, now_ns: int, day_ns: int) -> Slices:
        """End the step that contains a time of day, and write the parts that all documents have."""
        yield from self._sampled.tick(now_ns, day_ns)
        yield from self._share(now_ns)

    def drifted(self, now_ns: int, day_ns: int) -> bool:
        """True if the time of day has moved against the clock, so that another overview must begin."""
        return self._sampled.drifted(now_ns, day_ns)

    def _share(self, now_ns: int) -> Slices:
        rows, sources, sampled = self._rows, self._sources, self._sampled
        pipelines: list[bytes] = []
        for name in sampled.listed:
            pipelines.append(orjson.dumps(rows.pipeline(name)))
            yield
        names = sources.inventory.names[:MAX_PARTITIONS]
        partitions: list[bytes] = []
        for name in names:
            partitions.append(orjson.dumps(rows.partition(name)))
            yield
        if self._shared is None or sampled.step % _NOT_SERVED_STEPS == 0:
            yield from self._find_not_served()
        yield from self._explain()
        queued_rows = yield from rows.queued_rows()
        draining = sources.registry.draining
        server, totals = rows.server(sampled.day_s(now_ns)), rows.totals(queued_rows)
        shared = _Shared(
            b'"server":%b,"totals":%b' % (orjson.dumps(server), orjson.dumps(totals)),
            pipelines,
            len(sampled.served) - len(pipelines),
            partitions,
            len(sources.inventory.names) - len(names),
            list(self._explained.values()),
            self._not_served,
            draining,
        )
        yield from self._drawing.tick(names, now_ns)
        self._shared, self._replies = shared, {}

    def _find_not_served(self) -> Slices:
        found: list[bytes] = []
        for name, version, reason in self._sources.registry.not_served():
            if name:
                found.append(orjson.dumps({"name": name, "version": version, "reason": reason[:MAX_TEXT]}))
            yield
        self._not_served = found

    def _explain(self) -> Slices:
        """Explain the latest requests that were not answered in time, each once."""
        known, found = self._explained, {}
        for trace in self._sources.traces.missed(MAX_TROUBLES):
            number = trace.arrival.request
            found[number] = known.get(number) or orjson.dumps(self._rows.trouble(trace))
            yield
        self._explained = found

    def reply(self, question: Question) -> Generator[None, None, Reply]:
        """The document for a question, as of the last tick, written in slices; there must have been a tick."""
        assert self._shared is not None, "a document needs a tick"
        replies = self._replies
        found = replies.get(question)
        if found is None:
            found = yield from self._write(question, self._shared)
            if len(replies) < MAX_REPLIES:
                replies[question] = found
        return found

    def _write(self, question: Question, shared: _Shared) -> Generator[None, None, Reply]:
        step, last = self._sampled.step, self.timeline.last
        name, asked = self._choose(question.pipeline)
        partitions = cut(shared.partitions, _PARTITIONS_BYTES)
        troubles = cut(shared.troubles if question.explains else (), _TROUBLES_BYTES)
        not_served = cut(shared.not_served, _NOT_SERVED_BYTES)
        taken = len(shared.head) + len(partitions.json) + len(troubles.json) + len(not_served.json)
        room = MAX_BYTES - _KEYS_BYTES - taken - _PIPELINES_LEAST_BYTES
        chosen = b"null"
        if name:
            self._sampled.choose(name)
            about = {"asked": asked, "percentile": self._rows.percentile(self._sampled.served[name])}
            # What a viewer has of another pipeline, or of an earlier run of the server, says nothing of what is new.
            is_known = not asked and question.since_s is not None and question.since_s <= self._sampled.step + 1
            since_s = question.since_s if is_known else None
            chosen = yield from self._detail.json(about, name, since_s, room - _BARS_LEAST_BYTES)
            yield
        room -= len(chosen)
        timeline = yield from self._drawing.json(self._bars_since(question), min(room, _BARS_BYTES))
        yield
        pipelines = cut(shared.pipelines, room - len(timeline) + _PIPELINES_LEAST_BYTES)
        body = (
            b'{%b,"pipelines":%b,"pipelines_more":%d,"pipeline":%b,"partitions":%b,"partitions_more":%d,'
            b'"timeline":%b,"troubles":%b,"troubles_open":%b,"not_served":%b,"not_served_more":%d}'
        ) % (
            shared.head,
            pipelines.json,
            pipelines.left_out + shared.listed_out,
            chosen,
            partitions.json,
            partitions.left_out + shared.partitions_out,
            timeline,
            troubles.json,
            b"true" if question.explains else b"false",
            not_served.json,
            not_served.left_out,
        )
        return Reply(body, Question(name, float(step), last, question.explains), shared.draining)

    def _bars_since(self, question: Question) -> int | None:
        """The number of the latest bar that a viewer has; None for one that has seen another run of the server."""
        since = question.bars_since
        return None if since is None or since > self.timeline.last else since

    def _choose(self, asked: str) -> tuple[str, str]:
        """The name of the pipeline that is shown, and what was asked for if it is not known."""
        served = self._sampled.served
        if asked in served:
            return asked, ""
        latest = self._sources.registry.serving.get((asked, "")) if asked else None
        if latest is not None and public_name(latest) in served:
            return public_name(latest), ""
        return next(iter(self._sampled.listed), ""), asked[:MAX_TEXT]
