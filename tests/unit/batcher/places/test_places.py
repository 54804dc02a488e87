"""A request is admitted with a place in a planned batch for each of its stages."""

from collections.abc import Sequence

import pytest

from sluice.batcher.fleet.speed import outdate
from sluice.batcher.interface.config import PartitionConfig, PipelineConfig
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CompleteRequest,
    EvictRequest,
    Member,
    RejectRequest,
    ReleaseReason,
)
from sluice.batcher.interface.events import (
    BatchFailed,
    FailureCause,
    PartitionLost,
    PartitionReady,
    PartitionResized,
    RequestArrived,
    RequestCancelled,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import (
    CERTAINTY,
    GAINING,
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
    serving,
    single,
    spec_of,
    step,
)

FULL, RETRY = ReleaseReason.FULL, ReleaseReason.RETRY


def planned(scheduler: Scheduler) -> dict[str, list[tuple[str, float, int]]]:
    """The batches that each partition is to run: (model, rows, us)."""
    return {
        name: [(batch.model.config.key, batch.rows, batch.length_ns // US) for batch in partition.planned]
        for name, partition in scheduler.dispatcher.fleet.partitions.items()
    }


def outcomes(decisions: list[AnyDecision]) -> list[Outcome]:
    return [decision.outcome for decision in decisions if isinstance(decision, RejectRequest)]


def apart(table: LatencyTable, *pipelines: PipelineConfig, max_batch: int = 8, share: float = 1.0) -> Scheduler:
    """Models `a:1` and `b:1` on a partition each; later stages run for a `share` of the rows.

    Batches of `a:1` have up to eight rows if it gains from that, those of `b:1` up to `max_batch`.
    """
    models = [model("a:1", 1 if table is ONE else 8, confidences=(CERTAINTY,)), model("b:1", max_batch)]
    scheduler = Scheduler(spec_of(models, pipelines, partitions=("cpu0", "cpu1")))
    step(scheduler, 0, PartitionReady("cpu0", {"a:1": table}), PartitionReady("cpu1", {"b:1": table}))
    for pipeline in scheduler.pipelines.values():
        for stage in pipeline.stages[1:]:
            stage.run_probability = share
        outdate(pipeline)
    return scheduler


def test_a_request_joins_the_open_batch_as_long_as_all_its_members_are_in_time() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    step(scheduler, 0, arrival(1, S))
    assert step(scheduler, 0, arrival(2, 2300 * US)) == []
    assert planned(scheduler) == {"cpu0": [("m:1", 1.0, 1000)]}
    # A second row makes it end at 2.1 ms and its answers come at 2.25 ms; a third one at 2.35 ms.
    assert step(scheduler, 0, arrival(3, S)) == []
    assert planned(scheduler) == {"cpu0": [("m:1", 2.0, 1100)]}
    assert outcomes(step(scheduler, 0, arrival(4, 2350 * US))) == [Outcome.REJECTED_DEADLINE]
    assert planned(scheduler) == {"cpu0": [("m:1", 2.0, 1100)]}


@pytest.mark.parametrize(("deadline_us", "fits"), [(1150, True), (1149, False)])
def test_a_lone_request_has_its_place_on_an_idle_partition_up_to_the_last_moment(deadline_us: int, fits: bool) -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    scheduler.handle(arrival(1, deadline_us * US), 0)
    assert planned(scheduler) == {"cpu0": [("m:1", 1, 1000)] if fits else []}


def test_a_request_that_would_make_a_member_late_opens_the_next_batch() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    step(scheduler, 0, arrival(1, S))
    step(scheduler, 0, arrival(2, 2150 * US))
    assert step(scheduler, 0, arrival(3, S)) == []
    assert planned(scheduler) == {"cpu0": [("m:1", 1.0, 1000), ("m:1", 1.0, 1000)]}


@pytest.mark.parametrize(
    ("gap_us", "expected"),
    [
        pytest.param(600, [("m:1", 1.0, 1000), ("m:1", 1.0, 1000)], id="five sixths of the time are asked for"),
        pytest.param(400, [("m:1", 2.0, 4000)], id="five quarters of the time are asked for"),
    ],
)
def test_a_row_that_adds_more_to_a_batch_than_it_takes_by_itself_joins_only_where_more_come(
    gap_us: int, expected: list[tuple[str, float, int]]
) -> None:
    """A row takes 1 ms by itself, and two to eight take 4 ms together, so that eight of them take half as long each."""
    scheduler = serving(spec_of([model("m:1")]), LatencyTable.from_ms({1: 1, 8: 4}))
    now_ns = S + 20 * MS
    step(scheduler, S, arrival(1, 2 * S))
    step(scheduler, S + MS, completed(1, S, S + MS))
    pipeline = scheduler.pipelines["m:1"]
    pipeline.row_gap_ns, pipeline.last_row_ns = gap_us * US, now_ns - gap_us * US
    for number in (2, 3, 4):
        step(scheduler, now_ns, arrival(number, 2 * S))
    assert planned(scheduler) == {"cpu0": expected}


def test_a_batch_that_is_full_is_joined_by_none() -> None:
    scheduler = serving(spec_of([model("m:1", 4)]), GAINING)
    step(scheduler, 0, arrival(1, S))
    step(scheduler, 0, *(arrival(number, S) for number in range(2, 7)))
    assert planned(scheduler) == {"cpu0": [("m:1", 4.0, 1200), ("m:1", 1.0, 1000)]}


def test_a_batch_is_opened_where_it_ends_first() -> None:
    scheduler = serving(spec_of([model("m:1", 1)], partitions=("cpu0", "cpu1")), ONE)
    step(scheduler, 0, *(arrival(number, S) for number in range(4)))
    assert planned(scheduler) == {"cpu0": [("m:1", 1.0, 1000)], "cpu1": [("m:1", 1.0, 1000)]}


def test_a_request_in_a_hurry_goes_before_others_that_stay_in_time() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    step(scheduler, 0, arrival(1, S))
    step(scheduler, 0, arrival(2, 3150 * US))
    assert step(scheduler, 0, arrival(3, 2150 * US)) == []
    # Another one before them would make them late, and behind them it would be late itself.
    assert outcomes(step(scheduler, 0, arrival(4, 2150 * US))) == [Outcome.REJECTED_DEADLINE]
    assert step(scheduler, 850 * US) == [dispatch(2, [3], FULL)]
    assert step(scheduler, MS, completed(1, 0, MS)) == [CompleteRequest(1, Outcome.COMPLETED)]
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == [
        CompleteRequest(3, Outcome.COMPLETED),
        dispatch(3, [2], FULL),
    ]
    assert step(scheduler, 3 * MS, completed(3, 2 * MS, 3 * MS)) == [CompleteRequest(2, Outcome.COMPLETED)]


@pytest.mark.parametrize(
    ("deadline_us", "took_us", "members"),
    [
        pytest.param(2550, 175, range(2, 10), id="with the rows of the next batch, an eighth of whose time it takes"),
        pytest.param(2549, 1000, [2, 3, 4, 5], id="by itself, and with as many others as it has time for"),
        pytest.param(2200, 1000, [2], id="by itself"),
    ],
)
def test_a_row_before_a_full_batch_runs_with_it_unless_that_would_be_late(
    deadline_us: int, took_us: int, members: list[int]
) -> None:
    """A batch of eight takes 1.4 ms, one of four 1.2 ms; the next one starts at 1 ms."""
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    step(scheduler, 0, arrival(1, S))
    step(scheduler, 0, *(arrival(number, S) for number in range(3, 11)))
    assert step(scheduler, 0, arrival(2, deadline_us * US)) == []
    assert planned(scheduler) == {"cpu0": [("m:1", 1.0, took_us), ("m:1", 8.0, 1400)]}
    assert step(scheduler, 850 * US) == [dispatch(2, members, FULL)]


def test_a_partition_runs_its_planned_batch_with_rows_planned_for_another_one_which_get_its_places() -> None:
    scheduler = serving(spec_of([model("m:1", 2)], partitions=("cpu0", "cpu1")), GAINING)
    step(scheduler, 0, arrival(1, S, rows=2), arrival(2, S, rows=2))
    # Requests 3 and 4 have their places on cpu0, requests 5 and 6 on cpu1.
    step(scheduler, 0, arrival(3, 20 * MS), arrival(4, 20 * MS), arrival(5, 2350 * US), arrival(6, 30 * MS))
    assert planned(scheduler) == {"cpu0": [("m:1", 2.0, 1100)], "cpu1": [("m:1", 2.0, 1100)]}
    assert step(scheduler, 900 * US, completed(1, 0, 900 * US)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        dispatch(3, [5, 3], FULL),
    ]
    assert planned(scheduler) == {"cpu0": [], "cpu1": [("m:1", 2.0, 1100)]}
    # Request 4 has the place that request 5 had.
    assert step(scheduler, 950 * US) == [dispatch(4, [4, 6], FULL, partition="cpu1")]
    assert planned(scheduler) == {"cpu0": [], "cpu1": []}


def test_a_new_batch_is_planned_behind_those_of_its_queue_that_have_an_earlier_member() -> None:
    """The full batch was opened for request 2, which has time until 1 s; request 3 has time until 20 ms."""
    scheduler = serving(spec_of([model("m:1", 2)]), GAINING)
    step(scheduler, 0, arrival(1, S, rows=2))
    step(scheduler, 0, arrival(2, S), arrival(3, 20 * MS))
    assert step(scheduler, 0, arrival(4, 20 * MS)) == []
    assert planned(scheduler) == {"cpu0": [("m:1", 2.0, 1100), ("m:1", 1.0, 1000)]}
    assert step(scheduler, 950 * US) == [dispatch(2, [3, 4], FULL)]


def test_a_new_batch_is_planned_before_those_of_its_queue_whose_members_all_have_more_time() -> None:
    """A row runs with those behind it, and takes half of the time of two."""
    scheduler = serving(spec_of([model("m:1", 2)]), GAINING)
    step(scheduler, 0, arrival(1, S, rows=2))
    step(scheduler, 0, arrival(2, S), arrival(3, 20 * MS))
    assert step(scheduler, 0, arrival(4, 20 * MS - 1)) == []
    assert planned(scheduler) == {"cpu0": [("m:1", 1.0, 550), ("m:1", 2.0, 1100)]}


def test_what_is_left_of_batches_that_ran_as_one_runs_with_the_next_one() -> None:
    """Request 2 has a row before two batches of eight, and seven of the next one run with it; the eighth is left."""
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    step(scheduler, 0, arrival(1, S))
    step(scheduler, 0, *(arrival(number, S) for number in range(3, 19)), arrival(2, 500 * MS))
    assert planned(scheduler) == {"cpu0": [("m:1", 1.0, 175), ("m:1", 8.0, 1400), ("m:1", 8.0, 1400)]}
    assert step(scheduler, 850 * US) == [dispatch(2, range(2, 10), FULL)]
    assert planned(scheduler) == {"cpu0": [("m:1", 1.0, 175), ("m:1", 8.0, 1400)]}
    assert step(scheduler, MS, completed(1, 0, MS)) == [CompleteRequest(1, Outcome.COMPLETED)]
    assert step(scheduler, 2_250 * US) == [dispatch(3, range(10, 18), FULL)]


def orders_ms(scheduler: Scheduler, model_key: str) -> list[float]:
    """The orders of a model's planned batches."""
    partitions = scheduler.dispatcher.fleet.partitions.values()
    batches = [batch for partition in partitions for batch in partition.planned]
    return [batch.order_ns / MS for batch in batches if batch.model.config.key == model_key]


@pytest.mark.parametrize(
    ("share", "deadline_ms", "order_ms"),
    [
        pytest.param(0.5, 20, 35.8, id="behind all within the time beyond three full batches of 1.4 ms"),
        pytest.param(0.5, 5, 5.8, id="there is little of it"),
        pytest.param(0.5, 4, 4, id="there is none"),
        pytest.param(1.0, 20, 18.850001, id="where all rows go on, right behind the first stage"),
    ],
)
def test_a_batch_of_escalated_rows_leaves_others_their_turn(share: float, deadline_ms: int, order_ms: float) -> None:
    """The first stage has to end a row of the second one and a hand-off, which are 1.15 ms, before the deadline."""
    scheduler = apart(GAINING, cascade("a:1", "b:1"), share=share)
    step(scheduler, 0, arrival(1, deadline_ms * MS, "cascade:1"))
    assert orders_ms(scheduler, "b:1") == [order_ms]


def test_rows_of_several_batches_gather_in_a_batch_of_the_later_stage() -> None:
    """Of the first row and of the eight that come later half are expected to go on."""
    scheduler = apart(GAINING, cascade("a:1", "b:1"), share=0.5)
    step(scheduler, 0, arrival(1, 20 * MS, "cascade:1"))
    step(scheduler, 0, arrival(2, 20 * MS, "cascade:1", rows=8))
    assert planned(scheduler)["cpu1"] == [("b:1", 4.5, 1300)]


def two_kinds_of_one_model() -> Scheduler:
    """A row takes 1 ms on `fast0`, which is busy until 1 ms, and 2.05 ms on `slow0`; rows come each 0.2 ms."""
    slow = LatencyTable.from_ms({1: 2.05, 2: 2.1, 4: 2.2, 8: 2.4})
    partitions = (PartitionConfig("fast0", "fast"), PartitionConfig("slow0", "slow"))
    scheduler = Scheduler(spec_of([model("m:1")], partitions=partitions))
    step(scheduler, 0, PartitionReady("fast0", {"m:1": GAINING}), PartitionReady("slow0", {"m:1": slow}))
    step(scheduler, 0, arrival(1, S))
    scheduler.pipelines["m:1"].row_gap_ns = 200 * US
    return scheduler


def test_a_batch_that_is_not_worth_opening_yet_is_opened_on_another_kind() -> None:
    """On the fast one a later batch could have two rows; on the slow one it is in time, and starts at once."""
    scheduler = two_kinds_of_one_model()
    assert step(scheduler, 0, arrival(3, 2_200 * US)) == [dispatch(2, [3], ReleaseReason.DEADLINE, partition="slow0")]
    assert planned(scheduler) == {"fast0": [], "slow0": []}


def test_a_batch_that_is_not_worth_opening_yet_and_late_elsewhere_is_refused_for_its_price() -> None:
    scheduler = two_kinds_of_one_model()
    (refused,) = step(scheduler, 0, arrival(3, 2_200 * US - 1))
    assert isinstance(refused, RejectRequest)
    assert refused.reason == ("its batch would be too small for the load, and larger if opened later; 2.2 ms are left")
    assert refused.retry_after_ns == 50 * US + 1
    assert planned(scheduler) == {"fast0": [], "slow0": []}


GROWING = LatencyTable.from_ms({1: 1, 2: 1.2, 3: 1.4, 4: 1.6})


def of_three_and_three(deadline_us: int) -> Scheduler:
    """From 1 ms on, three rows are to run until 2.4 ms, then those of requests 3 and 4 until 3.8 ms.

    Request 4 has one row and `deadline_us`; request 3 has two rows and more time, but came first.
    """
    scheduler = serving(
        spec_of([model("m:1", 4), model("n:1", 1)]), {"m:1": GROWING, "n:1": LatencyTable.from_ms({1: 0.4})}
    )
    step(scheduler, 0, arrival(1, S))
    arrivals = [arrival(2, 3 * MS, rows=3), arrival(3, 4_500 * US, rows=2), arrival(4, deadline_us * US)]
    assert step(scheduler, 0, *arrivals) == []
    assert planned(scheduler) == {"cpu0": [("m:1", 3.0, 1400), ("m:1", 3.0, 1400)]}
    return scheduler


@pytest.mark.parametrize(("deadline_us", "is_filled"), [(3950, False), (4149, False), (4150, True)])
def test_a_batch_is_filled_with_part_of_the_next_only_if_that_has_the_time(deadline_us: int, is_filled: bool) -> None:
    """A fourth row takes 0.2 ms more, and a hand-off 0.15 ms."""
    members = [Member(2, 0, 3), Member(4, 0, 1)] if is_filled else [Member(2, 0, 3)]
    assert step(of_three_and_three(deadline_us), 850 * US) == [dispatch(2, members, FULL)]


@pytest.mark.parametrize(("deadline_us", "is_filled"), [(3149, False), (3150, True)])
def test_a_batch_is_filled_with_all_of_the_next_if_other_models_have_the_time(
    deadline_us: int, is_filled: bool
) -> None:
    """Without request 3, a batch of another model ends at 2.8 ms, and then the row of request 4 at 3.8 ms.

    The row has no time to spare there, but needs none in the first batch. With it, the other model's ends at 3 ms.
    """
    scheduler = of_three_and_three(3950)
    step(scheduler, 0, RequestCancelled(3))
    step(scheduler, 0, arrival(5, deadline_us * US, "n:1"))
    assert planned(scheduler) == {"cpu0": [("m:1", 3.0, 1400), ("n:1", 1.0, 400), ("m:1", 1.0, 1000)]}
    members = [Member(2, 0, 3), Member(4, 0, 1)] if is_filled else [Member(2, 0, 3)]
    assert step(scheduler, 850 * US) == [dispatch(2, members, FULL)]


def test_what_is_known_of_a_refused_request_holds_for_those_like_it_only() -> None:
    """The batch of four rows takes 1.2 ms, one more would end 1 ms after that, and the hand-off takes 150 us."""
    scheduler = serving(spec_of([model("m:1", 4)]), GAINING)
    step(scheduler, 0, *(arrival(number, 5 * MS) for number in range(4)))
    late, enough = 2_349 * US, 2_350 * US
    assert outcomes(step(scheduler, 0, arrival(10, late), arrival(11, late))) == [Outcome.REJECTED_DEADLINE] * 2
    assert outcomes(step(scheduler, 1 * US, arrival(12, late), arrival(13, enough))) == [Outcome.REJECTED_DEADLINE]
    assert planned(scheduler) == {"cpu0": [("m:1", 1, 1000)]}


def test_a_request_like_a_refused_one_has_the_place_that_another_one_gives_back() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    step(scheduler, 0, arrival(1, 3 * MS), arrival(2, 3 * MS))
    assert outcomes(step(scheduler, 0, arrival(3, 3 * MS), arrival(4, 3 * MS))) == [Outcome.REJECTED_DEADLINE] * 2
    assert outcomes(step(scheduler, 0, RequestCancelled(2), arrival(5, 3 * MS))) == []


def two_models(drift: float, *requests: RequestArrived) -> Scheduler:
    """One partition, on which a batch of `m:1` runs until 1 ms. Places of `m:1` keep `drift` of their time."""
    scheduler = serving(spec_of([model("m:1"), model("n:1", 1)]), {"m:1": GAINING, "n:1": ONE})
    step(scheduler, 0, arrival(1, S))
    scheduler.pipelines["m:1"].drift = drift
    step(scheduler, 0, *requests)
    return scheduler


def test_a_request_like_a_refused_one_joins_a_batch_that_a_more_urgent_one_opens() -> None:
    """Behind request 2 it would end at 3 ms, and 2.95 ms is the latest; with request 4, it ends at 2.1 ms."""
    scheduler = two_models(0.4, arrival(2, 4_200 * US, "n:1"))
    assert outcomes(step(scheduler, 0, arrival(3, 4_300 * US))) == [Outcome.REJECTED_DEADLINE]
    assert outcomes(step(scheduler, 0, arrival(4, 3_800 * US), arrival(5, 4_300 * US))) == []
    assert planned(scheduler) == {"cpu0": [("m:1", 2, 1100), ("n:1", 1, 1000)]}


def test_a_request_much_more_urgent_than_a_refused_one_may_run_before_what_that_would_wait_for() -> None:
    scheduler = two_models(0.4, arrival(2, 4_200 * US, "n:1"))
    arrivals = [arrival(number, deadline_us * US) for number, deadline_us in ((3, 4_300), (4, 3_800))]
    assert outcomes(step(scheduler, 0, *arrivals)) == [Outcome.REJECTED_DEADLINE]


@pytest.mark.parametrize(("at_us", "fits"), [(35, False), (36, True)])
def test_a_request_like_a_refused_one_has_a_place_once_there_is_time_for_what_places_keep(
    at_us: int, fits: bool
) -> None:
    """Behind request 2 it lacks 50 us. After 36 us it has so much more time, and 14 us less of it are kept."""
    scheduler = two_models(0.4, arrival(2, 4_200 * US, "n:1"))
    assert outcomes(step(scheduler, 0, arrival(3, 4_300 * US))) == [Outcome.REJECTED_DEADLINE]
    decisions = step(scheduler, at_us * US, arrival(4, (4_300 + at_us) * US))
    assert outcomes(decisions) == ([] if fits else [Outcome.REJECTED_DEADLINE])


def test_nothing_is_left_of_a_request_that_was_refused() -> None:
    """Its first stage would have a place, and its second one has none."""
    pipelines = [chain("a:1", "b:1"), single("b:1")]
    scheduler = apart(ONE, *pipelines, max_batch=1)
    step(scheduler, 0, arrival(8, S, "chain:1"), *(arrival(number, 4150 * US, "b:1") for number in range(4)))
    assert outcomes(step(scheduler, 0, arrival(9, 4 * MS, "chain:1"))) == [Outcome.REJECTED_DEADLINE]
    assert planned(scheduler) == {"cpu0": [], "cpu1": [("b:1", 1.0, 1000)] * 4}


def test_a_chain_takes_places_on_both_partitions() -> None:
    scheduler = apart(ONE, chain("a:1", "b:1"), max_batch=1)
    assert step(scheduler, 0, arrival(1, 4 * MS, "chain:1")) == [dispatch(1, [1], FULL, model="a:1")]
    assert planned(scheduler) == {"cpu0": [], "cpu1": [("b:1", 1.0, 1000)]}
    assert step(scheduler, 0, arrival(2, 4 * MS, "chain:1")) == []
    assert planned(scheduler) == {"cpu0": [("a:1", 1.0, 1000)], "cpu1": [("b:1", 1.0, 1000)] * 2}
    # Behind both, a third one is through with the first stage at 3 ms and with the second at 4 ms.
    assert outcomes(step(scheduler, 0, arrival(3, 4300 * US - 1, "chain:1"))) == [Outcome.REJECTED_DEADLINE]
    assert step(scheduler, 850 * US) == [dispatch(2, [2], FULL, model="a:1")]
    assert step(scheduler, MS, completed(1, 0, MS)) == [
        dispatch(3, [Member(1, 1, 1)], FULL, model="b:1", partition="cpu1")
    ]
    assert planned(scheduler) == {"cpu0": [], "cpu1": [("b:1", 1.0, 1000)]}
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS), completed(3, MS, 2 * MS)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        dispatch(4, [Member(2, 1, 1)], FULL, model="b:1", partition="cpu1"),
    ]
    assert planned(scheduler) == {"cpu0": [], "cpu1": []}


def test_requests_that_share_a_batch_of_the_first_stage_may_have_several_of_the_second() -> None:
    scheduler = apart(GAINING, chain("a:1", "b:1"), max_batch=1)
    decisions = step(scheduler, 0, *(arrival(number, S, "chain:1") for number in range(4)))
    assert outcomes(decisions) == []


def test_a_cascade_s_expected_rows_are_settled_when_it_is_known_which_go_on() -> None:
    scheduler = apart(GAINING, cascade("a:1", "b:1"), share=0.5)
    step(scheduler, 0, *(arrival(number, S, "cascade:1") for number in range(4)))
    assert planned(scheduler) == {"cpu0": [], "cpu1": [("b:1", 2.0, 1100)]}
    assert step(scheduler, 500 * US, arrival(4, S, "cascade:1", rows=4)) == []
    assert planned(scheduler)["cpu1"] == [("b:1", 4.0, 1200)]
    # Of the first four, one goes on and runs at once; the others leave their places.
    decisions = step(scheduler, 1200 * US, completed(1, 0, 1200 * US, 0.0, 1.0, 1.0, 1.0))
    assert dispatch(2, [Member(0, 1, 1)], model="b:1", partition="cpu1") in decisions
    assert planned(scheduler)["cpu1"] == [("b:1", 2.0, 1100)]


def test_more_rows_than_a_batch_holds_take_as_long_as_several_batches() -> None:
    """Of a full batch's expected rows twice as many turn out to go on, while the second model is busy."""
    scheduler = apart(GAINING, cascade("a:1", "b:1"), single("b:1"), max_batch=4, share=0.5)
    step(scheduler, 0, *(arrival(number, S, "cascade:1", rows=4) for number in (1, 2)), arrival(3, S, "b:1", rows=4))
    step(scheduler, 1050 * US, arrival(4, 900 * MS, "b:1", rows=4))
    assert planned(scheduler)["cpu1"] == [("b:1", 4.0, 1200)]
    step(scheduler, 1400 * US, completed(1, 0, 1400 * US, *[0.0] * 8))
    assert planned(scheduler)["cpu1"] == [("b:1", 8.0, 2400)]


def test_the_place_of_a_cancelled_request_is_free_at_once() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    step(scheduler, 0, arrival(1, S))
    assert step(scheduler, 0, arrival(2, 2150 * US)) == []
    assert outcomes(step(scheduler, 0, arrival(3, 2150 * US))) == [Outcome.REJECTED_DEADLINE]
    step(scheduler, 0, RequestCancelled(2))
    assert step(scheduler, 0, arrival(4, 2150 * US)) == []


def test_what_is_planned_for_a_lost_partition_moves_to_the_others() -> None:
    scheduler = serving(spec_of([model("m:1", 1)], partitions=("cpu0", "cpu1")), ONE)
    step(scheduler, 0, *(arrival(number, S) for number in range(4)))
    lost = (PartitionLost("cpu0", "killed"), BatchFailed(1, FailureCause.WORKER_LOST, "killed"))
    assert step(scheduler, 500 * US, *lost) == []
    assert planned(scheduler) == {"cpu0": [], "cpu1": [("m:1", 1.0, 1000), ("m:1", 1.0, 1000)]}
    # Until it is back, both partitions' work takes its turns on the one that is up.
    assert step(scheduler, 850 * US) == [dispatch(3, [0], RETRY, partition="cpu1")]
    assert outcomes(step(scheduler, 900 * US, arrival(9, 5 * MS))) == []
    assert step(scheduler, MS, completed(2, 0, MS)) == [CompleteRequest(1, Outcome.COMPLETED)]


@pytest.mark.parametrize("late", Late)
def test_what_was_admitted_is_answered_although_the_only_partition_is_lost(late: Late) -> None:
    scheduler = serving(spec_of([model("m:1", 1)], [single("m:1", late)]), ONE)
    step(scheduler, 0, arrival(1, 10 * S), arrival(2, 10 * S))
    lost = (PartitionLost("cpu0", "killed"), BatchFailed(1, FailureCause.WORKER_LOST, "killed"))
    assert step(scheduler, 500 * US, *lost) == []
    assert step(scheduler, S, PartitionReady("cpu0", {"m:1": ONE})) == [dispatch(2, [1], RETRY)]
    assert step(scheduler, S + MS, completed(2, S, S + MS)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        dispatch(3, [2], FULL),
    ]
    assert step(scheduler, S + 2 * MS, completed(3, S + MS, S + 2 * MS)) == [CompleteRequest(2, Outcome.COMPLETED)]


def test_places_are_measured_again_where_a_partition_becomes_quicker() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), LatencyTable.from_ms({1: 4}))
    step(scheduler, 0, arrival(1, S), arrival(2, S))
    assert planned(scheduler) == {"cpu0": [("m:1", 1.0, 4000)]}
    step(scheduler, MS, PartitionResized("cpu0", "cpu2", 1.0, 0.5, {"m:1": ONE}))
    assert planned(scheduler) == {"cpu0": [("m:1", 1.0, 1000)]}
    # The running batch ends at 4 ms, then what is planned at 5 ms.
    assert outcomes(step(scheduler, MS, arrival(3, 6 * MS))) == []


