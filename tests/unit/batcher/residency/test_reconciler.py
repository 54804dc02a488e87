"""The partitions come to hold what the plan says: models are loaded, then taken out of use elsewhere, then unloaded."""

import msgspec

from sluice.batcher.interface.decisions import (
    AcceptChange,
    AnyDecision,
    BuildPlan,
    CompleteRequest,
    DispatchBatch,
    FailRequest,
    LoadModel,
    RejectRequest,
    ReleaseReason,
    UnloadModel,
)
from sluice.batcher.interface.events import (
    AnyEvent,
    BatchFailed,
    FailureCause,
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
    PlanBuilt,
    ServingChanged,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.plan_data import Plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.scheduler import Scheduler
from tests.support.scheduling.builders import (
    MS,
    ONE,
    US,
    S,
    arrival,
    completed,
    dispatch,
    model,
    serving,
    spec_of,
    step,
)

FULL = ReleaseReason.FULL


class Placed:
    """Partitions a, b, … that hold these models, one letter each; every plan that is asked for can be given."""

    def __init__(self, **held: str) -> None:
        keys = sorted(set("".join(held.values())) | set("mn"))
        spec = spec_of([model(key, 1) for key in keys], partitions=tuple(held))
        self.scheduler = Scheduler(spec, LivePlanner())
        self.now_ns = 0
        self.build = 0
        self.tell(*(PartitionReady(name, dict.fromkeys(models, ONE)) for name, models in held.items()))

    def tell(self, *events: AnyEvent) -> list[AnyDecision]:
        """The decisions of a microsecond later, without orders to build plans, which stay open."""
        self.now_ns += US
        decisions = step(self.scheduler, self.now_ns, *events)
        self.build += sum(isinstance(decision, BuildPlan) for decision in decisions)
        return [decision for decision in decisions if not isinstance(decision, BuildPlan)]

    def aim(self, **residency: str) -> list[AnyDecision]:
        """The plan that is being built asks for this residency."""
        held = {name: tuple(models) for name, models in residency.items()}
        return self.tell(PlanBuilt(self.build, Plan((), held)))

    def aim_again(self, **residency: str) -> list[AnyDecision]:
        """Another plan is built two seconds later, since there are requests now and were none."""
        self.now_ns += 2 * S
        before = self.build
        too_late = [arrival(200 + number, 1, "m") for number in range(300)]
        decisions = self.tell(arrival(100, self.now_ns + S, "m"), *too_late)
        assert [each for each in decisions if not isinstance(each, RejectRequest)] == [
            dispatch(1, [100], FULL, model="m", partition="a")
        ]
        assert self.tell(completed(1, self.now_ns, self.now_ns)) == [CompleteRequest(100, Outcome.COMPLETED)]
        assert self.build == before + 1
        return self.aim(**residency)

    def fail(self, partition: str, key: str) -> int:
        """The time that a model that could not be loaded is left alone: until the scheduler wakes up by itself."""
        assert self.tell(ModelLoadFailed(partition, key, "there is no memory left")) == []
        failed_ns, wake_ns = self.now_ns, self.scheduler.next_wakeup_ns()
        assert wake_ns is not None
        self.now_ns = wake_ns - US
        assert self.tell() == [LoadModel(partition, key)]
        return wake_ns - failed_ns

    @property
    def held(self) -> dict[str, str]:
        """The models whose batches each partition may be given."""
        return {
            name: "".join(sorted(state.models)) for name, state in self.scheduler.dispatcher.fleet.partitions.items()
        }


def loaded(partition: str, key: str) -> ModelLoaded:
    return ModelLoaded(partition, key, ONE)


def served(placed: Placed) -> list[AnyDecision]:
    """The other decisions when a request comes and is served."""
    request = placed.now_ns
    batch, *others = reversed(placed.tell(arrival(request, request + S, "m")))
    assert isinstance(batch, DispatchBatch)
    placed.tell(completed(batch.batch, placed.now_ns, placed.now_ns + US))
    return others


def test_a_model_moves_by_being_loaded_first_and_unloaded_when_it_is_there() -> None:
    placed = Placed(a="mn", b="n")
    assert placed.aim(a="n", b="mn") == [LoadModel("b", "m")]
    assert placed.held == {"a": "mn", "b": "n"}
    assert placed.tell(loaded("b", "m")) == [UnloadModel("a", "m")]
    assert placed.held == {"a": "n", "b": "mn"}
    assert placed.tell(ModelUnloaded("a", "m")) == []


def test_requests_run_where_the_model_was_until_it_is_in_its_new_place() -> None:
    placed = Placed(a="mn", b="n")
    placed.aim(a="n", b="mn")
    assert placed.tell(arrival(1, S, "m"), arrival(2, S, "m")) == [dispatch(1, [1], FULL, model="m", partition="a")]
    # What waits for a goes to b from now on; what runs on a ends there.
    assert placed.tell(loaded("b", "m")) == [
        UnloadModel("a", "m"),
        dispatch(2, [2], FULL, model="m", partition="b"),
    ]
    assert placed.tell(completed(1, 0, MS)) == [CompleteRequest(1, Outcome.COMPLETED)]


def test_nothing_is_unloaded_before_all_is_loaded() -> None:
    placed = Placed(a="mn", b="x", c="x")
    assert placed.aim(a="x", b="m", c="n") == [LoadModel("a", "x"), LoadModel("b", "m"), LoadModel("c", "n")]
    assert placed.tell(loaded("b", "m")) == []
    assert placed.tell(loaded("a", "x")) == []
    assert placed.tell(loaded("c", "n")) == [
        UnloadModel("a", "m"),
        UnloadModel("a", "n"),
        UnloadModel("b", "x"),
        UnloadModel("c", "x"),
    ]


def test_a_partition_that_the_plan_does_not_name_keeps_what_it_holds() -> None:
    placed = Placed(a="mn", b="mn")
    assert placed.aim(a="m") == [UnloadModel("a", "n")]
    assert placed.held == {"a": "m", "b": "mn"}


def test_a_model_that_could_not_be_loaded_stays_where_it_was() -> None:
    placed = Placed(a="mn", b="n")
    assert placed.aim(a="n", b="mn") == [LoadModel("b", "m")]
    assert placed.tell(ModelLoadFailed("b", "m", "there is no memory left")) == []
    assert placed.held == {"a": "mn", "b": "n"}
    assert placed.tell(arrival(1, S, "m")) == [dispatch(1, [1], FULL, model="m", partition="a")]


def test_a_model_that_could_not_be_loaded_is_tried_again_after_ever_longer_whiles() -> None:
    placed = Placed(a="mn", b="n")
    assert placed.aim(a="n", b="mn") == [LoadModel("b", "m")]
    assert [placed.fail("b", "m") for _ in range(6)] == [S, 2 * S, 4 * S, 8 * S, 16 * S, 32 * S]
    assert placed.held == {"a": "mn", "b": "n"}


def test_a_model_that_never_loads_wakes_nobody_for_ever_and_is_tried_again_when_something_happens() -> None:
    placed = Placed(a="mn", b="n")
    placed.aim(a="n", b="mn")
    for _ in range(6):
        placed.fail("b", "m")
    for _ in range(2):
        assert placed.tell(ModelLoadFailed("b", "m", "there is no memory left")) == []
        assert placed.scheduler.next_wakeup_ns() is None
        placed.now_ns += 59 * S
        assert served(placed) == []
        placed.now_ns += S
        assert served(placed) == [LoadModel("b", "m")]


def test_another_plan_is_no_reason_to_try_sooner() -> None:
    placed = Placed(a="mn", b="n")
    placed.aim(a="n", b="mn")
    assert [placed.fail("b", "m") for _ in range(3)] == [S, 2 * S, 4 * S]
    placed.tell(ModelLoadFailed("b", "m", "there is no memory left"))
    assert placed.aim_again(b="mn") == []
    assert placed.tell() == []
    placed.now_ns += 6 * S
    assert placed.tell() == [LoadModel("b", "m")]


def test_a_model_that_loads_at_last_has_its_failures_forgotten() -> None:
    placed = Placed(a="mn", b="n")
    placed.aim(b="mn")
    assert [placed.fail("b", "m") for _ in range(2)] == [S, 2 * S]
    placed.tell(loaded("b", "m"))
    assert placed.aim(b="n") == [UnloadModel("b", "m")]
    placed.tell(ModelUnloaded("b", "m"))
    assert placed.aim_again(b="mn") == [LoadModel("b", "m")]
    assert placed.fail("b", "m") == S


def test_a_worker_that_is_another_may_load_what_the_one_before_could_not() -> None:
    placed = Placed(a="mn", b="n")
    placed.aim(b="mn")
    assert [placed.fail("b", "m") for _ in range(3)] == [S, 2 * S, 4 * S]
    placed.tell(ModelLoadFailed("b", "m", "there is no memory left"))
    placed.tell(PartitionLost("b", "killed"))
    assert placed.tell(PartitionReady("b", {"n": ONE})) == [LoadModel("b", "m")]
    assert placed.fail("b", "m") == S


def test_a_load_that_fails_for_a_plan_that_is_over_takes_nothing_from_its_partition() -> None:
    placed = Placed(a="mn", b="n")
    assert placed.aim(b="mn") == [LoadModel("b", "m")]
    assert placed.aim_again(a="mn") == []
    assert placed.tell(ModelLoadFailed("b", "m", "there is no memory left")) == []
    assert placed.held == {"a": "mn", "b": "n"}


def test_a_model_is_not_unloaded_from_the_last_partition_that_holds_it_while_it_has_a_place() -> None:
    placed = Placed(a="mn", b="n")
    assert placed.aim(a="", b="mn") == [LoadModel("b", "m")]
    assert placed.tell(ModelLoadFailed("b", "m", "there is no memory left")) == [UnloadModel("a", "n")]
    assert placed.held == {"a": "m", "b": "n"}


def test_a_model_for_which_there_is_no_place_any_more_gives_its_memory_back() -> None:
    placed = Placed(a="m", b="n")
    assert placed.aim(a="m", b="m") == [LoadModel("b", "m")]
    assert placed.tell(arrival(1, S, "n"), arrival(2, S, "n")) == [dispatch(1, [1], FULL, model="n", partition="b")]
    assert placed.tell(loaded("b", "m")) == [
        UnloadModel("b", "n"),
        FailRequest(2, Outcome.FAILED_UNAVAILABLE, "no partition holds model n any more"),
    ]
    assert placed.tell(completed(1, 0, MS)) == [CompleteRequest(1, Outcome.COMPLETED)]
    assert placed.held == {"a": "m", "b": "m"}


def test_a_partition_that_is_away_does_not_count_as_holding_a_model() -> None:
    placed = Placed(a="mn", b="mn")
    placed.tell(PartitionLost("b", "killed"))
    assert placed.aim(a="n", b="m") == []
    assert placed.held["a"] == "mn"
    assert placed.tell(PartitionReady("b", {"m": ONE})) == [UnloadModel("a", "m")]


def test_a_model_that_takes_its_worker_along_again_is_left_alone_for_longer_each_time() -> None:
    spec = spec_of([model("m", 1), model("n", 1)])
    old = msgspec.structs.replace(spec, models=spec.models[:1], pipelines=spec.pipelines[:1])
    scheduler = serving(old, ONE)
    load = LoadModel("cpu0", "n")
    change = ServingChanged(spec.models[1:], spec.pipelines[1:])
    assert step(scheduler, 0, change) == [AcceptChange({"n": ("cpu0",)}), load]
    back = PartitionReady("cpu0", {"m": ONE})
    assert step(scheduler, MS, PartitionLost("cpu0", "killed"), back) == [load]
    assert step(scheduler, 2 * MS, PartitionLost("cpu0", "killed"), back) == []
    assert load not in step(scheduler, S + MS, arrival(1, 10 * S, "m"))
    step(scheduler, S + 2 * MS, completed(1, S + MS, S + 2 * MS))
    assert load in step(scheduler, S + 2 * MS, arrival(2, 10 * S, "m"))
    assert load not in step(
        scheduler, S + 3 * MS, completed(2, S + 2 * MS, S + 3 * MS), PartitionLost("cpu0", ""), back
    )
    assert load not in step(scheduler, 3 * S, arrival(3, 10 * S, "m"))
    step(scheduler, 3 * S + MS, completed(3, 3 * S, 3 * S + MS))
    assert load in step(scheduler, 3 * S + 3 * MS, arrival(4, 10 * S, "m"))
    # When it is there, all that is forgotten.
    step(scheduler, 4 * S, completed(4, 4 * S - MS, 4 * S), ModelLoaded("cpu0", "n", ONE))
    assert step(scheduler, 5 * S, PartitionLost("cpu0", "killed"), back) == [load]


def test_a_partition_that_is_lost_while_it_loads_loads_when_it_is_back() -> None:
    placed = Placed(a="mn", b="n")
    placed.aim(a="n", b="mn")
    assert placed.tell(PartitionLost("b", "killed")) == []
    assert placed.tell(PartitionReady("b", {"n": ONE})) == [LoadModel("b", "m")]
    assert placed.tell(loaded("b", "m")) == [UnloadModel("a", "m")]


def test_a_partition_that_is_lost_while_it_loads_may_come_back_with_the_model() -> None:
    placed = Placed(a="mn", b="n")
    placed.aim(a="n", b="mn")
    placed.tell(PartitionLost("b", "killed"))
    assert placed.tell(PartitionReady("b", {"m": ONE, "n": ONE})) == [UnloadModel("a", "m")]


def test_a_partition_that_is_lost_while_it_unloads_holds_what_it_comes_back_with() -> None:
    placed = Placed(a="mn", b="mn")
    assert placed.aim(a="n") == [UnloadModel("a", "m")]
    assert placed.tell(PartitionLost("a", "killed")) == []
    assert placed.tell(PartitionReady("a", {"m": ONE, "n": ONE})) == [UnloadModel("a", "m")]
    assert placed.tell(ModelUnloaded("a", "m")) == []
    assert placed.held == {"a": "n", "b": "mn"}


def test_a_partition_that_is_lost_while_a_plan_is_built_gets_its_orders_when_it_is_back() -> None:
    placed = Placed(a="mn", b="n")
    placed.tell(PartitionLost("b", "killed"))
    assert placed.aim(a="n", b="mn") == []
    assert placed.tell(PartitionReady("b", {"n": ONE})) == [LoadModel("b", "m")]


def test_a_batch_on_a_partition_that_loses_its_model_meanwhile_is_retried_where_the_model_is() -> None:
    placed = Placed(a="mn", b="n")
    placed.aim(a="n", b="mn")
    assert placed.tell(arrival(1, S, "m")) == [dispatch(1, [1], FULL, model="m", partition="a")]
    assert placed.tell(loaded("b", "m")) == [UnloadModel("a", "m")]
    assert placed.tell(PartitionLost("a", "killed"), BatchFailed(1, FailureCause.WORKER_LOST, "killed")) == [
        dispatch(2, [1], ReleaseReason.RETRY, model="m", partition="b")
    ]


def test_a_model_that_is_wanted_back_while_it_is_unloaded_is_loaded_after_that() -> None:
    placed = Placed(a="mn", b="mn")
    assert placed.aim(b="n") == [UnloadModel("b", "m")]
    assert placed.aim_again(b="mn") == [LoadModel("b", "m")]
    assert placed.tell(ModelUnloaded("b", "m")) == []
    assert placed.held["b"] == "n"
    assert placed.tell(loaded("b", "m")) == []
    assert placed.held["b"] == "mn"


def test_a_model_that_is_not_wanted_any_more_when_it_is_loaded_is_unloaded() -> None:
    placed = Placed(a="mn", b="n")
    assert placed.aim(b="mn") == [LoadModel("b", "m")]
    assert placed.aim_again(b="n") == []
    assert placed.tell(loaded("b", "m")) == [UnloadModel("b", "m")]


def test_a_model_that_no_partition_held_is_served_from_when_it_is_loaded() -> None:
    placed = Placed(a="m")
    (rejected,) = placed.tell(arrival(1, S, "n"))
    assert getattr(rejected, "outcome", None) is Outcome.REJECTED_UNAVAILABLE
    assert placed.aim(a="mn") == [LoadModel("a", "n")]
    assert placed.tell(loaded("a", "n")) == []
    assert placed.tell(arrival(2, S, "n")) == [dispatch(1, [2], FULL, model="n", partition="a")]
