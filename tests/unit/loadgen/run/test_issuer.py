import asyncio
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from sluice.loadgen.records.record import Record, Status
from sluice.loadgen.records.samples import TargetModel
from sluice.loadgen.run.issuer import Issuer
from sluice.loadgen.target.base import QueryListener, Request
from sluice.loadgen.traffic.schedule import Schedule


class Brittle:
    """Answers at once, but cannot send some of the samples."""

    def __init__(self, unsendable: set[int]) -> None:
        self._unsendable = unsendable

    async def metadata(self, model: str) -> TargetModel:
        return TargetModel((), ())

    async def statistics(self) -> None:
        return None

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
