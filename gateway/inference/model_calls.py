"""Calls that models make of other models: requests like those of clients, for requests that are under way."""

import asyncio
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from sluice.batcher.interface.decisions import DispatchBatch
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.executors.worker.waiting import AnswerCall
from sluice.gateway.inference.dataplane import DataPlane, Submitted, build_response
from sluice.gateway.observability.traces.context import NO_TRACE, TraceContext, parse_context
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.request import InferRequest, Parameters, SharedMemoryOutput, WireTensor
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.protocol.signature import Signature
from sluice.gateway.runtime.submission import Submission
from sluice.models.backends.requests import CallKind, CallRequest, CallResult, FailureCode, MemorySpan
from sluice.models.errors import (
    BackendUnavailable,
    CancelledError,
    NotFoundError,
    OverloadError,
    RejectedError,
    RequestError,
    ServingError,
    UnsupportedRequest,
    first_line,
)
from sluice.models.tensors.arrays import WireBytes
from sluice.models.tensors.spec import DataType
from sluice.models.units import INFINITE_NS, NS_PER_S, NS_PER_US

MOST_DEPTH = 8
"""A model may call a model that calls a model, and so on, this many times."""
LOOK_AGAIN_S = 1.0
"""Time between two looks at a call whose time has passed while it was in a batch."""
_ALIGNMENT = 64
_MAX_MESSAGE = 2000
_CODES: tuple[tuple[type[Exception], FailureCode], ...] = (
    (NotFoundError, FailureCode.NOT_FOUND),
    (UnsupportedRequest, FailureCode.UNSUPPORTED),
    (RequestError, FailureCode.INVALID_ARG),
    (OverloadError, FailureCode.UNAVAILABLE),
    (BackendUnavailable, FailureCode.UNAVAILABLE),
    (CancelledError, FailureCode.CANCELLED),
)
_decode_parameters = msgspec.json.Decoder(dict[str, bool | int | float | str]).decode


class OpenRequests(Protocol):
    """The requests that have no outcome yet (see `Runtime`)."""

    def submission(self, request: int) -> Submission | None:
        """The submission of a request without an outcome."""
        ...

    def is_in_batch(self, request: int) -> bool:
        """Return whether a request is in a batch that has not ended."""
        ...


class ModelRepository(Protocol):
    """The repository of models (see `RepositoryApi`)."""

    async def load(self, repository: str, name: str, parameters: Mapping[str, object]) -> None:
        """Load a model; raises ServingError."""
        ...

    async def unload(self, repository: str, name: str, parameters: Mapping[str, object]) -> None:
        """Unload a model; raises ServingError."""
        ...

    async def is_ready(self, name: str, version: str) -> bool:
        """Return whether a model is ready."""
        ...


class _Call(NamedTuple):
    """A call that was made: its caller, how its outputs are written, and the name of the model."""

    caller: "_Caller"
    submission: Submitted
    signature: Signature
    options: RequestOptions
    answer: AnswerCall
    model: str


class _Caller:
    """A batch that makes calls: its requests that are still wanted, and the calls that are under way."""

    __slots__ = ("calls", "depth", "wanted")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.wanted: set[int] = set()
        self.calls: dict[int, Submitted] = {}


