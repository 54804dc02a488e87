import pytest

from sluice.batcher.fleet.speed import outdate
from sluice.batcher.interface.config import Limits
from sluice.batcher.interface.decisions import CompleteRequest, RejectRequest, ReleaseReason
from sluice.batcher.interface.events import (
    DrainStarted,
    PartitionLost,
    PartitionReady,
    RequestCancelled,
    ServingChanged,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.scheduler.scheduler import Scheduler
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
    ensemble,
    model,
    serving,
    single,
    spec_of,
    step,
)

FULL = ReleaseReason.FULL


def one_at_a_time(limits: Limits | None = None) -> Scheduler:
    """A model that takes 1 ms a request on one partition."""
    return serving(spec_of([model("m:1", 1)], limits=limits), ONE)


def outcomes(decisions: list[object]) -> list[Outcome]:
    return [decision.outcome for decision in decisions if isinstance(decision, RejectRequest)]


def test_a_request_behind_others_is_admitted_by_its_predicted_completion_to_the_nanosecond() -> None:
    scheduler = one_at_a_time()
    step(scheduler, 0, arrival(1, S))
    # The first ends at 1 ms; then hand-off (150 us) and 1 ms.
    assert step(scheduler, 200 * US, arrival(2, 2150 * US - 1)) == [
        RejectRequest(
            2, Outcome.REJECTED_DEADLINE, "predicted to complete in 1.9 ms, 1.9 ms are left", retry_after_ns=1
        )
    ]
    assert step(scheduler, 200 * US, arrival(3, 2150 * US)) == []
    assert step(scheduler, 850 * US) != []


def test_retry_after_is_by_how_much_the_deadline_would_be_missed() -> None:
    scheduler = one_at_a_time()
    step(scheduler, 0, arrival(1, S))
    for number in range(2, 12):
        assert step(scheduler, 0, arrival(number, 12 * MS)) == []
    # Ten wait for 1 ms each behind the one that runs until 1 ms; then it is its turn, and the hand-off takes 150 us.
    assert step(scheduler, 0, arrival(12, 12_050 * US)) == [
        RejectRequest(
            12, Outcome.REJECTED_DEADLINE, "predicted to complete in 12.2 ms, 12.1 ms are left", retry_after_ns=100 * US
        )
    ]
    assert step(scheduler, 0, arrival(13, 12_150 * US)) == []


def test_a_more_urgent_request_is_not_charged_for_what_it_overtakes() -> None:
    scheduler = one_at_a_time()
    step(scheduler, 0, arrival(1, S))
    for number in range(2, 12):
        assert step(scheduler, 0, arrival(number, S)) == []
    assert step(scheduler, 0, arrival(12, 2150 * US)) == []
    assert step(scheduler, 850 * US) == [dispatch(2, [12], FULL)]


def test_a_request_whose_deadline_has_passed_is_rejected_while_others_are_under_way() -> None:
    scheduler = one_at_a_time()
    step(scheduler, 0, arrival(1, S))
    assert step(scheduler, 500 * US, arrival(2, 100 * US)) == [
        RejectRequest(2, Outcome.REJECTED_DEADLINE, "predicted to complete in 1.6 ms, 0.0 ms are left", 2050 * US)
    ]


def test_the_longest_path_of_a_cascade_counts() -> None:
    scheduler = serving(spec_of([model("small:1", 1), model("large:1", 1)], [cascade("small:1", "large:1")]), ONE)
    step(scheduler, 0, arrival(1, S, "cascade:1"))
    # It overtakes the large model's batch of the first request, which has time: its first stage runs from 1 ms, and
    # both its stages take 1 ms and a hand-off.
    decisions = step(scheduler, 0, arrival(2, 3300 * US - 1, "cascade:1"))
    assert outcomes(list(decisions)) == [Outcome.REJECTED_DEADLINE]
    assert step(scheduler, 0, arrival(3, 3300 * US, "cascade:1")) == []


