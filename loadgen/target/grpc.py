"""A target over gRPC: messages are serialised before the run, and calls are frames of HTTP/2 on a few connections.

grpc.aio costs 150 µs a call. This costs little more than HTTP/1.1.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import grpc
import numpy as np
import numpy.typing as npt
from google.protobuf.json_format import MessageToJson  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from sluice.loadgen.records.record import Status
from sluice.loadgen.records.samples import TargetModel
from sluice.loadgen.target.address import parse_address
from sluice.loadgen.target.base import EXPLAIN_EVERY, MAX_OUTSTANDING, QueryListener, TargetRequest, TargetUnreachable
from sluice.loadgen.target.grpc_connection import MESSAGE_HEAD_BYTES, GrpcClientConnection
from sluice.loadgen.target.http2_frames import Fields
from sluice.loadgen.target.pool import CONNECT_TIMEOUT_S, ConnectionPool, connect_failure
from sluice.loadgen.target.v2 import from_wire, wire_bytes
from sluice.models.client_tls import NO_TLS, ClientTls, connection_hint
from sluice.models.errors import ConfigError
from sluice.models.tensors.arrays import datatype_of
from sluice.models.tensors.spec import DataType, TensorSpec

_CONNECTIONS = 4
_MAX_REFUSALS = 8
"""Most times that a query is sent again because the server has not begun with it."""
_FIRST_PAUSE_S = 0.001
"""The pause before a refused query is sent again, which doubles with each refusal: a quarter of a second in all."""
_HTTP_2 = "h2"
_SERVICE = "/inference.GRPCInferenceService/"
_KEY_PREFIX = "triton-grpc-protocol-"
"""Servers of Triton's protocol expect the key of a restricted group under its name with this prefix."""
_OK = Status.OK
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class GrpcTarget(ConnectionPool[GrpcClientConnection]):
    """A V2 server at `grpc://host:port`, at `grpc+unix:///path`, or over TLS at `grpcs://host:port`.

    Headers are sent as metadata, under their names and as keys of restricted groups. A query waits where the server
    takes no further calls on any connection; with `max_outstanding` queries waiting and in flight the next is dropped.
    One of `explain_every` queries asks for the server's times by stage; none does with 0.
    """

    def __init__(
        self,
        url: str,
        headers: Iterable[tuple[str, str]] = (),
        tls: ClientTls = NO_TLS,
        max_outstanding: int = MAX_OUTSTANDING,
        explain_every: int = EXPLAIN_EVERY,
    ) -> None:
        super().__init__(_CONNECTIONS, max_outstanding)
        self._address = address = parse_address(url)
        self._tls = tls.context() if address.scheme == "grpcs" else None
        if self._tls is not None:
            self._tls.set_alpn_protocols([_HTTP_2])
        self._port = address.port or (80 if self._tls is None else 443)
        self._place = address.path or address.authority
        named = [(name.lower(), value) for name, value in headers]
        keys = [(_KEY_PREFIX + name, value) for name, value in named if not name.startswith(_KEY_PREFIX)]
        self._metadata = (*named, *keys)
        self._explain_every = explain_every
        self._keep_answers = False
        self._messages: dict[int, bytes] = {}
        self._refusals: dict[int, int] = {}

    async def metadata(self, model: str) -> TargetModel:
        """Read a model's metadata."""
        fields, answer = await self._single_call("ModelMetadata", service_pb2.ModelMetadataRequest(name=model))
        code = _CODES.get(fields.grpc_status, grpc.StatusCode.UNKNOWN)
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            raise TargetUnreachable(f"--target {self._place}: {fields.message or code.name}")
        if code is not grpc.StatusCode.OK:
            raise ConfigError(f"--model {model}: {code.name} {fields.message}")
        try:
            metadata = service_pb2.ModelMetadataResponse.FromString(answer[MESSAGE_HEAD_BYTES:])
            inputs, outputs = _specs(metadata.inputs), _specs(metadata.outputs)
        except (DecodeError, ValueError) as error:
            raise ConfigError(f"--target: unreadable model metadata: {error}") from error
        return TargetModel(inputs, outputs, metadata.platform, tuple(metadata.versions))

    async def statistics(self) -> bytes | None:
        """Read the statistics of all models."""
        try:
            fields, answer = await self._single_call("ModelStatistics", service_pb2.ModelStatisticsRequest())
        except TargetUnreachable:
            return None  # the figures of the run stay valid when the server dies under load
        if _CODES.get(fields.grpc_status) is not grpc.StatusCode.OK:
            return None
        try:
            statistics = service_pb2.ModelStatisticsResponse.FromString(answer[MESSAGE_HEAD_BYTES:])
        except DecodeError:
            return None
        return str(MessageToJson(statistics, preserving_proto_field_name=True)).encode()

    async def prepare(self, requests: Mapping[int, TargetRequest], listener: QueryListener, keep_answers: bool) -> None:
        """Serialise all requests and open all connections."""
        self._listener = listener
        self._keep_answers = keep_answers
        self._messages = {key: _with_head(_encode(request)) for key, request in requests.items()}
        self._infer_fields = self._fields("ModelInfer")
        try:
            await self._open_first(_CONNECTIONS)
        except OSError as error:
            raise self._unreachable(error) from error

    def decode(self, answer: object, output: str) -> npt.NDArray[np.generic]:
        """Decode one output of a kept answer, which must carry raw contents."""
        response = service_pb2.ModelInferResponse.FromString(cast(bytes, answer)[MESSAGE_HEAD_BYTES:])
        for tensor, content in zip(response.outputs, response.raw_output_contents, strict=False):
            if tensor.name == output:
                return from_wire(content, DataType(tensor.datatype), tuple(tensor.shape))
        raise ConfigError(f"--output {output}: not in the answers' raw contents")

    def answered(self, query: int, fields: Fields, message: bytes) -> None:
        """Settle the query of a call."""
        self._settle(query)
        if fields.grpc_status == 0:
            self._listener.done(query, _OK, message if self._keep_answers else None, stages=fields.stages)
            return
        code = _CODES.get(fields.grpc_status, grpc.StatusCode.UNKNOWN)
        # UNAVAILABLE alone does not say that the call was shed: it also means a server out of reach.
        shed = code is grpc.StatusCode.RESOURCE_EXHAUSTED or fields.retry_after
        reason = f"{code.name}: {fields.message}"
        self._listener.done(query, Status.SHED if shed else Status.ERROR, None, reason, fields.stages)

    def failed(self, query: int, reason: str) -> None:
        """Fail the query of a call."""
        self._settle(query)
        self._listener.done(query, Status.ERROR, reason=reason)

    def refused(self, query: int, request: int, reason: str) -> None:
        """Send a query again that the server has not begun with, as it has no room for a while."""
        attempts = self._refusals[query] = self._refusals.get(query, 0) + 1
        if attempts > _MAX_REFUSALS:
            self._settle(query)
            self._listener.done(query, Status.SHED, reason=reason)
        else:
            # The server counts a call for a moment after its answer has come, longer if it is busy.
            pause_s = _FIRST_PAUSE_S * 2 ** (attempts - 1)
            asyncio.get_running_loop().call_later(pause_s, self._again, query, request)

    def _settle(self, query: int) -> None:
        del self._in_flight[query]
        if self._refusals:
            self._refusals.pop(query, None)

    def _send(self, query: int, request: int) -> GrpcClientConnection:
        every = self._explain_every
        connection = self._free.popleft()
        if connection.send(query, request, self._messages[request], every > 0 and query % every == 0):
            self._free.append(connection)
        return connection

    async def _single_call(self, method: str, request: Message) -> tuple[Fields, bytes]:
        """The end of a call on a connection of its own; raises `TargetUnreachable`."""
        call = _SingleCall()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await self._open_connection(GrpcClientConnection(call, self._fields(method), True))
                try:
                    connection.send(0, 0, _with_head(request.SerializeToString()), explain=False)
                    return await call.ended
                finally:
                    connection.transport.abort()
        except OSError as error:
            raise self._unreachable(error) from error

    async def _connect(self) -> GrpcClientConnection:
        return await self._open_connection(GrpcClientConnection(self, self._infer_fields, self._keep_answers))

    async def _open_connection(self, connection: GrpcClientConnection) -> GrpcClientConnection:
        loop = asyncio.get_running_loop()
        if self._address.path:
            await loop.create_unix_connection(lambda: connection, self._address.path)
        else:
            await loop.create_connection(lambda: connection, self._address.host, self._port, ssl=self._tls)
        try:
            secure = connection.transport.get_extra_info("ssl_object")
            if secure is not None and secure.selected_alpn_protocol() != _HTTP_2:
                raise ConnectionError("the server does not offer HTTP/2 over TLS (ALPN)")
            await connection.ready
        except BaseException:
            connection.transport.abort()
            raise
        return connection

    def _fields(self, method: str) -> Sequence[tuple[str, str]]:
        return (
            (":method", "POST"),
            (":scheme", "http" if self._tls is None else "https"),
            (":path", _SERVICE + method),
            (":authority", self._address.authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "sluice-loadgen"),
            *self._metadata,
        )

    def _unreachable(self, error: OSError) -> TargetUnreachable:
        hint = connection_hint(error, self._tls is not None)
        return TargetUnreachable(f"--target {self._place}: {connect_failure(error)}{hint}")


