import msgspec
import pytest

from sluice.batcher.interface.config import PartitionConfig, ScheduledModel, SequenceConfig
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CancelRequest,
    CompleteRequest,
    DispatchBatch,
    FailRequest,
    RejectRequest,
    UnloadModel,
)
from sluice.batcher.interface.events import (
    BatchFailed,
    BatchSuspended,
    FailureCause,
    PartitionLost,
    PartitionReady,
    RequestArrived,
    RequestCancelled,
)
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.residency_config import Loading, ResidencyConfig
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.sequence_batching import DirectStrategy, OldestStrategy, SequenceBatching, SequenceStep
from tests.support.scheduling.builders import MS, ONE, S, completed, serving, spec_of, step

IDLE_NS = 10 * MS


def sequential(slots: int = 2, partitions: tuple[str, ...] = ("cpu0",), id_datatype: str = "") -> Scheduler:
    """A model with sequences that takes 1 ms a batch."""
    sequences = SequenceConfig(slots, IDLE_NS, "CORRID" if id_datatype else "", id_datatype)
    return serving(
        spec_of([ScheduledModel("m:1", 4, TimeoutConfig(), sequences=sequences)], partitions=partitions), ONE
    )


def part(request: int, id: int | str, *, start: bool = False, end: bool = False, rows: int = 1) -> RequestArrived:
    sequence = SequenceStep(id, start, end)
    return RequestArrived(request, "m:1", rows, S, sequence=sequence)


def batches(decisions: list[AnyDecision]) -> list[tuple[str, dict[int, int]]]:
    """The partition of each batch, and the slot of each request in it."""
    return [
        (each.partition, {member.request: row.slot for member, row in zip(each.members, each.sequences, strict=True)})
        for each in decisions
        if isinstance(each, DispatchBatch)
    ]


def test_each_sequence_has_a_slot_and_its_requests_run_one_after_the_other() -> None:
    scheduler = sequential()
    assert batches(step(scheduler, 0, part(1, 7, start=True), part(2, 8, start=True), part(3, 7))) == [
        ("cpu0", {1: 0, 2: 1})
    ]
    decisions = step(scheduler, MS, completed(1, 0, MS))
    assert batches(decisions) == [("cpu0", {3: 0})]
    assert decisions[:2] == [CompleteRequest(1, Outcome.COMPLETED), CompleteRequest(2, Outcome.COMPLETED)]


def test_a_sequence_stays_on_the_partition_that_it_began_on() -> None:
    scheduler = sequential(partitions=("cpu0", "cpu1"))
    assert batches(step(scheduler, 0, part(1, 7, start=True), part(2, 8, start=True))) == [
        ("cpu0", {1: 0}),
        ("cpu1", {2: 0}),
    ]
    assert batches(step(scheduler, MS, completed(2, 0, MS), part(3, 8))) == [("cpu1", {3: 0})]
    assert batches(step(scheduler, MS, part(4, 7))) == [], "cpu0 is busy with the request before"
    assert batches(step(scheduler, 2 * MS, completed(1, 0, 2 * MS))) == [("cpu0", {4: 0})]


def test_a_sequence_without_a_free_slot_waits_until_one_ends() -> None:
    scheduler = sequential(slots=1)
    step(scheduler, 0, part(1, 7, start=True), part(2, 8, start=True), part(3, 8, end=True))
    assert batches(step(scheduler, MS, completed(1, 0, MS))) == []
    assert batches(step(scheduler, 2 * MS, part(4, 7, end=True))) == [("cpu0", {4: 0})]
    assert batches(step(scheduler, 3 * MS, completed(2, 2 * MS, 3 * MS))) == [("cpu0", {2: 0})]
    assert batches(step(scheduler, 4 * MS, completed(3, 3 * MS, 4 * MS))) == [("cpu0", {3: 0})]


