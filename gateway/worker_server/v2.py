"""The V2 protocol over gRPC for the models that a worker server holds: one request is one batch."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.grpc.codec import decode_request, encode_response
from sluice.gateway.grpc.errors import abort, parse_version
from sluice.gateway.grpc.transport.server import GrpcServer
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.request import InferResponse
from sluice.gateway.protocol.signature import Signature
from sluice.gateway.protocol.status import model_error
from sluice.gateway.version import server_version
from sluice.gateway.worker_protocol.framing import offsets_of
from sluice.gateway.worker_protocol.messages import Fault, RemoteModel, SessionTensor
from sluice.gateway.worker_server.host import WorkerHost
from sluice.models.backends.requests import RequestPart
from sluice.models.errors import (
    BackendFailed,
    BackendUnavailable,
    NotFoundError,
    OverloadError,
    PartitionError,
    RequestError,
    ServingError,
    UnsupportedRequest,
)
from sluice.models.pipelines.check import single_model
from sluice.models.spec import ModelSpec, public_key
from sluice.models.tensors.arrays import WireBytes, numpy_dtype
from sluice.models.tensors.spec import DataType
from sluice.models.triton_config.model_config import decode_config
from sluice.models.units import NS_PER_S, NS_PER_US
from sluice.mps.ipc.messages import BatchFinished

_EXTENSIONS = ("binary_tensor_data",)
_PLATFORMS = {"onnxruntime": "onnxruntime_onnx"}
_REFUSALS: dict[Fault, type[ServingError]] = {
    Fault.RESOURCES: OverloadError,
    Fault.DEADLINE: OverloadError,
    Fault.LOST: BackendUnavailable,
}


class V2Service(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Readiness, metadata and inference. `is_serving` says whether new batches are taken."""

    def __init__(self, name: str, host: WorkerHost, is_serving: Callable[[], bool]) -> None:
        self._name = name
        self._host = host
        self._is_serving = is_serving
        self._signatures: dict[str, tuple[RemoteModel, Signature]] = {}

    def add_to(self, server: GrpcServer) -> None:
        """Add this service and that of health."""
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, server)
        health_pb2_grpc.add_HealthServicer_to_server(_Health(self._is_ready), server)

    def _is_ready(self) -> bool:
        return self._is_serving() and self._host.worker is not None

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        return service_pb2.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        return service_pb2.ServerReadyResponse(ready=self._is_ready())

    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        return service_pb2.ServerMetadataResponse(
            name=f"sluice worker {self._name}", version=server_version(), extensions=_EXTENSIONS
        )

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        try:
            self._signature(request.name, request.version)
        except ServingError:
            return service_pb2.ModelReadyResponse(ready=False)
        return service_pb2.ModelReadyResponse(ready=self._is_ready())

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        try:
            pipeline = self._signature(request.name, request.version).pipeline
        except ServingError as error:
            await abort(context, error)
        metadata = service_pb2.ModelMetadataResponse.TensorMetadata
        inputs, outputs = (
            [metadata(name=each.name, datatype=each.datatype.value, shape=pipeline.wire_shape(each)) for each in specs]
            for specs in (pipeline.inputs, pipeline.outputs)
        )
        versions = [request.version] if request.version else self._versions(request.name)
        return service_pb2.ModelMetadataResponse(
            name=pipeline.name, versions=versions, platform=pipeline.platform, inputs=inputs, outputs=outputs
        )

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        try:
            return await self._infer(request, context)
        except ServingError as error:
            await abort(context, error)

    async def _infer(self, message: Any, context: Any) -> Any:
        signature = self._signature(message.model_name, message.model_version)
        request = decode_request(message)
        if request.shared or request.deliveries:
            raise UnsupportedRequest("a worker takes no tensors in shared memory, and reports no classes")
        if not self._is_serving():
            raise BackendUnavailable("the worker is stopping")
        wanted = signature.check_outputs(request.outputs)
        checked = signature.check_inputs(request.inputs)
        remaining_s = context.time_remaining()
        part = RequestPart(
            checked.rows, request.id, timeout_us=0 if remaining_s is None else int(remaining_s * NS_PER_S / NS_PER_US)
        )
        model = self._host.models[signature.key]
        call = _Call(asyncio.get_running_loop().create_future(), signature)
        number = self._submit(call, checked.inputs, remaining_s, (part,) if model.backend == "python" else ())
        try:
            answer = await call.answer
            try:
                if missing := [name for name in wanted if name not in answer.outputs]:
                    raise BackendFailed(f"{public_key(signature.key)}: output {missing[0]} is missing")
                chosen = [(name, answer.outputs[name]) for name in wanted]
                return encode_response(InferResponse(request.id, chosen, answer), signature)
            finally:
                answer.release()
        except asyncio.CancelledError:
            self._host.withdraw(number)
            raise

    def _submit(
        self, call: "_Call", tensors: dict[str, Tensor], remaining_s: float | None, parts: tuple[RequestPart, ...]
    ) -> int:
        wire = [
            (SessionTensor(name, DataType(call.datatypes[name]), tensor.shape, tensor.nbytes), _bytes_of(tensor))
            for name, tensor in tensors.items()
        ]
        inputs = tuple(each for each, _ in wire)
        *begins, size = offsets_of(inputs)
        slot = None
        if size:
            try:
                slot = self._host.place(call.key, size)
            except PartitionError as error:
                raise OverloadError(str(error)) from error
            for begin, (each, data) in zip(begins, wire, strict=True):
                slot.view[slot.offset + begin : slot.offset + begin + each.nbytes] = data
        deadline_ns = 0 if remaining_s is None else max(int(remaining_s * NS_PER_S), 1)
        return self._host.submit(call.key, inputs, slot, deadline_ns, parts, (), call)

    def _versions(self, name: str) -> list[str]:
        """The versions of a model that are loaded, the latest first."""
        keys = [public_key(key).rpartition(":") for key in self._host.loaded]
        return sorted((version for each, _, version in keys if each == name), key=int, reverse=True)

    def _signature(self, name: str, version: str) -> Signature:
        """The tensors of a loaded model. Raises NotFoundError, and RequestError for what is no version."""
        wanted = parse_version(version)
        found = self._versions(name)
        if not found or (wanted and wanted not in found):
            raise NotFoundError(f"Request for unknown model: '{name:.200}' version '{version:.80}' is not loaded here")
        public = f"{name}:{wanted or found[0]}"
        key = max((each for each in self._host.loaded if public_key(each) == public), key=_revision)
        model = self._host.models[key]
        known = self._signatures.get(key)
        if known is None or known[0] is not model:
            self._signatures = {each: kept for each, kept in self._signatures.items() if each in self._host.loaded}
            known = self._signatures[key] = model, Signature(single_model(_spec(model)))
        return known[1]


