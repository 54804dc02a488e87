"""Workers at addresses that the configuration lists, on slots of a class."""

import logging
from collections.abc import Awaitable, Callable

import pytest

from sluice.batcher.settings.scaling import ScaleSettings
from sluice.gateway.cluster.leasing import KNOCK_PAUSE_S, NOT_WANTED, UNREACHABLE_S
from sluice.gateway.cluster.source import WorkerSource
from sluice.gateway.cluster.sources import worker_source
from sluice.gateway.cluster.static import StaticSource
from sluice.gateway.config.remote_settings import RemoteClass
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual

Placements = list[tuple[str, str | None, str]]


def with_source(
    source: WorkerSource, act: Callable[[Placements, Callable[[float], Awaitable[None]]], Awaitable[None]]
) -> None:
    """Start the source in virtual time and run `act` with what it has placed, and with a way to let time pass."""

    async def main(loop: VirtualLoop) -> None:
        placed: Placements = []

        async def wait(seconds: float) -> None:
            over = loop.create_future()
            loop.call_later(seconds, over.set_result, None)
            await over

        source.start(lambda *each: placed.append(each))
        await act(placed, wait)
        await source.close()

    run_virtual(main)


def started(source: WorkerSource, then: Callable[[], None] = lambda: None) -> Placements:
    """All that a source places at its start, and then at once when something happens."""
    kept: Placements = []

    async def act(placed: Placements, wait: Callable[[float], Awaitable[None]]) -> None:
        then()
        await wait(0)
        kept.extend(placed)

    with_source(source, act)
    return kept


def edge(*urls: str) -> StaticSource:
    return StaticSource("edge", [f"edge-{index}" for index in range(len(urls))], urls)


def test_each_slot_has_the_address_that_the_configuration_lists() -> None:
    source = worker_source(RemoteClass("edge", "cpu1", urls=("a:1", "b:1")))
    assert started(source) == [("edge-0", "a:1", ""), ("edge-1", "b:1", "")]


def test_slots_that_are_not_wanted_lose_their_workers_and_get_them_back() -> None:
    source = edge("a:1", "b:1", "c:1")

    def then() -> None:
        source.want(1)
        source.want(2)

    assert started(source, then)[3:] == [
        ("edge-2", None, NOT_WANTED),
        ("edge-1", None, NOT_WANTED),
        ("edge-1", "b:1", ""),
    ]


def test_a_number_wanted_before_the_start_counts_from_the_start() -> None:
    source = edge("a:1", "b:1")
    source.want(1)
    assert started(source) == [("edge-0", "a:1", "")]


@pytest.mark.parametrize("count", [-1, 7])
def test_no_more_slots_are_wanted_than_there_are_and_no_fewer_than_none(count: int) -> None:
    source = edge("a:1")
    placed = started(source, lambda: source.want(count))
    assert placed[1:] == ([("edge-0", None, NOT_WANTED)] if count < 0 else [])


def test_a_closed_source_places_nothing() -> None:
    source = edge("a:1")
    placed = started(source)
    source.want(0)
    source.refused("edge-0", "other")
    assert len(placed) == 1


def test_a_worker_of_another_gateway_is_tried_again_when_its_pause_is_over() -> None:
    async def act(placed: Placements, wait: Callable[[float], Awaitable[None]]) -> None:
        source.refused("edge-0", "other")
        await wait(KNOCK_PAUSE_S / 2)
        assert placed[1:] == []
        await wait(KNOCK_PAUSE_S)
        assert placed[1:] == [("edge-0", "a:1", "")]

    source = edge("a:1")
    with_source(source, act)


def test_a_worker_is_given_up_when_another_gateway_asks() -> None:
    async def act(placed: Placements, wait: Callable[[float], Awaitable[None]]) -> None:
        for slot in ("edge-0", "edge-1"):
            source.leased(slot)
        source.asked("edge-0", "other", 0)
        await wait(1)
        assert placed[2:] == [("edge-1", None, "given up: gateway other asks for workers")]

    source = edge("a:1", "b:1")
    with_source(source, act)


def test_what_a_source_is_asked_while_it_places_is_not_forgotten() -> None:
    source = edge("a:1")
    placed: Placements = []

    def refuse(slot: str, address: str | None, reason: str) -> None:
        placed.append((slot, address, reason))
        if len(placed) < 3:
            source.refused(slot, "other")

    async def main(loop: VirtualLoop) -> None:
        source.start(refuse)
        over = loop.create_future()
        loop.call_later(2 * UNREACHABLE_S, over.set_result, None)
        await over
        await source.close()

    run_virtual(main)
    assert placed == [("edge-0", "a:1", "")] * 3


def test_workers_without_a_partition_are_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    started(StaticSource("edge", ["edge-0"], ["a:1", "b:1"]))
    (record,) = caplog.records
    assert (record.message, vars(record)["fields"]["without"]) == ("more workers than partitions", "b:1")


def test_a_class_that_is_scaled_has_no_workers_until_a_number_is_wanted() -> None:
    source = worker_source(RemoteClass("edge", "cpu1", urls=("a:1", "b:1"), scale=ScaleSettings(min=1)))
    assert started(source) == []
    source = worker_source(RemoteClass("edge", "cpu1", urls=("a:1", "b:1"), scale=ScaleSettings(min=1)))
    assert started(source, lambda: source.want(1)) == [("edge-0", "a:1", "")]
