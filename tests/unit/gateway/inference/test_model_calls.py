"""Calls that models make of other models: their time, their depth, and their end with those who make them."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from sluice.batcher.interface.decisions import DispatchBatch, Member, ReleaseReason
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.inference.dataplane import DataPlane, Submitted
from sluice.gateway.inference.model_calls import MOST_DEPTH, ModelCalls
from sluice.gateway.inference.response_stream import ResponseStream
from sluice.gateway.observability.meters import PipelineMeter
from sluice.gateway.observability.traces.context import NO_TRACE, TraceContext
from sluice.gateway.observability.traces.trace import Trace
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.pending_answer import PendingAnswer
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.protocol.shared_memory import SharedMemory
from sluice.gateway.protocol.signature import Signature
from sluice.gateway.runtime.submission import Submission
from sluice.models.backends.requests import CallKind, CallRequest, CallResult, FailureCode, MemorySpan
from sluice.models.errors import ModelNotFound, NotFoundError
from sluice.models.pipelines.check import single_model
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec
from sluice.models.units import NS_PER_MS
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual

MS = NS_PER_MS
X = MemorySpan("x", DataType.FP32, (1, 2), 0, 8)
SPEC = ModelSpec("m", 1, (TensorSpec("x", DataType.FP32, (2,)),), (TensorSpec("y", DataType.FP32, (2,)),), 8)


class Served:
    draining = False

    def pipeline(self, name: str, version: str) -> Pipeline:
        if name != "m":
            raise ModelNotFound(f"Request for unknown model: '{name}' is not found")
        return single_model(SPEC)

    def only_name(self) -> str:
        return "m"

    def versions(self, name: str) -> Sequence[str]:
        return ["1"]


class Plane(DataPlane):
    """Keeps what is submitted, and answers nothing by itself."""

    def __init__(self) -> None:
        super().__init__(Served(), 1000, 0, SharedMemory(False, 0))
        self.submitted: list[tuple[Mapping[str, Tensor], RequestOptions, PendingAnswer]] = []
        self.cancelled: list[int] = []
        self.traces: list[TraceContext] = []

    def submit(
        self,
        signature: Signature,
        inputs: Mapping[str, Tensor],
        options: RequestOptions,
        client: str = "",
        trace: TraceContext = NO_TRACE,
    ) -> Submitted:
        pending = submission(100 + len(self.submitted))
        self.submitted.append((inputs, options, pending))
        self.traces.append(trace)
        return pending

    def open_responses(
        self,
        signature: Signature,
        inputs: Mapping[str, Tensor],
        options: RequestOptions,
        client: str = "",
        trace: TraceContext = NO_TRACE,
    ) -> ResponseStream:
        raise NotImplementedError

    def cancel(self, submission: Submitted) -> None:
        self.cancelled.append(submission.request)


def submission(request: int, deadline_ns: int = 50 * MS) -> Submission:
    arrival = RequestArrived(request, "m:1", 1, deadline_ns)
    trace = Trace("", arrival, 0, ())
    return Submission(request, asyncio.get_running_loop(), trace, PipelineMeter(["m"]))


class Bench:
    """Batch 7 with requests 1 and 2, whose model makes calls at 10 ms."""

    def __init__(self) -> None:
        self.plane = Plane()
        self.in_batch: set[int] = set()
        self.open = {1: submission(1), 2: submission(2, 60 * MS)}
        self.now_ns = 10 * MS
        self.responded: set[int] = set()
        self.loaded: list[tuple[str, Mapping[str, object]]] = []
        self.calls = ModelCalls(self.plane, self, lambda: self.now_ns, 1 << 20, self.responded.__contains__, self)
        self.answers: list[CallResult] = []
        self.outputs: list[bytes] = []

    async def load(self, repository: str, name: str, parameters: Mapping[str, object]) -> None:
        if name == "missing":
            raise NotFoundError("no such model")
        self.loaded.append((name, parameters))

    async def unload(self, repository: str, name: str, parameters: Mapping[str, object]) -> None:
        self.loaded.remove((name, {}))

    async def is_ready(self, name: str, version: str) -> bool:
        return any(name == each for each, _ in self.loaded)

    def submission(self, request: int) -> Submission | None:
        return self.open.get(request)

    def is_in_batch(self, request: int) -> bool:
        return request in self.in_batch

    def call(self, batch: int = 7, members: Sequence[int] = (1, 2), **options: Any) -> None:
        fd = os.memfd_create("test")
        os.write(fd, np.array([1, 2], np.float32).tobytes())
        parts = tuple(Member(request, 0, 1) for request in members)
        running = DispatchBatch(batch, "cpu0", "m:1", len(parts), parts, ReleaseReason.FULL, 0)
        self.calls.call(running, CallRequest(**{**CALL, **options}), fd, self.take)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)

    def take(self, result: CallResult, fds: Sequence[int]) -> None:
        self.answers.append(result)
        self.outputs += [os.pread(fd, result.nbytes, 0) for fd in fds]


CALL: dict[str, Any] = {"model": "m", "version": "", "outputs": ("y",), "tensors": (X,), "nbytes": 8}


def run(test: Callable[[Bench], None]) -> None:
    async def main() -> None:
        test(Bench())
        await asyncio.sleep(0)

    asyncio.run(main())


def test_a_call_has_the_time_that_is_left_to_the_latest_of_its_requests() -> None:
    def test(bench: Bench) -> None:
        bench.call()
        bench.call(timeout_us=5000, id="inner", parameters='{"n": 3}')
        (inputs, first, pending), (_, second, _) = bench.plane.submitted
        assert (first.budget_ns, second.budget_ns) == (50 * MS, 5 * MS)
        assert (first.timeout_ns, second.timeout_ns) == (0, 5 * MS)
        assert (second.id, second.parameters, second.is_call) == ("inner", '{"n":3}', True)
        given = inputs["x"]
        assert isinstance(given, np.ndarray)
        assert given.tolist() == [[1, 2]]
        pending.settle(Answer(Outcome.COMPLETED, outputs={"y": np.array([[3, 4]], np.float32)}))
        assert bench.answers == [CallResult((MemorySpan("y", DataType.FP32, (1, 2), 0, 8),), 8)]
        assert np.frombuffer(bench.outputs[0], np.float32).tolist() == [3, 4]

    run(test)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ({"model": "n"}, FailureCode.NOT_FOUND, "Request for unknown model: 'n' is not found"),
        ({"outputs": ("z",)}, FailureCode.INVALID_ARG, "unexpected inference output 'z'"),
        ({"tensors": ()}, FailureCode.INVALID_ARG, "expected 1 inputs but got 0 inputs"),
        ({"nbytes": 9}, FailureCode.INVALID_ARG, "the inputs of a call have 8 bytes, expected 9"),
        ({"nbytes": 1 << 30}, FailureCode.INVALID_ARG, "the inputs have 1073741824 bytes, expected at most 1048576"),
        ({"tensors": (MemorySpan("x", DataType.FP32, (1, 2), 4, 8),)}, FailureCode.INVALID_ARG, "lies outside of"),
        ({"parameters": "[]"}, FailureCode.INVALID_ARG, "the call cannot be read"),
        (
            {"parameters": '{"sequence_id": 1.5}'},
            FailureCode.INVALID_ARG,
            "'sequence_id' must be a whole number or a str",
        ),
        ({"members": (8,)}, FailureCode.CANCELLED, "model 'm' is not called: the request that calls it was cancelled"),
    ],
)
def test_a_call_that_cannot_be_made_has_an_error(options: dict[str, Any], code: FailureCode, message: str) -> None:
    def test(bench: Bench) -> None:
        bench.call(**options)
        (answer,) = bench.answers
        assert answer.code is code
        assert message in answer.error
        assert not bench.plane.submitted

    run(test)


def test_a_call_without_time_is_not_made() -> None:
    def test(bench: Bench) -> None:
        bench.now_ns = 62 * MS
        bench.call()
        (answer,) = bench.answers
        assert answer.code is FailureCode.UNAVAILABLE
        assert answer.error.endswith("the deadline of the request that calls it has passed 2.0 ms ago")

    run(test)


def test_after_a_response_of_a_decoupled_model_the_deadline_of_its_request_is_over() -> None:
    def test(bench: Bench) -> None:
        bench.now_ns = 62 * MS
        bench.responded.add(1)
        bench.call()
        bench.call(timeout_us=5000)
        budgets = [options.budget_ns for _, options, _ in bench.plane.submitted]
        assert budgets == [1000 * MS, 5 * MS]

    run(test)


def test_a_call_is_cancelled_when_none_of_its_requests_is_wanted() -> None:
    def test(bench: Bench) -> None:
        bench.call()
        bench.open.pop(1).settle(Answer(Outcome.CANCELLED_CLIENT))
        assert not bench.plane.cancelled
        bench.open.pop(2).settle(Answer(Outcome.CANCELLED_CLIENT))
        assert bench.plane.cancelled == [100]
        bench.plane.submitted[0][2].settle(Answer(Outcome.CANCELLED_CLIENT))
        assert bench.answers[0].code is FailureCode.CANCELLED

    run(test)


def test_a_call_is_cancelled_when_its_batch_ends() -> None:
    def test(bench: Bench) -> None:
        bench.call()
        bench.calls.ended(7)
        bench.calls.ended(7)
        assert bench.plane.cancelled == [100]

    run(test)


def test_a_call_that_is_in_no_batch_when_its_time_has_passed_is_given_up() -> None:
    async def main(_: VirtualLoop) -> None:
        bench = Bench()
        bench.in_batch.add(101)
        for batch in (7, 8, 9):
            bench.call(batch)
        await asyncio.sleep(0.049)
        bench.plane.submitted[2][2].settle(Answer(Outcome.COMPLETED, outputs={"y": np.zeros((1, 2), np.float32)}))
        assert bench.plane.cancelled == []
        await asyncio.sleep(0.002)
        assert bench.plane.cancelled == [100]
        bench.plane.submitted[0][2].settle(Answer(Outcome.CANCELLED_CLIENT))
        assert bench.answers[1:] == [
            CallResult(
                error="model 'm' was not run within the time that is left to the request that calls it",
                code=FailureCode.UNAVAILABLE,
            )
        ]
        # Its worker was lost: it is in a queue again.
        await asyncio.sleep(5)
        bench.in_batch.clear()
        await asyncio.sleep(2)
        assert bench.plane.cancelled == [100, 101]

    run_virtual(main)


def test_the_depth_of_calls_is_bounded() -> None:
    def test(bench: Bench) -> None:
        members: Sequence[int] = (1, 2)
        for depth in range(MOST_DEPTH + 1):
            bench.call(depth, members)
            if depth < MOST_DEPTH:
                pending = bench.plane.submitted[-1][2]
                assert isinstance(pending, Submission)
                bench.open[pending.request] = pending
                members = (pending.request,)
        (answer,) = bench.answers
        assert answer.error.startswith("model 'm' is not called: calls of models within calls may be 8 deep")

    run(test)


def test_models_are_loaded_and_unloaded_by_models() -> None:
    async def main() -> None:
        bench = Bench()
        nothing: dict[str, Any] = {"outputs": (), "tensors": (), "nbytes": 0}
        for kind in (CallKind.LOAD, CallKind.IS_READY, CallKind.UNLOAD, CallKind.IS_READY):
            bench.call(kind=kind, **nothing)
        bench.call(model="missing", kind=CallKind.LOAD, **nothing)
        await asyncio.sleep(0)
        missing = CallResult(error="no such model", code=FailureCode.NOT_FOUND)
        assert bench.answers == [CallResult(is_ready=is_ready) for is_ready in (False, True, False, False)] + [missing]
        file = MemorySpan("file:1/model.onnx", DataType.UINT8, (4,), 0, 4)
        bench.call(kind=CallKind.LOAD, tensors=(file,), parameters='{"config":"{}"}')
        await asyncio.sleep(0)
        content = np.array([1], np.float32).tobytes()
        assert bench.loaded == [("m", {"config": "{}", "file:1/model.onnx": content})]

    asyncio.run(main())
