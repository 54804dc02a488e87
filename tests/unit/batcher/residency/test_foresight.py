"""Loads for later stages at a branch: what is dropped, what is loaded instead, and how the loads are counted."""

from typing import Any

import msgspec

from sluice.batcher.interface.config import PipelineConfig, StageConfig, WhenConfig
from sluice.batcher.interface.decisions import AnyDecision, LoadModel, UnloadModel
from sluice.batcher.interface.events import (
    BatchCompleted,
    ModelLoaded,
    ModelLoadFailed,
    PartitionReady,
    RequestCancelled,
)
from sluice.batcher.interface.residency_config import OnMiss
from sluice.batcher.residency.foresight import Foresight
from sluice.batcher.residency.on_demand import OnDemandLoader
from sluice.batcher.scheduler.scheduler import Scheduler
from tests.support.scheduling.builders import CERTAINTY, MS, ONE, US, S, arrival, completed, single, step
from tests.unit.batcher.residency.test_on_demand import demanded, wake

TWO_WAYS = PipelineConfig(
    "two ways",
    (
        StageConfig("root", "root"),
        StageConfig("A", "A", when=WhenConfig(0, 0, 0.5)),
        StageConfig("A2", "A2", (1,)),
        StageConfig("A3", "A3", (2,)),
        StageConfig("B", "B", when=WhenConfig(0, 1, 0.5)),
        StageConfig("B2", "B2", (4,)),
        StageConfig("B3", "B3", (5,)),
    ),
)
"""A request goes on to A, or to B."""
SHORT = PipelineConfig("short", TWO_WAYS.stages[:2])
KEYS = ("root", "A", "A2", "A3", "B", "B2", "B3", "x", "y")
GPUS = tuple(f"gpu{number}" for number in range(7))
TO_A, TO_B, TO_NONE = (0.1, 0.9), (0.9, 0.1), (0.9, 0.9)


def branching(partitions: tuple[str, ...] = GPUS, **settings: Any) -> Scheduler:
    """The root is there and is likely to go on to A; a stage takes 1.15 ms, and the other models load in 10 ms."""
    settings = {"memory": 1, "pinned": "root", **settings}
    spec = demanded(
        *KEYS, partitions=partitions, pipelines=(TWO_WAYS, SHORT, single("x"), single("y"), single("B")), **settings
    )
    root = msgspec.structs.replace(spec.models[0], confidences=(CERTAINTY, CERTAINTY))
    scheduler = Scheduler(msgspec.structs.replace(spec, models=(root, *spec.models[1:])))
    for name in partitions:
        step(scheduler, 0, PartitionReady(name, {"root": ONE} if name == "gpu0" else {}))
    stages = scheduler.pipelines["two ways"].stages
    stages[1].run_probability, stages[4].run_probability = 0.7, 0.3
    return scheduler


def loads_of(decisions: list[AnyDecision]) -> list[str]:
    return [decision.model for decision in decisions if isinstance(decision, LoadModel)]


def decide(scheduler: Scheduler, now_ns: int, way: tuple[float, float], batch: int = 1) -> list[str]:
    """Have a batch of the root end so; the models whose loads are ordered then."""
    return loads_of(step(scheduler, now_ns, BatchCompleted(batch, 0, now_ns, tuple((each,) for each in way))))


def foresight_of(scheduler: Scheduler) -> Foresight:
    loader = scheduler.served.loader
    assert isinstance(loader, OnDemandLoader)
    return loader.foresight


def outcomes(scheduler: Scheduler) -> dict[str, int]:
    """The numbers of loads for later stages by their ends, without zeros."""
    foresight = foresight_of(scheduler)
    counts = {name: getattr(foresight, name) for name in ("hits", "late", "missed", "lost")}
    return {name: count for name, count in counts.items() if count}


def test_a_request_that_takes_the_other_branch_has_the_models_there_loaded_just_in_time() -> None:
    scheduler = branching()
    assert loads_of(step(scheduler, 0, arrival(1, S, "two ways"))) == ["A"]
    assert decide(scheduler, MS, TO_B) == ["B"]
    # B is there at 11 ms and ends at 12.15 ms. A2 would have been ordered at 1.15 ms, and A3 at 2.3 ms.
    assert loads_of(wake(scheduler, 2150 * US)) == ["B2"]
    assert loads_of(wake(scheduler, 3300 * US)) == ["B3"]
    assert outcomes(scheduler) == {"missed": 1}


