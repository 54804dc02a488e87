"""Models whose requests can wait for no load are loaded all the same, in place of what is asked for less."""

from typing import Any

import msgspec
import pytest

from sluice.batcher.interface.config import PipelineConfig
from sluice.batcher.interface.decisions import AnyDecision, LoadModel, RejectRequest, UnloadModel
from sluice.batcher.interface.events import ModelLoaded, ModelLoadFailed, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.residency_config import Eviction
from sluice.batcher.residency.load_candidates import LoadCandidate, LoadCandidates, LoadPurpose, LoadRefusal
from sluice.batcher.residency.on_demand import OnDemandLoader
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.batcher.state import ModelState
from tests.support.scheduling.builders import MS, ONE, S, arrival, cascade, chain, dispatch, single, step
from tests.unit.batcher.residency.test_on_demand import FULL, demanded, run, up

SHORT_NS = 5 * MS
"""The objective of requests that are in time with the model at hand, and never with a load of 10 ms."""


def turn_away(scheduler: Scheduler, key: str, now_ns: int, request: int = 1000) -> list[AnyDecision]:
    """The other decisions when a request that cannot wait is refused."""
    rejection, *orders = step(scheduler, now_ns, arrival(request + now_ns, now_ns + SHORT_NS, key))
    assert isinstance(rejection, RejectRequest)
    assert rejection.outcome is Outcome.REJECTED_DEADLINE
    return orders


def test_a_request_that_no_load_is_in_time_for_is_refused_and_the_next_one_served() -> None:
    scheduler = up(demanded("a", "b"), cpu0="a")
    assert turn_away(scheduler, "b", 0) == [LoadModel("cpu0", "b")]
    # It is coming: nothing is ordered for those that come meanwhile.
    assert turn_away(scheduler, "b", MS) == []
    assert step(scheduler, 10 * MS, ModelLoaded("cpu0", "b", ONE)) == []
    assert step(scheduler, 11 * MS, arrival(1, 11 * MS + SHORT_NS, "b")) == [dispatch(1, [1], FULL, model="b")]
    loader = scheduler.served.loader
    assert isinstance(loader, OnDemandLoader)
    assert (loader.loads, loader.returns) == (1, 1)


def test_it_takes_the_place_of_what_is_asked_for_less_and_of_nothing_else() -> None:
    scheduler = up(demanded("a", "b", "c"), cpu0="ab")
    for number in range(10):
        run(scheduler, "a", number, 1 + number, 2 * number * MS)
    for number in range(3):
        run(scheduler, "b", 10 + number, 11 + number, (20 + 2 * number) * MS)
    # a ran the longest ago, but b is asked for less.
    orders = [turn_away(scheduler, "c", (30 + number) * MS) for number in range(3)]
    assert orders == [[], [], [UnloadModel("cpu0", "b"), LoadModel("cpu0", "c")]]


def test_a_large_model_has_to_outweigh_all_that_goes_for_it() -> None:
    spec = demanded("a", "b", "big")
    models = (*spec.models[:2], msgspec.structs.replace(spec.models[2], footprints={}, memory_bytes=2))
    scheduler = up(msgspec.structs.replace(spec, models=models), cpu0="ab")
    for number, key in enumerate("ababab"):
        run(scheduler, key, number, 1 + number, 2 * number * MS)
    orders = [turn_away(scheduler, "big", (30 + number) * MS) for number in range(6)]
    assert orders == [
        [],
        [],
        [],
        [],
        [],
        [UnloadModel("cpu0", "a"), UnloadModel("cpu0", "b"), LoadModel("cpu0", "big")],
    ]


def test_what_was_loaded_just_now_counts_for_more_than_what_has_been_there_for_long() -> None:
    scheduler = up(demanded("a", "b", memory=1), cpu0="a")
    turn_away(scheduler, "b", 0)
    step(scheduler, 10 * MS, ModelLoaded("cpu0", "b", ONE))
    for number in range(4):
        run(scheduler, "b", number, 1 + number, (11 + 2 * number) * MS)
    # b was asked for 5 times, and has been there for as long as 2 loads take: it goes for what is asked for 10 times.
    orders = [turn_away(scheduler, "a", 30 * MS, request) for request in range(1000, 1011)]
    assert orders[:9] == [[]] * 9
    assert [UnloadModel("cpu0", "b"), LoadModel("cpu0", "a")] in orders[9:]