@pytest.mark.parametrize(("partitions", "most_us"), [(1, 3150), (2, 2150), (3, 1150)])
def test_stages_side_by_side_wait_for_each_other_on_too_few_partitions(partitions: int, most_us: int) -> None:
    keys = ("a:1", "b:1", "c:1")
    names = [f"cpu{number}" for number in range(partitions)]
    scheduler = serving(spec_of([model(key) for key in keys], [ensemble(*keys)], partitions=names), ONE)
    # A probe, which might be in time if the estimates are far too high.
    assert outcomes(list(step(scheduler, 0, arrival(1, MS, "ensemble:1")))) == []
    step(scheduler, 0, RequestCancelled(1))
    now_ns = 10 * MS
    assert outcomes(list(step(scheduler, now_ns, arrival(2, now_ns + most_us * US - 1, "ensemble:1")))) == [
        Outcome.REJECTED_DEADLINE
    ]
    assert outcomes(list(step(scheduler, now_ns, arrival(3, now_ns + most_us * US, "ensemble:1")))) == []


def test_behind_others_the_stages_of_a_request_are_all_to_come() -> None:
    """One partition: two batches of another request are ahead, which runs its first until 1 ms, then its own three."""
    keys = ("a:1", "b:1", "c:1")
    scheduler = serving(spec_of([model(key, 1) for key in keys], [ensemble(*keys)]), ONE)
    assert outcomes(list(step(scheduler, 0, arrival(1, 4 * MS, "ensemble:1")))) == []
    # Six batches of 1 ms; the hand-off counts once, for the answer.
    soonest_ns = 6 * MS + 150 * US
    assert outcomes(list(step(scheduler, 0, arrival(2, soonest_ns - 1, "ensemble:1")))) == [Outcome.REJECTED_DEADLINE]
    assert outcomes(list(step(scheduler, 0, arrival(3, soonest_ns, "ensemble:1")))) == []


def test_a_later_stage_s_partition_that_is_behind_counts() -> None:
    models = [model("small:1", 1), model("large:1", 1), model("other:1", 1)]
    spec = spec_of(models, [chain("small:1", "large:1"), single("other:1")], partitions=("cpu0", "cpu1"))
    scheduler = Scheduler(spec)
    tables = {"large:1": ONE, "other:1": ONE}
    step(scheduler, 0, PartitionReady("cpu0", {"small:1": ONE}), PartitionReady("cpu1", tables))
    step(scheduler, 0, *(arrival(number, 5 * MS, "other:1") for number in (1, 2, 3)), arrival(4, 5 * MS, "chain:1"))
    # The partition of the large model runs one until 1 ms and then three for 1 ms each; then it is our turn.
    decisions = step(scheduler, 0, arrival(5, 5150 * US - 1, "chain:1"))
    assert outcomes(list(decisions)) == [Outcome.REJECTED_DEADLINE]
    assert outcomes(list(step(scheduler, 0, arrival(6, 5150 * US, "chain:1")))) == []


def test_a_row_that_is_known_to_go_on_counts_as_one() -> None:
    """One row in ten went on before, and then both do."""
    models = [model("small:1", 1, confidences=(CERTAINTY,)), model("large:1", 1)]
    scheduler = Scheduler(spec_of(models, [cascade("small:1", "large:1")], partitions=("cpu0", "cpu1", "cpu2")))
    step(scheduler, 0, *(PartitionReady(name, {"small:1": ONE}) for name in ("cpu0", "cpu1")))
    step(scheduler, 0, PartitionReady("cpu2", {"large:1": ONE}))
    pipeline = scheduler.pipelines["cascade:1"]
    pipeline.stages[1].run_probability = 0.1
    outdate(pipeline)
    step(scheduler, 0, *(arrival(number, S, "cascade:1") for number in (1, 2, 3, 4)))
    large = scheduler.dispatcher.fleet.partitions["cpu2"]
    assert large.planned_ns == 4 * 100 * US
    step(scheduler, MS, completed(1, 0, MS, 0.0), completed(2, 0, MS, 0.0))
    # Of those that go on one runs and the other waits with a whole row, not with a tenth. A batch of the large model
    # holds one row, so what is planned takes two.
    assert len(large.batches) == 1
    assert large.planned_ns == 2 * MS


