"""The timeline in the document: bars of batches that ended, of those that run, and of those that are planned."""

from collections.abc import Generator, Sequence
from typing import NamedTuple

import orjson

from sluice.batcher.places.outlook import next_batches
from sluice.batcher.state import PartitionState
from sluice.gateway.overview.pieces import Slices, cut
from sluice.gateway.overview.sampled import MOST_BARS, Sampled
from sluice.gateway.overview.timeline import Bar
from sluice.models.spec import public_key
from sluice.models.units import NS_PER_US

FIRST_BARS = 128
"""Bars of a document that says nothing of those before."""
MAX_PLANNED = 3
"""Planned batches of a partition that are shown."""
MAX_DRAWN = 16
"""Timelines of a tick, for different bars that viewers have, that are kept until the next one."""


class _Planned(NamedTuple):
    """A batch that a partition has yet to start."""

    partition: str
    model: str
    start_ns: int
    length_ns: int
    rows: int


class _Drawn(NamedTuple):
    """The parts of a timeline as JSON."""

    about: bytes
    models: bytes
    bars: Sequence[bytes]
    planned: bytes

    def json(self, room: int, left_out: int) -> bytes:
        """The timeline in about `room` bytes; `left_out` bars are missing already."""
        others = len(self.about) + len(self.models) + len(self.planned) + 60
        shown = cut(self.bars, max(room - others, 0))
        more = shown.left_out + left_out
        parts = (self.about, self.models, shown.json, more, self.planned)
        return b'%b,"models":%b,"bars":%b,"bars_more":%d,"planned":%b}' % parts


class Drawing:
    """Draws the timeline once in a tick for all viewers that have the same bars."""

    def __init__(self, sampled: Sampled) -> None:
        self._sampled = sampled
        self._now_ns = 0
        self._partitions: dict[str, int] = {}
        self._running: list[Bar] = []
        self._planned: list[_Planned] = []
        self._drawn: dict[int | None, _Drawn] = {}
        self._drawn_to = 0

    def tick(self, partitions: Sequence[str], now_ns: int) -> Slices:
        """Draw the bars that are new since the last tick, on these partitions."""
        self._now_ns = now_ns
        self._partitions = {name: index for index, name in enumerate(partitions)}
        self._running, self._planned = [], []
        for name in partitions:
            partition = self._sampled.sources.scheduler.dispatcher.fleet.partitions[name]
            self._running += _running(partition)
            self._planned += [_Planned(name, *each) for each in next_batches(partition, now_ns, MAX_PLANNED)]
            yield
        self._drawn = {}
        yield from self._draw(self._drawn_to)
        self._drawn_to = self._sampled.timeline.last

    def json(self, since: int | None, room: int) -> Generator[None, None, bytes]:
        """The timeline with the bars that are new since a number, in about `room` bytes, written in slices."""
        drawn = self._drawn
        if since not in drawn:
            if len(drawn) >= MAX_DRAWN:
                del drawn[next(iter(drawn))]
            yield from self._draw(since)
        return drawn[since].json(room, self._sampled.timeline.left_out)

    def _draw(self, since: int | None) -> Slices:
        """Write the bars that are new since a number, the latest first after those that run."""
        timeline, partitions, drawn = self._sampled.timeline, self._partitions, self._drawn
        bars = timeline.bars(since, FIRST_BARS if since is None else MOST_BARS)
        from_ns = min([self._now_ns, *(bar.start_ns for bar in (*bars, *self._running))])
        models: dict[str, int] = {}

        def model(key: str) -> int:
            return models.setdefault(public_key(key), len(models))

        def place(start_ns: int) -> float:
            return (start_ns - from_ns) // (100 * NS_PER_US) / 10_000

        rows: list[bytes] = []
        for bar in (*self._running, *reversed(bars)):
            if bar.partition in partitions:
                length_ms = bar.busy_ns // NS_PER_US / 1_000 if bar.number else -1
                about = (partitions[bar.partition], model(bar.model), place(bar.start_ns))
                rows.append(orjson.dumps((bar.batch, *about, length_ms, bar.rows, bar.merged)))
            yield
        planned = [
            (partitions[partition], model(key), place(start_ns), length_ns // NS_PER_US / 1_000, count)
            for partition, key, start_ns, length_ns, count in self._planned
        ]
        whole = {
            "from_s": self._sampled.day_s(from_ns, 4),
            "to_s": self._sampled.day_s(self._now_ns),
            "last": timeline.last,
            "merged": any(bar.merged > 1 for bar in bars),
        }
        drawn[since] = _Drawn(orjson.dumps(whole)[:-1], orjson.dumps(list(models)), rows, orjson.dumps(planned))


def _running(partition: PartitionState) -> list[Bar]:
    """The batch that a partition runs, as a bar without a number."""
    if not partition.batches:
        return []
    batch = partition.batches[0]
    start_ns = max(batch.dispatched_ns, partition.last_end_ns)
    return [Bar(0, batch.identity, partition.name, batch.queue_key[0], start_ns, 0, batch.rows)]
