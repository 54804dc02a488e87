"""The gRPC service of one Triton server, and what its errors mean."""

from collections.abc import Awaitable
from typing import Any, TypeVar

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluice.gateway.executors.triton.errors import ModelLost, ServerLost, meaning
from sluice.gateway.executors.triton.http import TritonHttp, with_headers
from sluice.gateway.executors.triton.statistics import ModelCounts
from sluice.gateway.observability.traces.context import NO_TRACE, TraceContext
from sluice.models.errors import BackendFailed, ServingError
from sluice.models.spec import ModelSpec

LOAD_TIMEOUT_S = 120.0
PROBE_TIMEOUT_S = 5.0
"""Time for a server to answer a probe; a server that is gone is noticed at once."""

_INFER = "/inference.GRPCInferenceService/ModelInfer"
OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # The circuit breaker decides when to try again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
)
"""Of every channel to a server."""

_T = TypeVar("_T")


class TritonClient:
    """Calls to the server at `url`; each may raise ServerLost, ModelLost, BackendFailed or PartitionError.

    `http` is the address of its HTTP service, to which batches in shared memory are sent; "" for none.
    """

    def __init__(self, url: str, http: str = "") -> None:
        self._http = TritonHttp(http) if http else None
        self._channel = grpc.aio.insecure_channel(url, options=OPTIONS)
        self._service = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        # Bytes both ways: see `triton_wire`.
        self._infer = self._channel.unary_unary(_INFER, request_serializer=None, response_deserializer=None)

    async def infer(
        self, message: bytes, timeout_s: float, by_http: bytes = b"", trace: TraceContext = NO_TRACE
    ) -> bytes:
        """Run a batch: a ModelInferRequest, answered by a ModelInferResponse, or the same as a request over HTTP.

        The headers of `trace`, if there is one, go along.
        """
        headers = _headers(trace) if trace.trace_id else ()
        if by_http and self._http is not None:
            return await self._http.infer(with_headers(by_http, headers) if headers else by_http, timeout_s)
        try:
            answer: bytes = await self._infer(message, timeout=timeout_s, metadata=headers or None)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise ServerLost(f"no answer within {timeout_s:g} s") from error
            raise meaning(error.code(), error.details() or "") from error
        return answer

    async def check_server(self) -> None:
        """Raise ServerLost unless the server answers that it is ready."""
        try:
            answer = await _meant(self._service.ServerReady(service_pb2.ServerReadyRequest(), timeout=PROBE_TIMEOUT_S))
        except ServerLost:
            raise
        except ServingError as error:
            raise ServerLost(str(error)) from error
        if not answer.ready:
            raise ServerLost("the server is not ready")

    async def is_ready(self, model: ModelSpec) -> bool:
        """True if the server says that it holds a model."""
        request = service_pb2.ModelReadyRequest(name=model.name, version=str(model.version))
        try:
            answer = await _meant(self._service.ModelReady(request, timeout=PROBE_TIMEOUT_S))
        except (ModelLost, BackendFailed):
            return False
        return bool(answer.ready)

    async def load(self, model: ModelSpec) -> None:
        """Have the server load a model; raises BackendFailed when it cannot, or does not allow that."""
        request = service_pb2.RepositoryModelLoadRequest(model_name=model.name)
        await _changed(model, "load", self._service.RepositoryModelLoad(request, timeout=LOAD_TIMEOUT_S))

    async def unload(self, model: ModelSpec) -> None:
        """Have the server unload a model; raises as `load`."""
        request = service_pb2.RepositoryModelUnloadRequest(model_name=model.name)
        await _changed(model, "unload", self._service.RepositoryModelUnload(request, timeout=LOAD_TIMEOUT_S))

    async def statistics(self) -> dict[str, ModelCounts]:
        """The server's counts, by `name:version`."""
        answer = await _meant(
            self._service.ModelStatistics(service_pb2.ModelStatisticsRequest(), timeout=PROBE_TIMEOUT_S)
        )
        return {
            f"{each.name}:{each.version}": ModelCounts(
                each.inference_count,
                each.execution_count,
                each.inference_stats.queue.ns,
                each.inference_stats.compute_input.ns,
                each.inference_stats.compute_infer.ns,
                each.inference_stats.compute_output.ns,
            )
            for each in answer.model_stats
        }

    async def register_memory(self, name: str, nbytes: int) -> None:
        """Have the server map the shared memory object `name`; raises ServerLost, or BackendFailed when it refuses."""
        request = service_pb2.SystemSharedMemoryRegisterRequest(name=name, key=f"/{name}", offset=0, byte_size=nbytes)
        await _allowed(self._service.SystemSharedMemoryRegister(request, timeout=PROBE_TIMEOUT_S))

    async def unregister_memory(self, name: str) -> None:
        """Have the server forget the shared memory object; raises as `register_memory`."""
        request = service_pb2.SystemSharedMemoryUnregisterRequest(name=name)
        await _allowed(self._service.SystemSharedMemoryUnregister(request, timeout=PROBE_TIMEOUT_S))

    async def memory_names(self) -> list[str]:
        """The names of the shared memory objects that clients registered; raises as `register_memory`."""
        request = service_pb2.SystemSharedMemoryStatusRequest()
        answer = await _allowed(self._service.SystemSharedMemoryStatus(request, timeout=PROBE_TIMEOUT_S))
        return list(answer.regions)

    async def close(self) -> None:
        """End all calls."""
        if self._http is not None:
            self._http.close()
        await self._channel.close(None)


def _headers(trace: TraceContext) -> tuple[tuple[str, str], ...]:
    state = (("tracestate", trace.state),) if trace.state else ()
    return (("traceparent", trace.traceparent), *state)


async def _meant(call: Awaitable[_T]) -> _T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise meaning(error.code(), error.details() or "") from error


async def _changed(model: ModelSpec, change: str, call: Awaitable[Any]) -> None:
    try:
        await _meant(call)
    except ModelLost as error:
        raise BackendFailed(f"{model.name}: the server does not {change} it: {error}") from error


async def _allowed(call: Awaitable[_T]) -> _T:
    """Make a call that the server may refuse to serve."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            raise meaning(error.code(), error.details() or "") from error
        raise BackendFailed(error.details() or error.code().name) from error