def test_the_bound_of_requests_under_way_is_a_pipeline_s_own() -> None:
    pipelines = [single("m:1"), single("m:1", name="other:1")]
    scheduler = serving(spec_of([model("m:1", 1)], pipelines, limits=Limits(queue_requests=2)), ONE)
    step(scheduler, 0, arrival(1, S), arrival(2, S))
    assert step(scheduler, 0, arrival(3, S)) == [
        RejectRequest(
            3,
            Outcome.REJECTED_QUEUE_FULL,
            "2 requests of this pipeline are under way",
            MS,
        )
    ]
    assert step(scheduler, 0, arrival(4, S, "other:1")) == []
    assert step(scheduler, MS, completed(1, 0, MS), arrival(5, S)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        dispatch(2, [2], FULL),
    ]


def test_memory_is_reserved_at_admission_and_given_back_at_the_end() -> None:
    scheduler = one_at_a_time(Limits(memory_bytes=100))
    step(scheduler, 0, arrival(1, S, memory_bytes=60))
    assert step(scheduler, 0, arrival(2, S, memory_bytes=41)) == [
        RejectRequest(
            2, Outcome.REJECTED_MEMORY, "needs 41 bytes of tensor memory; 40 of 100 are free", retry_after_ns=0
        )
    ]
    assert step(scheduler, 0, arrival(3, S, memory_bytes=40)) == []
    step(scheduler, MS, completed(1, 0, MS))
    assert step(scheduler, MS, arrival(4, S, memory_bytes=60)) == []
    assert outcomes(list(step(scheduler, MS, arrival(5, S, memory_bytes=1)))) == [Outcome.REJECTED_MEMORY]


def test_a_pipeline_leaves_memory_for_those_that_have_nothing_under_way() -> None:
    spec = spec_of([model("m:1", 1)], [single("m:1"), single("m:1", name="other:1")], limits=Limits(memory_bytes=100))
    scheduler = serving(spec, ONE)
    assert step(scheduler, 0, arrival(1, S, memory_bytes=60))
    assert step(scheduler, 0, arrival(2, S, memory_bytes=20)) == [
        RejectRequest(
            2,
            Outcome.REJECTED_MEMORY,
            "needs 20 bytes of tensor memory; 40 of 100 are free, 25 of them are kept for others",
            retry_after_ns=0,
        )
    ]
    assert step(scheduler, 0, arrival(3, S, "other:1", memory_bytes=25), arrival(4, S, memory_bytes=15)) == []
    assert outcomes(list(step(scheduler, 0, arrival(5, S, "other:1", memory_bytes=1)))) == [Outcome.REJECTED_MEMORY]


def test_a_pipeline_that_is_gone_keeps_no_memory_from_the_others() -> None:
    spec = spec_of([model("m:1", 1)], [single("m:1"), single("m:1", name="other:1")], limits=Limits(memory_bytes=100))
    scheduler = serving(spec, ONE)
    assert outcomes(list(step(scheduler, 0, arrival(1, S, memory_bytes=76)))) == [Outcome.REJECTED_MEMORY]
    step(scheduler, 0, ServingChanged(retired=("other:1",)))
    assert outcomes(list(step(scheduler, 0, arrival(2, S, memory_bytes=100)))) == []


def test_the_memory_of_a_cancelled_request_is_held_until_its_batch_ends() -> None:
    scheduler = one_at_a_time(Limits(memory_bytes=100))
    step(scheduler, 0, arrival(1, S, memory_bytes=100))
    step(scheduler, 100 * US, RequestCancelled(1))
    assert outcomes(list(step(scheduler, 100 * US, arrival(2, S, memory_bytes=1)))) == [Outcome.REJECTED_MEMORY]
    step(scheduler, MS, completed(1, 0, MS))
    assert step(scheduler, MS, arrival(3, S, memory_bytes=100)) == [dispatch(2, [3], FULL)]