class _Call:
    """Gets the answer to the batch of one call; see `BatchOwner`."""

    def __init__(self, answer: "asyncio.Future[Answer]", signature: Signature) -> None:
        self.answer = answer
        self.key = signature.key
        self.datatypes = signature.input_datatypes

    def finished(
        self, answer: BatchFinished, waited_ns: int, outputs: Sequence[memoryview], free: Callable[[], None]
    ) -> None:
        """The batch ran."""
        if self.answer.done():
            free()
            return
        if answer.errors:
            failure = answer.errors[0]
            free()
            self.answer.set_exception(model_error(f"{public_key(self.key)}: {failure.message}", failure.code))
            return
        tensors: dict[str, Tensor] = {}
        for output, data in zip(answer.outputs, outputs, strict=True):
            if output.row_offsets is not None:
                tensors[output.name] = WireBytes(data, output.shape, np.array(output.row_offsets, np.int64))
            else:
                tensors[output.name] = np.ndarray(output.shape, numpy_dtype(output.datatype), data)
        self.answer.set_result(Answer(Outcome.COMPLETED, outputs=tensors, release=free))

    def refused(self, fault: Fault, reason: str) -> None:
        """The batch failed or did not run."""
        if not self.answer.done():
            self.answer.set_exception(_REFUSALS.get(fault, BackendFailed)(f"{public_key(self.key)}: {reason}"))

    def withdrawn(self) -> None:
        """The client has gone."""
        if not self.answer.done():
            self.answer.cancel()


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """SERVING while the worker process is up and batches are taken, for any service."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        status = health_pb2.HealthCheckResponse
        return status(status=status.SERVING if self._is_ready() else status.NOT_SERVING)

    async def Watch(self, request: Any, context: Any) -> Any:  # noqa: N802
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Watch is not supported; call Check instead")


def _spec(model: RemoteModel) -> ModelSpec:
    """The tensors and batches of a model. Raises UnsupportedRequest without them, and for sequences."""
    if model.declared is None:
        raise UnsupportedRequest(f"{public_key(model.key)}: its gateway has not said which tensors it takes")
    config = decode_config(model.config) if model.config else None
    if config is not None and config.sequence_batching is not None:
        raise UnsupportedRequest(f"{public_key(model.key)}: its sequences are known to its gateway alone")
    name, _, version = public_key(model.key).rpartition(":")
    if not version.isdecimal():
        raise RequestError(f"expected a model NAME:VERSION, got '{model.key:.200}'")
    inputs, outputs = model.declared.inputs, model.declared.outputs
    most_rows = max(model.menu, default=1) if model.batchable else 0
    platform = _PLATFORMS.get(model.backend, model.backend)
    return ModelSpec(name, int(version), inputs, outputs, most_rows, platform, revision=_revision(model.key))


def _revision(key: str) -> int:
    """The revision in the key of a model; 0 for its first one."""
    _, _, revision = key.partition("@")
    return int(revision) if revision.isdecimal() else 0


def _bytes_of(tensor: Tensor) -> memoryview:
    if isinstance(tensor, WireBytes):
        return memoryview(tensor.buffer)[int(tensor.row_offsets[0]) : int(tensor.row_offsets[-1])]
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
