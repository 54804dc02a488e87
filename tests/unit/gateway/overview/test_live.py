"""The overview on an event loop in virtual time: when it samples, for whom, and how it ends."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import orjson
import pytest

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.overview.document import Question
from sluice.gateway.overview.live import LINGER_S, MAX_VIEWERS, LiveOverview
from sluice.models.errors import BackendUnavailable, ServingError
from sluice.models.pipelines.pipeline import Pipeline, Stage, TensorSource
from sluice.models.units import NS_PER_S
from tests.support.gateway.overview import DAY_NS, PlayedServer
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual

DAY_S = DAY_NS // NS_PER_S
MODEL = Pipeline(
    "m", 1, (), (), (Stage("m", {"x": TensorSource("request", "x")}, model="m:1"),), {"y": (TensorSource("m", "y"),)}, 8
)


class Watched:
    """A played server with a live overview on a virtual loop; `moved_ns` is added to the time of day."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.server = PlayedServer(MODEL)
        self.moved_ns = 300_000_000
        self.live = LiveOverview(
            self.server.sources._replace(
                clock=loop.clock, time_of_day=lambda: DAY_NS + loop.now_ns + self.moved_ns, has_failed=self._has_failed
            )
        )
        self.broken = False

    def _has_failed(self) -> bool:
        if self.broken:
            raise RuntimeError("boom")
        return False

    async def look(self, **question: Any) -> Any:
        return orjson.loads(await self.live.document(Question(**question)))

    def watch(self) -> AsyncGenerator[bytes]:
        return self.live.stream(Question())


def watched(scene: Callable[[Watched, VirtualLoop], Coroutine[Any, Any, None]]) -> None:
    async def play(loop: VirtualLoop) -> None:
        await scene(Watched(loop), loop)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    run_virtual(play)


def test_nothing_is_sampled_until_somebody_looks_and_not_for_ever_after() -> None:
    async def scene(each: Watched, loop: VirtualLoop) -> None:
        await asyncio.sleep(1000)
        assert not each.live.is_sampling
        assert each.server.watched is None
        await each.look()
        assert each.live.is_sampling
        assert each.server.watched is not None
        await asyncio.sleep(LINGER_S - 2)
        assert each.live.is_sampling
        await each.look()
        await asyncio.sleep(LINGER_S + 2)
        assert not each.live.is_sampling
        assert each.server.watched is None

    watched(scene)


def test_documents_come_at_each_full_second_and_have_only_what_is_new() -> None:
    async def scene(each: Watched, loop: VirtualLoop) -> None:
        documents = each.watch()
        first = orjson.loads(await anext(documents))
        assert first["server"]["now_s"] == DAY_S + 0.3
        assert first["pipeline"]["history"]["good"] == []
        each.server.end("m:1", Outcome.COMPLETED, 7)
        second = orjson.loads(await anext(documents))
        assert second["server"]["now_s"] == DAY_S + 1
        assert second["pipeline"]["history"] | {"p50_ms": [], "p99_ms": []} == {
            "start_s": DAY_S,
            "step_s": 1,
            "good": [7],
            "late": [0],
            "refused": [0],
            "failed": [0],
            "cancelled": [0],
            "p50_ms": [],
            "p99_ms": [],
        }
        assert second["totals"]["requests_per_s"] == 10.0  # in the 0.7 s since the first look
        third = orjson.loads(await anext(documents))
        assert third["server"]["now_s"] == DAY_S + 2
        assert third["pipeline"]["history"]["good"] == [0]
        assert (await each.look())["pipeline"]["history"]["good"] == [7, 0]
        await documents.aclose()

    watched(scene)


def test_all_viewers_of_a_tick_get_the_same_bytes() -> None:
    async def scene(each: Watched, loop: VirtualLoop) -> None:
        viewers = [each.watch() for _ in range(3)]
        assert len({id(await anext(viewer)) for viewer in viewers}) == 1
        assert len({id(await anext(viewer)) for viewer in viewers}) == 1
        assert each.live.viewers == 3
        for viewer in viewers:
            await viewer.aclose()
        assert each.live.viewers == 0

    watched(scene)


def test_a_viewer_that_takes_long_misses_ticks_but_no_steps() -> None:
    async def scene(each: Watched, loop: VirtualLoop) -> None:
        documents = each.watch()
        await anext(documents)
        for count in range(1, 6):
            each.server.end("m:1", Outcome.COMPLETED, count)
            await asyncio.sleep(1)
        assert orjson.loads(await anext(documents))["pipeline"]["history"]["good"] == [1, 2, 3, 4, 5]
        await documents.aclose()

    watched(scene)


def test_a_server_that_stops_sends_one_more_document_and_ends_the_stream() -> None:
    async def scene(each: Watched, loop: VirtualLoop) -> None:
        documents = each.watch()
        await anext(documents)
        loop.call_later(0.2, each.server.registry.start_draining)
        last = orjson.loads(await anext(documents))
        assert last["server"]["state"] == "draining"
        assert loop.now_ns == 200_000_000
        assert await anext(documents, None) is None
        assert each.live.viewers == 0

    watched(scene)


def test_the_number_of_viewers_is_bounded_and_each_makes_room_when_it_leaves() -> None:
    async def scene(each: Watched, loop: VirtualLoop) -> None:
        viewers = [each.watch() for _ in range(MAX_VIEWERS)]
        for viewer in viewers:
            await anext(viewer)
        with pytest.raises(BackendUnavailable, match=f"^{MAX_VIEWERS} viewers have this stream open"):
            await anext(each.watch())
        await viewers.pop().aclose()
        viewers.append(each.watch())
        await anext(viewers[-1])
        for viewer in viewers:
            await viewer.aclose()

    watched(scene)


def test_a_machine_that_slept_begins_a_new_history() -> None:
    async def scene(each: Watched, loop: VirtualLoop) -> None:
        documents = each.watch()
        await anext(documents)
        each.server.end("m:1", Outcome.COMPLETED, 7)
        await anext(documents)
        each.moved_ns += 3600 * NS_PER_S
        each.server.end("m:1", Outcome.COMPLETED, 5)
        fresh = orjson.loads(await anext(documents))
        assert fresh["server"]["now_s"] == DAY_S + 3602
        assert fresh["totals"]["requests_per_s"] is None
        each.server.end("m:1", Outcome.COMPLETED, 3)
        later = orjson.loads(await anext(documents))
        assert (later["pipeline"]["history"]["start_s"], later["pipeline"]["history"]["good"]) == (DAY_S + 3602, [3])
        each.moved_ns -= 7200 * NS_PER_S
        await anext(documents)
        each.server.end("m:1", Outcome.COMPLETED, 2)
        back = orjson.loads(await anext(documents))
        assert back["pipeline"]["history"]["good"] == [2]
        await documents.aclose()

    watched(scene)


def test_a_fault_of_the_overview_ends_streams_is_logged_and_is_over_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(each: Watched, loop: VirtualLoop) -> None:
        documents = each.watch()
        await anext(documents)
        each.broken = True
        with pytest.raises(ServingError, match="the overview cannot be written; the server's log says why"):
            await anext(documents)
        with pytest.raises(ServingError):
            await each.look()
        assert not each.live.is_sampling
        assert each.server.watched is None
        assert each.live.viewers == 0
        each.broken = False
        assert (await each.look())["server"]["state"] == "ready"

    with caplog.at_level(logging.ERROR):
        watched(scene)
    assert "the overview cannot be written" in caplog.text
    assert "boom" in caplog.text
