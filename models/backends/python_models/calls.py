"""Calls of other models, from the process of a model in Python.

One thread at a time runs the code of the model, as if there were only one. While a batch waits for the models that it
has called, another batch may run in another thread: the waiting batch may depend on it.
"""

import asyncio
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import NamedTuple

import msgspec

from sluice.models.backends.python_models.decoupled import Runs
from sluice.models.backends.python_models.wire import (
    CallAnswered,
    CancelBatch,
    MessageLink,
    ModelCall,
    ReadyQuestion,
    ReadyReply,
    Received,
    TakeNext,
    TensorMemory,
    close_all,
)
from sluice.models.backends.requests import CallRequest, CallResult, FailureCode
from sluice.models.errors import BackendFailed
from sluice.models.tensors.arrays import Array

_STOPPED = "the server is stopping"


class CallAnswer(NamedTuple):
    """The outputs of a called model by name, or an `error`."""

    outputs: dict[str, Array]
    error: str = ""
    code: FailureCode = FailureCode.INTERNAL


class _Running(threading.local):
    """The batch that a thread runs; 0 for none."""

    batch = 0


class Calls:
    """The calls of one process. All messages come through it, since answers and batches share the link.

    Until the first call the main thread reads the link by itself. From then on a thread of its own does. Batches that
    come while the main thread has one, with memory of their own, are run by `run_beside` in further threads. What comes
    about the `runs` of a decoupled model is passed on to them.
    """

    def __init__(self, link: MessageLink, run_beside: Callable[[Received], None], runs: Runs) -> None:
        self._link = link
        self._runs = runs
        self._run_beside = run_beside
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[CallAnswer]] = {}
        self._turn = threading.Lock()
        self._running = _Running()
        self._open: list[int] = []
        self._away: dict[int, int] = {}
        self._changed = threading.Condition()
        self._batches: deque[Received | None] = deque()
        self._reader: threading.Thread | None = None
        self._main_reads = False
        self._is_ready: Callable[[], bool] = bool

    def answer_questions(self, is_ready: Callable[[], bool]) -> None:
        """Answer questions whether the model is ready, which a thread of its own asks it; called before all batches."""
        self._is_ready = is_ready
        self.start_reader()

    def start_reader(self) -> None:
        """Read the link in a thread of its own from now on; called before all batches, or while one runs."""
        if self._reader is None:
            self._reader = threading.Thread(target=self._read, name="calls", daemon=True)
            self._reader.start()

    def _tell_ready(self, question: ReadyQuestion) -> None:
        with suppress(OSError):
            self._link.send(ReadyReply(question.number, self._is_ready()))

    def next_batch(self) -> Received:
        """Wait for the next batch of the main thread; raises EOFError when the other end is gone."""
        with self._changed:
            self._main_reads = self._reader is None
            if not self._main_reads:
                self._changed.wait_for(lambda: self._batches)
                received = self._batches.popleft()
                if received is None:
                    raise EOFError("the other end is gone")
                return received
        received = self._link.receive()
        self._main_reads = False
        return received

    @contextmanager
    def opened(self, batch: int) -> Generator[None, None, None]:
        """Let threads of the model's own make calls for a batch."""
        self._open.append(batch)
        try:
            yield
        finally:
            self._open.remove(batch)

    @contextmanager
    def running(self, batch: int) -> Generator[None, None, None]:
        """Run the code of the model for a batch in this thread, as soon as no other thread does."""
        with self._turn, self.opened(batch):
            self._running.batch = batch
            try:
                yield
            finally:
                self._running.batch = 0

    def call(self, request: CallRequest, inputs: dict[str, Array]) -> CallAnswer:
        """Call a model and wait for its answer; other batches may run meanwhile. Raises BackendFailed."""
        future = self._begin(request, inputs)
        batch = self._running.batch
        self._leave(batch)
        try:
            return future.result()
        finally:
            self._return(batch)

    async def call_async(self, request: CallRequest, inputs: dict[str, Array]) -> CallAnswer:
        """The same without blocking the event loop of the thread."""
        future = self._begin(request, inputs)
        batch = self._running.batch
        self._leave(batch)
        try:
            return await asyncio.wrap_future(future)
        finally:
            self._return(batch)

    def _begin(self, request: CallRequest, inputs: dict[str, Array]) -> "Future[CallAnswer]":
        with self._changed:
            # A thread of the model's own has no batch of its own: it works for the one that began last.
            batch = self._running.batch or (self._open[-1] if self._open else 0)
            if not batch or self._main_reads:
                raise BackendFailed("other models can be called only while a batch runs, in execute")
            self.start_reader()
        call = next(self._numbers)
        future = self._waiting[call] = Future()
        fd = os.memfd_create("sluice-call", os.MFD_CLOEXEC)
        try:
            tensors, nbytes = TensorMemory(fd).write(inputs)
            placed = msgspec.structs.replace(request, tensors=tensors, nbytes=nbytes)
            self._link.send(ModelCall(batch, call, placed), [fd])
        except OSError as error:
            del self._waiting[call]
            raise BackendFailed(f"model '{request.model}' could not be called: {error}") from error
        except BaseException:
            del self._waiting[call]
            raise
        finally:
            os.close(fd)
        return future

    def _leave(self, batch: int) -> None:
        """Let other threads run while calls of a batch are under way."""
        if batch:
            count = self._away[batch] = self._away.get(batch, 0) + 1
            if count == 1:
                self._turn.release()

    def _return(self, batch: int) -> None:
        if batch:
            count = self._away[batch] = self._away[batch] - 1
            if not count:
                del self._away[batch]
                self._turn.acquire()

    def _read(self) -> None:
        """Pass on what arrives: answers to those who wait, batches to the main thread or to a new one."""
        with suppress(EOFError, OSError):
            while True:
                received = self._link.receive()
                if isinstance(received.message, CallAnswered):
                    self._answered(received.message, received.fds)
                elif isinstance(received.message, ReadyQuestion):
                    threading.Thread(target=self._tell_ready, args=(received.message,), daemon=True).start()
                elif isinstance(received.message, TakeNext | CancelBatch):
                    self._runs.hear(received.message)
                else:
                    self._runs.expect(received.message.number)
                    self._start(received)
        for future in list(self._waiting.values()):
            future.set_result(CallAnswer({}, _STOPPED, FailureCode.UNAVAILABLE))
        self._runs.lost()
        self._give_main(None)

    def _start(self, received: Received) -> None:
        if received.fds:  # the usual memory belongs to the batch of the main thread
            threading.Thread(target=self._run_beside, args=(received,), daemon=True).start()
        else:
            self._give_main(received)

    def _give_main(self, received: Received | None) -> None:
        with self._changed:
            self._batches.append(received)
            self._changed.notify()

    def _answered(self, message: CallAnswered, fds: tuple[int, ...]) -> None:
        future = self._waiting.pop(message.call)
        try:
            future.set_result(_answer(message.result, fds))
        finally:
            close_all(fds)


def _answer(result: CallResult, fds: tuple[int, ...]) -> CallAnswer:
    if result.error:
        return CallAnswer({}, result.error, result.code)
    return CallAnswer(TensorMemory(fds[0]).read(result.tensors, result.nbytes) if fds else {})
