import asyncio
import os
import signal
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pytest

from sluice.loadgen.records.record import Record, Status
from sluice.loadgen.records.samples import TargetModel
from sluice.loadgen.run.issuer import Issuer
from sluice.loadgen.target.base import QueryListener, TargetRequest
from sluice.loadgen.traffic.pacing import OPEN_LOOP, Pacing
from sluice.loadgen.traffic.schedule import Schedule


class Brittle:
    """Answers at once, but cannot send some of the samples."""

    def __init__(self, unsendable: set[int]) -> None:
        self._unsendable = unsendable

    async def metadata(self, model: str) -> TargetModel:
        return TargetModel((), ())

    async def statistics(self) -> None:
        return None

    async def prepare(self, requests: Mapping[int, TargetRequest], listener: QueryListener, keep_answers: bool) -> None:
        self._listener = listener

    def issue(self, query: int, request: int) -> None:
        if request in self._unsendable:
            raise OSError(f"sample {request} is too long")
        self._listener.sent(query)
        self._listener.done(query, Status.OK)

    def cancel(self, query: int) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        pass

    def decode(self, answer: object, output: str) -> npt.NDArray[np.generic]:
        raise NotImplementedError


@pytest.mark.parametrize("unsendable", [{2}, {0}, {4}, {0, 1, 2, 3, 4}])
def test_a_query_that_cannot_be_sent_fails_and_the_others_leave(unsendable: set[int]) -> None:
    schedule = Schedule(np.arange(5, dtype=np.int64) * 1_000_000, np.arange(5, dtype=np.int64))

    async def run() -> Record:
        target, issuer = Brittle(unsendable), Issuer(Record.of(schedule))
        await target.prepare({}, issuer, keep_answers=False)
        return await asyncio.wait_for(issuer.run(target, drain_timeout_s=60), 120)

    record = asyncio.run(run())
    assert [status == Status.ERROR for status in record.status] == [sample in unsendable for sample in range(5)]
    first = f"cannot be sent: OSError('sample {min(unsendable)} is too long')"
    assert record.reasons == {first: len(unsendable)}


class Silent(Brittle):
    """Answers queries of sample 0 at once, and others never; notes which are given up."""

    def __init__(self) -> None:
        super().__init__(set())
        self.given_up: list[int] = []

    def issue(self, query: int, request: int) -> None:
        self._listener.sent(query)
        if request == 0:
            self._listener.done(query, Status.OK)

    def cancel(self, query: int) -> None:
        self.given_up.append(query)
        self._listener.done(query, Status.CANCELLED)


def issue_to_silence(record: Record, pacing: Pacing, cancel_ns: list[int]) -> tuple[Record, list[int]]:
    async def run() -> tuple[Record, list[int]]:
        target, issuer = Silent(), Issuer(record, pacing, np.array(cancel_ns))
        await target.prepare({}, issuer, keep_answers=False)
        return await asyncio.wait_for(issuer.run(target, drain_timeout_s=60), 120), target.given_up

    return asyncio.run(run())


def test_open_queries_are_given_up_in_the_order_of_their_times() -> None:
    schedule = Schedule(np.zeros(4, np.int64), np.array([1, 0, 1, 1]))
    record, given_up = issue_to_silence(Record.of(schedule), OPEN_LOOP, [3_000_000, 0, 2_000_000, 0])
    assert given_up == [3, 2, 0]
    assert record.status.tolist() == [Status.CANCELLED, Status.OK, Status.CANCELLED, Status.CANCELLED]
    assert record.done_ns[0] >= 3_000_000
    assert record.done_ns[2] >= 2_000_000


def test_a_query_that_is_given_up_lets_the_next_one_of_a_closed_loop_leave() -> None:
    schedule = Schedule(np.zeros(2, np.int64), np.ones(2, np.int64))
    pacing = Pacing(outstanding=1, from_issue=True, repeats=True, min_queries=5, min_ns=0)
    record, given_up = issue_to_silence(Record.of(schedule), pacing, [1_000_000, 2_000_000])
    assert given_up == [0, 1, 2, 3, 4]
    assert (record.status == Status.CANCELLED).all()
    assert (record.done_ns - record.due_ns >= [1_000_000, 2_000_000, 1_000_000, 2_000_000, 1_000_000]).all()
    assert (record.due_ns[1:] >= record.done_ns[:-1]).all()


class Scripted(Brittle):
    """Answers each query in the next turn of the loop, unless it is one of the `lost`.

    `open` has the number of open queries after each issue, and `events` what happened in order: +k, the k-th query
    left; -k, it was answered.
    """

    def __init__(self, lost: set[int] | None = None, on_issue: Callable[[int], None] = lambda query: None) -> None:
        super().__init__(set())
        self._lost = lost or set()
        self._on_issue = on_issue
        self._now_open: set[int] = set()
        self.open: list[int] = []
        self.events: list[int] = []

    def issue(self, query: int, request: int) -> None:
        self._on_issue(query)
        self._now_open.add(query)
        self.open.append(len(self._now_open))
        self.events.append(query + 1)
        self._listener.sent(query)
        if query not in self._lost:
            asyncio.get_running_loop().call_soon(self._end, query, Status.OK)

    def cancel(self, query: int) -> None:
        self._end(query, Status.CANCELLED)

    def _end(self, query: int, status: Status) -> None:
        self._now_open.discard(query)
        self.events.append(-query - 1)
        self._listener.done(query, status)


