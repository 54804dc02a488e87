import asyncio
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from sluice.loadgen.records.record import Record, Status
from sluice.loadgen.records.samples import TargetModel
from sluice.loadgen.run.issuer import Issuer
from sluice.loadgen.target.base import QueryListener, Request
from sluice.loadgen.traffic.pacing import OPEN_LOOP, Pacing
from sluice.loadgen.traffic.schedule import Schedule


class Brittle:
    """Answers at once, but cannot send some of the samples."""

    def __init__(self, unsendable: set[int]) -> None:
        self._unsendable = unsendable

    async def metadata(self, model: str) -> TargetModel:
        return TargetModel((), ())

    async def prepare(self, requests: Mapping[int, Request], listener: QueryListener, keep_answers: bool) -> None:
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
    """Answers queries of sample 0 at once, and others never; notes which are given up, and when."""

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
