import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batcher.interface.config import Limits
from sluice.batcher.interface.decisions import CompleteRequest, Member, ReleaseReason
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.policies.base import Choice
from sluice.batcher.policies.deadline import DeadlinePolicy, stage_slack_ns
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import (
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
from tests.unit.batcher.policies.views import Waiting, WaitingQueue, idle

IDLE, FULL, DELAY, DEADLINE = (
    ReleaseReason.IDLE,
    ReleaseReason.FULL,
    ReleaseReason.DELAY,
    ReleaseReason.DEADLINE,
)


def after_a_burst_of_four(table: LatencyTable, took_ns: int) -> Scheduler:
    """A scheduler that has just served four requests together, so that it expects company for the next one."""
    scheduler = serving(spec_of([model("m:1")]), table)
    together = step(scheduler, 0, *(arrival(number, S) for number in (1, 2, 3, 4)))
    assert together == [dispatch(1, [1, 2, 3, 4])]
    step(scheduler, took_ns, completed(1, 0, took_ns))
    return scheduler


def test_a_lone_request_starts_at_once() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    assert step(scheduler, 5 * MS, arrival(1, 100 * MS)) == [dispatch(1, [1])]
    assert scheduler.next_wakeup_ns() is None
    assert step(scheduler, 6 * MS, completed(1, 5 * MS, 6 * MS)) == [CompleteRequest(1, Outcome.COMPLETED)]


def test_requests_of_one_instant_meet_in_one_batch() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    assert step(scheduler, 0, arrival(1, S), arrival(2, S, rows=2), arrival(3, S)) == [
        dispatch(1, [1, Member(2, 0, 2), 3])
    ]


def test_a_batch_of_the_efficient_size_is_full() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    assert step(scheduler, 0, *(arrival(number, S) for number in range(9))) == [
        dispatch(1, [0, 1, 2, 3, 4, 5, 6, 7], FULL)
    ]


def test_a_request_is_never_split_over_batches() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    assert step(scheduler, 0, arrival(1, S, rows=5), arrival(2, S, rows=4)) == [dispatch(1, [Member(1, 0, 5)], FULL)]


def test_the_second_batch_closes_within_hand_off_of_the_predicted_end_of_the_first() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    assert step(scheduler, 0, arrival(1, S)) == [dispatch(1, [1], FULL)]
    assert step(scheduler, 100 * US, arrival(2, S), arrival(3, S)) == []
    assert scheduler.next_wakeup_ns() == 850 * US
    assert step(scheduler, 850 * US) == [dispatch(2, [2], FULL)]
    assert scheduler.next_wakeup_ns() is None, "two are in flight: only an event can change anything"
    assert step(scheduler, 900 * US, arrival(4, S)) == []
    assert step(scheduler, MS, completed(1, 0, MS)) == [CompleteRequest(1, Outcome.COMPLETED)]
    assert scheduler.next_wakeup_ns() == 1850 * US
    assert step(scheduler, 1850 * US) == [dispatch(3, [3], FULL)]


def test_when_the_first_batch_overruns_the_second_may_close_at_any_time() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    step(scheduler, 0, arrival(1, S))
    assert step(scheduler, 3 * MS, arrival(2, S)) == [dispatch(2, [2], FULL)]


def test_a_batch_that_may_still_grow_is_not_closed_behind_a_running_one() -> None:
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    step(scheduler, 0, arrival(1, S))
    assert step(scheduler, 900 * US, arrival(2, S), arrival(3, S)) == []
    # Unless it would be late behind another batch.
    assert scheduler.next_wakeup_ns() == 997_350 * US
    assert step(scheduler, MS, completed(1, 0, MS)) == [CompleteRequest(1, Outcome.COMPLETED)]
    assert scheduler.next_wakeup_ns() == 1120 * US, "a tenth of the 1.2 ms that three rows take"
    assert step(scheduler, 1120 * US) == [dispatch(2, [2, 3], DELAY)]


def test_an_idle_partition_gathers_for_a_tenth_of_the_service_time() -> None:
    scheduler = after_a_burst_of_four(GAINING, took_ns=1200 * US)
    assert step(scheduler, 2 * MS, arrival(5, S)) == []
    # Four rows took 1.2 ms, as estimated.
    assert scheduler.next_wakeup_ns() == 2_120 * US
    assert step(scheduler, 2100 * US, arrival(6, S)) == []
    assert step(scheduler, 2_120 * US) == [dispatch(2, [5, 6], DELAY)]


def test_gathering_ends_when_all_that_are_expected_are_there() -> None:
    scheduler = after_a_burst_of_four(GAINING, took_ns=1200 * US)
    assert step(scheduler, 2 * MS, arrival(5, S)) == []
    assert step(scheduler, 2050 * US, arrival(6, S), arrival(7, S, rows=2)) == [dispatch(2, [5, 6, Member(7, 0, 2)])]


def test_gathering_is_limited_by_the_slack_of_the_head() -> None:
    scheduler = after_a_burst_of_four(GAINING, took_ns=1200 * US)
    assert step(scheduler, 2 * MS, arrival(5, 3_400 * US)) == []
    # The deadline less the hand-off (150 us) and the four rows' 1.2 ms.
    assert scheduler.next_wakeup_ns() == 2 * MS + 50 * US
    assert step(scheduler, 2 * MS + 50 * US) == [dispatch(2, [5], DEADLINE)]


def test_what_is_expected_together_fades_with_every_batch() -> None:
    scheduler = after_a_burst_of_four(GAINING, took_ns=1200 * US)
    now_ns = 0
    gathered = []
    for number in range(5, 20):
        now_ns += 10 * MS
        gathered.append(step(scheduler, now_ns, arrival(number, S)) == [])
        if gathered[-1]:
            due_ns = scheduler.next_wakeup_ns()
            assert due_ns is not None
            step(scheduler, due_ns)
        step(scheduler, now_ns + 2 * MS, completed(number - 3, now_ns + MS, now_ns + 2 * MS))
    assert gathered == [True] * 7 + [False] * 8, "0.9 ** 7 of four is below two"


def test_a_quick_model_does_not_gather() -> None:
    quick = LatencyTable.from_ms({1: 0.1, 2: 0.11, 4: 0.12, 8: 0.14})
    scheduler = after_a_burst_of_four(quick, took_ns=120 * US)
    assert step(scheduler, 2 * MS, arrival(5, S)) == [dispatch(2, [5])]


def test_a_model_that_gains_nothing_from_batching_runs_single_requests() -> None:
    linear = LatencyTable.from_ms({1: 20, 2: 40, 4: 80, 8: 160})
    scheduler = serving(spec_of([model("m:1")], partitions=("cpu0", "cpu1")), linear)
    assert step(scheduler, 0, arrival(1, S), arrival(2, S), arrival(3, S)) == [
        dispatch(1, [1], FULL),
        dispatch(2, [2], FULL, partition="cpu1"),
    ]


def test_the_earliest_deadline_goes_first_whatever_its_pipeline() -> None:
    pipelines = [single("m:1", name="a:1"), single("m:1", name="b:1")]
    scheduler = serving(spec_of([model("m:1", 1)], pipelines), ONE)
    step(scheduler, 0, arrival(1, S, "a:1"))
    assert step(scheduler, 0, arrival(2, 50 * MS, "a:1"), arrival(3, 20 * MS, "b:1"), arrival(4, 30 * MS, "a:1")) == []
    assert step(scheduler, 850 * US) == [dispatch(2, [3], FULL)]
    step(scheduler, MS, completed(1, 0, MS))
    assert step(scheduler, 1850 * US) == [dispatch(3, [4], FULL)]


def test_pipelines_that_share_a_model_share_batches() -> None:
    pipelines = [single("m:1", name="a:1"), single("m:1", name="b:1")]
    scheduler = serving(spec_of([model("m:1")], pipelines), GAINING)
    assert step(scheduler, 0, arrival(1, 50 * MS, "a:1"), arrival(2, 20 * MS, "b:1")) == [dispatch(1, [2, 1])]


def test_the_earliest_deadline_goes_first_among_models() -> None:
    scheduler = serving(spec_of([model("m:1", 1), model("n:1", 1)]), ONE)
    assert step(scheduler, 0, arrival(1, 50 * MS, "m:1"), arrival(2, 20 * MS, "n:1")) == [
        dispatch(1, [2], FULL, model="n:1")
    ]


def test_equal_deadlines_are_served_deepest_stage_first() -> None:
    chain = cascade("m:1", "m:1", name="twice:1")
    scheduler = serving(spec_of([model("m:1", 1)], [chain, single("m:1")]), ONE)
    assert step(scheduler, 0, arrival(1, 50 * MS, "twice:1")) == [dispatch(1, [1], FULL)]
    assert step(scheduler, 100 * US, arrival(2, 50 * MS)) == []
    assert step(scheduler, 800 * US, completed(1, 0, 800 * US, 0.1)) == [dispatch(2, [Member(1, 1, 1)], FULL)]


def test_a_batch_is_as_big_as_the_first_deadline_that_can_be_met_allows() -> None:
    scheduler = serving(spec_of([model("m:1")]), LatencyTable.from_ms({1: 1, 2: 2, 4: 3, 8: 4}))
    tight = arrival(1, 3_200 * US)
    assert step(scheduler, 0, tight, *(arrival(number, S) for number in range(2, 9))) == [
        dispatch(1, [1, 2, 3, 4], FULL)
    ]


@pytest.mark.parametrize(
    ("deadline_ns", "rows"), [(4_150 * US, 8), (4_150 * US - 1, 4), (3_150 * US, 4), (2_150 * US, 2), (1_150 * US, 1)]
)
def test_the_size_for_a_deadline_to_the_nanosecond(deadline_ns: int, rows: int) -> None:
    scheduler = serving(spec_of([model("m:1")]), LatencyTable.from_ms({1: 1, 2: 2, 4: 3, 8: 4}))
    decisions = step(scheduler, 0, arrival(0, deadline_ns), *(arrival(number, S) for number in range(1, 8)))
    assert decisions == [dispatch(1, range(rows), FULL)]


def test_a_deadline_that_is_lost_anyway_does_not_make_the_batch_small() -> None:
    scheduler = serving(spec_of([model("m:1")]), LatencyTable.from_ms({1: 1, 2: 2, 4: 3, 8: 4}))
    step(scheduler, 0, arrival(1, S))
    assert step(scheduler, 100 * US, arrival(2, 3 * MS)) == []
    assert step(scheduler, 4 * MS, *(arrival(number, S) for number in range(3, 10))) == [
        dispatch(2, [3, 4, 5, 6, 7, 8, 9, 2], FULL)
    ]


def test_an_idle_partition_is_used_before_one_that_has_a_batch_running() -> None:
    scheduler = serving(spec_of([model("m:1", 1)], partitions=("cpu0", "cpu1")), ONE)
    assert step(scheduler, 0, arrival(1, S)) == [dispatch(1, [1], FULL)]
    assert step(scheduler, 900 * US, arrival(2, S)) == [dispatch(2, [2], FULL, partition="cpu1")]


# -- batches as they were planned


def test_a_batch_that_starts_later_than_planned_keeps_the_rows_of_its_plan() -> None:
    """From 1 ms on four rows would be in time to the microsecond; a batch of two would still be, a moment later."""
    scheduler = serving(spec_of([model("m:1")]), GAINING)
    assert step(scheduler, 0, arrival(1, S)) == [dispatch(1, [1])]
    assert step(scheduler, 100 * US, *(arrival(number, 2_350 * US) for number in range(2, 6))) == []
    assert step(scheduler, 1_100 * US, completed(1, 0, 1_100 * US)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        dispatch(2, [2, 3, 4, 5], DEADLINE),
    ]


def test_nothing_is_gathered_for_while_something_else_is_planned() -> None:
    scheduler = serving(spec_of([model("m:1"), model("n:1")]), GAINING)
    assert step(scheduler, 0, *(arrival(number, S) for number in range(4))) == [dispatch(1, range(4))]
    step(scheduler, 1200 * US, completed(1, 0, 1200 * US))
    assert step(scheduler, 2 * MS, arrival(4, S), arrival(5, 2 * S, "n:1")) == [dispatch(2, [4])]


def test_a_later_stage_is_not_gathered_for() -> None:
    spec = spec_of([model("a:1"), model("b:1")], [chain("a:1", "b:1"), single("b:1")])
    scheduler = serving(spec, GAINING)
    assert step(scheduler, 0, *(arrival(number, S, "b:1") for number in range(4))) == [
        dispatch(1, range(4), model="b:1")
    ]
    step(scheduler, 1200 * US, completed(1, 0, 1200 * US))
    assert step(scheduler, 2 * MS, arrival(4, S, "chain:1")) == [dispatch(2, [4], model="a:1")]
    assert step(scheduler, 3 * MS, completed(2, 2 * MS, 3 * MS)) == [dispatch(3, [Member(4, 1, 1)], model="b:1")]
    # A request that arrives is.
    step(scheduler, 4 * MS, completed(3, 3 * MS, 4 * MS))
    assert step(scheduler, 5 * MS, arrival(5, S, "b:1")) == []


def of_queue(rows: int, *, deadline_ns: int) -> Choice:
    """The choice of the policy for single rows without places, the first of which is due at `deadline_ns`."""
    queue = WaitingQueue(Waiting(deadline_ns), *[Waiting()] * (rows - 1))
    return DeadlinePolicy(Limits()).choose(queue, idle(LatencyTable.from_ms({1: 1, 2: 2, 4: 3, 8: 4})))


@pytest.mark.parametrize(("rows", "expected"), [(8, 1), (9, 8), (15, 8), (16, 8)])
def test_without_a_place_a_tight_head_counts_less_the_more_rows_wait(rows: int, expected: int) -> None:
    """Eight rows are efficient, and with more than those waiting a batch has at least 0.7 of their rate.

    That is 1.35 rows a ms (8 in 4 ms plus 150 us), which four in 3 ms do not have.
    """
    assert of_queue(rows, deadline_ns=1_500 * US).rows == expected


def test_rows_are_gathered_unless_more_is_planned_or_their_stage_follows_others() -> None:
    """Four rows are expected, and take 30 ms: they are waited for 3 ms."""
    policy, context = DeadlinePolicy(Limits()), idle(LatencyTable.from_ms({1: 10, 2: 20, 4: 30, 8: 40}))
    context = context._replace(expected_rows=4)
    assert policy.choose(WaitingQueue(Waiting()), context) == Choice(0, DELAY, 3 * MS, 4)
    assert policy.choose(WaitingQueue(Waiting(follows=True)), context) == Choice(1, IDLE)
    assert policy.choose(WaitingQueue(Waiting()), context._replace(has_more_planned=True)) == Choice(1, IDLE)


def test_a_batch_has_the_rows_for_whose_way_there_is_time() -> None:
    """1 ms to run, 0.15 ms of hand-off, 0.2 ms there and back: 0.65 ms are left for rows of 0.2 ms each."""
    policy = DeadlinePolicy(Limits())
    queue = WaitingQueue(*[Waiting(2 * MS)] * 6)
    assert policy.choose(queue, idle(ONE)).rows == 6
    far = idle(ONE)._replace(round_trip_ns=200 * US, row_way_ns=200.0 * US)
    assert policy.choose(queue, far).rows == 3


def test_a_batch_that_gathers_closes_earlier_by_its_way() -> None:
    """It gathers for 0.1 ms at most, and has to be back by 1.25 ms: with a way of 90 us it closes at 10 us."""
    policy = DeadlinePolicy(Limits())
    context = idle(ONE)._replace(expected_rows=4)
    queue = WaitingQueue(Waiting(1250 * US))
    assert policy.choose(queue, context) == Choice(0, DELAY, 100 * US, 4)
    assert policy.choose(queue, context._replace(round_trip_ns=90 * US)) == Choice(0, DELAY, 10 * US, 4)


@pytest.mark.parametrize(("rest_ms", "rows"), [(0, 6), (1, 4), (3, 2)])
def test_a_batch_takes_the_share_of_its_stage_of_the_time_left(rest_ms: int, rows: int) -> None:
    """A row takes 1 ms and 0.15 ms of hand-off, and 8.85 ms are left behind that: all, 0.535 and 0.277 of them."""
    context = idle(LatencyTable.from_ms({size: float(size) for size in range(1, 9)}))
    queue = WaitingQueue(*[Waiting((9 - rest_ms) * MS, rest_ns=rest_ms * MS)] * 6)
    assert DeadlinePolicy(Limits())._size(queue, context, 6) == rows


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 10**9), st.sets(st.integers(0, 6))), min_size=1, max_size=7),
    st.integers(0, 10**10),
)
def test_stages_that_take_all_their_slack_are_in_time_on_every_path(
    dag: list[tuple[int, set[int]]], left_ns: int
) -> None:
    own_ns = [own for own, _ in dag]
    sources = [[each for each in before if each < index] for index, (_, before) in enumerate(dag)]
    rest_ns = [0] * len(dag)
    for index in reversed(range(len(dag))):
        for source in sources[index]:
            rest_ns[source] = max(rest_ns[source], own_ns[index] + rest_ns[index])
    ends_ns: list[int] = []
    for index, own in enumerate(own_ns):
        begin_ns = max((ends_ns[source] for source in sources[index]), default=0)
        ends_ns.append(begin_ns + stage_slack_ns(left_ns - begin_ns, own, rest_ns[index]))
    assert max(ends_ns) <= left_ns
