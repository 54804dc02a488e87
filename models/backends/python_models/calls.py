"""Calls of other models, from the process of a model in Python.

One batch at a time runs the code of the model. While a batch waits for the models that it has called, another batch may
run in another thread: the waiting batch may depend on it. A call from a thread of the model's own gives up the turn of
the batch, whose thread waits for that one as a rule, and does not take it again: such threads must never wait for it,
as the batch that has the turn may wait for them.
"""

import asyncio
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

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

TURN_LIMIT_S = 5.0
"""Time after which a batch that has its answers goes on beside the one that has the turn: that one may wait for it, as
for a lock that the model holds while it calls."""
_STOPPED = "the server is stopping"


class CallAnswer(NamedTuple):
    """The outputs of a called model by name, or an `error`; `is_ready` if it was asked for that and is."""

    outputs: dict[str, Array]
    error: str = ""
    code: FailureCode = FailureCode.INTERNAL
    is_ready: bool = False


_running: ContextVar[int] = ContextVar("batch", default=0)


def running_batch() -> int:
    """The batch that this thread or task works for; 0 if it does not know."""
    return _running.get()


def follow_threads() -> None:
    """From now on, threads that a batch starts work for it, and pools of threads do in what a batch gives them.

    Otherwise a thread that calls a model would be taken for one of another batch, and fail with that one.
    """
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit

    def start_for_batch(thread: threading.Thread) -> None:
        if batch := _running.get():
            thread.run = partial(_run_for, batch, thread.run)  # type: ignore[method-assign]
        start(thread)

    def submit_for_batch(
        pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **named: Any
    ) -> "Future[Any]":
        if batch := _running.get():
            return submit(pool, _run_for, batch, function, *args, **named)
        return submit(pool, function, *args, **named)

    threading.Thread.start = start_for_batch  # type: ignore[assignment,method-assign]
    ThreadPoolExecutor.submit = submit_for_batch  # type: ignore[assignment,method-assign]