def test_what_is_asked_for_no_more_does_not_count_after_five_seconds() -> None:
    scheduler = up(demanded("a", "b", memory=1), cpu0="a")
    for number in range(100):
        run(scheduler, "a", number, 1 + number, 2 * number * MS)
    assert turn_away(scheduler, "b", S) == []
    assert turn_away(scheduler, "b", 6 * S) == [UnloadModel("cpu0", "a"), LoadModel("cpu0", "b")]


def test_nothing_goes_that_is_pinned_or_more_important_and_what_is_less_important_weighs_nothing() -> None:
    for spec in (
        demanded("a", "b", memory=1, pinned="a"),
        demanded("a", "b", memory=1, priorities={"a": 1}),
        demanded("a", "b", memory=1, eviction=Eviction.NONE),
    ):
        (rejection,) = step(up(spec, cpu0="a"), 0, arrival(1, SHORT_NS, "b"))
        assert isinstance(rejection, RejectRequest)
    scheduler = up(demanded("a", "b", memory=1, priorities={"b": 1}), cpu0="a")
    for number in range(3):
        run(scheduler, "a", number, 1 + number, 2 * number * MS)
    assert turn_away(scheduler, "b", 10 * MS) == [UnloadModel("cpu0", "a"), LoadModel("cpu0", "b")]


def test_thousands_that_are_refused_have_room_looked_for_some_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = up(demanded("a", "b", memory=1), cpu0="a")
    for number in range(2000):
        scheduler.handle(arrival(number, S, "a"), 0)
    looks: list[float | None] = []
    find = LoadCandidates.find

    def counted(
        self: LoadCandidates, model: ModelState, now_ns: int, purpose: LoadPurpose, *ahead_ns: Any
    ) -> LoadCandidate | LoadRefusal:
        looks.append(purpose.asked)
        return find(self, model, now_ns, purpose, *ahead_ns)

    monkeypatch.setattr(LoadCandidates, "find", counted)
    for number in range(1000):
        now_ns = MS + number * 20_000
        scheduler.handle(arrival(5000 + number, now_ns + SHORT_NS, "b"), now_ns)
    for_refused = [asked for asked in looks if asked is not None]
    assert for_refused[:3] == pytest.approx([1, 2, 3], rel=0.01)
    assert for_refused[-1] == pytest.approx(1000, rel=0.15)
    assert len(for_refused) < 80


def test_all_models_are_loaded_that_every_request_needs_and_no_others() -> None:
    pipelines: tuple[PipelineConfig, ...] = (chain("a", "b"), cascade("c", "d"), single("e"))
    scheduler = up(demanded("a", "b", "c", "d", "e", memory=5, pipelines=pipelines, prewarm="off"), cpu0="")
    scheduler.pipelines["cascade:1"].stages[1].run_probability = 0.001
    assert turn_away(scheduler, "chain:1", 0) == [LoadModel("cpu0", "a"), LoadModel("cpu0", "b")]
    assert turn_away(scheduler, "cascade:1", MS) == [LoadModel("cpu0", "c")]


def test_a_request_that_is_refused_for_the_loads_of_others_has_nothing_loaded() -> None:
    scheduler = up(demanded("a", "b", "c", memory=3), cpu0="a")
    assert step(scheduler, 0, arrival(1, S, "b")) == [LoadModel("cpu0", "b")]
    # By itself it would be in time, and the next one may be.
    (rejection,) = step(scheduler, MS, arrival(2, MS + 15 * MS, "c"))
    assert isinstance(rejection, RejectRequest)


def test_a_limit_of_cost_that_nothing_can_be_promised_for_has_the_model_loaded() -> None:
    scheduler = up(demanded("a", "b"), cpu0="a")
    rejection, *orders = step(scheduler, 0, RequestArrived(1, "b", 1, S, max_cost=1.0))
    assert isinstance(rejection, RejectRequest)
    assert orders == [LoadModel("cpu0", "b")]


def test_a_model_that_could_not_be_loaded_is_left_alone_for_a_second() -> None:
    scheduler = up(demanded("a", "b"), cpu0="a")
    assert turn_away(scheduler, "b", 0) == [LoadModel("cpu0", "b")]
    assert step(scheduler, MS, ModelLoadFailed("cpu0", "b", "it is broken")) == []
    (rejection,) = step(scheduler, 2 * MS, arrival(1, 2 * MS + SHORT_NS, "b"))
    assert isinstance(rejection, RejectRequest)
    assert turn_away(scheduler, "b", 2 * S) == [LoadModel("cpu0", "b")]
