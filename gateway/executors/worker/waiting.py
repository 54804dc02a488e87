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


class ModelProgress:
    """When a model went on last, in seconds of the event loop, and how many of its batches wait for their clients."""

    __slots__ = ("at_s", "held")

    def __init__(self) -> None:
        self.at_s = 0.0
        self.held = 0


class WaitingBatch:
    """A batch that waits for other models, or for other batches of its own one.

    While it waits for no call, its model has `timeout_s` to go on: to end this batch or another one, to call, or to
    send a response. `overdue` is called with a sentence when it has not. The time for which batches of a decoupled
    model wait for their clients does not count. `progress` is of the worker's models.
    """

    __slots__ = ("_is_held", "_overdue", "_progress", "_timeout_s", "_timer", "batch", "calls")

    def __init__(
        self, batch: DispatchBatch, timeout_s: float, overdue: Callable[[str], None], progress: dict[str, ModelProgress]
    ) -> None:
        self.batch = batch
        self.calls = 0
        self._is_held = False
        self._timeout_s = timeout_s
        self._overdue = overdue
        self._progress = progress.setdefault(batch.model, ModelProgress())
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

    def responded(self, *, is_held: bool) -> None:
        """Record that a response was sent or taken; one that `is_held` can send no more until another is taken."""
        self._hold(is_held=is_held)
        self._went_on()

    def ended(self) -> None:
        """Record the end of the batch."""
        self._hold(is_held=False)
        self._went_on()
        self.stop()

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hold(self, *, is_held: bool) -> None:
        self._progress.held += int(is_held) - int(self._is_held)
        self._is_held = is_held

    def _went_on(self) -> None:
        self.stop()
        loop = asyncio.get_running_loop()
        self._progress.at_s = loop.time()
        if not self.calls and not self._is_held:
            self._timer = loop.call_at(self._progress.at_s + self._timeout_s, self._check)

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        # It may wait for a batch that is held, as for a lock that the model holds while it sends.
        due_s = (now_s if self._progress.held else self._progress.at_s) + self._timeout_s
        if due_s > now_s:
            self._timer = loop.call_at(due_s, self._check)
            return
        self._timer = None
        self._overdue(f"batch {self.batch.batch} did not go on within {self._timeout_s:g} s")