def kept_shares(late_ns: Sequence[int]) -> list[float]:
    """The share of their time that places keep after each of some requests that waited 2 ms, by how late each was."""
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    now_ns, shares = 0, []
    for number, late in enumerate(late_ns):
        step(scheduler, now_ns, arrival(2 * number, now_ns + S), arrival(2 * number + 1, now_ns + S))
        batch = min(scheduler.dispatcher.batches)
        step(scheduler, now_ns + MS, completed(batch, now_ns, now_ns + MS))
        step(scheduler, now_ns + S + late, completed(batch + 1, now_ns + MS, now_ns + 2 * MS))
        shares.append(scheduler.pipelines["m:1"].drift)
        now_ns += 10 * S
    return shares


IN_TIME = -500 * MS


def test_the_first_five_times_between_rows_count_alike() -> None:
    """Then one more, of 30 ms, counts with a fiftieth."""
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    pipeline, seen, now_ns = scheduler.pipelines["m:1"], [], MS
    for number, gap_ms in enumerate((0, 1, 3, 5, 7, 4, 30)):
        now_ns += gap_ms * MS
        step(scheduler, now_ns, arrival(number, now_ns + S))
        seen.append(pipeline.row_gap_ns / MS)
    assert seen == pytest.approx([0, 1, 2, 3, 4, 4, 4 + 26 / 50])