def test_an_idle_sequence_ends_and_its_slot_goes_to_one_that_waits() -> None:
    scheduler = sequential(slots=1)
    step(scheduler, 0, part(1, 7, start=True), part(2, 8, start=True))
    step(scheduler, MS, completed(1, 0, MS))
    assert scheduler.next_wakeup_ns() == MS + IDLE_NS
    assert batches(step(scheduler, MS + IDLE_NS)) == [("cpu0", {2: 0})]
    (refused,) = step(scheduler, MS + IDLE_NS, part(3, 7))
    assert isinstance(refused, RejectRequest)
    assert refused.outcome is Outcome.REJECTED_SEQUENCE


def test_a_sequence_that_starts_again_keeps_its_slot() -> None:
    scheduler = sequential()
    step(scheduler, 0, part(1, 7, start=True))
    step(scheduler, MS, completed(1, 0, MS))
    assert batches(step(scheduler, MS, part(2, 7, start=True))) == [("cpu0", {2: 0})]


MUST = "inference request to model 'm' must specify "


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (RequestArrived(1, "m:1", 1, S), MUST + "a non-zero or non-empty correlation ID"),
        (part(1, 7, start=True, rows=2), MUST + "batch-size 1 due to requirements of sequence batcher"),
        (
            part(1, 7),
            "inference request for sequence 7 to model 'm' must specify the START flag on the first request of the "
            "sequence",
        ),
        (
            part(1, "a", start=True),
            "sequence batching control 'CORRID' data-type is 'BYTES', but model 'm' expects 'INT32'",
        ),
    ],
)
def test_what_belongs_to_no_sequence_is_refused_in_tritons_words(event: RequestArrived, reason: str) -> None:
    scheduler = sequential(id_datatype="INT32")
    assert step(scheduler, 0, event) == [RejectRequest(1, Outcome.REJECTED_SEQUENCE, reason, 0)]


def test_a_lost_worker_ends_its_sequences() -> None:
    scheduler = sequential(partitions=("cpu0", "cpu1"))
    step(scheduler, 0, part(1, 7, start=True), part(2, 7), part(3, 8, start=True))
    lost, failed = PartitionLost("cpu0", "it died"), BatchFailed(1, FailureCause.WORKER_LOST, "it died")
    assert step(scheduler, MS, lost, failed) == [
        FailRequest(1, Outcome.FAILED_WORKER_LOST, "it died"),
        FailRequest(
            2,
            Outcome.FAILED_WORKER_LOST,
            "the state of sequence 7 is gone; start the sequence again",
        ),
    ]
    (refused,) = step(scheduler, MS, PartitionReady("cpu0", {"m:1": ONE}), part(4, 7))
    assert isinstance(refused, RejectRequest)
    step(scheduler, 2 * MS, completed(2, 0, 2 * MS))
    assert batches(step(scheduler, 2 * MS, part(5, 8))) == [("cpu1", {5: 0})], "other sequences go on"


def test_sequences_end_when_their_states_are_lost_and_those_that_began_since_go_on() -> None:
    scheduler = sequential()
    step(scheduler, 0, part(1, 7, start=True), part(2, 7), part(3, 8, start=True))
    decisions = step(scheduler, MS, BatchFailed(1, FailureCause.STATES_LOST, "the process ended"))
    assert decisions == [
        FailRequest(1, Outcome.FAILED_BACKEND, "the process ended"),
        FailRequest(3, Outcome.FAILED_BACKEND, "the process ended"),
        FailRequest(2, Outcome.FAILED_WORKER_LOST, "the state of sequence 7 is gone; start the sequence again"),
    ]
    (refused,) = step(scheduler, MS, part(4, 7))
    assert isinstance(refused, RejectRequest)
    assert batches(step(scheduler, MS, part(5, 7, start=True))) == [("cpu0", {5: 0})]


