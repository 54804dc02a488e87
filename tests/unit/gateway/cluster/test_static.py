import asyncio

import pytest

from sluice.gateway.cluster.source import WorkerSource
from sluice.gateway.cluster.sources import worker_source
from sluice.gateway.cluster.static import NOT_WANTED, StaticSource
from sluice.gateway.config.remote_settings import DnsSettings, RemoteClass
from sluice.models.errors import ConfigError


def _started(source: WorkerSource) -> list[tuple[str, str | None, str]]:
    placed: list[tuple[str, str | None, str]] = []
    source.start(lambda *each: placed.append(each))
    return placed


def test_each_slot_has_the_address_that_the_configuration_lists() -> None:
    source = worker_source(RemoteClass("edge", "cpu1", urls=("a:1", "b:1")))
    assert _started(source) == [("edge-0", "a:1", ""), ("edge-1", "b:1", "")]


def test_slots_that_are_not_wanted_lose_their_workers_and_get_them_back() -> None:
    source = StaticSource({"edge-0": "a:1", "edge-1": "b:1", "edge-2": "c:1"})
    placed = _started(source)
    placed.clear()
    source.want(1)
    assert placed == [("edge-2", None, NOT_WANTED), ("edge-1", None, NOT_WANTED)]
    placed.clear()
    source.want(2)
    assert placed == [("edge-1", "b:1", "")]


def test_slots_that_are_to_leave_go_first_and_then_those_without_a_session() -> None:
    source = StaticSource({f"edge-{number}": f"a:{number + 1}" for number in range(4)})
    placed = _started(source)
    for slot in ("edge-0", "edge-1", "edge-3"):
        source.leased(slot)
    source.lost("edge-1")
    placed.clear()
    source.want(2, ("edge-0",))
    assert [slot for slot, _, _ in placed] == ["edge-0", "edge-2"]
    placed.clear()
    source.want(0)
    assert [slot for slot, _, _ in placed] == ["edge-1"], "a slot in use stays until it is to leave"


def test_a_number_wanted_before_the_start_counts_from_the_start() -> None:
    source = StaticSource({"edge-0": "a:1", "edge-1": "b:1"})
    source.want(1)
    assert _started(source) == [("edge-0", "a:1", "")]


@pytest.mark.parametrize("count", [-1, 7])
def test_no_more_slots_are_wanted_than_there_are_and_no_fewer_than_none(count: int) -> None:
    source = StaticSource({"edge-0": "a:1"})
    placed = _started(source)
    source.want(count)
    assert placed[1:] == ([("edge-0", None, NOT_WANTED)] if count < 0 else [])


def test_a_closed_source_places_nothing() -> None:
    source = StaticSource({"edge-0": "a:1"})
    placed = _started(source)
    asyncio.run(source.close())
    source.want(0)
    assert len(placed) == 1


def test_a_class_whose_workers_cannot_be_found_is_named() -> None:
    with pytest.raises(ConfigError, match="remote partitions edge: this build cannot find workers by dns"):
        worker_source(RemoteClass("edge", "cpu1", dns=DnsSettings("workers.test", 9001, 4)))