def _run_for(batch: int, function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
    token = _running.set(batch)
    try:
        return function(*args, **named)
    finally:
        _running.reset(token)


class _Open:
    """A batch that runs or waits: its thread, and the number of its calls and responses that are under way."""

    __slots__ = ("thread", "waits")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.waits = 0


class _Pending(NamedTuple):
    """A call that was not answered, and its batch."""

    batch: int
    future: "Future[CallAnswer]"


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
        self._pending: dict[int, _Pending] = {}
        self._changed = threading.Condition()
        self._open: dict[int, _Open] = {}
        self._turn = 0  # the batch that runs the code of the model; 0 for none
        self._turn_began_s = 0.0
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
        """Let a batch make calls from this thread and from threads of the model's own."""
        with self._changed:
            self._open[batch] = _Open()
        try:
            yield
        finally:
            with self._changed:
                del self._open[batch]
                self._changed.notify_all()
            # Threads of the model's own may wait for them still; the server answers no call of a batch that has ended.
            for call in [call for call, pending in list(self._pending.items()) if pending.batch == batch]:
                self._settle(call, CallAnswer({}, "the batch that calls it has ended", FailureCode.CANCELLED))

    @contextmanager
    def running(self, batch: int) -> Generator[None, None, None]:
        """Run the code of the model for an open batch in this thread, as soon as no other batch does."""
        with self._changed:
            self._changed.wait_for(lambda: not self._turn)
            self._take_turn(batch)
        token = _running.set(batch)
        try:
            yield
        finally:
            _running.reset(token)
            with self._changed:
                self._leave_turn(batch)

    def call(self, request: CallRequest, inputs: dict[str, Array], made_for: int = 0) -> CallAnswer:
        """Call a model and wait for its answer; other batches may run meanwhile. Raises BackendFailed.

        `made_for` is the batch that the request was made for, which counts in a thread that works for no batch.
        """
        batch, future = self._begin(request, inputs, made_for)
        try:
            return future.result()
        finally:
            self._return(batch)

    async def call_async(self, request: CallRequest, inputs: dict[str, Array], made_for: int = 0) -> CallAnswer:
        """The same without blocking the event loop of the thread."""
        batch, future = self._begin(request, inputs, made_for)
        try:
            return await asyncio.wrap_future(future)
        finally:
            self._return(batch)

    def _begin(self, request: CallRequest, inputs: dict[str, Array], made_for: int) -> "tuple[int, Future[CallAnswer]]":
        """Send a call, which other batches may use the time of; returns its batch."""
        with self._changed:
            batch = self._caller(made_for)
            if batch not in self._open or self._main_reads:
                raise BackendFailed("other models can be called only while a batch runs, in execute")
            self.start_reader()
            self._leave(batch)
            call = next(self._numbers)
            future: Future[CallAnswer] = Future()
            self._pending[call] = _Pending(batch, future)  # before the batch can end, which settles its calls
        try:
            fd = os.memfd_create("sluice-call", os.MFD_CLOEXEC)
            try:
                tensors, nbytes = TensorMemory(fd).write(inputs)
                placed = msgspec.structs.replace(request, tensors=tensors, nbytes=nbytes)
                self._link.send(ModelCall(batch, call, placed), [fd])
            finally:
                os.close(fd)
        except BaseException as error:
            self._pending.pop(call, None)
            self._return(batch)
            if isinstance(error, OSError):
                raise BackendFailed(f"model '{request.model}' could not be called: {error}") from error
            raise
        return batch, future

    def _caller(self, made_for: int) -> int:
        """The batch that a call belongs to. A thread of the model's own may not know: the one that runs is likely."""
        for batch in (_running.get(), made_for):
            if batch in self._open:
                return batch
        return self._turn or next(reversed(self._open), 0)

    def _return(self, batch: int) -> None:
        """Go on with a batch; its own thread does once all its calls have ended and no other batch runs."""
        with self._changed:
            opened = self._open.get(batch)
            if opened is None:
                return
            opened.waits -= 1
            self._changed.notify_all()
            if opened.thread != threading.get_ident():
                return
            # Threads of the model's own may call meanwhile.
            while not opened.waits and self._turn not in (0, batch):
                left_s = self._turn_began_s + TURN_LIMIT_S - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            if not opened.waits:
                self._take_turn(batch)

    @contextmanager
    def away(self, batch: int) -> Generator[None, None, None]:
        """Let other batches run while this one waits for its client."""
        with self._changed:
            self._leave(batch)
        try:
            yield
        finally:
            self._return(batch)

    def _leave(self, batch: int) -> None:
        self._open[batch].waits += 1
        self._leave_turn(batch)

    def _take_turn(self, batch: int) -> None:
        self._turn = batch
        self._turn_began_s = time.monotonic()

    def _leave_turn(self, batch: int) -> None:
        if self._turn == batch:
            self._turn = 0
            self._changed.notify_all()

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
        for call in list(self._pending):
            self._settle(call, CallAnswer({}, _STOPPED, FailureCode.UNAVAILABLE))
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
            self._changed.notify_all()

    def _answered(self, message: CallAnswered, fds: tuple[int, ...]) -> None:
        try:
            answer = _answer(message.result, fds)
        except Exception as error:  # the thread has to go on for the other calls
            answer = CallAnswer({}, f"the answer cannot be read: {error}")
        finally:
            close_all(fds)
        self._settle(message.call, answer)

    def _settle(self, call: int, answer: CallAnswer) -> None:
        """Give an answer to the thread or task that waits; it may have given up, as by `asyncio.wait_for`."""
        pending = self._pending.pop(call, None)
        if pending is not None and pending.future.set_running_or_notify_cancel():
            pending.future.set_result(answer)


def _answer(result: CallResult, fds: tuple[int, ...]) -> CallAnswer:
    if result.error:
        return CallAnswer({}, result.error, result.code)
    outputs = TensorMemory(fds[0]).read(result.tensors, result.nbytes) if fds else {}
    return CallAnswer(outputs, is_ready=result.is_ready)