def test_a_model_whose_sequences_go_on_makes_no_room_for_another_one() -> None:
    config = SequenceConfig(2, 100 * MS)
    models = [
        ScheduledModel("m:1", 4, TimeoutConfig(), memory_bytes=1, sequences=config),
        ScheduledModel("other:1", 4, TimeoutConfig(), memory_bytes=1),
    ]
    spec = spec_of(models, partitions=[PartitionConfig("cpu0", "cpu1", memory_bytes=1)])
    residency = ResidencyConfig(loading=Loading.DEMAND, min_resident_ns=MS, load_ns=10 * MS)
    scheduler = Scheduler(msgspec.structs.replace(spec, residency=residency))
    step(scheduler, 0, PartitionReady("cpu0", {"m:1": ONE}))
    step(scheduler, 0, part(1, 7, start=True))
    step(scheduler, MS, completed(1, 0, MS))
    assert step(scheduler, 10 * MS, RequestArrived(2, "other:1", 1, 10 * S)) == []
    assert batches(step(scheduler, 20 * MS, part(3, 7))) == [("cpu0", {3: 0})]
    step(scheduler, 21 * MS, completed(2, 20 * MS, 21 * MS))
    made: list[AnyDecision] = []
    due_ns: int | None = 0
    while not made:  # until the sequence has been idle for too long
        due_ns = scheduler.next_wakeup_ns()
        assert due_ns is not None
        made = step(scheduler, due_ns)
    assert made[0] == UnloadModel("cpu0", "m:1")
    assert due_ns is not None
    assert due_ns >= 121 * MS


def test_a_failed_request_of_a_sequence_is_not_repeated_and_the_sequence_goes_on() -> None:
    scheduler = sequential()
    step(scheduler, 0, part(1, 7, start=True), part(2, 8, start=True), part(3, 7))
    decisions = step(scheduler, MS, BatchFailed(1, FailureCause.BACKEND, "it fails"))
    assert decisions[:2] == [FailRequest(number, Outcome.FAILED_BACKEND, "it fails") for number in (1, 2)]
    assert batches(decisions) == [("cpu0", {3: 0})]


def test_a_sequence_ends_with_a_request_that_is_cancelled_before_it_ran() -> None:
    scheduler = sequential()
    step(scheduler, 0, part(1, 7, start=True), part(2, 7), part(3, 7))
    assert step(scheduler, 0, RequestCancelled(2)) == [CancelRequest(2, Outcome.CANCELLED_CLIENT)]
    assert step(scheduler, 1) == [
        FailRequest(3, Outcome.CANCELLED_CLIENT, "a request of sequence 7 before it did not run")
    ]
    assert step(scheduler, MS, completed(1, 0, MS)) == [CompleteRequest(1, Outcome.COMPLETED)]


def test_a_slot_stays_in_use_while_a_request_of_an_ended_sequence_runs() -> None:
    scheduler = sequential(slots=1)
    assert batches(step(scheduler, 0, part(1, 7, start=True), part(2, 7))) == [("cpu0", {1: 0})]
    assert step(scheduler, 0, RequestCancelled(2)) == [CancelRequest(2, Outcome.CANCELLED_CLIENT)]
    suspended = step(scheduler, 0, BatchSuspended(1), part(3, 7, start=True))
    assert batches(suspended) == [], "the partition is free, but the state of request 1 is in the slot"
    assert batches(step(scheduler, MS, completed(1, 0, MS))) == [("cpu0", {3: 0})]


def test_the_policy_waits_as_the_strategy_says() -> None:
    oldest = SequenceBatching(
        oldest=OldestStrategy(max_candidate_sequences=4, preferred=(2, 4), max_queue_delay_us=100)
    )
    assert TimeoutConfig.of_sequences(oldest, 8) == TimeoutConfig((2, 4), 100_000)
    assert TimeoutConfig.of_sequences(SequenceBatching(), 8) == TimeoutConfig()
    direct = SequenceBatching(direct=DirectStrategy(max_queue_delay_us=50, minimum_slot_utilization=0.3))
    assert TimeoutConfig.of_sequences(direct, 8) == TimeoutConfig((3, 4, 5, 6, 7, 8), 50_000), "all ready slots run"
    no_minimum = SequenceBatching(direct=DirectStrategy(max_queue_delay_us=50))
    assert TimeoutConfig.of_sequences(no_minimum, 8) == TimeoutConfig(), "the delay counts with a minimum only"


def test_a_request_of_a_sequence_is_not_refused_for_its_deadline() -> None:
    scheduler = sequential()
    late = RequestArrived(1, "m:1", 1, 1, sequence=SequenceStep(7, start=True))
    assert batches(step(scheduler, 0, late)) == [("cpu0", {1: 0})]
