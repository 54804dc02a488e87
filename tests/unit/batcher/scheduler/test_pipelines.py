"""The served pipelines change: new models are loaded, old pipelines finish, and models that nobody needs go."""

import gc

import msgspec

from sluice.batcher.drivers.journal import JournalWriter, replay
from sluice.batcher.interface.config import PartitionConfig, ScheduledModel, SchedulerSpec
from sluice.batcher.interface.decisions import (
    AcceptChange,
    AnyDecision,
    BuildPlan,
    CompleteRequest,
    DispatchBatch,
    LoadModel,
    RejectChange,
    RejectRequest,
    ReleaseReason,
    UnloadModel,
)
from sluice.batcher.interface.events import (
    AnyEvent,
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
    PlanBuilt,
    RequestArrived,
    RequestCancelled,
    ServingChanged,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.plan_data import Plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.batcher.state import PipelineState, StageState
from sluice.models.pipelines.pipeline import Late
from tests.support.scheduling.builders import (
    GAINING,
    MS,
    ONE,
    US,
    S,
    arrival,
    cascade,
    completed,
    dispatch,
    model,
    serving,
    single,
    spec_of,
    step,
)

FULL = ReleaseReason.FULL
MIB = 1 << 20
NEW = ServingChanged((model("m:1@1", 1),), (single("m:1@1"),), is_reload=True)
"""Another revision of `m:1`, which is to be held beside it."""
ACCEPTED = AcceptChange({"m:1@1": ("cpu0",)})


def held(scheduler: Scheduler) -> dict[str, list[str]]:
    return {name: sorted(state.models) for name, state in scheduler.dispatcher.fleet.partitions.items()}


def test_a_revision_is_loaded_then_takes_the_requests_and_the_one_before_goes_when_its_last_request_is_done() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    assert step(scheduler, MS, arrival(1, S, "m:1"), NEW) == [
        ACCEPTED,
        LoadModel("cpu0", "m:1@1"),
        dispatch(1, [1], FULL, model="m:1"),
    ]
    assert step(scheduler, 2 * MS, ModelLoaded("cpu0", "m:1@1", ONE), ServingChanged(retired=("m:1",))) == []
    assert step(scheduler, 2 * MS + US, arrival(2, S, "m:1")) == [
        RejectRequest(2, Outcome.REJECTED_UNAVAILABLE, "m:1 is not served any more")
    ]
    assert step(scheduler, 3 * MS, completed(1, MS, 2 * MS)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        UnloadModel("cpu0", "m:1"),
    ]
    assert held(scheduler) == {"cpu0": ["m:1@1"]}
    assert step(scheduler, 4 * MS, ModelUnloaded("cpu0", "m:1"), arrival(3, S, "m:1@1")) == [
        dispatch(2, [3], FULL, model="m:1@1")
    ]
    assert list(scheduler.dispatcher.models) == ["m:1@1"]
    assert scheduler.spec == spec_of([model("m:1@1", 1)])


def sized(key: str, memory_bytes: int) -> ScheduledModel:
    return msgspec.structs.replace(model(key, 1), memory_bytes=memory_bytes)


def bounded(memory_bytes: int, *names: str, **models: int) -> SchedulerSpec:
    """Partitions of that many bytes, and the bytes that models take."""
    partitions = [PartitionConfig(name, "cpu1", memory_bytes=memory_bytes) for name in names]
    return spec_of([sized(f"{name}:1", size) for name, size in models.items()], partitions=partitions)


def change(memory_bytes: int, *, is_reload: bool) -> ServingChanged:
    return msgspec.structs.replace(NEW, models=(sized("m:1@1", memory_bytes),), is_reload=is_reload)


def test_a_copy_that_can_be_spared_goes_before_a_new_model_comes() -> None:
    scheduler = serving(bounded(100, "cpu0", "cpu1", m=60), ONE)
    assert step(scheduler, MS, change(60, is_reload=True)) == [
        AcceptChange({"m:1@1": ("cpu1",)}),
        UnloadModel("cpu1", "m:1"),
        LoadModel("cpu1", "m:1@1"),
    ]
    assert held(scheduler) == {"cpu0": ["m:1"], "cpu1": []}
    assert step(scheduler, 2 * MS, arrival(1, S, "m:1")) == [dispatch(1, [1], FULL, model="m:1")]


def test_a_change_that_has_no_room_beside_what_is_served_is_rejected_for_now_and_leaves_no_trace() -> None:
    spec = bounded(100 * MIB, "cpu0", m=60 * MIB)
    scheduler = serving(spec, ONE)
    assert step(scheduler, MS, change(50 * MIB, is_reload=True)) == [
        RejectChange(
            ("m:1@1",),
            "no partition has room for the 50 MiB of m:1@1 beside what is served: 40 MiB of 100 MiB are free",
            passing=True,
        )
    ]
    assert step(scheduler, MS, ServingChanged(retired=("m:1@1",))) == []
    assert scheduler.spec == spec
    assert list(scheduler.dispatcher.models) == ["m:1"]


def test_a_rejected_change_calls_for_no_plan() -> None:
    scheduler = Scheduler(bounded(100, "cpu0", m=60), LivePlanner())
    (order,) = step(scheduler, 0, PartitionReady("cpu0", {"m:1": ONE}))
    assert isinstance(order, BuildPlan)
    step(scheduler, 0, PlanBuilt(order.build, Plan(())))
    rejected, *others = step(scheduler, 2 * S, change(60, is_reload=True), ServingChanged(retired=("m:1@1",)))
    assert isinstance(rejected, RejectChange)
    assert others == []


def test_a_change_that_never_has_room_is_rejected_for_good() -> None:
    scheduler = serving(bounded(100 * MIB, "cpu0", m=60 * MIB), ONE)
    reason = "no partition has room for the 101 MiB that m:1@1 takes, only for 100 MiB"
    rejected = RejectChange(("m:1@1",), reason, passing=False)
    for is_reload in (True, False):
        assert step(scheduler, MS, change(101 * MIB, is_reload=is_reload)) == [rejected]


def test_a_model_that_replaces_none_waits_for_demand_where_there_is_no_room() -> None:
    scheduler = serving(bounded(100, "cpu0", m=60), ONE)
    assert step(scheduler, MS, change(50, is_reload=False)) == [AcceptChange({"m:1@1": ()})]
    assert list(scheduler.pipelines) == ["m:1", "m:1@1"]


def test_a_model_is_placed_where_a_worker_is_up_before_it_is_placed_where_one_may_come_back() -> None:
    scheduler = serving(bounded(100, "cpu0", "cpu1", m=10), ONE)
    step(scheduler, MS, PartitionLost("cpu0", "killed"))
    assert step(scheduler, MS, change(60, is_reload=True))[0] == AcceptChange({"m:1@1": ("cpu1",)})
    second = ServingChanged((sized("n:1", 60),), (single("n:1"),))
    assert step(scheduler, MS, second) == [AcceptChange({"n:1": ("cpu0",)})]
    assert step(scheduler, 2 * MS, PartitionReady("cpu0", {"m:1": ONE})) == [LoadModel("cpu0", "n:1")]


def test_a_new_model_is_placed_on_no_partition_that_is_fixed() -> None:
    ours = PartitionConfig("cpu0", "cpu1", models=("m:1",))
    server = PartitionConfig("triton", "triton", models=("n:1",), fixed=True)
    scheduler = Scheduler(spec_of([model("m:1", 1), model("n:1", 1)], partitions=[ours, server]))
    step(scheduler, 0, PartitionReady("cpu0", {"m:1": ONE}), PartitionReady("triton", {"n:1": ONE}))
    assert step(scheduler, MS, NEW) == [ACCEPTED, LoadModel("cpu0", "m:1@1")]
    assert [each.models for each in scheduler.spec.partitions] == [("m:1", "m:1@1"), ("n:1",)]


def test_what_waits_for_a_retired_pipeline_still_runs() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    waiting = [arrival(number, S, "m:1") for number in range(1, 4)]
    assert step(scheduler, MS, *waiting, ServingChanged(retired=("m:1",))) == [dispatch(1, [1], FULL, model="m:1")]
    assert step(scheduler, 3 * MS, completed(1, MS, 2 * MS)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        dispatch(2, [2], FULL, model="m:1"),
    ]
    assert step(scheduler, 5 * MS, completed(2, 3 * MS, 4 * MS)) == [
        CompleteRequest(2, Outcome.COMPLETED),
        dispatch(3, [3], FULL, model="m:1"),
    ]
    assert step(scheduler, 7 * MS, completed(3, 5 * MS, 6 * MS)) == [
        CompleteRequest(3, Outcome.COMPLETED),
        UnloadModel("cpu0", "m:1"),
    ]


def test_a_model_whose_last_batch_ends_after_it_was_unloaded_is_forgotten_then() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    step(scheduler, MS, arrival(1, S, "m:1"), ServingChanged(retired=("m:1",)))
    assert step(scheduler, 2 * MS, RequestCancelled(1))[-1] == UnloadModel("cpu0", "m:1")
    step(scheduler, 3 * MS, ModelUnloaded("cpu0", "m:1"))
    assert list(scheduler.dispatcher.models) == ["m:1"]
    step(scheduler, 4 * MS, completed(1, MS, 4 * MS))
    assert list(scheduler.dispatcher.models) == []


def test_a_model_that_another_pipeline_needs_stays() -> None:
    spec = spec_of([model("m:1", 1), model("n:1", 1)], [single("m:1"), single("n:1"), cascade("m:1", "n:1")])
    scheduler = serving(spec, ONE)
    assert step(scheduler, MS, ServingChanged(retired=("m:1", "n:1"))) == []
    assert step(scheduler, 2 * MS, ServingChanged(retired=("cascade:1",))) == [
        UnloadModel("cpu0", "m:1"),
        UnloadModel("cpu0", "n:1"),
    ]
    assert (scheduler.spec.models, scheduler.spec.pipelines) == ((), ())


def test_a_pipeline_over_models_that_are_there_is_served_at_once() -> None:
    scheduler = serving(spec_of([model("m:1", 1), model("n:1", 1)]), ONE)
    added = ServingChanged(pipelines=(cascade("m:1", "n:1"),))
    assert step(scheduler, MS, added, arrival(1, S, "cascade:1")) == [dispatch(1, [1], FULL, model="m:1")]


def test_a_revision_that_does_not_load_is_retired_and_not_tried_again() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    assert step(scheduler, MS, NEW) == [ACCEPTED, LoadModel("cpu0", "m:1@1")]
    assert step(scheduler, 2 * MS, ModelLoadFailed("cpu0", "m:1@1", "it is broken")) == []
    assert step(scheduler, 2 * MS, ServingChanged(retired=("m:1@1",))) == []
    assert list(scheduler.dispatcher.models) == ["m:1"]
    assert step(scheduler, 9 * S, arrival(1, 10 * S, "m:1")) == [dispatch(1, [1], FULL, model="m:1")]


def test_a_model_that_is_retired_while_it_is_loaded_is_unloaded_when_it_is_there() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    step(scheduler, MS, NEW)
    assert step(scheduler, 2 * MS, ServingChanged(retired=("m:1@1",))) == []
    assert step(scheduler, 3 * MS, ModelLoaded("cpu0", "m:1@1", ONE)) == [UnloadModel("cpu0", "m:1@1")]
    assert step(scheduler, 4 * MS, ModelUnloaded("cpu0", "m:1@1")) == []
    assert list(scheduler.dispatcher.models) == ["m:1"]


def test_a_partition_that_comes_back_loads_what_is_new_and_gives_up_what_is_gone() -> None:
    scheduler = Scheduler(spec_of([model("m:1", 1), model("n:1", 1)]))
    both = {"m:1": ONE, "n:1": ONE}
    assert step(scheduler, 0, NEW, ServingChanged(retired=("m:1",))) == [ACCEPTED]
    assert step(scheduler, MS, PartitionReady("cpu0", both)) == [
        UnloadModel("cpu0", "m:1"),
        LoadModel("cpu0", "m:1@1"),
    ]
    assert held(scheduler) == {"cpu0": ["n:1"]}
    assert step(scheduler, 2 * MS, ModelUnloaded("cpu0", "m:1"), PartitionLost("cpu0", "killed")) == []
    assert step(scheduler, 3 * MS, PartitionReady("cpu0", {"n:1": ONE})) == [LoadModel("cpu0", "m:1@1")]


def test_a_plan_for_what_was_served_before_is_not_followed() -> None:
    bounded = PartitionConfig("cpu0", "cpu1", memory_bytes=100)
    scheduler = Scheduler(spec_of([model("m:1", 1)], partitions=[bounded]), LivePlanner())
    (order,) = step(scheduler, 0, PartitionReady("cpu0", {"m:1": ONE}))
    assert isinstance(order, BuildPlan)
    assert step(scheduler, MS, NEW) == [ACCEPTED, LoadModel("cpu0", "m:1@1")]
    step(scheduler, 2 * MS, ModelLoaded("cpu0", "m:1@1", ONE), ServingChanged(retired=("m:1",)))
    (again,) = step(scheduler, 3 * MS, PlanBuilt(order.build, Plan((), {"cpu0": ("m:1",)})))
    assert isinstance(again, BuildPlan)
    assert held(scheduler) == {"cpu0": ["m:1@1"]}
    # One that still names a model that is gone by now leaves it out.
    assert step(scheduler, 4 * MS, PlanBuilt(again.build, Plan((), {"cpu0": ("m:1", "m:1@1")}))) == []


def test_a_plan_does_not_bring_back_a_model_whose_last_batch_runs() -> None:
    scheduler = Scheduler(spec_of([model("m:1", 1), model("n:1", 1)]), LivePlanner())
    (order,) = step(scheduler, 0, PartitionReady("cpu0", {"m:1": ONE, "n:1": ONE}))
    assert isinstance(order, BuildPlan)
    plan = Plan((), {"cpu0": ("m:1", "n:1")})
    assert step(scheduler, 0, PlanBuilt(order.build, plan)) == []
    assert step(scheduler, 2 * S, arrival(1, 9 * S, "m:1"))[0] == dispatch(1, [1], FULL, model="m:1")
    (again,) = step(scheduler, 2 * S + US, ServingChanged(retired=("m:1",)))
    assert isinstance(again, BuildPlan)
    assert step(scheduler, 2 * S + 2 * US, RequestCancelled(1))[-1] == UnloadModel("cpu0", "m:1")
    step(scheduler, 2 * S + 3 * US, PlanBuilt(again.build, plan))
    assert held(scheduler) == {"cpu0": ["n:1"]}
    assert step(scheduler, 2 * S + MS, completed(1, 2 * S, 2 * S + MS)) == []
    assert step(scheduler, 2 * S + 2 * MS, ModelUnloaded("cpu0", "m:1")) == []
    assert list(scheduler.dispatcher.models) == ["n:1"]


def test_nothing_is_left_of_revisions_that_were_served_before() -> None:
    before, now_ns = "kept:0", MS
    partition = PartitionConfig("cpu0", "cpu1", models=(before,))
    scheduler = serving(spec_of([model(before)], partitions=[partition]), GAINING)
    for revision in range(1, 4):
        key, now_ns = f"kept:{revision}", now_ns + 10 * MS
        step(scheduler, now_ns, ServingChanged((model(key),), (single(key),)))
        step(scheduler, now_ns, ModelLoaded("cpu0", key, GAINING), ServingChanged(retired=(before,)))
        (one,) = step(scheduler, now_ns, RequestArrived(revision, key, 1, now_ns + S, max_cost=1.0))
        assert isinstance(one, DispatchBatch)
        assert step(scheduler, now_ns + 100 * US, arrival(10 * revision, now_ns + S, key)) == []
        step(scheduler, now_ns + MS, ModelUnloaded("cpu0", before), completed(one.batch, now_ns, now_ns + MS))
        (two,) = step(scheduler, now_ns + 2 * MS)
        assert isinstance(two, DispatchBatch)
        step(scheduler, now_ns + 3 * MS, completed(two.batch, now_ns + 2 * MS, now_ns + 3 * MS))
        before = key
    assert scheduler.spec.partitions[0].models == ("kept:3",)
    gc.collect()
    stages = [each.model.config.key for each in gc.get_objects() if isinstance(each, StageState) and each.model]
    assert [key for key in stages if key.startswith("kept:")] == ["kept:3"]


def test_a_model_that_stays_keeps_nothing_of_pipelines_that_went() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    for number in range(1, 4):
        now_ns, name = number * 10 * MS, f"other:{number}"
        step(scheduler, now_ns, ServingChanged(pipelines=(single("m:1", name=name),)))
        step(scheduler, now_ns, arrival(number, S, name), ServingChanged(retired=(name,)))
        step(scheduler, now_ns + MS, completed(number, now_ns, now_ns + MS))
    gc.collect()
    pipelines = [each.config.name for each in gc.get_objects() if isinstance(each, PipelineState)]
    assert [name for name in pipelines if name.startswith("other:")] == []
    now_ns = 50 * MS
    assert step(scheduler, now_ns, arrival(9, S)) == [dispatch(4, [9], FULL)]


def test_an_added_pipeline_that_evicts_has_places_behind_what_runs_already() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    assert step(scheduler, MS, arrival(1, S, "m:1")) == [dispatch(1, [1], FULL, model="m:1")]
    added = ServingChanged(pipelines=(single("m:1", Late.EVICT, name="hard:1"),))
    assert step(scheduler, MS + US, added) == []
    (refused,) = step(scheduler, MS + 2 * US, arrival(2, 2 * MS, "hard:1"))
    assert isinstance(refused, RejectRequest)
    assert refused.outcome is Outcome.REJECTED_DEADLINE
    assert step(scheduler, MS + 3 * US, arrival(3, 50 * MS, "hard:1")) == []
    decisions = step(scheduler, 2 * MS, completed(1, MS, 2 * MS))
    assert decisions[0] == CompleteRequest(1, Outcome.COMPLETED)


def test_a_journal_with_changes_replays() -> None:
    lines: list[bytes] = []
    spec = bounded(100, "cpu0", m=10)
    scheduler = Scheduler(spec)
    journal = JournalWriter(lines.append, spec)
    events: list[tuple[int, AnyEvent]] = [
        (0, PartitionReady("cpu0", {"m:1": ONE})),
        (MS, change(95, is_reload=True)),
        (MS, ServingChanged(retired=("m:1@1",))),
        (MS, change(60, is_reload=True)),
        (2 * MS, ModelLoaded("cpu0", "m:1@1", ONE)),
        (2 * MS, ServingChanged(retired=("m:1",))),
    ]
    reported: list[AnyDecision] = []
    for now_ns, event in events:
        decisions = scheduler.handle(event, now_ns)
        journal.record(now_ns, event, decisions)
        reported += decisions
    assert isinstance(reported[0], RejectChange)
    assert reported[1:] == [ACCEPTED, LoadModel("cpu0", "m:1@1"), UnloadModel("cpu0", "m:1")]
    assert replay(lines) is None