def test_places_keep_more_time_for_each_late_request_up_to_a_bound() -> None:
    assert kept_shares([IN_TIME] * 3) == [0, 0, 0]
    assert kept_shares([S] * 3) == pytest.approx([0.02, 0.04, 0.06])
    assert kept_shares([S] * 60)[-1] == 0.5


def test_places_keep_little_more_than_a_late_request_would_have_needed() -> None:
    """Of the 2 ms that a request waits, 4 us are 0.2 %; half as much again is kept."""
    assert kept_shares([4 * US] * 3) == pytest.approx([0.003, 0.0075, 0.01425])


def test_what_was_admitted_before_places_kept_more_raises_it_only_if_that_would_not_do() -> None:
    """The second request is late by 0.2 % of its 2 ms, the third by less of its 3 ms, the fourth by 1 % of its 4 ms."""
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    pipeline = scheduler.pipelines["m:1"]
    step(scheduler, 0, *(arrival(number, number * S) for number in (1, 2, 3, 4)))
    for batch, over_ns, kept in (
        (1, MS, 0),
        (2, 2 * S + 4 * US, 0.003),
        (3, 3 * S + 3 * US, 0.003),
        (4, 4 * S + 40 * US, 0.015),
    ):
        step(scheduler, over_ns, completed(batch, over_ns - MS, over_ns))
        assert pipeline.drift == pytest.approx(kept)


