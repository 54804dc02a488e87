"""Where Ray places workers, when they end, and who has them, without a gateway: its sources only."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra ray: make cluster")

from sluice.gateway.cluster.ray.ask import report
from sluice.gateway.cluster.ray.source import RayCluster, RaySource
from sluice.gateway.config.ray_settings import RaySettings, Strategy
from tests.cluster.conftest import CORES, RayMachines

TIMEOUT_S = 60.0


class Slots:
    """The slots of a gateway: the addresses of their workers, and why others have none."""

    def __init__(self, cluster: RayCluster, sources: dict[str, RaySource]) -> None:
        self.cluster, self.sources = cluster, sources
        self.urls: dict[str, str] = {}
        self.reasons: dict[str, str] = {}

    def placed(self, slot: str, url: str | None, reason: str) -> None:
        if url is None:
            self.urls.pop(slot, None)
            self.reasons[slot] = reason
        else:
            self.urls[slot] = url


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - other processes change it
            await asyncio.sleep(0.1)


@asynccontextmanager
async def gateway(machines: RayMachines, name: str, **classes: RaySettings) -> AsyncIterator[Slots]:
    """The sources of a gateway, which give up all that they have at the end."""
    cluster = RayCluster(classes, name, "1.0", "the key of the test")
    slots = Slots(cluster, {each: cluster.source(each) for each in classes})
    for source in slots.sources.values():
        source.start(slots.placed)
    try:
        yield slots
    finally:
        for source in slots.sources.values():
            await source.close()


def run(conversation: Awaitable[None]) -> None:
    async def main() -> None:
        await conversation

    asyncio.run(main())


def settings(machines: RayMachines, count: int | None = None, **others: Any) -> RaySettings:
    return RaySettings(machines.address, count=count, resources={"CPU": 1}, keep_s=1, **others)


async def rows(machines: RayMachines) -> list[dict[str, Any]]:
    """The partitions that the keeper knows."""
    answer = await asyncio.to_thread(report, machines.address, "sluice")
    listed: list[dict[str, Any]] = json.loads(answer)["partitions"]
    return listed


async def nodes(machines: RayMachines) -> dict[str, str]:
    """The node of each worker."""
    return {each["partition"]: each["node"] for each in await rows(machines) if each["url"]}


async def ended(machines: RayMachines, *slots: str) -> None:
    """Wait until the workers of slots have ended; without slots, of all."""
    async with asyncio.timeout(TIMEOUT_S):
        while (left := await nodes(machines)) and (not slots or left.keys() & set(slots)):  # noqa: ASYNC110
            await asyncio.sleep(0.2)


def test_workers_are_packed_on_allowed_nodes_and_end_when_they_are_not_wanted(
    machines: RayMachines,
) -> None:
    async def conversation() -> None:
        packed = settings(machines, 2, strategy=Strategy.PACK)
        async with gateway(machines, "g", packed=packed, bound=settings(machines, 1, nodes=("n2",))) as slots:
            await until(lambda: len(slots.urls) == 3)
            where = await nodes(machines)
            assert where["bound-0"] == "n2"
            assert where["packed-0"] == where["packed-1"]
            slots.sources["packed"].want(1, ("packed-0",))
            assert set(slots.urls) == {"packed-1", "bound-0"}
            await ended(machines, "packed-0")
            assert set(slots.urls) == {"packed-1", "bound-0"}
            slots.sources["packed"].want(2)
            await until(lambda: len(slots.urls) == 3)
        await ended(machines)

    run(conversation())


def test_near_classes_have_their_workers_on_one_node(machines: RayMachines) -> None:
    async def conversation() -> None:
        near = settings(machines, 2, near="shop")
        async with gateway(machines, "g", front=near, back=near) as slots:
            await until(lambda: len(slots.urls) == 4)
            where = await nodes(machines)
            assert where["front-0"] == where["back-0"]
            assert where["front-1"] == where["back-1"]
        await ended(machines)

    run(conversation())


def test_a_slot_without_room_says_what_is_missing(machines: RayMachines) -> None:
    async def conversation() -> None:
        large = RaySettings(machines.address, count=1, resources={"CPU": CORES + 1}, keep_s=1)
        broken = settings(machines, 1, runtime_env={"working_dir": "no/such/directory"})
        async with gateway(machines, "g", large=large, broken=broken) as slots:
            await until(lambda: slots.reasons.get("broken-0", "").startswith("Ray cannot place it: "))
            assert "no/such/directory" in slots.reasons["broken-0"]
            await until(lambda: slots.reasons.get("large-0") == f"no node of the Ray cluster has CPU {CORES + 1}")

    run(conversation())


def test_gateways_that_do_not_agree_do_not_share(machines: RayMachines) -> None:
    async def conversation() -> None:
        async with gateway(machines, "g1", edge=settings(machines, 1)) as first:
            await until(lambda: len(first.urls) == 1)
            async with gateway(machines, "g2", edge=settings(machines, 2)) as second:
                await until(lambda: "partitions edge are shared with gateway g1, but differ" in second.cluster.trouble)
                assert second.urls == {}
            assert len(first.urls) == 1
        await ended(machines)

    run(conversation())


def test_a_gateway_that_is_paused_loses_its_workers_and_takes_part_again(machines: RayMachines) -> None:
    async def conversation() -> None:
        edge = settings(machines, 2)
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(gateway(machines, "g1", edge=edge))
            await until(lambda: len(first.urls) == 2)
            second = await stack.enter_async_context(gateway(machines, "g2", edge=edge))
            await until(lambda: len(first.urls) == len(second.urls) == 1)
            workers = first.urls | second.urls
            timer = first.cluster._timer
            assert timer is not None
            timer.cancel()  # a gateway that is stopped does not say that it lives
            await until(lambda: second.urls == workers)
            assert len(first.urls) == 1  # it has not heard of it, as a process that is stopped
            first.cluster._tick()
            await until(lambda: len(first.urls) == len(second.urls) == 1)
            assert first.urls | second.urls == workers
        await ended(machines)

    run(conversation())
