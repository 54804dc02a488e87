"""Batches that wait in a worker while its model sends responses: those that were taken back leave room for others."""

import os
from typing import Any, cast

from sluice.mps.ipc.claim import new_claim, take
from sluice.mps.ipc.messages import BatchRefused, RunBatch
from sluice.mps.worker.main import QUEUE_LIMIT, Worker


class Sent:
    """A channel that keeps what is sent."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, message: Any) -> None:
        self.messages.append(message)


def handed_over(worker: Worker, batch: int) -> int:
    """Give a worker a batch with a claim; returns the gateway's descriptor of that."""
    claim = new_claim()
    assert claim is not None
    worker.handle(RunBatch(batch, "m:1", ()), (os.dup(claim),))
    return claim


def test_only_batches_that_are_not_taken_back_count_against_the_limit() -> None:
    sent, unused = Sent(), cast(Any, None)
    worker = Worker(cast(Any, sent), unused, unused, unused, unused, unused)
    first = [handed_over(worker, batch) for batch in range(1, QUEUE_LIMIT + 1)]
    assert all(take(claim) for claim in first), "their clients have gone"
    later = [handed_over(worker, batch) for batch in range(11, 11 + QUEUE_LIMIT)]
    assert sent.messages == []
    one_more = handed_over(worker, 21)
    assert [(type(each), each.batch) for each in sent.messages] == [(BatchRefused, 21)]
    assert not take(one_more), "what is refused is not taken back as well"
    for claim in [*first, *later, one_more, *worker._claims.values()]:
        os.close(claim)
