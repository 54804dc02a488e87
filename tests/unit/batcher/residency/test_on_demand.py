"""Models that are loaded when they are asked for: in time, in memory, and in place of what nobody waits for."""

import msgspec

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, ScheduledModel, SchedulerSpec
from sluice.batcher.interface.decisions import (
    AcceptChange,
    AnyDecision,
    CompleteRequest,
    DispatchBatch,
    EvictRequest,
    FailRequest,
    LoadModel,
    RejectRequest,
    ReleaseReason,
    UnloadModel,
)
from sluice.batcher.interface.events import (
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
    RequestCancelled,
    ServingChanged,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.residency_config import Eviction, Footprint, Loading, Prewarm, ResidencyConfig
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.residency.on_demand import OnDemandLoader
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from tests.support.scheduling.builders import (
    CERTAINTY,
    MS,
    ONE,
    US,
    S,
    arrival,
    cascade,
    chain,
    completed,
    dispatch,
    model,
    single,
    spec_of,
    step,
)

FULL = ReleaseReason.FULL
LOAD_MS = 10


def demanded(
    *keys: str,
    partitions: tuple[str, ...] = ("cpu0",),
    memory: int = 2,
    pipelines: tuple[PipelineConfig, ...] = (),
    priorities: dict[str, int] | None = None,
    pinned: str = "",
    **residency: object,
) -> SchedulerSpec:
    """Models of one byte each that take 10 ms to load and 1 ms to run, on partitions with room for `memory` of them."""
    models = [
        msgspec.structs.replace(
            model(key, 1, confidences=(CERTAINTY,)),
            memory_bytes=1,
            footprints={"cpu1": Footprint(1, load_ns=LOAD_MS * MS, table=ONE)},
            pinned=key in pinned,
            priority=(priorities or {}).get(key, 0),
        )
        for key in keys
    ]
    spec = spec_of(
        models, pipelines, partitions=[PartitionConfig(name, "cpu1", memory_bytes=memory) for name in partitions]
    )
    config = msgspec.convert({"min_resident_ns": 5 * MS, **residency}, ResidencyConfig)
    return msgspec.structs.replace(spec, residency=msgspec.structs.replace(config, loading=Loading.DEMAND))


def up(spec: SchedulerSpec, **held: str) -> Scheduler:
    scheduler = Scheduler(spec)
    for name, keys in held.items():
        assert step(scheduler, 0, PartitionReady(name, dict.fromkeys(keys, ONE))) == []
    return scheduler


def wake(scheduler: Scheduler, now_ns: int) -> list[AnyDecision]:
    """The decisions of a wake-up that is due then."""
    assert scheduler.next_wakeup_ns() == now_ns
    return step(scheduler, now_ns)


def run(scheduler: Scheduler, key: str, request: int, batch: int, now_ns: int) -> None:
    """Have a model that is held run a request."""
    decisions = step(scheduler, now_ns, arrival(request, now_ns + S, key))
    assert [type(decision) for decision in decisions] == [DispatchBatch]
    step(scheduler, now_ns + MS, completed(batch, now_ns, now_ns + MS))


def reason(decisions: list[AnyDecision]) -> tuple[Outcome, str]:
    (decision,) = decisions
    assert isinstance(decision, RejectRequest | FailRequest | EvictRequest)
    return decision.outcome, decision.reason


def test_a_request_for_a_model_that_is_not_held_has_it_loaded_in_place_of_the_one_that_ran_the_longest_ago() -> None:
    scheduler = up(demanded("a", "b", "c"), cpu0="ab")
    run(scheduler, "b", 1, 1, MS)
    run(scheduler, "a", 2, 2, 3 * MS)
    assert step(scheduler, 10 * MS, arrival(3, 30 * MS, "c")) == [UnloadModel("cpu0", "b"), LoadModel("cpu0", "c")]
    assert step(scheduler, 11 * MS, ModelUnloaded("cpu0", "b")) == []
    assert step(scheduler, 20 * MS, ModelLoaded("cpu0", "c", ONE)) == [dispatch(3, [3], FULL, model="c")]
    assert step(scheduler, 21 * MS, completed(3, 20 * MS, 21 * MS)) == [CompleteRequest(3, Outcome.COMPLETED)]
    # Now it is held, and costs what any other does.
    assert step(scheduler, 22 * MS, arrival(4, 24 * MS, "c")) == [dispatch(4, [4], FULL, model="c")]


def test_what_cannot_be_in_time_with_the_load_is_refused_at_once() -> None:
    scheduler = up(demanded("a", "b", "c"), cpu0="ab")
    for number, key in enumerate("aabb"):
        run(scheduler, key, 10 + number, 1 + number, 2 * number * MS)
    assert reason(step(scheduler, 10 * MS, arrival(1, 21 * MS, "c"))) == (
        Outcome.REJECTED_DEADLINE,
        "model c is not loaded: predicted to complete in 11.2 ms with its load, 11.0 ms are left",
    )
    # Nothing was loaded for it, and one with more time has it loaded.
    assert step(scheduler, 11 * MS, arrival(2, 23 * MS, "c")) == [UnloadModel("cpu0", "a"), LoadModel("cpu0", "c")]
    # Who comes meanwhile waits for the same load.
    assert step(scheduler, 20 * MS, arrival(3, 24 * MS, "c")) == []
    assert reason(step(scheduler, 20 * MS, arrival(4, 24 * MS, "c")))[0] is Outcome.REJECTED_DEADLINE


def test_a_request_is_refused_if_the_partition_that_loads_its_model_has_no_time_left_for_it() -> None:
    scheduler = up(demanded("a", "b"), cpu0="a")
    for number in range(12):
        step(scheduler, 0, arrival(number, 13 * MS, "a"))
    # a has work for 12 ms and b is there after 10 ms, but its 1.15 ms come after those of a.
    assert reason(step(scheduler, 0, arrival(20, int(13.1 * MS), "b"))) == (
        Outcome.REJECTED_DEADLINE,
        "model b is not loaded: predicted to complete in 13.2 ms with its load, 13.1 ms are left",
    )
    assert step(scheduler, 0, arrival(21, 14 * MS + 150 * US, "b")) == [LoadModel("cpu0", "b")]


def test_the_time_of_a_request_that_waits_for_a_load_is_not_promised_to_others() -> None:
    scheduler = up(demanded("a", "b"), cpu0="a")
    assert step(scheduler, 0, arrival(1, 13 * MS, "b")) == [LoadModel("cpu0", "b")]
    # b is there after 10 ms; both batches of a run before, and a third one would make b late.
    assert step(scheduler, 9 * MS, arrival(2, 12_500_000, "a")) == [dispatch(1, [2], FULL, model="a")]
    assert step(scheduler, 9 * MS, arrival(3, 12_500_000, "a")) == []
    assert reason(step(scheduler, 9 * MS, arrival(4, 12_500_000, "a")))[0] is Outcome.REJECTED_DEADLINE
    step(scheduler, 10 * MS, ModelLoaded("cpu0", "b", ONE))
    decisions = step(scheduler, 10 * MS, completed(1, 9 * MS, 10 * MS))
    decisions += step(scheduler, 11 * MS, completed(2, 10 * MS, 11 * MS))
    decisions += step(scheduler, 12 * MS, completed(3, 11 * MS, 12 * MS))
    settled = [each for each in decisions if isinstance(each, CompleteRequest | EvictRequest)]
    assert settled == [CompleteRequest(request, Outcome.COMPLETED) for request in (2, 3, 1)]


def test_a_load_takes_what_the_last_ones_took() -> None:
    scheduler = up(demanded("a", "b", "c"), cpu0="ab")
    step(scheduler, 0, arrival(1, S, "c"))
    step(scheduler, 100 * MS, ModelLoaded("cpu0", "c", ONE))
    step(scheduler, 101 * MS, completed(1, 100 * MS, 101 * MS))
    assert step(scheduler, S, arrival(2, 2 * S, "a")) == [UnloadModel("cpu0", "b"), LoadModel("cpu0", "a")]
    step(scheduler, S + 20 * MS, ModelLoaded("cpu0", "a", ONE))
    step(scheduler, S + 21 * MS, completed(2, S + 20 * MS, S + 21 * MS))
    step(scheduler, 2 * S, arrival(3, 3 * S, "b"))
    step(scheduler, 2 * S + 10 * MS, ModelLoaded("cpu0", "b", ONE))
    # c was seen to take 100 ms.
    assert reason(step(scheduler, 2 * S + 20 * MS, arrival(4, 2 * S + 115 * MS, "c"))[:1])[0] is (
        Outcome.REJECTED_DEADLINE
    )


def test_pinned_models_stay_and_less_important_ones_go_first() -> None:
    scheduler = up(demanded("a", "b", "c", "d", pinned="a", priorities={"b": 1, "c": 1}), cpu0="ab")
    assert reason(step(scheduler, 0, arrival(1, S, "d"))) == (
        Outcome.REJECTED_UNAVAILABLE,
        "model d is not loaded: every loaded model is in use or pinned",
    )
    assert step(scheduler, MS, arrival(2, S, "c")) == [UnloadModel("cpu0", "b"), LoadModel("cpu0", "c")]


def test_a_model_that_is_in_use_stays_and_so_does_one_that_was_only_just_loaded() -> None:
    scheduler = up(demanded("a", "b", "c", memory=1), cpu0="a")
    assert step(scheduler, 0, arrival(1, S, "b")) == [UnloadModel("cpu0", "a"), LoadModel("cpu0", "b")]
    assert step(scheduler, 10 * MS, ModelLoaded("cpu0", "b", ONE)) == [dispatch(1, [1], FULL, model="b")]
    # It has run its batch as far as the scheduler goes: what follows is unloaded after that.
    assert step(scheduler, 10 * MS + US, arrival(2, S, "c")) == [UnloadModel("cpu0", "b"), LoadModel("cpu0", "c")]
    step(scheduler, 11 * MS, completed(1, 10 * MS, 11 * MS))
    # Its request is cancelled, so that it never runs: it stays for 5 ms all the same, and others wait.
    scheduler = up(demanded("a", "b", "c", memory=1, prewarm="off"), cpu0="a")
    step(scheduler, 0, arrival(1, S, "b"))
    step(scheduler, MS, RequestCancelled(1))
    assert step(scheduler, MS, arrival(2, S, "a")) == []
    assert step(scheduler, 10 * MS, ModelLoaded("cpu0", "b", ONE)) == []
    assert step(scheduler, 14 * MS) == []
    assert step(scheduler, 20 * MS) == [UnloadModel("cpu0", "b"), LoadModel("cpu0", "a")]
    step(scheduler, 21 * MS, ModelUnloaded("cpu0", "b"))
    assert step(scheduler, 30 * MS, ModelLoaded("cpu0", "a", ONE)) == [dispatch(1, [2], FULL, model="a")]


def test_what_waits_for_room_is_admitted_if_it_is_in_time_once_the_others_may_go() -> None:
    scheduler = up(demanded("a", "b", "c", memory=1), cpu0="a")
    step(scheduler, 0, arrival(1, S, "b"))
    # b is there after 10 ms and may have to stay for 5 ms, then a takes 10 ms and runs for 1.15 ms.
    assert reason(step(scheduler, MS, arrival(2, 26 * MS, "a"))) == (
        Outcome.REJECTED_DEADLINE,
        "model a is not loaded: predicted to complete in 25.1 ms with its load, 25.0 ms are left",
    )
    assert step(scheduler, MS, arrival(3, 27 * MS, "a")) == []
    # What comes now waits for that too: a has to come and stay as well.
    assert reason(step(scheduler, MS, arrival(4, 41 * MS, "c")))[0] is Outcome.REJECTED_DEADLINE
    assert step(scheduler, MS, arrival(5, 42 * MS, "c")) == []


def test_a_later_stage_without_room_is_predicted_to_take_the_load_that_is_known() -> None:
    scheduler = up(demanded("a", "b", memory=1, pipelines=(chain("a", "b"),)), cpu0="a")
    # a runs for 1.15 ms, and then b is loaded in 10 ms in its place.
    assert reason(step(scheduler, 0, arrival(1, 12 * MS, "chain:1"))) == (
        Outcome.REJECTED_DEADLINE,
        "model b is not loaded: predicted to complete in 12.3 ms with its load, 12.0 ms are left",
    )
    assert step(scheduler, 0, arrival(2, 13 * MS, "chain:1")) == [dispatch(1, [2], FULL, model="a")]


def test_what_is_not_in_use_is_loaded_side_by_side_up_to_a_bound() -> None:
    scheduler = up(demanded("a", "b", "c", "d", memory=3, loads=2), cpu0="a")
    assert step(scheduler, 0, arrival(1, S, "b"), arrival(2, S, "c")) == [
        LoadModel("cpu0", "b"),
        LoadModel("cpu0", "c"),
    ]
    # d waits for both, 20 ms, and then until one of them may go, 5 ms.
    assert reason(step(scheduler, MS, arrival(3, 36 * MS, "d"))) == (
        Outcome.REJECTED_DEADLINE,
        "model d is not loaded: predicted to complete in 35.1 ms with its load, 35.0 ms are left",
    )
    assert step(scheduler, MS, arrival(4, S, "d")) == []


def test_the_partition_that_is_ready_first_loads_it() -> None:
    scheduler = up(demanded("a", "b", "c", "d", partitions=("cpu0", "cpu1")), cpu0="ab", cpu1="a")
    assert step(scheduler, 0, arrival(1, S, "c")) == [LoadModel("cpu1", "c")]
    # The other one has nothing to load first.
    assert step(scheduler, MS, arrival(2, S, "d")) == [UnloadModel("cpu0", "a"), LoadModel("cpu0", "d")]


def test_without_eviction_a_full_partition_stays_as_it_is() -> None:
    scheduler = up(demanded("a", "b", "c", eviction=Eviction.NONE), cpu0="a")
    assert step(scheduler, 0, arrival(1, S, "b")) == [LoadModel("cpu0", "b")]
    assert reason(step(scheduler, MS, arrival(2, S, "c")))[0] is Outcome.REJECTED_UNAVAILABLE


def test_a_later_stage_whose_model_never_gets_room_is_not_waited_for() -> None:
    in_use = "every loaded model is in use or pinned"
    for pinned, eviction in (("", Eviction.NONE), ("a", Eviction.LRU)):
        pipelines = (chain("a", "b"), cascade("a", "b"))
        spec = demanded("a", "b", memory=1, pipelines=pipelines, pinned=pinned, eviction=eviction)
        scheduler = up(spec, cpu0="a")
        # All rows of the chain come to b, but maybe none of the cascade.
        refused = Outcome.REJECTED_UNAVAILABLE, f"model b is not loaded: {in_use}"
        assert reason(step(scheduler, 0, arrival(1, 100 * S, "chain:1"))) == refused
        scheduler.pipelines["cascade:1"].stages[1].run_probability = 0.3
        assert step(scheduler, 0, arrival(2, 100 * S, "cascade:1")) == [dispatch(1, [2], FULL, model="a")]
        failed = Outcome.FAILED_UNAVAILABLE, f"model b is not loaded: {in_use}"
        assert reason(step(scheduler, MS, completed(1, 0, MS, 0.5))) == failed


def test_what_is_on_its_way_to_a_model_does_not_keep_it_from_what_waits_already() -> None:
    scheduler = up(demanded("a", "b", memory=1, pipelines=(chain("a", "b"),)), cpu0="a")
    # Two stages of one request need the same room.
    assert step(scheduler, 0, arrival(1, 100 * S, "chain:1")) == [dispatch(1, [1], FULL, model="a")]
    assert step(scheduler, MS, completed(1, 0, MS)) == [UnloadModel("cpu0", "a"), LoadModel("cpu0", "b")]


def test_of_a_pinned_model_other_copies_than_the_last_go_like_everything_else() -> None:
    spec = demanded("a", "b", "c", "d", "e", partitions=("cpu0", "cpu1"), pinned="a")
    scheduler = up(spec, cpu0="ab", cpu1="ac")
    assert step(scheduler, 0, arrival(1, S, "d")) == [UnloadModel("cpu0", "a"), LoadModel("cpu0", "d")]
    assert step(scheduler, MS, arrival(2, S, "e")) == [UnloadModel("cpu1", "c"), LoadModel("cpu1", "e")]


def test_of_the_copies_of_a_pinned_model_the_one_in_the_smallest_memory_stays() -> None:
    spec = demanded("a", "b", "big", partitions=("cpu0", "cpu1"), pinned="a")
    small = (PartitionConfig("cpu0", "cpu1", memory_bytes=1), spec.partitions[1])
    models = (*spec.models[:2], msgspec.structs.replace(spec.models[2], footprints={}, memory_bytes=2))
    scheduler = up(msgspec.structs.replace(spec, partitions=small, models=models), cpu0="a", cpu1="a")
    assert step(scheduler, 0, arrival(1, 2 * S, "b")) == [LoadModel("cpu1", "b")]
    step(scheduler, 10 * MS, ModelLoaded("cpu1", "b", ONE))
    step(scheduler, 11 * MS, completed(1, 10 * MS, 11 * MS))
    assert step(scheduler, 12 * MS, arrival(2, 3 * S, "big")) == [
        UnloadModel("cpu1", "a"),
        UnloadModel("cpu1", "b"),
        LoadModel("cpu1", "big"),
    ]


def test_a_model_that_was_brought_and_failed_to_load_keeps_its_room() -> None:
    spec = demanded("a", "z", "new")
    old = msgspec.structs.replace(spec, models=spec.models[:2], pipelines=spec.pipelines[:2])
    scheduler = up(old, cpu0="a")
    change = ServingChanged(spec.models[2:], spec.pipelines[2:])
    assert step(scheduler, 0, change) == [AcceptChange({"new": ("cpu0",)}), LoadModel("cpu0", "new")]
    # Who asks for it meanwhile waits for that load.
    assert step(scheduler, 0, arrival(1, S, "new")) == []
    assert reason(step(scheduler, MS, ModelLoadFailed("cpu0", "new", "it is broken")))[0] is Outcome.FAILED_UNAVAILABLE
    assert step(scheduler, 2 * MS, arrival(2, S, "z")) == [UnloadModel("cpu0", "a"), LoadModel("cpu0", "z")]
    step(scheduler, 12 * MS, ModelLoaded("cpu0", "z", ONE))
    assert LoadModel("cpu0", "new") in step(scheduler, S + MS)


def test_a_model_that_fits_nowhere_is_refused() -> None:
    spec = demanded("a", "big")
    models = (spec.models[0], msgspec.structs.replace(spec.models[1], footprints={}, memory_bytes=3))
    scheduler = up(msgspec.structs.replace(spec, models=models), cpu0="a")
    assert (
        reason(step(scheduler, 0, arrival(1, S, "big")))[1] == "model big is not loaded: no partition has room for it"
    )


def test_memory_is_what_the_largest_batch_takes() -> None:
    config = ScheduledModel("m", 8, DeadlineSettings(), memory_bytes=100, footprints={"cpu1": Footprint(20, 3)})
    assert (config.memory_on("cpu1"), config.memory_on("cpu2")) == (44, 100)


def test_what_waits_for_a_model_that_cannot_be_loaded_fails_with_the_reason() -> None:
    scheduler = up(demanded("a", "b", memory=1), cpu0="a")
    step(scheduler, 0, arrival(1, S, "b"))
    assert reason(step(scheduler, MS, ModelLoadFailed("cpu0", "b", "it is broken"))) == (
        Outcome.FAILED_UNAVAILABLE,
        "model b is not loaded: it could not be loaded",
    )
    assert reason(step(scheduler, 2 * MS, arrival(2, S, "b")))[0] is Outcome.REJECTED_UNAVAILABLE
    # A second later it is tried again.
    assert step(scheduler, 2 * S, arrival(3, 3 * S, "b")) == [LoadModel("cpu0", "b")]


def test_places_on_a_partition_whose_load_failed_move_to_the_one_that_holds_the_model() -> None:
    scheduler = up(demanded("a", "b", partitions=("cpu0", "cpu1")), cpu0="", cpu1="a")
    assert step(scheduler, 0, *(arrival(each, S, "b") for each in (1, 2, 3))) == [LoadModel("cpu0", "b")]
    first, second = scheduler.dispatcher.fleet.partitions.values()
    assert (len(first.planned), first.planned_ns) == (3, 3 * MS)
    assert step(scheduler, MS, ModelLoadFailed("cpu0", "b", "it is broken")) == [LoadModel("cpu1", "b")]
    step(scheduler, 20 * MS, ModelLoaded("cpu1", "b", ONE))
    assert (first.planned, first.planned_ns) == ([], 0)
    assert (len(second.planned), second.planned_ns) == (2, 2 * MS)
    check_invariants(scheduler)


def test_what_a_lost_partition_was_to_load_another_one_loads() -> None:
    scheduler = up(demanded("a", "b", partitions=("cpu0", "cpu1"), memory=1), cpu0="", cpu1="a")
    assert step(scheduler, 0, arrival(1, S, "b")) == [LoadModel("cpu0", "b")]
    assert step(scheduler, MS, PartitionLost("cpu0", "it died")) == [UnloadModel("cpu1", "a"), LoadModel("cpu1", "b")]


def test_a_model_that_nobody_needs_any_more_when_it_is_loaded_goes_at_once() -> None:
    scheduler = up(demanded("a", "b"), cpu0="a")
    assert step(scheduler, 0, arrival(1, S, "b")) == [LoadModel("cpu0", "b")]
    step(scheduler, MS, RequestCancelled(1), ServingChanged(retired=("b",)))
    assert step(scheduler, 10 * MS, ModelLoaded("cpu0", "b", ONE)) == [UnloadModel("cpu0", "b")]
    assert list(scheduler.dispatcher.models) == ["a"]


def test_what_waits_for_another_try_elsewhere_does_not_fail_as_long_as_that_may_come() -> None:
    spec = demanded("a", "b", "c", partitions=("cpu0", "cpu1"), memory=1, loads=1)
    scheduler = up(spec, cpu0="", cpu1="")
    loads = [LoadModel("cpu0", "b"), LoadModel("cpu1", "c")]
    assert step(scheduler, 0, arrival(1, 100 * S, "b"), arrival(2, 100 * S, "c")) == loads
    # The other partition may load one model at a time.
    assert step(scheduler, MS, ModelLoadFailed("cpu0", "b", "it is broken")) == []
    (batch,) = step(scheduler, 10 * MS, ModelLoaded("cpu1", "c", ONE))
    assert batch == dispatch(1, [2], FULL, model="c", partition="cpu1")
    assert wake(scheduler, 20 * MS) == [UnloadModel("cpu1", "c"), LoadModel("cpu1", "b")]


def test_partitions_that_do_not_come_back_are_not_waited_for_until_the_deadline() -> None:
    scheduler = up(demanded("a", "b", memory=1), cpu0="a")
    step(scheduler, 0, arrival(1, 100 * S, "b"))
    assert step(scheduler, MS, PartitionLost("cpu0", "it died")) == []
    assert step(scheduler, 5 * S) == []
    assert reason(step(scheduler, 5 * S + 10 * MS)) == (
        Outcome.FAILED_UNAVAILABLE,
        "model b is not loaded: no partition that has room for it is up",
    )


def test_a_hard_request_is_given_up_when_its_model_is_not_there_in_time() -> None:
    scheduler = up(demanded("a", "b", memory=1, pipelines=(single("a"), single("b", Late.EVICT))), cpu0="a")
    assert step(scheduler, 0, arrival(1, 20 * MS, "b")) == [UnloadModel("cpu0", "a"), LoadModel("cpu0", "b")]
    assert reason(wake(scheduler, 20 * MS - 150 * US - MS + 1))[0] is Outcome.EVICTED_DEADLINE


def test_a_busy_model_is_loaded_once_more_where_it_could_begin_sooner() -> None:
    scheduler = up(demanded("a", "b", partitions=("cpu0", "cpu1"), memory=1), cpu0="a", cpu1="b")
    # A batch takes 1 ms, so that 29 are done in time.
    assert len(step(scheduler, 0, *(arrival(request, 30 * MS, "a") for request in range(29)))) == 1
    rejection, *orders = step(scheduler, MS, arrival(29, 30 * MS, "a"))
    assert isinstance(rejection, RejectRequest)
    assert orders == [
        UnloadModel("cpu1", "b"),
        LoadModel("cpu1", "a"),
        dispatch(2, [1], FULL, model="a"),
    ]
    assert step(scheduler, 11 * MS, ModelLoaded("cpu1", "a", ONE))[0] == dispatch(
        3, [2], FULL, model="a", partition="cpu1"
    )


def test_the_models_of_a_chain_are_there_when_the_stages_before_end() -> None:
    spec = demanded("a", "b", "c", partitions=("cpu0", "cpu1"), pipelines=(chain("a", "b", "c"),))
    scheduler = up(spec, cpu0="a", cpu1="")
    # b is needed in 1.15 ms, and takes 10 ms, as does c: that is needed 1.15 ms later than b is there.
    assert step(scheduler, 0, arrival(1, S, "chain:1")) == [LoadModel("cpu0", "b"), dispatch(1, [1], FULL, model="a")]
    assert wake(scheduler, 1150 * US) == [LoadModel("cpu1", "c")]


def test_a_model_that_many_requests_want_later_is_loaded_once_and_counted_once() -> None:
    spec = demanded("a", "b", "c", partitions=("cpu0", "cpu1"), pipelines=(chain("a", "b", "c"),))
    scheduler = up(spec, cpu0="a", cpu1="")
    assert LoadModel("cpu0", "b") in step(scheduler, 0, *(arrival(number, S, "chain:1") for number in range(3)))
    assert LoadModel("cpu1", "c") in step(scheduler, 1150 * US)
    step(scheduler, 5 * MS)
    loader = scheduler.served.loader
    assert isinstance(loader, OnDemandLoader)
    assert (loader.loads, loader.prewarms) == (2, 2)


def test_a_later_stage_that_is_not_likely_is_loaded_when_rows_come_to_it() -> None:
    scheduler = up(demanded("a", "b", pipelines=(cascade("a", "b"),)), cpu0="a")
    scheduler.pipelines["cascade:1"].stages[1].run_probability = 0.3
    assert step(scheduler, 0, arrival(1, S, "cascade:1")) == [dispatch(1, [1], FULL, model="a")]
    assert step(scheduler, MS, completed(1, 0, MS, 0.5)) == [LoadModel("cpu0", "b")]


def test_a_later_stage_can_be_loaded_at_once_or_only_when_rows_come_to_it() -> None:
    for prewarm, loads in ((Prewarm.SPECULATIVE, ["b", "c"]), (Prewarm.OFF, [])):
        spec = demanded("a", "b", "c", partitions=("cpu0", "cpu1"), pipelines=(chain("a", "b", "c"),), prewarm=prewarm)
        decisions = step(up(spec, cpu0="a", cpu1=""), 0, arrival(1, S, "chain:1"))
        assert [each.model for each in decisions if isinstance(each, LoadModel)] == loads
