"""Batches that wait for other models, which their own model has called."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from sluice.batcher.interface.decisions import DispatchBatch
from sluice.batcher.interface.events import RequestArrived
from sluice.models.backends.requests import CallRequest, CallResult, FailureCode

MOST_WAITING = 256
"""Batches of a worker that may wait at once; the calls of others fail."""
MOST_CALLS = 1024
"""Calls of a batch that may be under way at once; further ones fail."""

AnswerCall = Callable[[CallResult, Sequence[int]], None]
"""Gives a model the answer to its call; the descriptors stay the caller's."""


class RequestRecord(Protocol):
    """The record of a request (see `Trace`)."""

    client_id: str
    arrival: RequestArrived


class CallingSubmission(Protocol):
    """A request as models see it (see `Submission`)."""

    @property
    def trace(self) -> RequestRecord:
        """Its record."""
        ...

    parameters: str
    failure: FailureCode | None


class CallHandler(Protocol):
    """Runs the calls of models."""

    def call(self, batch: DispatchBatch, request: CallRequest, fd: int, answer: AnswerCall) -> None:
        """Run a call that the model of a batch makes; owns the descriptor of its inputs, and answers once."""
        ...

    def ended(self, batch: int) -> None:
        """Cancel the calls of a batch that has ended."""
        ...


class NoCalls:
    """Refuses all calls; see `CallHandler`."""

    def call(self, batch: DispatchBatch, request: CallRequest, fd: int, answer: AnswerCall) -> None:
        """Refuse a call."""
        del batch, request, fd
        answer(CallResult(error="models cannot call others here", code=FailureCode.UNSUPPORTED), ())

    def ended(self, batch: int) -> None:
        """Nothing to do."""


class WaitingBatch:
    """A batch that waits for other models, or for other batches of its own one.

    While it waits for no call, its model has `timeout_s` to go on: to end this batch or another one, or to call.
    `overdue` is called with a sentence when it has not. `progress` is when the models of the worker went on last, in
    seconds of the event loop.
    """

    __slots__ = ("_overdue", "_progress", "_timeout_s", "_timer", "batch", "calls")

    def __init__(
        self, batch: DispatchBatch, timeout_s: float, overdue: Callable[[str], None], progress: dict[str, float]
    ) -> None:
        self.batch = batch
        self.calls = 0
        self._timeout_s = timeout_s
        self._overdue = overdue
        self._progress = progress
        self._timer: asyncio.TimerHandle | None = None
        self._went_on()

    def call_made(self) -> None:
        """Record a call."""
        self.calls += 1
        self._went_on()

    def call_answered(self) -> None:
        """Record the answer to a call."""
        self.calls -= 1
        self._went_on()

    def ended(self) -> None:
        """Record the end of the batch."""
        self._went_on()
        self.stop()

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _went_on(self) -> None:
        self.stop()
        loop = asyncio.get_running_loop()
        now = self._progress[self.batch.model] = loop.time()
        if not self.calls:
            self._timer = loop.call_at(now + self._timeout_s, self._check)

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        due = self._progress[self.batch.model] + self._timeout_s
        if due > loop.time():
            self._timer = loop.call_at(due, self._check)
            return
        self._timer = None
        self._overdue(f"batch {self.batch.batch} did not go on within {self._timeout_s:g} s")