def test_places_keep_less_once_199_requests_have_been_in_time_for_each_late_one() -> None:
    shares = kept_shares([S, S, *[IN_TIME] * 400])
    assert shares[1 : 2 + 2 * 199] == pytest.approx([0.04] * 399)
    assert shares[-2:] == pytest.approx([0.04 - 0.02 / 199, 0.04 - 2 * 0.02 / 199])


def test_a_batch_that_closes_without_requests_that_would_be_late_has_more_time_kept_for_each() -> None:
    """The batch of requests 3 to 5 is planned to end at 4 ms, and at 4.15 ms once the first one has taken longer.

    They would be late by 0.05 ms of the 3.8 ms that they wait.
    """
    scheduler = serving(spec_of([model("m:1")], [single("m:1", Late.EVICT)]), GAINING)
    pipeline = scheduler.pipelines["m:1"]
    step(scheduler, 0, arrival(1, 4 * MS, rows=8), arrival(2, 4 * MS, rows=8))
    assert step(scheduler, 0, *(arrival(number, 4_250 * US) for number in (3, 4, 5))) == []
    assert step(scheduler, 1_250 * US) == [dispatch(2, [Member(2, 0, 8)], FULL)]
    step(scheduler, 1_550 * US, completed(1, 0, 1_550 * US))
    decisions = step(scheduler, 2_800 * US)
    assert [decision.request for decision in decisions if isinstance(decision, EvictRequest)] == [3, 4, 5]
    assert pipeline.drift == pytest.approx(1.5 * 0.05 / 3.8), "all of a batch are late together"


