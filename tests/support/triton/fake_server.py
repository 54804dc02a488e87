"""A fake Triton server in this process, with the real protocol; the test decides its answers."""

import asyncio
import mmap
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec

X, Y = TensorSpec("x", DataType.FP32, (2,)), TensorSpec("y", DataType.FP32, (2,))
M = ModelSpec("m", 1, (X,), (Y,), max_batch_size=4)
N = ModelSpec("n", 1, (X,), (Y,), max_batch_size=1)
NOT_HEALTHY = (
    "Failed to process the request(s) for model instance 'm_0_0', message: Stub process 'm_0_0' is not healthy."
)


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Serves models `x` FP32 [N, 2] -> `y` = 2x; records management `calls` and inferred `batches`.

    `memory` are the registered shared-memory regions, None without support for them; the first `unanswered_regions`
    registrations get no answer. `answer` makes the answer to a batch, or raises `Refusal`.
    """

    def __init__(self) -> None:
        self.ready: set[str] = {"m"}
        self.calls: list[str] = []
        self.batches: list[Any] = []
        self.answer: Callable[[Any], Awaitable[Any]] = double
        self.load_refusal: Refusal | None = None
        self.decoupled = False
        self.up = True
        self.health_refusal: Refusal | None = None
        self.memory: dict[str, mmap.mmap] | None = None
        self.unanswered_regions = 0

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.health_refusal is not None:
            await context.abort(*self.health_refusal.args)
        return service_pb2.ServerReadyResponse(ready=self.up)

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return service_pb2.ModelReadyResponse(ready=request.name in self.ready)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.name not in self.ready:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}' is not found")
        tensors = [
            service_pb2.ModelMetadataResponse.TensorMetadata(name=name, datatype="FP32", shape=[-1, 2]) for name in "xy"
        ]
        return service_pb2.ModelMetadataResponse(
            name=request.name, versions=["1"], platform="python", inputs=tensors[:1], outputs=tensors[1:]
        )

    async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = service_pb2.ModelConfigResponse()
        answer.config.max_batch_size = 16
        answer.config.model_transaction_policy.decoupled = self.decoupled
        return answer

    async def ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = service_pb2.ModelStatisticsResponse()
        for name in sorted(self.ready):
            each = answer.model_stats.add(name=name, version="1", inference_count=7, execution_count=3)
            for number, phase in enumerate(("queue", "compute_input", "compute_infer", "compute_output"), 1):
                getattr(each.inference_stats, phase).ns = number * 1_000_000_000
        return answer

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = service_pb2.RepositoryIndexResponse()
        for name in self.ready:
            answer.models.add(name=name, version="1", state="READY")
        return answer

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.calls.append(f"load {request.model_name}")
        if self.load_refusal is not None:
            await context.abort(*self.load_refusal.args)
        self.ready.add(request.model_name)
        return service_pb2.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.calls.append(f"unload {request.model_name}")
        self.ready.discard(request.model_name)
        return service_pb2.RepositoryModelUnloadResponse()

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.batches.append(request)
        try:
            return self._into_memory(request, await self.answer(self._out_of_memory(request)))
        except Refusal as refusal:
            await context.abort(*refusal.args)

    async def SystemSharedMemoryRegister(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.memory is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "shared memory is disabled")
        assert self.memory is not None
        self.memory[request.name] = mapped(request.key, request.byte_size)
        if self.unanswered_regions:
            self.unanswered_regions -= 1
            await asyncio.Event().wait()
        return service_pb2.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(self, request: Any, context: Any) -> Any:  # noqa: N802
        assert self.memory is not None
        self.memory.pop(request.name).close()
        return service_pb2.SystemSharedMemoryUnregisterResponse()

    async def SystemSharedMemoryStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = service_pb2.SystemSharedMemoryStatusResponse()
        for name in self.memory or ():
            answer.regions[name].name = name
        return answer

    def _place(self, tensor: Any) -> memoryview | None:
        """The shared memory of a tensor; None for a tensor in the message."""
        if "shared_memory_region" not in tensor.parameters:
            return None
        region = tensor.parameters["shared_memory_region"].string_param
        memory = None if self.memory is None else self.memory.get(region)
        if memory is None:
            raise Refusal(grpc.StatusCode.NOT_FOUND, f"Unable to find shared memory region: '{region}'")
        begin = tensor.parameters["shared_memory_offset"].int64_param
        return memoryview(memory)[begin : begin + tensor.parameters["shared_memory_byte_size"].int64_param]

    def _out_of_memory(self, request: Any) -> Any:
        for tensor in request.inputs:
            if (place := self._place(tensor)) is not None:
                request.raw_input_contents.append(bytes(place))
        return request

    def _into_memory(self, request: Any, answer: Any) -> Any:
        for tensor in request.outputs:
            if (place := self._place(tensor)) is not None:
                place[:] = answer.raw_output_contents[0]
                answer.raw_output_contents[0] = b""
        return answer


class Refusal(Exception):
    """An error answer: status code and message."""


def mapped(key: str, nbytes: int) -> mmap.mmap:
    with open(f"/dev/shm{key}", "r+b") as file:
        return mmap.mmap(file.fileno(), nbytes)


async def double(request: Any) -> Any:
    x = np.frombuffer(request.raw_input_contents[0], np.float32)
    return answer_of(2 * x, [x.size // 2, 2])


def answer_of(y: Any, shape: list[int], name: str = "y", datatype: str = "FP32") -> Any:
    answer = service_pb2.ModelInferResponse(raw_output_contents=[y.tobytes()])
    answer.outputs.add(name=name, datatype=datatype, shape=shape)
    return answer


@asynccontextmanager
async def serving_fake(fake: FakeTriton, port: int = 0) -> AsyncIterator[int]:
    """Serve until the block ends; yields the port."""
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(fake, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)
        await asyncio.sleep(0)
