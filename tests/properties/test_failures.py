"""Batches that fail by a bad request, with their worker or for lack of memory: only the culprits fail, in few runs."""

from collections.abc import Sequence, Set

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import CompleteRequest, DispatchBatch, FailRequest
from sluice.batcher.interface.events import AnyEvent, BatchFailed, FailureCause, PartitionLost, PartitionReady
from sluice.batcher.interface.outcome import Outcome
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, S, arrival, completed, model, serving, spec_of, step

LARGEST = 64
FLAT = LatencyTable.from_ms({1: 1, LARGEST: 1.5})


def outcomes(
    rows: list[int], bad: Set[int], rooms: Sequence[int], partitions: int = 1
) -> tuple[dict[int, Outcome], list[int]]:
    """Outcomes of requests with the given `rows`, and the sizes of the batches after the first, in order.

    There are `partitions` of each kind, with memory for batches of `rooms` rows. A batch with a `bad` request fails.
    """
    hosts = tuple(
        PartitionConfig(f"{kind}:{number}", f"cpu{kind}") for kind in range(len(rooms)) for number in range(partitions)
    )
    scheduler = serving(spec_of([model("m:1", LARGEST)], partitions=hosts), FLAT)
    decisions = step(scheduler, 0, *(arrival(number, 3600 * S, rows=each) for number, each in enumerate(rows)))
    queued: list[DispatchBatch] = []
    settled: dict[int, Outcome] = {}
    ran: list[int] = []
    now_ns = 0
    while True:
        queued += [each for each in decisions if isinstance(each, DispatchBatch)]
        for decision in decisions:
            if isinstance(decision, CompleteRequest | FailRequest):
                assert decision.request not in settled
                settled[decision.request] = decision.outcome
        if not queued:
            if len(settled) == len(rows):
                return settled, ran[1:]
            due_ns = scheduler.next_wakeup_ns()
            assert due_ns is not None, "requests are forgotten"
            assert due_ns < 60 * S
            now_ns = max(now_ns, due_ns)
            decisions = step(scheduler, now_ns)
            continue
        batch = queued.pop(0)
        ran.append(batch.rows)
        now_ns += MS
        event: AnyEvent = completed(batch.batch, now_ns - MS, now_ns)
        if batch.rows > rooms[int(batch.partition.partition(":")[0])]:
            event = BatchFailed(batch.batch, FailureCause.OUT_OF_MEMORY, "no memory")
        elif any(member.request in bad for member in batch.members):
            event = BatchFailed(batch.batch, FailureCause.BACKEND, "bad row")
        decisions = step(scheduler, now_ns, event)


@settings(deadline=None, max_examples=60)
@given(count=st.integers(2, LARGEST), place=st.floats(0, 1, exclude_max=True), partitions=st.integers(1, 3))
def test_one_bad_request_is_found_in_two_reruns_for_each_halving(count: int, place: float, partitions: int) -> None:
    bad = int(place * count)
    settled, reruns = outcomes([1] * count, {bad}, [LARGEST], partitions)
    assert settled == {
        number: Outcome.FAILED_BACKEND if number == bad else Outcome.COMPLETED for number in range(count)
    }
    halvings = (count - 1).bit_length()
    assert len(reruns) <= 2 * halvings


@pytest.mark.parametrize("exponent", range(1, 7))
def test_a_power_of_two_takes_as_many_reruns_as_the_bound(exponent: int) -> None:
    count = 2**exponent
    assert max(len(outcomes([1] * count, {bad}, [LARGEST])[1]) for bad in range(count)) == 2 * exponent


@settings(deadline=None, max_examples=60)
@given(count=st.integers(1, LARGEST), bad=st.sets(st.integers(0, LARGEST - 1), max_size=5))
def test_only_bad_requests_fail(count: int, bad: set[int]) -> None:
    settled, reruns = outcomes([1] * count, bad, [LARGEST])
    assert {number for number, outcome in settled.items() if outcome is Outcome.FAILED_BACKEND} == {
        number for number in bad if number < count
    }
    assert len(settled) == count
    assert len(reruns) <= 2 * max(len(bad), 1) * max((count - 1).bit_length(), 1)


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.integers(1, 4), min_size=1, max_size=16),
    bad=st.sets(st.integers(0, 15), max_size=2),
    room=st.integers(0, LARGEST),
)
def test_without_memory_only_requests_that_do_not_fit_alone_fail(rows: list[int], bad: set[int], room: int) -> None:
    settled, reruns = outcomes(rows, bad, [room])
    for number, each in enumerate(rows):
        fails = number in bad or each > room
        assert settled[number] is (Outcome.FAILED_BACKEND if fails else Outcome.COMPLETED)
    assert sum(size > room for size in reruns) <= 2 * len(rows)


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.integers(1, 16), min_size=1, max_size=12),
    rooms=st.lists(st.integers(0, LARGEST), min_size=2, max_size=3),
    partitions=st.integers(1, 2),
)
def test_a_request_that_fits_on_some_partition_runs_there(rows: list[int], rooms: list[int], partitions: int) -> None:
    settled, _ = outcomes(rows, set(), rooms, partitions)
    for number, each in enumerate(rows):
        assert settled[number] is (Outcome.COMPLETED if each <= max(rooms) else Outcome.FAILED_BACKEND)