def issue_all(target: Brittle, pacing: Pacing, queries: int, drain_timeout_s: float = 60) -> tuple[Record, Issuer]:
    """Issue queries that are all due at once."""
    schedule = Schedule(np.zeros(queries, np.int64), np.arange(queries, dtype=np.int64))

    async def run() -> tuple[Record, Issuer]:
        issuer = Issuer(Record.of(schedule), pacing)
        await target.prepare({}, issuer, keep_answers=False)
        return await asyncio.wait_for(issuer.run(target, drain_timeout_s), 120), issuer

    return asyncio.run(run())


@pytest.mark.parametrize("outstanding", [1, 3, 60])
def test_a_closed_loop_keeps_its_number_of_queries_open(outstanding: int) -> None:
    target = Scripted()
    record, _ = issue_all(target, Pacing(outstanding, from_issue=True), 200)
    assert (record.status == Status.OK).all()
    # All leave at the start, and one with each answer.
    assert target.open == [*range(1, outstanding + 1), *[outstanding] * (200 - outstanding)]
    assert sorted(target.events) == [*range(-200, 0), *range(1, 201)]


def test_a_group_leaves_when_all_of_the_one_before_are_answered() -> None:
    target = Scripted()
    record, _ = issue_all(target, Pacing(3, 3, from_issue=True), 9)
    assert target.events == [1, 2, 3, -1, -2, -3, 4, 5, 6, -4, -5, -6, 7, 8, 9, -7, -8, -9]
    assert len(set(record.due_ns.tolist())) == 3


def test_queries_that_follow_answers_are_due_when_they_leave() -> None:
    record, _ = issue_all(Scripted(), Pacing(1, from_issue=True), 20)
    assert (record.due_ns[1:] >= record.done_ns[:-1]).all()
    assert (record.due_ns <= record.sent_ns).all()
    from_start, _ = issue_all(Scripted(), Pacing(1), 20)
    assert (from_start.due_ns == 0).all()


def test_a_closed_loop_goes_on_beyond_its_schedule_until_its_minima() -> None:
    record, _ = issue_all(Scripted(), Pacing(2, from_issue=True, repeats=True, min_ns=0, min_queries=50), 8)
    assert record.sample.tolist() == [*range(8)] * 6 + [0, 1]
    assert (record.status == Status.OK).all()


def test_a_closed_loop_of_queries_that_fail_at_once_ends() -> None:
    record, _ = issue_all(Brittle(set(range(500))), Pacing(2, from_issue=True), 500)
    assert (record.status == Status.ERROR).all()


def test_a_query_that_is_never_answered_is_given_up_and_its_client_goes_on() -> None:
    record, _ = issue_all(Scripted(lost={1, 4}), Pacing(1, from_issue=True), 6, drain_timeout_s=0.02)
    lost = [status == Status.TIMEOUT for status in record.status]
    assert lost == [False, True, False, False, True, False]
    assert (record.status != Status.CANCELLED).all()
    assert record.due_ns[2] - record.due_ns[1] >= 20_000_000


def test_a_closed_loop_ends_in_time_although_nothing_is_answered() -> None:
    pacing = Pacing(2, from_issue=True, repeats=True, max_ns=20_000_000)
    record, _ = issue_all(Scripted(lost=set(range(100))), pacing, 100, drain_timeout_s=0.03)
    assert len(record) >= 2
    assert (record.status == Status.TIMEOUT).all()


def test_an_interrupt_ends_a_closed_loop_with_the_queries_that_have_left() -> None:
    def interrupt_once(query: int) -> None:
        if query == 10:
            os.kill(os.getpid(), signal.SIGINT)

    pacing = Pacing(1, from_issue=True, repeats=True)
    record, issuer = issue_all(Scripted(on_issue=interrupt_once), pacing, 8)
    assert issuer.interrupted
    assert len(record) >= 11
    assert (record.status == Status.OK).all()


def test_the_counts_of_a_run_are_those_of_its_queries() -> None:
    counts: list[tuple[int, int]] = []
    schedule = Schedule(np.zeros(3, np.int64), np.zeros(3, np.int64))

    async def run() -> None:
        issuer = Issuer(Record.of(schedule), Pacing(1))
        target = Scripted(on_issue=lambda query: counts.append(issuer.counts()))
        await target.prepare({}, issuer, keep_answers=False)
        await issuer.run(target, 60)
        counts.append(issuer.counts())

    asyncio.run(run())
    assert counts == [(1, 0), (2, 1), (3, 2), (3, 3)]


def test_the_client_is_measured_without_load() -> None:
    _, issuer = issue_all(Scripted(), OPEN_LOOP, 3)
    assert issuer.baseline_lateness_ms > 0
    # Too short to tell a share of a core.
    assert issuer.cpu_share is None or issuer.cpu_share > 0
    assert issuer.cpu_ns > 0
