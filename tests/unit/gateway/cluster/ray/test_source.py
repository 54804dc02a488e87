"""The gateway's end of the process that talks to Ray, against a process that a test plays."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sluice.gateway.cluster.ray import source as source_module
from sluice.gateway.cluster.ray.messages import (
    Begin,
    FromRay,
    Granted,
    Leave,
    RayState,
    Tick,
    ToRay,
    Want,
    WorkerAt,
)
from sluice.gateway.cluster.ray.source import NOT_LEASED, UNKNOWN, RayCluster
from sluice.gateway.config.ray_settings import RaySettings
from tests.support.played_child import PlayedChild

SETTINGS = RaySettings(address="10.0.0.1:6379", resources={"CPU": 1}, count=3)


class PlayedProcess(PlayedChild[ToRay]):
    """The process that talks to Ray."""

    def __init__(self) -> None:
        super().__init__(ToRay, status=1)

    def received(self) -> list[ToRay]:
        return [message for message, _ in self.channel.receive() if not isinstance(message, Tick)]

    async def says(self, *messages: FromRay) -> None:
        for message in messages:
            self.channel.send(message)
        await settle()


class Bench:
    """A cluster of one class, `edge`, what it has placed, and the processes that it has started."""

    def __init__(self) -> None:
        self.processes: list[PlayedProcess] = []
        self.started = asyncio.Event()
        self.placed: list[tuple[str, str | None, str]] = []
        self.cluster = RayCluster({"edge": SETTINGS}, "gw-1", "1.0", "secret", self._launch)
        self.source = self.cluster.source("edge")

    @property
    def process(self) -> PlayedProcess:
        return self.processes[-1]

    def news(self) -> list[tuple[str, str | None, str]]:
        """All that was placed since the last call."""
        placed, self.placed = self.placed, []
        return placed

    def _launch(self) -> PlayedProcess:
        self.processes.append(PlayedProcess())
        self.started.set()
        return self.process

    def note(self, slot: str, url: str | None, reason: str) -> None:
        self.placed.append((slot, url, reason))


def run(conversation: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench()
        bench.source.start(bench.note)
        await conversation(bench)
        closing = asyncio.create_task(bench.source.close())
        await settle()
        bench.process.exit()
        await closing

    asyncio.run(main())


async def settle() -> None:
    """Let everything happen that is due."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_the_process_gets_the_settings_and_its_workers_are_placed() -> None:
    async def conversation(bench: Bench) -> None:
        assert bench.news() == [(f"edge-{slot}", None, UNKNOWN) for slot in range(3)]
        (begin,) = bench.process.received()
        assert isinstance(begin, Begin)
        assert (begin.gateway, begin.key, begin.version) == ("gw-1", "secret", "1.0")
        order = begin.classes["edge"]
        assert (order.settings, order.slots, order.want, order.held) == (SETTINGS, 3, 3, {})
        await bench.process.says(
            RayState(""),
            Granted("edge", {0: 10, 2: 11}),
            WorkerAt("edge", 0, 5, "10.0.0.2:4000", ""),
            WorkerAt("edge", 2, 0, "", "no node of the Ray cluster has CPU 1"),
        )
        assert bench.news() == [
            ("edge-0", "10.0.0.2:4000", ""),
            ("edge-2", None, "no node of the Ray cluster has CPU 1"),
        ]

    run(conversation)


def test_a_worker_is_placed_once_and_again_when_it_was_restarted() -> None:
    async def conversation(bench: Bench) -> None:
        bench.news()
        await bench.process.says(Granted("edge", {0: 10}), WorkerAt("edge", 0, 5, "a:1", ""))
        await bench.process.says(WorkerAt("edge", 0, 5, "a:1", ""))
        assert bench.news() == [("edge-0", "a:1", "")]
        await bench.process.says(WorkerAt("edge", 0, 6, "a:1", ""))
        assert bench.news() == [("edge-0", "a:1", "")]

    run(conversation)


def test_a_slot_without_a_lease_is_given_up() -> None:
    async def conversation(bench: Bench) -> None:
        await bench.process.says(Granted("edge", {0: 10}), WorkerAt("edge", 0, 5, "a:1", ""))
        bench.news()
        await bench.process.says(Granted("edge", {1: 12}), WorkerAt("edge", 0, 6, "b:1", ""))
        assert bench.news() == [("edge-0", None, NOT_LEASED)]

    run(conversation)


def test_fewer_workers_are_wanted_and_the_slots_that_leave_are_named() -> None:
    async def conversation(bench: Bench) -> None:
        await bench.process.says(Granted("edge", {0: 10, 1: 11}), WorkerAt("edge", 1, 5, "a:1", ""))
        bench.news()
        bench.process.received()
        bench.source.want(1, ("edge-1",))
        assert bench.process.received() == [Want("edge", 1, (1,))]
        assert bench.news() == [("edge-1", None, "given up: fewer partitions are wanted")]

    run(conversation)


def test_serving_goes_on_without_ray_and_a_new_process_knows_the_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "FIRST_RESTART_S", 0.0)

    async def conversation(bench: Bench) -> None:
        await bench.process.says(Granted("edge", {0: 10}), WorkerAt("edge", 0, 5, "a:1", ""))
        bench.news()
        bench.started.clear()
        bench.process.exit()
        await bench.started.wait()
        assert "edge-0" not in {slot for slot, _, _ in bench.news()}
        (begin,) = bench.process.received()
        assert isinstance(begin, Begin)
        assert begin.classes["edge"].held == {0: 10}
        assert "the process that talks to Ray exited with status 1" in bench.cluster.trouble
        await bench.process.says(RayState(""))
        assert bench.cluster.trouble == ""

    run(conversation)


def test_trouble_is_the_reason_of_slots_without_a_worker() -> None:
    async def conversation(bench: Bench) -> None:
        await bench.process.says(Granted("edge", {0: 10}), WorkerAt("edge", 0, 5, "a:1", ""))
        bench.news()
        await bench.process.says(RayState("no Ray cluster at 10.0.0.1:6379"))
        assert bench.news() == [
            ("edge-1", None, "no Ray cluster at 10.0.0.1:6379"),
            ("edge-2", None, "no Ray cluster at 10.0.0.1:6379"),
        ]

    run(conversation)


def test_a_worker_that_still_serves_another_gateway_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "ASK_AGAIN_S", 0.0)

    async def conversation(bench: Bench) -> None:
        await bench.process.says(Granted("edge", {0: 10}), WorkerAt("edge", 0, 5, "a:1", ""))
        bench.news()
        bench.source.refused("edge-0", "gw-2")
        await settle()
        assert bench.news() == [("edge-0", "a:1", "")]

    run(conversation)


def test_a_gateway_that_stops_gives_up_its_leases() -> None:
    async def conversation(bench: Bench) -> None:
        bench.process.received()
        await bench.process.says(RayState(""))
        closing = asyncio.create_task(bench.source.close())
        await settle()
        assert bench.process.received() == [Leave()]
        bench.process.exit()
        await closing

    run(conversation)