def losses(rows: list[int], poisonous: Set[int], partitions: int, killed: Set[int]) -> tuple[dict[int, Outcome], int]:
    """Outcomes of requests of which the `poisonous` take the worker along, and the number of workers lost to them.

    A worker that is to complete the n-th batch is lost instead if n is in `killed`, and another one is up at once.
    """
    hosts = tuple(PartitionConfig(f"cpu{number}", "cpu1") for number in range(partitions))
    scheduler = serving(spec_of([model("m:1", LARGEST)], partitions=hosts), FLAT)
    decisions = step(scheduler, 0, *(arrival(number, 3600 * S, rows=each) for number, each in enumerate(rows)))
    queued: dict[str, list[DispatchBatch]] = {host.name: [] for host in hosts}
    settled: dict[int, Outcome] = {}
    lost, ran, now_ns = 0, 0, 0
    while True:
        for decision in decisions:
            if isinstance(decision, DispatchBatch):
                queued[decision.partition].append(decision)
            elif isinstance(decision, CompleteRequest | FailRequest):
                assert decision.request not in settled
                settled[decision.request] = decision.outcome
        running = [each for each in queued.values() if each]
        if not running:
            if len(settled) == len(rows):
                return settled, lost
            due_ns = scheduler.next_wakeup_ns()
            assert due_ns is not None, "requests are forgotten"
            now_ns = max(now_ns, due_ns)
            decisions = step(scheduler, now_ns)
            continue
        batches = min(running, key=lambda each: each[0].batch)
        batch = batches[0]
        now_ns, ran = now_ns + MS, ran + 1
        is_poisoned = any(member.request in poisonous for member in batch.members)
        if not is_poisoned and ran not in killed:
            decisions = step(scheduler, now_ns, completed(batches.pop(0).batch, now_ns - MS, now_ns))
            continue
        lost += is_poisoned
        gone = [BatchFailed(each.batch, FailureCause.WORKER_LOST, "killed") for each in batches]
        batches.clear()
        decisions = step(scheduler, now_ns, PartitionLost(batch.partition, "killed"), *gone)
        decisions += step(scheduler, now_ns, PartitionReady(batch.partition, {"m:1": FLAT}))


def most_lost(count: int) -> int:
    """The bound on workers that one poisonous request among `count` takes along."""
    return max(2, 1 + (count - 1).bit_length())


@settings(deadline=None, max_examples=100)
@given(count=st.integers(1, LARGEST), place=st.floats(0, 1, exclude_max=True), partitions=st.integers(1, 3))
def test_a_request_that_takes_its_workers_along_fails_alone_after_one_loss_for_each_halving(
    count: int, place: float, partitions: int
) -> None:
    poisonous = int(place * count)
    settled, lost = losses([1] * count, {poisonous}, partitions, set())
    assert settled == {
        number: Outcome.FAILED_WORKER_LOST if number == poisonous else Outcome.COMPLETED for number in range(count)
    }
    assert lost <= most_lost(count)


@settings(deadline=None, max_examples=100)
@given(
    rows=st.lists(st.integers(1, 4), min_size=1, max_size=16),
    poisonous=st.sets(st.integers(0, 15), max_size=3),
    partitions=st.integers(1, 3),
    killed=st.integers(1, 60),
)
def test_a_worker_that_is_killed_meanwhile_costs_one_innocent_request_at_most(
    rows: list[int], poisonous: set[int], partitions: int, killed: int
) -> None:
    settled, lost = losses(rows, poisonous, partitions, {killed})
    present = poisonous & set(range(len(rows)))
    failed = {number for number, outcome in settled.items() if outcome is not Outcome.COMPLETED}
    assert present <= failed
    assert len(failed - present) <= 1
    assert lost <= len(present) * most_lost(len(rows))