class _SingleCall:
    """The owner of a connection for one call; `ended` has how it ended, or raises OSError."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[tuple[Fields, bytes]] = asyncio.get_running_loop().create_future()

    def answered(self, query: int, fields: Fields, message: bytes) -> None:
        if not self.ended.done():
            self.ended.set_result((fields, message))

    def failed(self, query: int, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(ConnectionError(reason))

    def refused(self, query: int, request: int, reason: str) -> None:
        self.failed(query, reason)

    def freed(self, connection: GrpcClientConnection) -> None:
        pass

    def withdraw(self, connection: GrpcClientConnection) -> None:
        pass

    def lost(self, connection: GrpcClientConnection, queries: Sequence[int], reason: str) -> None:
        for query in queries:
            self.failed(query, reason)


def _with_head(message: bytes) -> bytes:
    """A message behind its length, not compressed."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def _encode(request: TargetRequest) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=request.model)
    for name, value in request.parameters().items():
        if isinstance(value, int):
            message.parameters[name].uint64_param = value
        else:
            message.parameters[name].double_param = value
    for name, array in request.tensors.items():
        message.inputs.add(name=name, datatype=datatype_of(array.dtype).value, shape=array.shape)
        message.raw_input_contents.append(wire_bytes(array))
    return bytes(message.SerializeToString())


def _specs(tensors: Any) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(t.name, DataType(t.datatype), tuple(t.shape)) for t in tensors)
