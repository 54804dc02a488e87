"""Batches that wait for other models, which their own model has called."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from sluice.batcher.interface.decisions import DispatchBatch
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
    """A batch that waits for other models; once it has all answers, it has `timeout_s` to end or to call again.

    `overdue` is called with a sentence when it has not. A batch of a decoupled model has that time for each response,
    without the time for which it waits for its client.
    """

    __slots__ = ("_is_held", "_overdue", "_timeout_s", "_timer", "batch", "calls")

    def __init__(self, batch: DispatchBatch, timeout_s: float, overdue: Callable[[str], None]) -> None:
        self.batch = batch
        self.calls = 0
        self._is_held = False
        self._timeout_s = timeout_s
        self._overdue = overdue
        self._timer: asyncio.TimerHandle | None = None

    def call_made(self) -> None:
        """Record a call."""
        self.calls += 1
        self.stop()

    def call_answered(self) -> None:
        """Record the answer to a call."""
        self.calls -= 1
        self._watch()

    def went_on(self, *, is_held: bool) -> None:
        """Record that a response was sent or taken; one that `is_held` can send no more until another is taken."""
        self._is_held = is_held
        self._watch()

    def _watch(self) -> None:
        self.stop()
        if not self.calls and not self._is_held:
            reason = f"batch {self.batch.batch} did not end within {self._timeout_s:g} s after its last call"
            self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._overdue, reason)

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