def test_the_memory_of_a_request_cancelled_in_the_queue_is_free_at_once() -> None:
    scheduler = one_at_a_time(Limits(memory_bytes=100))
    step(scheduler, 0, arrival(1, S, memory_bytes=10), arrival(2, S, memory_bytes=90))
    step(scheduler, 0, RequestCancelled(2))
    assert outcomes(list(step(scheduler, 0, arrival(3, S, memory_bytes=90)))) == []


def test_before_any_partition_is_up_requests_are_refused_as_unavailable() -> None:
    scheduler = Scheduler(spec_of([model("m:1")]))
    assert step(scheduler, 7, arrival(1, S)) == [
        RejectRequest(1, Outcome.REJECTED_UNAVAILABLE, "no partition holds model m:1", S)
    ]


def test_a_model_that_no_worker_has_loaded_is_unavailable_and_its_neighbour_is_not() -> None:
    scheduler = Scheduler(spec_of([model("m:1"), model("broken:1")]))
    assert step(scheduler, 0, PartitionReady("cpu0", {"m:1": ONE})) == []
    assert step(scheduler, 0, arrival(1, S)) == [dispatch(1, [1])]
    assert step(scheduler, 0, arrival(2, S, "broken:1")) == [
        RejectRequest(2, Outcome.REJECTED_UNAVAILABLE, "no partition holds model broken:1", S)
    ]


def test_a_cascade_is_unavailable_with_its_last_stage() -> None:
    spec = spec_of([model("m:1"), model("broken:1")], [cascade("m:1", "broken:1")])
    scheduler = Scheduler(spec)
    step(scheduler, 0, PartitionReady("cpu0", {"m:1": ONE}))
    assert step(scheduler, 0, arrival(1, S, "cascade:1")) == [
        RejectRequest(1, Outcome.REJECTED_UNAVAILABLE, "no partition holds model broken:1", S)
    ]


def test_a_partition_that_is_about_to_come_back_still_admits_what_can_wait() -> None:
    scheduler = one_at_a_time()
    step(scheduler, MS, PartitionLost("cpu0", "killed"))
    assert step(scheduler, 2 * MS, arrival(1, 10 * S)) == []
    assert outcomes(list(step(scheduler, 2 * MS, arrival(2, 500 * MS)))) == [Outcome.REJECTED_DEADLINE]
    assert step(scheduler, S, PartitionReady("cpu0", {"m:1": ONE})) == [dispatch(1, [1], FULL)]


def test_while_draining_new_requests_are_rejected_and_old_ones_finish() -> None:
    scheduler = one_at_a_time()
    step(scheduler, 0, arrival(1, S), arrival(2, S))
    assert step(scheduler, 0, DrainStarted()) == []
    assert step(scheduler, 0, arrival(3, S)) == [
        RejectRequest(3, Outcome.REJECTED_DRAINING, "the server is stopping", S)
    ]
    assert step(scheduler, MS, completed(1, 0, MS)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        dispatch(2, [2], FULL),
    ]
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == [CompleteRequest(2, Outcome.COMPLETED)]


def slowed_down() -> Scheduler:
    """A scheduler whose estimate has been driven from 1 ms to its bound of 16 ms by a bad minute."""
    scheduler = one_at_a_time()
    for number in range(70):
        now_ns = number * S
        step(scheduler, now_ns, arrival(number, now_ns + S))
        step(scheduler, now_ns + 50 * MS, completed(number + 1, now_ns, now_ns + 50 * MS))
    return scheduler


def test_an_inflated_estimate_admits_a_probe_an_interval_and_is_forgotten() -> None:
    scheduler = slowed_down()
    now_ns = 100 * S
    assert step(scheduler, now_ns, arrival(1_000, now_ns + 5 * MS)) == [dispatch(71, [1_000], FULL)]
    step(scheduler, now_ns + MS, completed(71, now_ns, now_ns + MS))
    rejected = step(scheduler, now_ns + 2 * MS, arrival(1_001, now_ns + 7 * MS))
    assert outcomes(list(rejected)) == [Outcome.REJECTED_DEADLINE]
    served = 0
    for number in range(1_002, 1_012):
        now_ns += S
        decisions = step(scheduler, now_ns, arrival(number, now_ns + 5 * MS))
        assert decisions == [dispatch(72 + served, [number], FULL)]
        step(scheduler, now_ns + MS, completed(72 + served, now_ns, now_ns + MS))
        served += 1
    assert step(scheduler, now_ns + 2 * MS, arrival(2_000, now_ns + 7 * MS)) == [dispatch(72 + served, [2_000], FULL)]