def test_after_a_miss_nothing_more_is_prewarmed_if_that_is_configured() -> None:
    scheduler = branching(on_miss=OnMiss.STOP)
    assert loads_of(step(scheduler, 0, arrival(1, S, "two ways"))) == ["A"]
    assert decide(scheduler, MS, TO_B) == ["B"]
    assert scheduler.next_wakeup_ns() is None
    step(scheduler, 11 * MS, ModelLoaded(holder(scheduler, "B"), "B", ONE))
    assert loads_of(step(scheduler, 12 * MS, completed(2, 11 * MS, 12 * MS))) == ["B2"]


def test_a_request_on_the_likely_path_is_prewarmed_whatever_a_miss_would_mean() -> None:
    for on_miss in OnMiss:
        scheduler = branching(on_miss=on_miss)
        assert loads_of(step(scheduler, 0, arrival(1, S, "two ways"))) == ["A"]
        assert decide(scheduler, MS, TO_A) == []
        assert loads_of(wake(scheduler, 1150 * US)) == ["A2"]
        assert loads_of(wake(scheduler, 2300 * US)) == ["A3"]
        assert outcomes(scheduler) == {"late": 1}


def test_loads_for_stages_that_no_request_reaches_are_not_ordered() -> None:
    scheduler = branching()
    step(scheduler, 0, arrival(1, S, "two ways"))
    assert decide(scheduler, MS, TO_NONE) == []
    assert scheduler.next_wakeup_ns() is None
    assert outcomes(scheduler) == {"missed": 1}


def test_what_another_request_is_expected_to_need_is_loaded_all_the_same() -> None:
    scheduler = branching()
    step(scheduler, 0, arrival(1, S, "two ways"), arrival(2, S, "two ways"))
    assert decide(scheduler, MS, TO_NONE) == []
    # The second request is with the root until 2 ms, but its loads are planned as if it did not wait.
    assert loads_of(wake(scheduler, 1150 * US)) == ["A2"]
    assert outcomes(scheduler) == {}
    step(scheduler, 1500 * US, RequestCancelled(2))
    assert scheduler.next_wakeup_ns() is None
    assert outcomes(scheduler) == {"missed": 2}


def test_a_model_that_was_there_before_the_rows_is_a_hit_and_lay_idle_meanwhile() -> None:
    scheduler = branching()
    step(scheduler, 0, arrival(1, S, "two ways"))
    step(scheduler, 10 * MS, ModelLoaded(holder(scheduler, "A"), "A", ONE))
    decide(scheduler, 15 * MS, TO_A)
    assert outcomes(scheduler)["hits"] == 1
    assert foresight_of(scheduler).idle_ns == 5 * MS


def test_a_model_that_was_loaded_for_nothing_makes_room_at_once() -> None:
    scheduler = branching(("gpu0", "gpu1"))
    assert loads_of(step(scheduler, 0, arrival(1, S, "two ways"))) == ["A"]
    assert decide(scheduler, MS, TO_B) == []
    # It has neither run nor stayed for 5 ms.
    loaded = step(scheduler, 10 * MS, ModelLoaded("gpu1", "A", ONE))
    decisions = loaded or wake(scheduler, 11 * MS)
    assert decisions == [UnloadModel("gpu1", "A"), LoadModel("gpu1", "B")]


def test_a_model_that_was_loaded_for_nothing_goes_before_one_that_has_run() -> None:
    scheduler = branching(("gpu0",), memory=3)
    step(scheduler, 0, arrival(1, S, "x"))
    step(scheduler, 10 * MS, ModelLoaded("gpu0", "x", ONE))
    step(scheduler, 11 * MS, completed(1, 10 * MS, 11 * MS))
    assert loads_of(step(scheduler, 12 * MS, arrival(2, S, "short"))) == ["A"]
    step(scheduler, 22 * MS, ModelLoaded("gpu0", "A", ONE))
    decide(scheduler, 24 * MS, TO_NONE, batch=2)
    foresight = foresight_of(scheduler)
    assert (foresight.missed, foresight.idle_ns) == (1, 2 * MS)
    assert step(scheduler, 30 * MS, arrival(3, S, "y")) == [UnloadModel("gpu0", "A"), LoadModel("gpu0", "y")]


def test_a_load_that_fails_before_rows_come_is_lost() -> None:
    scheduler = branching()
    step(scheduler, 0, arrival(1, S, "two ways"))
    step(scheduler, MS // 2, ModelLoadFailed(holder(scheduler, "A"), "A", "it is broken"))
    assert decide(scheduler, MS, TO_A) == ["A"]
    assert outcomes(scheduler) == {"lost": 1}


def holder(scheduler: Scheduler, key: str) -> str:
    """The partition that is loading a model."""
    (name,) = scheduler.served.residency.loaders(key)
    return name
