"""The gRPC service: the six core calls of the protocol."""

from collections.abc import Sequence
from typing import Any, NoReturn

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.catalogue import Catalogue
from gateway.codec_grpc import decode_request, encode_response
from gateway.dataplane import EXPLAIN_HEADER, EXTENSIONS, DataPlane, asks_for_explanation, respond
from gateway.request import is_version
from gateway.status import error_message, grpc_status, retry_after_s
from models.errors import ConfigError, RequestError, ServingError, UnsupportedRequest
from models.tensor import TensorSpec
from models.units import NS_PER_S


class InferenceService(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """The service `inference.GRPCInferenceService`."""

    def __init__(self, dataplane: DataPlane, catalogue: Catalogue) -> None:
        self._dataplane = dataplane
        self._catalogue = catalogue

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        return service_pb2.ServerLiveResponse(live=self._catalogue.live)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        return service_pb2.ServerReadyResponse(ready=self._catalogue.server_ready())

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        # A model that is unknown is one that is not ready: clients poll this call while a model is put in place.
        try:
            ready = self._catalogue.ready(request.name, _version(request.version))
        except ServingError:
            ready = False
        return service_pb2.ModelReadyResponse(ready=ready)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        catalogue = self._catalogue
        return service_pb2.ServerMetadataResponse(
            name=catalogue.server_name, version=catalogue.server_version, extensions=EXTENSIONS
        )

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        try:
            pipeline = self._catalogue.pipeline(request.name, _version(request.version))
        except ServingError as error:
            await _abort(context, error)

        def tensors(specs: tuple[TensorSpec, ...]) -> list[Any]:
            metadata = service_pb2.ModelMetadataResponse.TensorMetadata
            return [
                metadata(name=spec.name, datatype=spec.datatype.value, shape=pipeline.wire_shape(spec))
                for spec in specs
            ]

        versions = [str(pipeline.version)] if request.version else self._catalogue.versions(request.name)
        return service_pb2.ModelMetadataResponse(
            name=pipeline.name,
            versions=versions,
            platform=pipeline.platform,
            inputs=tensors(pipeline.inputs),
            outputs=tensors(pipeline.outputs),
        )

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        remaining_s = context.time_remaining()
        budget_ns = None if remaining_s is None else int(remaining_s * NS_PER_S)
        told: list[tuple[str, str]] = []
        try:
            signature = self._dataplane.signature(request.model_name, _version(request.model_version))
            explain = _explain(context)
            inputs, terms = self._dataplane.check(signature, decode_request(request), budget_ns)
            submission = self._dataplane.submit(signature, inputs, terms)
            answer = await self._dataplane.answer(submission)
            told = self._dataplane.told(submission, explain or terms.explain)
            response = respond(answer, terms.names, terms.id)
            try:
                reply = encode_response(response, signature)
            finally:
                response.release()
            if told:
                context.set_trailing_metadata(told)
            return reply
        except Exception as error:
            await _abort(context, error, told)

    async def _unsupported(self, request: Any, context: Any) -> Any:
        await _abort(
            context, UnsupportedRequest("this call is not supported; see the extensions in the server's metadata")
        )

    ModelStreamInfer = ModelConfig = ModelStatistics = TraceSetting = LogSettings = _unsupported
    RepositoryIndex = RepositoryModelLoad = RepositoryModelUnload = _unsupported
    SystemSharedMemoryStatus = SystemSharedMemoryRegister = SystemSharedMemoryUnregister = _unsupported
    CudaSharedMemoryStatus = CudaSharedMemoryRegister = CudaSharedMemoryUnregister = _unsupported


def grpc_server(
    dataplane: DataPlane, catalogue: Catalogue, host: str, port: int, max_body_bytes: int
) -> tuple[grpc.aio.Server, int]:
    """A server, not started yet, and its port; port 0 takes a free one. Raises ConfigError if it cannot be bound."""
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", max_body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ]
    )
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(InferenceService(dataplane, catalogue), server)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        return server, server.add_insecure_port(address)
    except RuntimeError as error:
        raise ConfigError(f"gRPC port {address} cannot be bound: it is in use or not allowed") from error


async def _abort(context: Any, error: Exception, told: Sequence[tuple[str, str]] = ()) -> NoReturn:
    """End the call with the status of an error, and with what is `told` beside it as trailing metadata."""
    wait_s = retry_after_s(error)
    metadata = told if wait_s is None else (*told, ("retry-after", str(wait_s)))
    await context.abort(grpc_status(error), error_message(error), tuple(metadata))
    raise AssertionError("abort returns to no one")


def _explain(context: Any) -> bool:
    """Whether the call's metadata asks for an explanation."""
    return any(name == EXPLAIN_HEADER and asks_for_explanation(value) for name, value in context.invocation_metadata())


def _version(text: str) -> str:
    if text and not is_version(text):
        raise RequestError(f"model version '{text:.80}' must be a number, or empty for the latest")
    return text