class ModelCalls:
    """Runs the calls of models through the data plane; see `CallHandler`.

    A call has the time that is left to the requests of the batch that makes it. A request of a decoupled model that
    `has_responded` has met its deadline, so that its further calls have that of the model that they call. A call is
    cancelled when no request of the batch is wanted any more, and when its time has passed before it is in a batch:
    what it waits for, such as memory for its model, may be what the caller has. `clock` gives the nanoseconds of the
    clock of all deadlines. The inputs of a call have at most `most_bytes`. Models may also load and unload others in
    the `repository`, which goes on if the caller ends meanwhile.
    """

    def __init__(
        self,
        dataplane: DataPlane,
        requests: OpenRequests,
        clock: Callable[[], int],
        most_bytes: int,
        has_responded: Callable[[int], bool],
        repository: ModelRepository,
    ) -> None:
        self._dataplane = dataplane
        self._requests = requests
        self._clock = clock
        self._most_bytes = most_bytes
        self._has_responded = has_responded
        self._repository = repository
        self._tasks: set[asyncio.Task[None]] = set()
        self._callers: dict[int, _Caller] = {}
        self._depths: dict[int, int] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._given_up: set[int] = set()

    def call(self, batch: DispatchBatch, request: CallRequest, fd: int, answer: AnswerCall) -> None:
        """Run a call; an error is its answer."""
        try:
            self._begin(batch, request, fd, answer)
        except ServingError as error:
            answer(_failed(error), ())
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            answer(CallResult(error=f"the call cannot be read: {first_line(error)}", code=FailureCode.INVALID_ARG), ())
        finally:
            os.close(fd)

    def ended(self, batch: int) -> None:
        """Cancel the calls of a batch that has ended."""
        caller = self._callers.pop(batch, None)
        if caller is not None:
            self._cancel(caller)

    def _begin(self, batch: DispatchBatch, call: CallRequest, fd: int, answer: AnswerCall) -> None:
        parents = [each for member in batch.members if (each := self._requests.submission(member.request)) is not None]
        if not parents:
            raise CancelledError(f"model '{call.model}' is not called: the request that calls it was cancelled")
        if call.kind is not CallKind.INFER:
            task = asyncio.get_running_loop().create_task(self._change(call, self._read(call, fd), answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        caller = self._callers.get(batch.batch) or self._new_caller(batch, parents)
        if caller.depth >= MOST_DEPTH:
            raise RequestError(
                f"model '{call.model}' is not called: calls of models within calls may be {MOST_DEPTH} deep; does a "
                "model call itself without an end?"
            )
        left_ns = self._left_ns(call, parents)
        signature = self._dataplane.signature(call.model, call.version)
        request = self._read(call, fd)
        inputs, options = self._dataplane.check(signature, request, left_ns, one_response="A call of a model")
        budget_ns = options.budget_ns if left_ns is None else left_ns
        if call.timeout_us:
            budget_ns = min(budget_ns, call.timeout_us * NS_PER_US)
        timeout_ns = call.timeout_us * NS_PER_US or options.timeout_ns
        options = options._replace(budget_ns=budget_ns, is_call=True, timeout_ns=timeout_ns)
        client, trace = parents[0].trace.arrival.client, self._trace(batch, call)
        submission = self._dataplane.submit(signature, inputs, options, client, trace)
        self._depths[submission.request] = caller.depth + 1
        caller.calls[submission.request] = submission
        made = _Call(caller, submission, signature, options, answer, call.model)
        if budget_ns < INFINITE_NS // 2:
            self._wait(made, budget_ns / NS_PER_S)
        submission.then(partial(self._answered, made))

    def _trace(self, batch: DispatchBatch, call: CallRequest) -> TraceContext:
        """The trace that the model names; else that of the first request of the batch that is in one."""
        if call.traceparent:
            return parse_context(call.traceparent, call.tracestate, NO_TRACE)
        for member in batch.members:
            if (parent := self._requests.submission(member.request)) is not None:
                trace = parent.trace.context_in(batch.batch, member.stage)
                if trace.trace_id:
                    return trace
        return NO_TRACE

    async def _change(self, call: CallRequest, request: InferRequest, answer: AnswerCall) -> None:
        """Load or unload a model, or say whether it is ready."""
        parameters = request.parameters
        is_ready = False
        try:
            if call.kind is CallKind.LOAD:
                await self._repository.load("", call.model, {**parameters, **_files(request)})
            elif call.kind is CallKind.UNLOAD:
                await self._repository.unload("", call.model, parameters)
            else:
                is_ready = await self._repository.is_ready(call.model, call.version)
        except ServingError as error:
            answer(_failed(error), ())
        except Exception as error:  # the model waits for an answer
            answer(CallResult(error=first_line(error)), ())
        else:
            answer(CallResult(is_ready=is_ready), ())

    def _left_ns(self, call: CallRequest, parents: Sequence[Submission]) -> int | None:
        """The time that the requests of a batch leave to a call; None if they have met their deadlines already."""
        if any(self._has_responded(parent.request) for parent in parents):
            return None
        left_ns = max(parent.trace.arrival.deadline_ns for parent in parents) - self._clock()
        if left_ns <= 0:
            raise RejectedError(
                f"model '{call.model}' is not called: the deadline of the request that calls it has passed "
                f"{-left_ns / 1e6:.1f} ms ago",
                None,
            )
        return left_ns

    def _new_caller(self, batch: DispatchBatch, parents: Sequence[Submission]) -> _Caller:
        caller = self._callers[batch.batch] = _Caller(max(self._depths.get(each.request, 0) for each in parents))
        for parent in parents:
            caller.wanted.add(parent.request)
            parent.then(partial(self._parent_ended, caller, parent.request))
        return caller

    def _parent_ended(self, caller: _Caller, request: int, _: Answer) -> None:
        caller.wanted.discard(request)
        if not caller.wanted:
            self._cancel(caller)

    def _cancel(self, caller: _Caller) -> None:
        for submission in list(caller.calls.values()):
            self._dataplane.cancel(submission)

    def _wait(self, call: _Call, delay_s: float) -> None:
        """Look at a call after a time."""
        self._timers[call.submission.request] = asyncio.get_running_loop().call_later(delay_s, self._time_passed, call)

    def _time_passed(self, call: _Call) -> None:
        """Give up a call that is in no batch. One that is may be back in a queue later."""
        request = call.submission.request
        if self._requests.is_in_batch(request):
            self._wait(call, LOOK_AGAIN_S)
            return
        del self._timers[request]
        self._given_up.add(request)
        self._dataplane.cancel(call.submission)

    def _answered(self, call: _Call, result: Answer) -> None:
        caller, submission, signature, options, answer, model = call
        del caller.calls[submission.request], self._depths[submission.request]
        if (timer := self._timers.pop(submission.request, None)) is not None:
            timer.cancel()
        if submission.request in self._given_up:
            self._given_up.remove(submission.request)
            if result.outcome is Outcome.CANCELLED_CLIENT:
                reason = f"model '{model}' was not run within the time that is left to the request that calls it"
                answer(CallResult(error=reason, code=FailureCode.UNAVAILABLE), ())
                return
        try:
            response = build_response(result, options)
        except ServingError as error:
            answer(_failed(error), ())
            return
        try:
            fd = os.memfd_create("sluice-call-answer", os.MFD_CLOEXEC)
            try:
                answer(_write(fd, signature, response.outputs), (fd,))
            finally:
                os.close(fd)
        except OSError as error:
            answer(CallResult(error=f"there is no memory for the answer: {error}"), ())
        finally:
            response.release()

    def _read(self, call: CallRequest, fd: int) -> InferRequest:
        """The request, with a copy of the inputs: the model may change its file at any time."""
        if call.nbytes > self._most_bytes:
            raise RequestError(f"the inputs have {call.nbytes} bytes, expected at most {self._most_bytes}")
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise RequestError("the inputs of a call must lie in a file of memory")
        data = memoryview(os.pread(fd, call.nbytes, 0))
        if len(data) < call.nbytes:
            raise RequestError(f"the inputs of a call have {len(data)} bytes, expected {call.nbytes}")
        tensors = [_input(span, data) for span in call.tensors]
        parameters: Parameters = _decode_parameters(call.parameters)
        return InferRequest(tensors, call.outputs, call.id, parameters)


def _files(request: InferRequest) -> dict[str, bytes]:
    """The files of a model, which come as inputs."""
    files: dict[str, bytes] = {}
    for each in request.inputs:
        assert isinstance(each.data, memoryview), "inputs of calls are views"
        files[each.name] = bytes(each.data)
    return files


def _input(span: MemorySpan, data: memoryview) -> WireTensor:
    if span.offset < 0 or span.nbytes < 0 or span.offset + span.nbytes > len(data):
        raise RequestError(f"input '{span.name}' lies outside of the {len(data)} bytes of the call")
    content = data[span.offset : span.offset + span.nbytes]
    return WireTensor(span.name, span.datatype.value, span.shape, content)


def _write(fd: int, signature: Signature, outputs: Sequence[tuple[str, Tensor | SharedMemoryOutput]]) -> CallResult:
    """Write the outputs into a file of memory."""
    spans: list[MemorySpan] = []
    end = 0
    for name, tensor in outputs:
        assert not isinstance(tensor, SharedMemoryOutput), "a call asks for no shared memory"
        offset = -(-end // _ALIGNMENT) * _ALIGNMENT
        if isinstance(tensor, WireBytes):
            first, last = int(tensor.row_offsets[0]), int(tensor.row_offsets[-1])
            content: memoryview = memoryview(tensor.buffer)[first:last]
        else:
            content = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
        _write_all(fd, content, offset)
        end = offset + len(content)
        spans.append(MemorySpan(name, DataType(signature.datatypes[name]), tensor.shape, offset, len(content)))
    if os.fstat(fd).st_size < end:
        os.ftruncate(fd, end)
    return CallResult(tuple(spans), end)


def _write_all(fd: int, content: memoryview, offset: int) -> None:
    while content:
        written = os.pwrite(fd, content, offset)
        content, offset = content[written:], offset + written


def _failed(error: ServingError) -> CallResult:
    code = next((code for kind, code in _CODES if isinstance(error, kind)), FailureCode.INTERNAL)
    return CallResult(error=str(error)[:_MAX_MESSAGE] or type(error).__name__, code=code)