def test_a_stage_ends_before_its_later_stage_has_to_begin_where_that_has_its_place() -> None:
    slow, fast = LatencyTable.from_ms({1: 20}), ONE
    partitions = (PartitionConfig("cpu0", "cpu1"), PartitionConfig("slow", "s"), PartitionConfig("fast", "f"))
    spec = spec_of(
        [model("a:1", 1), model("b:1", 1), model("c:1", 1)], [chain("a:1", "b:1"), single("c:1")], partitions=partitions
    )
    scheduler = Scheduler(spec)
    step(scheduler, 0, PartitionReady("cpu0", {"a:1": ONE}), PartitionReady("slow", {"b:1": slow}))
    step(scheduler, 0, PartitionReady("fast", {"b:1": fast, "c:1": LatencyTable.from_ms({1: 30})}))
    step(scheduler, 0, arrival(1, S, "c:1"))  # the fast partition is busy for 30 ms
    scheduler.handle(arrival(2, 25 * MS, "chain:1"), 0)
    hosts = scheduler.dispatcher.fleet.partitions
    assert planned(scheduler)["slow"] == [("b:1", 1.0, 20_000)]
    # Of 25 ms, the later stage and its hand-offs take 20.15 ms there, and those of the first stage 0.15 ms.
    assert hosts["cpu0"].planned[0].latest_ns == 4700 * US


