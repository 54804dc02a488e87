"""Stages that compete: their rows run on other partitions as well, and the first answer counts."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batcher.interface.config import CompeteConfig, PartitionConfig, PipelineConfig, SchedulerSpec, StageConfig
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CancelRequest,
    CompleteRequest,
    DispatchBatch,
    EvictRequest,
    FailRequest,
    RejectRequest,
    ReleaseReason,
    RevokeBatch,
)
from sluice.batcher.interface.events import (
    AnyEvent,
    BatchFailed,
    BatchRevoked,
    FailureCause,
    PartitionLost,
    PartitionReady,
    RequestArrived,
    RequestCancelled,
)
from sluice.batcher.interface.instance_config import InstanceConfig, InstanceRule, instance_config
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import (
    MS,
    ONE,
    S,
    arrival,
    completed,
    dispatch,
    model,
    serving,
    single,
    spec_of,
    step,
)

FULL, COMPETE, RETRY = ReleaseReason.FULL, ReleaseReason.COMPETE, ReleaseReason.RETRY
TEN = LatencyTable.from_ms({1: 10})
TWICE = CompeteConfig(2)


def competing(config: CompeteConfig, late: Late = Late.SERVE) -> PipelineConfig:
    return PipelineConfig("m:1", (StageConfig("m", "m:1", compete=config),), late)


def spec(
    config: CompeteConfig = TWICE, partitions: int = 3, largest: int = 1, *others: PipelineConfig
) -> SchedulerSpec:
    names = [f"cpu{number}" for number in range(partitions)]
    return spec_of([model("m:1", largest)], [competing(config), *others], partitions=names)


def until(scheduler: Scheduler, end_ns: int) -> list[AnyDecision]:
    """The decisions on all wake-ups up to a time."""
    decisions = []
    while (due_ns := scheduler.next_wakeup_ns()) is not None and due_ns <= end_ns:
        decisions += step(scheduler, due_ns)
    return decisions


def done(request: int) -> CompleteRequest:
    return CompleteRequest(request, Outcome.COMPLETED)


def test_the_rows_run_on_two_partitions_at_once_and_the_first_answer_counts() -> None:
    scheduler = serving(spec(), TEN)
    both = [dispatch(1, [1], FULL), dispatch(2, [1], COMPETE, partition="cpu1")]
    assert step(scheduler, 0, arrival(1, S)) == both
    assert step(scheduler, 8 * MS, completed(2, 0, 8 * MS)) == [done(1)]
    assert step(scheduler, 12 * MS, completed(1, 0, 12 * MS)) == []
    assert not scheduler.requests
    assert scheduler.queue_depths() == {"m:1": 0}


def test_the_first_batch_may_win_as_well() -> None:
    scheduler = serving(spec(), TEN)
    step(scheduler, 0, arrival(1, S))
    assert step(scheduler, 8 * MS, completed(1, 0, 8 * MS)) == [done(1)]
    assert step(scheduler, 12 * MS, completed(2, 0, 12 * MS)) == []


def test_as_many_copies_run_as_partitions_are_idle() -> None:
    scheduler = serving(spec(CompeteConfig(7)), TEN)
    decisions = step(scheduler, 0, arrival(1, S))
    assert [each.partition for each in decisions if isinstance(each, DispatchBatch)] == ["cpu0", "cpu1", "cpu2"]
    assert scheduler.dispatcher.competition.unmade == 4


def test_rows_that_wait_have_the_idle_partitions_before_copies() -> None:
    scheduler = serving(spec(), TEN)
    decisions = step(scheduler, 0, *(arrival(number, S) for number in range(3)))
    reasons = [each.reason for each in decisions if isinstance(each, DispatchBatch)]
    assert reasons == [FULL, FULL, FULL]
    assert scheduler.dispatcher.competition.unmade == 3


def test_the_rows_run_again_only_after_a_time() -> None:
    scheduler = serving(spec(CompeteConfig(2, 4 * MS)), TEN)
    assert step(scheduler, 0, arrival(1, S)) == [dispatch(1, [1], FULL)]
    assert until(scheduler, 4 * MS - 1) == []
    assert until(scheduler, 4 * MS) == [dispatch(2, [1], COMPETE, partition="cpu1")]


def test_a_batch_that_ends_before_that_time_does_not_run_again() -> None:
    scheduler = serving(spec(CompeteConfig(2, 12 * MS)), TEN)
    step(scheduler, 0, arrival(1, S))
    assert step(scheduler, 10 * MS, completed(1, 0, 10 * MS)) == [done(1)]
    assert until(scheduler, S) == []


def test_the_percentile_is_that_of_the_last_batches() -> None:
    scheduler = serving(spec(CompeteConfig(2, percentile=90.0)), TEN)
    now_ns = 0
    for number in range(40):  # 1 to 10 ms in turn: nine of ten take 9 ms at most
        took_ns = (number % 10 + 1) * MS
        first = step(scheduler, now_ns, arrival(number, now_ns + S))
        (batch,) = [each.batch for each in first if isinstance(each, DispatchBatch)]
        step(scheduler, now_ns + took_ns, completed(batch, now_ns, now_ns + took_ns))
        now_ns += 20 * MS
    step(scheduler, now_ns, arrival(99, now_ns + S))
    hand_off_ns = scheduler.dispatcher.fleet.partitions["cpu0"].hand_off_ns
    assert until(scheduler, now_ns + 10 * MS + hand_off_ns - 1) == []
    (copy,) = until(scheduler, now_ns + 10 * MS + hand_off_ns)
    assert isinstance(copy, DispatchBatch)
    assert copy.reason is COMPETE


def test_requests_that_did_not_ask_share_no_batch_and_are_not_copied() -> None:
    asked, other = competing(TWICE), single("m:1", name="plain:1")
    names = [f"cpu{number}" for number in range(6)]
    scheduler = serving(spec_of([model("m:1")], [asked, other], partitions=names), ONE)
    decisions = step(scheduler, 0, arrival(1, S), arrival(2, S), arrival(3, S, "plain:1")) + until(scheduler, MS)
    batches = [each for each in decisions if isinstance(each, DispatchBatch)]
    by_reason = {
        reason: [member.request for each in batches if each.reason is reason for member in each.members]
        for reason in {each.reason for each in batches}
    }
    assert by_reason[COMPETE] == [1, 2]
    assert [3] in [[member.request for member in each.members] for each in batches if each.reason is not COMPETE]


def test_under_the_policy_timeout_rows_that_compete_share_no_batch_with_others_either() -> None:
    asked, other = competing(TWICE), single("m:1", name="plain:1")
    timed = model("m:1", policy=TimeoutConfig())
    scheduler = serving(spec_of([timed], [asked, other], partitions=("cpu0", "cpu1", "cpu2")), ONE)
    decisions = step(scheduler, 0, arrival(1, S), arrival(2, S, "plain:1"), arrival(3, S, "plain:1"))
    decisions += until(scheduler, MS)
    members = [[each.request for each in batch.members] for batch in decisions if isinstance(batch, DispatchBatch)]
    assert [1] in members
    assert all(1 not in each or each == [1] for each in members)


def test_a_copy_that_is_expected_late_is_not_made() -> None:
    scheduler = serving(spec(CompeteConfig(2, 4 * MS)), TEN)
    step(scheduler, 0, arrival(1, 13 * MS))
    assert until(scheduler, 12 * MS) == []


def limited(request: int, max_cost: float) -> RequestArrived:
    return msgspec.structs.replace(arrival(request, S), max_cost=max_cost)


def test_a_limited_request_competes_only_if_all_copies_are_within_its_limit() -> None:
    scheduler = serving(spec(), TEN)  # 10 ms of a partition at a price of 1 a second cost 0.01
    assert len(step(scheduler, 0, limited(1, 0.019))) == 1
    assert [type(each) for each in step(scheduler, S // 2, completed(1, 0, 10 * MS))] == [CompleteRequest]
    assert len(step(scheduler, S // 2 + MS, msgspec.structs.replace(limited(2, 0.021), deadline_ns=S))) == 2


def test_a_copy_that_fails_leaves_the_answer_to_the_first_batch() -> None:
    scheduler = serving(spec(), TEN)
    step(scheduler, 0, arrival(1, S))
    assert step(scheduler, MS, BatchFailed(2, FailureCause.BACKEND, "broken")) == []
    assert step(scheduler, 10 * MS, completed(1, 0, 10 * MS)) == [done(1)]


def test_a_request_fails_once_when_all_its_copies_have_failed() -> None:
    scheduler = serving(spec(), TEN)
    step(scheduler, 0, arrival(1, S))
    assert step(scheduler, MS, BatchFailed(1, FailureCause.BACKEND, "broken")) == []
    assert step(scheduler, 2 * MS, BatchFailed(2, FailureCause.BACKEND, "broken")) == [
        FailRequest(1, Outcome.FAILED_BACKEND, "broken")
    ]


def test_a_retried_batch_does_not_compete_again() -> None:
    scheduler = serving(spec(CompeteConfig(2, 50 * MS)), TEN)
    step(scheduler, 0, arrival(1, S))
    lost: list[AnyEvent] = [PartitionLost("cpu0", "killed"), BatchFailed(1, FailureCause.WORKER_LOST, "killed")]
    assert step(scheduler, MS, *lost) == [dispatch(2, [1], RETRY, partition="cpu1")]
    assert until(scheduler, 30 * MS) == []


def test_a_cancelled_request_leaves_its_copies_nothing_to_answer() -> None:
    scheduler = serving(spec(), TEN)
    step(scheduler, 0, arrival(1, S, memory_bytes=100))
    assert step(scheduler, MS, RequestCancelled(1)) == [CancelRequest(1, Outcome.CANCELLED_CLIENT)]
    assert scheduler.memory.used_bytes == 100
    assert step(scheduler, 10 * MS, completed(1, 0, 10 * MS), completed(2, 0, 10 * MS)) == []
    assert scheduler.memory.used_bytes == 0


def test_copies_do_not_count_as_rows_that_may_be_expected_together() -> None:
    scheduler = serving(spec(), TEN)
    step(scheduler, 0, arrival(1, S))
    state = scheduler.dispatcher.models["m:1"]
    assert (state.outstanding, state.extra_rows, state.peak_rows) == (2, 1, 1.0)


Settled = CompleteRequest | FailRequest | CancelRequest | EvictRequest | RejectRequest


@settings(deadline=None, max_examples=60)
@given(
    data=st.data(),
    copies=st.integers(2, 4),
    after_ms=st.sampled_from([0, 3, 15]),
    largest=st.integers(1, 4),
    late=st.sampled_from(Late),
    rule=st.sampled_from([InstanceRule.LOCALITY, InstanceRule.BALANCE, InstanceRule.EXCLUSIVE, InstanceRule.HOME_HASH]),
)
def test_each_request_has_one_outcome_whatever_becomes_of_its_copies(
    data: st.DataObject, copies: int, after_ms: int, largest: int, late: Late, rule: InstanceRule
) -> None:
    names = [f"cpu{number}" for number in range(4)]
    pipelines = [competing(CompeteConfig(copies, after_ms * MS), late), single("m:1", name="plain:1")]
    table = LatencyTable.from_ms({1: 5, 4: 8})
    hosts = [PartitionConfig(name, "cpu1") for name in names]
    shared = msgspec.structs.replace(model("m:1", largest), instances=instance_config(rule))
    scheduler = serving(spec_of([shared], pipelines, partitions=hosts), table)
    held: dict[str, list[int]] = {name: [] for name in names}
    revoked: set[int] = set()
    outcomes: dict[int, Outcome] = {}
    came, now_ns = 0, 0

    def take(decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            match decision:
                case DispatchBatch():
                    held[decision.partition].append(decision.batch)
                case RevokeBatch():
                    revoked.add(decision.batch)
                case CompleteRequest() | FailRequest() | CancelRequest() | EvictRequest() | RejectRequest():
                    assert decision.request not in outcomes
                    outcomes[decision.request] = decision.outcome

    def end(name: str, failure: FailureCause | None) -> None:
        batch = held[name].pop(0)
        if failure is None:
            take(step(scheduler, now_ns, completed(batch, now_ns - MS, now_ns)))
        else:
            take(step(scheduler, now_ns, BatchFailed(batch, failure, "broken")))

    def lose(name: str) -> None:
        gone = [BatchFailed(batch, FailureCause.WORKER_LOST, "killed") for batch in held[name]]
        held[name].clear()
        take(step(scheduler, now_ns, PartitionLost(name, "killed"), *gone))
        take(step(scheduler, now_ns, PartitionReady(name, {"m:1": table})))

    for _ in range(data.draw(st.integers(1, 25))):
        now_ns += data.draw(st.sampled_from([0, MS, 5 * MS, 40 * MS]))
        take(until(scheduler, now_ns))
        act = data.draw(st.sampled_from(["arrive", "arrive", "end", "fail", "cancel", "revoke", "lose"]))
        busy = [name for name in names if held[name]]
        if act == "arrive":
            came += 1
            pipeline = data.draw(st.sampled_from(["m:1", "plain:1"]))
            deadline_ns = now_ns + data.draw(st.sampled_from([300 * MS, 20 * MS]))
            take(step(scheduler, now_ns, arrival(came, deadline_ns, pipeline)))
        elif act == "cancel" and came:
            take(step(scheduler, now_ns, RequestCancelled(data.draw(st.integers(1, came)))))
        elif act == "revoke":
            for name in busy:
                for batch in [each for each in held[name][1:] if each in revoked]:
                    held[name].remove(batch)
                    take(step(scheduler, now_ns, BatchRevoked(batch)))
        elif act == "lose" and busy:
            lose(data.draw(st.sampled_from(busy)))
        elif busy:
            end(data.draw(st.sampled_from(busy)), FailureCause.BACKEND if act == "fail" else None)
    for _ in range(200):
        if len(outcomes) == came and not any(held.values()):
            break
        now_ns += MS
        take(until(scheduler, now_ns))
        for name in names:
            if held[name]:
                end(name, None)
    assert set(outcomes) == set(range(1, came + 1))
    assert not scheduler.requests
    assert scheduler.memory.used_bytes == 0


def test_a_copy_that_is_retried_may_time_out_together_with_the_rows_that_it_is_a_copy_of() -> None:
    names = [f"cpu{number}" for number in range(3)]
    hard = spec_of([model("m:1", 2)], [competing(TWICE, Late.EVICT)], partitions=names)
    scheduler = serving(hard, LatencyTable.from_ms({1: 10, 2: 10}))
    step(scheduler, 0, arrival(1, S), arrival(2, S))
    until(scheduler, 10 * MS)
    first, copy = scheduler.dispatcher.batches.items()
    for number, batch in (first, copy):
        name = batch.partition.name
        gone = BatchFailed(number, FailureCause.WORKER_LOST, "killed")
        step(scheduler, 11 * MS, PartitionLost(name, "killed"), gone)
    assert scheduler.next_wakeup_ns() is not None


def test_no_copy_takes_the_partition_that_a_rule_has_chosen_for_another_batch() -> None:
    balance, slow = InstanceConfig(InstanceRule.BALANCE), TimeoutConfig((4,), 20 * MS)
    waits = msgspec.structs.replace(model("waits:1", 4, slow), instances=balance)
    both = spec_of([model("m:1", 1), waits], [competing(CompeteConfig(2)), single("waits:1")], partitions=["p0", "p1"])
    scheduler = serving(both, TEN)
    assert step(scheduler, 0, arrival(1, S, "waits:1")) == []  # p0 is to run it, once there are four or 20 ms are over
    copied = step(scheduler, MS, arrival(2, S))
    assert [each.partition for each in copied if isinstance(each, DispatchBatch)] == ["p1"]
    assert scheduler.dispatcher.competition.unmade == 1
