"""Decoupled models: any number of responses to a request, from any thread, also after `execute` has returned.

A run has one request. It ends when the model has sent its final response and `execute` has returned.
"""

import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from sluice.models.backends.python_models.wire import (
    CancelBatch,
    MessageLink,
    SentResponse,
    TakeNext,
    TensorMemory,
)
from sluice.models.backends.requests import FailureCode
from sluice.models.tensors.arrays import Array

HELD_S = 0.02
"""Time after which a response that is not read is held: other batches of the model may run meanwhile."""
_FORGOTTEN = "the model has dropped its response sender without a final response"


class Closed(Exception):
    """A response was sent after the final one."""


class SentError(NamedTuple):
    """An error as a response."""

    message: str
    code: FailureCode


class Run:
    """The responses of one run, which any thread may send; `outputs` is the memory for them.

    `away` is entered while a client does not read.
    """

    def __init__(self, link: MessageLink, number: int, outputs: TensorMemory, away: "Away") -> None:
        self.number = number
        self.failure = ""
        """The reason why there is no final response."""
        self._link = link
        self._outputs = outputs
        self._away = away
        self._turn = threading.Lock()
        """One response is on its way at a time."""
        self._changed = threading.Condition()
        self._is_taken = True
        self._is_cancelled = self._is_closed = self._is_gone = False

    def send(self, outputs: Mapping[str, Array], error: SentError | None, *, is_final: bool) -> None:
        """Send a response, and wait until it is read; it is dropped if the client has gone.

        Raises Closed after the final one, and EOFError when the other end is gone.
        """
        with self._turn:
            if self._is_closed:
                raise Closed
            if not self._is_cancelled:
                self._send(outputs, error, is_final=is_final)
            if is_final:
                self._close()

    def _send(self, outputs: Mapping[str, Array], error: SentError | None, *, is_final: bool) -> None:
        places, size = self._outputs.write(outputs)
        message, code = (None, FailureCode.INTERNAL) if error is None else error
        self._is_taken = False
        try:
            self._link.send(SentResponse(self.number, places, size, message, code, is_final))
        except ConnectionError as lost:
            raise EOFError("the other end is gone") from lost
        if not self._wait_taken(HELD_S):
            with self._away():
                self._wait_taken(None)
        if not self._is_taken:
            raise EOFError("the other end is gone")

    def _wait_taken(self, timeout_s: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._is_taken or self._is_gone, timeout_s)

    @property
    def is_cancelled(self) -> bool:
        """True if the responses are not wanted any more."""
        return self._is_cancelled or self._is_gone

    @property
    def is_closed(self) -> bool:
        """True if the run has its final response, or ends without one."""
        return self._is_closed

    def give_up(self, reason: str) -> None:
        """End the run without a final response, unless there was one."""
        with self._turn:
            if not self._is_closed:
                self.failure = reason
                self._close()

    def _close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def wait_closed(self) -> None:
        """Return once the run has its final response. Raises EOFError when the other end is gone."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._is_gone)
        if self._is_gone:
            raise EOFError("the other end is gone")

    def hear(self, message: TakeNext | CancelBatch) -> None:
        """Take a message about this run."""
        with self._changed:
            if isinstance(message, TakeNext):
                self._is_taken = True
            else:
                self._is_cancelled = True
            self._changed.notify_all()

    def lost(self) -> None:
        """Record that the other end is gone."""
        with self._changed:
            self._is_gone = True
            self._changed.notify_all()


class Runs:
    """The runs of a process that have not ended; several, if runs wait for other models.

    A thread that reads hears of a batch, and what is said about it, before another thread begins its run.
    """

    def __init__(self, link: MessageLink) -> None:
        self._link = link
        self._changes = threading.Lock()
        self._runs: dict[int, Run] = {}
        self._expected: dict[int, CancelBatch | None] = {}
        self._is_lost = False

    def expect(self, number: int) -> None:
        """Record that a batch has come, so that what is said about it counts from now on."""
        with self._changes:
            self._expected[number] = None

    def begin(self, number: int, outputs: TensorMemory, away: "Away") -> Run:
        """Begin the run of a batch; see `Run`."""
        run = Run(self._link, number, outputs, away)
        with self._changes:
            self._runs[number] = run
            if (cancelled := self._expected.pop(number, None)) is not None:
                run.hear(cancelled)
            if self._is_lost:
                run.lost()
        return run

    def end(self, number: int) -> None:
        """Forget a batch, and its run if it had one."""
        with self._changes:
            self._expected.pop(number, None)
            self._runs.pop(number, None)

    def hear(self, message: TakeNext | CancelBatch) -> None:
        """Pass a message on; it may come before the run of its batch, or after its end."""
        with self._changes:
            if (run := self._runs.get(message.number)) is not None:
                run.hear(message)
            elif message.number in self._expected and isinstance(message, CancelBatch):
                self._expected[message.number] = message

    def lost(self) -> None:
        """Record that the other end is gone."""
        with self._changes:
            self._is_lost = True
            for run in self._runs.values():
                run.lost()


class RunSender:
    """Sends the responses of one run.

    When a model has dropped its last reference to it without a final response, the run fails.
    """

    def __init__(self, run: Run, check: "Check") -> None:
        self._run = run
        self._check = check
        weakref.finalize(self, _drop, run).atexit = False

    def send(self, outputs: Mapping[str, Any], error: SentError | None, *, is_final: bool) -> None:
        """Send a response. Raises Closed after the final one, BackendFailed for outputs that the model cannot have."""
        self._run.send(self._check(outputs), error, is_final=is_final)

    def is_cancelled(self) -> bool:
        """True if the client has gone."""
        return self._run.is_cancelled


def _drop(run: Run) -> None:
    if not run.is_closed:
        # In a thread: the finalizer may run in one that holds the lock.
        threading.Thread(target=run.give_up, args=(_FORGOTTEN,), daemon=True).start()


Away = Callable[[], AbstractContextManager[None]]
"""A context in which a batch waits, so that others of its model may run."""
Check = Callable[[Mapping[str, Any]], dict[str, Array]]
"""Returns the outputs of a response as arrays; raises BackendFailed for those that the model cannot have."""
