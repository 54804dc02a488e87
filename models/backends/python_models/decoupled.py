"""Decoupled models: any number of responses to a request, from any thread, also after `execute` has returned.

A run has one request. It ends when the model has sent its final response and `execute` has returned.
"""

import os
import select
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from sluice.models.backends.python_models.wire import (
    CancelBatch,
    MessageLink,
    ModelFailed,
    SentResponse,
    TakeNext,
    TensorBatch,
    TensorMemory,
)
from sluice.models.errors import BackendFailed
from sluice.models.tensors.arrays import Array

LOOK_S = 1.0
"""The time between two looks whether the other end has closed, while a model goes on after `execute` has returned."""
_FORGOTTEN = "the model has dropped its response sender without a final response"


class Closed(Exception):
    """A response was sent after the final one."""


class ResponseLink:
    """Sends the responses of one run at a time, and hears whether they are still wanted; any thread may use it."""

    def __init__(self, link: MessageLink, outputs: TensorMemory) -> None:
        self._link = link
        self._outputs = outputs
        self._lock = threading.Lock()
        self._ready = select.poll()
        self._ready.register(link, select.POLLIN)
        self._number = 0
        self._taken = True
        self._cancelled = False
        self.is_closed = threading.Event()
        """Set when the run has its final response."""
        self.failure = ""
        """The reason why there is none."""

    def begin(self, number: int) -> None:
        """Begin the run of a batch."""
        with self._lock:
            self._number, self._cancelled, self.failure = number, False, ""
            self.is_closed.clear()

    def send(self, number: int, outputs: Mapping[str, Array], error: str | None, *, is_final: bool) -> None:
        """Send a response, and wait until it is read; it is dropped if the client has gone.

        Raises Closed after the final one, and EOFError.
        """
        with self._lock:
            if number != self._number or self.is_closed.is_set():
                raise Closed
            self._hear_all()
            if is_final:
                self.is_closed.set()
            if self._cancelled:
                return
            tensors = self._outputs.write(number, outputs)
            self._taken = False
            try:
                self._link.send(SentResponse(number, tensors, error, is_final))
                while not self._taken:
                    self._hear()
            except ConnectionError as error_:
                raise EOFError("the other end is gone") from error_

    def is_cancelled(self, number: int) -> bool:
        """True if the responses of a run are not wanted any more. Raises EOFError."""
        if self._lock.acquire(blocking=False):  # otherwise a thread that sends hears of it
            try:
                self._hear_all()
            finally:
                self._lock.release()
        return number == self._number and self._cancelled

    def give_up(self, number: int, reason: str) -> None:
        """End a run without a final response, unless there was one."""
        with self._lock:
            if number == self._number and not self.is_closed.is_set():
                self.failure = reason
                self.is_closed.set()

    def wait_closed(self) -> None:
        """Return once the run has its final response. Raises EOFError when the other end is gone."""
        while not self.is_closed.wait(LOOK_S):
            self.is_cancelled(self._number)
        with self._lock:  # a response that is being sent is read first
            self._hear_all()

    def _hear_all(self) -> None:
        while self._ready.poll(0):
            self._hear()

    def _hear(self) -> None:
        """Take one message."""
        message, _ = self._link.receive()
        if isinstance(message, TakeNext):
            self._taken = True
        elif isinstance(message, CancelBatch):
            self._cancelled = self._cancelled or message.number == self._number


class RunSender:
    """Sends the responses of one run.

    When a model has dropped its last reference to it without a final response, the run fails.
    """

    def __init__(self, link: ResponseLink, number: int, check: "Check") -> None:
        self._link = link
        self._number = number
        self._check = check
        weakref.finalize(self, _drop, link, number).atexit = False

    def send(self, outputs: Mapping[str, Any], error: str | None, *, is_final: bool) -> None:
        """Send a response. Raises Closed after the final one, BackendFailed for outputs that the model cannot have."""
        self._link.send(self._number, self._check(outputs), error, is_final=is_final)

    def is_cancelled(self) -> bool:
        """True if the client has gone."""
        return self._link.is_cancelled(self._number)


def _drop(link: ResponseLink, number: int) -> None:
    if not link.is_closed.is_set():
        # In a thread: the finalizer may run in one that holds the lock.
        threading.Thread(target=link.give_up, args=(number, _FORGOTTEN), daemon=True).start()


Execute = Callable[[dict[str, Array], RunSender], None]
"""Starts the run of a request; its responses are sent."""
Check = Callable[[Mapping[str, Any]], dict[str, Array]]
"""Returns the outputs of a response as arrays; raises BackendFailed for those that the model cannot have."""


def serve(link: MessageLink, inputs: TensorMemory, outputs: TensorMemory, execute: Execute, check: Check) -> None:
    """Run requests until the other end closes, which raises EOFError or ConnectionError.

    It returns in a process that the model has forked.
    """
    owner = os.getpid()
    responses = ResponseLink(link, outputs)
    while True:
        message = link.receive()[0]
        if not isinstance(message, TensorBatch):  # it came after the end of the run that it is about
            continue
        number = message.number
        responses.begin(number)
        failure = ""
        try:
            execute(inputs.read(message), RunSender(responses, number, check))
        except BackendFailed as error:
            failure = str(error)
        if os.getpid() != owner:
            return
        if failure:
            responses.give_up(number, failure)
        responses.wait_closed()
        failure = failure or responses.failure
        link.send(ModelFailed(number, failure) if failure else TensorBatch(number))
