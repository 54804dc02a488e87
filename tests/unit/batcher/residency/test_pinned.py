"""Pinned models are loaded whether or not anybody asks for them, where no partition holds them."""

import msgspec

from sluice.batcher.interface.decisions import AcceptChange, LoadModel, UnloadModel
from sluice.batcher.interface.events import (
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
    ServingChanged,
)
from sluice.batcher.interface.residency_config import Eviction
from tests.support.scheduling.builders import MS, ONE, S, arrival, completed, step
from tests.unit.batcher.residency.test_on_demand import demanded, up, wake

WAITING = AcceptChange({"new": ()})


def test_a_pinned_model_that_comes_takes_the_place_of_one_that_is_not() -> None:
    spec = demanded("a", "b", "new", memory=2, pinned="new")
    old = msgspec.structs.replace(spec, models=spec.models[:2], pipelines=spec.pipelines[:2])
    change = ServingChanged(spec.models[2:], spec.pipelines[2:])
    scheduler = up(old, cpu0="ab")
    assert step(scheduler, MS, change) == [WAITING]
    assert wake(scheduler, MS + 1) == [UnloadModel("cpu0", "a"), LoadModel("cpu0", "new")]
    unpinned = demanded("a", "b", "new", memory=2)
    scheduler = up(old, cpu0="ab")
    assert step(scheduler, MS, ServingChanged(unpinned.models[2:], unpinned.pipelines[2:])) == [WAITING]
    assert scheduler.next_wakeup_ns() is None


def test_a_pinned_model_that_comes_in_place_of_the_revision_before_is_loaded_when_that_has_gone() -> None:
    spec = demanded("a", "new", memory=1, pinned="a new")
    old = msgspec.structs.replace(spec, models=spec.models[:1], pipelines=spec.pipelines[:1])
    scheduler = up(old, cpu0="a")
    step(scheduler, 0, arrival(1, S, "a"))
    assert step(scheduler, 0, ServingChanged(spec.models[1:], spec.pipelines[1:], retired=("a",))) == [WAITING]
    assert step(scheduler, 1) == []
    assert step(scheduler, MS, completed(1, 0, MS))[1:] == [UnloadModel("cpu0", "a")]
    assert wake(scheduler, MS + 1) == [LoadModel("cpu0", "new")]


def test_a_pinned_model_that_comes_waits_until_a_place_is_free() -> None:
    spec = demanded("a", "new", memory=1, pinned="new")
    old = msgspec.structs.replace(spec, models=spec.models[:1], pipelines=spec.pipelines[:1])
    scheduler = up(old, cpu0="a")
    step(scheduler, 0, *(arrival(number, 10 * S, "a") for number in range(3)))
    step(scheduler, 0, ServingChanged(spec.models[1:], spec.pipelines[1:]))
    assert step(scheduler, 1) == []
    for number in range(3):
        step(scheduler, (1 + number) * MS, completed(1 + number, number * MS, (1 + number) * MS))
    assert step(scheduler, S + 1) == [UnloadModel("cpu0", "a"), LoadModel("cpu0", "new")]
    step(scheduler, S + 2 * MS, ModelUnloaded("cpu0", "a"))
    step(scheduler, S + 12 * MS, ModelLoaded("cpu0", "new", ONE))
    assert scheduler.next_wakeup_ns() is None


def test_a_pinned_model_of_a_partition_that_stays_lost_is_loaded_by_another() -> None:
    scheduler = up(demanded("a", "b", partitions=("cpu0", "cpu1"), memory=1, pinned="a"), cpu0="a", cpu1="b")
    assert step(scheduler, S, PartitionLost("cpu0", "it died")) == []
    assert step(scheduler, 3 * S, PartitionLost("cpu0", "it did not start")) == []
    assert wake(scheduler, 6 * S) == [UnloadModel("cpu1", "b"), LoadModel("cpu1", "a")]


def test_a_partition_that_is_back_without_its_pinned_model_loads_it() -> None:
    scheduler = up(demanded("a", "b", partitions=("cpu0", "cpu1"), memory=1, pinned="a"), cpu0="a", cpu1="b")
    assert step(scheduler, S, PartitionLost("cpu0", "it died")) == []
    step(scheduler, 2 * S, PartitionReady("cpu0", {}))
    assert wake(scheduler, 2 * S + 1) == [LoadModel("cpu0", "a")]


def test_a_pinned_model_that_never_gets_room_or_does_not_load_wakes_nobody_for_ever() -> None:
    for pinned, eviction in (("ab", Eviction.LRU), ("b", Eviction.NONE)):
        scheduler = up(demanded("a", "b", memory=1, pinned=pinned, eviction=eviction), cpu0="a")
        assert wake(scheduler, 1) == []
        assert scheduler.next_wakeup_ns() is None
    scheduler = up(demanded("a", "b", pinned="b"), cpu0="a")
    assert wake(scheduler, 1) == [LoadModel("cpu0", "b")]
    assert step(scheduler, MS, ModelLoadFailed("cpu0", "b", "it is broken")) == []
    assert scheduler.next_wakeup_ns() is None