@pytest.mark.parametrize("busy", ["a:1", "b:1"])
def test_a_probe_needs_an_idle_partition_for_each_stage(busy: str) -> None:
    """It has no place, so it would delay what is under way or planned."""
    spec = spec_of(
        [model("a:1", 1), model("b:1", 1)],
        [chain("a:1", "b:1"), single("a:1"), single("b:1")],
        partitions=("cpu0", "cpu1"),
    )
    scheduler = Scheduler(spec)
    step(scheduler, 0, PartitionReady("cpu0", {"a:1": ONE}), PartitionReady("cpu1", {"b:1": ONE}))
    step(scheduler, 0, arrival(1, S, busy))
    # Both stages take 2.3 ms, and an eighth of that if the estimates are as wrong as they may be.
    assert outcomes(list(step(scheduler, 0, arrival(2, 2 * MS, "chain:1")))) == [Outcome.REJECTED_DEADLINE]
    step(scheduler, MS, completed(1, 0, MS))
    probe = step(scheduler, 2 * S, arrival(3, 2 * S + 2 * MS, "chain:1"))
    assert probe == [dispatch(2, [3], FULL, model="a:1")]


@pytest.mark.parametrize("waiting", [1, 3])
def test_a_request_that_cannot_make_it_is_no_probe_while_others_are_under_way(waiting: int) -> None:
    scheduler = one_at_a_time()
    step(scheduler, 0, *(arrival(number, S) for number in range(waiting)))
    assert outcomes(list(step(scheduler, 0, arrival(9, 10)))) == [Outcome.REJECTED_DEADLINE]


def test_an_estimate_is_bounded_whatever_is_observed() -> None:
    scheduler = slowed_down()
    now_ns = 100 * S
    step(scheduler, now_ns, arrival(1_000, now_ns + S))
    decisions = step(scheduler, now_ns, arrival(1_001, now_ns + 10 * MS))
    assert outcomes(list(decisions)) == [Outcome.REJECTED_DEADLINE]
    # The first takes 19.5 ms, 3.5 of which are pauses. That is confirmed by batches; the second takes as long.
    assert step(scheduler, now_ns, arrival(1_002, now_ns + 39_200 * US)) == []


def test_a_request_has_its_place_by_the_estimates_that_its_refusal_let_fall_while_others_are_under_way() -> None:
    scheduler = slowed_down()
    now_ns = 100 * S
    step(scheduler, now_ns, arrival(1_000, now_ns + 10 * S))
    assert outcomes(list(step(scheduler, now_ns, arrival(1_001, now_ns + 10 * MS)))) == [Outcome.REJECTED_DEADLINE]
    now_ns += S
    step(scheduler, now_ns, arrival(1_002, now_ns + 10 * S))
    # That takes 19.5 ms, and one more would, too; but no batch has confirmed this for a second, so it is 10.2 ms.
    assert outcomes(list(step(scheduler, now_ns, arrival(1_003, now_ns + 31 * MS)))) == []


def test_the_backlog_is_spread_over_the_partitions_of_the_model() -> None:
    scheduler = serving(spec_of([model("m:1", 1)], partitions=("cpu0", "cpu1")), ONE)
    step(scheduler, 0, *(arrival(number, 3 * MS) for number in range(4)))
    # Two run until 1 ms; two wait and take 1 ms, one on each partition.
    assert outcomes(list(step(scheduler, 0, arrival(4, 3150 * US - 1)))) == [Outcome.REJECTED_DEADLINE]
    assert step(scheduler, 0, arrival(5, 3150 * US)) == []
