"""A target over gRPC: requests are serialised before the run and spread over a few channels."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt
from google.protobuf.json_format import MessageToJson  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluice.loadgen.records.record import Status
from sluice.loadgen.records.samples import TargetModel
from sluice.loadgen.target.base import (
    EXPLAIN_EVERY,
    EXPLAIN_HEADER,
    MAX_OUTSTANDING,
    STAGES_HEADER,
    QueryListener,
    Request,
    TargetUnreachable,
)
from sluice.loadgen.target.v2 import from_wire, wire_bytes
from sluice.models.client_tls import NO_TLS, ClientTls, connection_hint
from sluice.models.errors import ConfigError
from sluice.models.tensors.arrays import datatype_of
from sluice.models.tensors.spec import DataType, TensorSpec

_CHANNELS = 4
_TIMEOUT_S = 5.0
_MAX_MESSAGE_BYTES = 1 << 30
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_RETRY_AFTER = "retry-after"
_KEY_PREFIX = "triton-grpc-protocol-"
"""Servers of Triton's protocol expect the key of a restricted group under its name with this prefix."""
_OPTIONS = [
    # Without this option the channels of a process share one connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
]


class GrpcTarget:
    """A V2 server at `grpc://host:port`, or over TLS at `grpcs://host:port`.

    Headers are sent as metadata, under their names and as keys of restricted groups. With `max_outstanding` calls in
    flight the next query is dropped. One of `explain_every` queries asks for the server's times by stage; none does
    with 0.
    """

    def __init__(
        self,
        url: str,
        headers: Iterable[tuple[str, str]] = (),
        tls: ClientTls = NO_TLS,
        max_outstanding: int = MAX_OUTSTANDING,
        explain_every: int = EXPLAIN_EVERY,
    ) -> None:
        scheme, _, address = url.partition("://")
        self._address = address.rstrip("/")
        self._credentials = grpc.ssl_channel_credentials(*tls.pem()) if scheme == "grpcs" else None
        named = [(name.lower(), value) for name, value in headers]
        keys = [(_KEY_PREFIX + name, value) for name, value in named if not name.startswith(_KEY_PREFIX)]
        self._metadata = (*named, *keys)
        self._explained_metadata = (*self._metadata, (EXPLAIN_HEADER, "1"))
        self._max_outstanding = max_outstanding
        self._explain_every = explain_every
        self._channels: list[grpc.aio.Channel] = []
        self._calls: list[Any] = []
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._requests: dict[int, bytes] = {}

    async def metadata(self, model: str) -> TargetModel:
        """Read a model's metadata."""
        async with self._channel() as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            request = service_pb2.ModelMetadataRequest(name=model)
            try:
                answer = await stub.ModelMetadata(request, timeout=_TIMEOUT_S, metadata=self._metadata)
            except grpc.aio.AioRpcError as error:
                if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    reason = error.details() or error.code().name
                    hint = connection_hint(reason, self._credentials is not None)
                    raise TargetUnreachable(f"--target {self._address}: {reason}{hint}") from error
                raise ConfigError(f"--model {model}: {error.code().name} {error.details()}") from error
        return TargetModel(_specs(answer.inputs), _specs(answer.outputs), answer.platform)

    async def statistics(self) -> bytes | None:
        """Read the statistics of all models."""
        async with self._channel() as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            request = service_pb2.ModelStatisticsRequest()
            try:
                answer = await stub.ModelStatistics(request, timeout=_TIMEOUT_S, metadata=self._metadata)
            except grpc.aio.AioRpcError:
                return None  # the figures of the run stay valid when the server dies under load
        return str(MessageToJson(answer, preserving_proto_field_name=True)).encode()

    async def prepare(self, requests: Mapping[int, Request], listener: QueryListener, keep_answers: bool) -> None:
        """Serialise all requests and connect all channels."""
        self._listener = listener
        self._keep_answers = keep_answers
        self._requests = {key: _encode(request) for key, request in requests.items()}
        self._channels = [self._channel() for _ in range(_CHANNELS)]
        self._calls = [channel.unary_unary(_INFER, None, None) for channel in self._channels]
        try:
            await asyncio.wait_for(asyncio.gather(*(c.channel_ready() for c in self._channels)), _TIMEOUT_S)
        except TimeoutError as error:
            raise TargetUnreachable(f"--target {self._address}: no connection in {_TIMEOUT_S:g} s") from error

    def issue(self, query: int, request: int) -> None:
        """Start a call on the next channel."""
        if len(self._tasks) >= self._max_outstanding:
            self._listener.done(query, Status.DROPPED, reason=f"{self._max_outstanding} queries were outstanding")
            return
        self._tasks[query] = asyncio.get_running_loop().create_task(self._call(query, self._requests[request]))

    def cancel(self, query: int) -> None:
        """Cancel a call."""
        task = self._tasks.pop(query, None)
        if task is not None:
            task.cancel()
            self._listener.done(query, Status.CANCELLED)

    async def close(self) -> None:
        """Cancel the calls in flight and close the channels."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await asyncio.gather(*(channel.close(None) for channel in self._channels))

    def decode(self, answer: object, output: str) -> npt.NDArray[np.generic]:
        """Decode one output of a kept answer, which must carry raw contents."""
        response = service_pb2.ModelInferResponse.FromString(answer)
        for tensor, content in zip(response.outputs, response.raw_output_contents, strict=False):
            if tensor.name == output:
                return from_wire(content, DataType(tensor.datatype), tuple(tensor.shape))
        raise ConfigError(f"--output {output}: not in the answers' raw contents")

    async def _call(self, query: int, request: bytes) -> None:
        explain = self._explain_every and query % self._explain_every == 0
        call = self._calls[query % _CHANNELS](request, metadata=self._explained_metadata if explain else self._metadata)
        self._listener.sent(query)
        stages = ""
        try:
            answer = await call
            if explain:
                stages = str((await call.trailing_metadata()).get(STAGES_HEADER, ""))
        except grpc.aio.AioRpcError as error:
            del self._tasks[query]
            status = Status.SHED if _shed(error) else Status.ERROR
            self._listener.done(query, status, reason=f"{error.code().name}: {error.details()}")
        else:
            del self._tasks[query]
            self._listener.done(query, Status.OK, answer if self._keep_answers else None, stages=stages)

    def _channel(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._address, options=_OPTIONS)
        return grpc.aio.secure_channel(self._address, self._credentials, options=_OPTIONS)


def _encode(request: Request) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=request.model)
    if request.slo_ms is not None:
        message.parameters["slo_ms"].double_param = request.slo_ms
    if request.priority:
        message.parameters["priority"].uint64_param = request.priority
    for name, array in request.tensors.items():
        message.inputs.add(name=name, datatype=datatype_of(array.dtype).value, shape=array.shape)
        message.raw_input_contents.append(wire_bytes(array))
    return bytes(message.SerializeToString())


def _shed(error: grpc.aio.AioRpcError) -> bool:
    """True when the server shed the call. UNAVAILABLE alone does not say so: it also means a server out of reach."""
    trailing: Any = error.trailing_metadata()
    return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED or _RETRY_AFTER in trailing


def _specs(tensors: Any) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(t.name, DataType(t.datatype), tuple(t.shape)) for t in tensors)