def test_a_batch_whose_time_another_takes_has_the_time_of_that_one() -> None:
    ten, fifteen = LatencyTable.from_ms({1: 10}), LatencyTable.from_ms({1: 15})
    spec = spec_of(
        [model("a:1", 1), model("b:1", 1)], [chain("a:1", "b:1"), single("b:1")], partitions=("cpu0", "cpu1", "cpu2")
    )
    scheduler = Scheduler(spec)
    step(scheduler, 0, PartitionReady("cpu0", {"a:1": fifteen}))
    step(scheduler, 0, PartitionReady("cpu1", {"b:1": ten}), PartitionReady("cpu2", {"b:1": ten}))
    step(scheduler, 0, arrival(1, S, "b:1"), arrival(2, S, "b:1"))
    step(scheduler, 0, arrival(3, 30 * MS, "chain:1"))
    step(scheduler, 0, arrival(4, 29 * MS, "b:1"))
    assert planned(scheduler) == {"cpu0": [], "cpu1": [("b:1", 1.0, 10_000)], "cpu2": [("b:1", 1.0, 10_000)]}
    first = scheduler.requests[3].places[1]
    assert first is not None
    here = first[0].partition.name
    batch = 1 if here == "cpu1" else 2
    # The other partition is late with its batch, so the last request runs where the chain's stage has its place.
    (run,) = step(scheduler, 10 * MS, completed(batch, 0, 10 * MS))[1:]
    assert run == dispatch(4, [4], FULL, model="b:1", partition=here)
    assert planned(scheduler)[here] == []
    assert planned(scheduler)["cpu2" if here == "cpu1" else "cpu1"] == [("b:1", 1.0, 10_000)]
