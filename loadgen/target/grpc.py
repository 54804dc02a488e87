"""A target over gRPC: requests are serialised before the run and spread over a few channels."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluice.loadgen.records.record import Status
from sluice.loadgen.records.samples import TargetModel, Tensors
from sluice.loadgen.target.base import QueryListener, TargetUnreachable
from sluice.loadgen.target.v2 import from_wire, wire_bytes
from sluice.models.client_tls import NO_TLS, ClientTls, connection_hint
from sluice.models.errors import ConfigError
from sluice.models.tensors.arrays import datatype_of
from sluice.models.tensors.spec import DataType, TensorSpec

MAX_IN_FLIGHT = 8192
"""Most calls in flight; a further query is dropped."""

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

    Headers are sent as metadata, under their names and as keys of restricted groups.
    """

    def __init__(
        self,
        url: str,
        model: str,
        slo_ms: float | None,
        headers: Iterable[tuple[str, str]] = (),
        tls: ClientTls = NO_TLS,
    ) -> None:
        scheme, _, address = url.partition("://")
        self._address = address.rstrip("/")
        self._credentials = grpc.ssl_channel_credentials(*tls.pem()) if scheme == "grpcs" else None
        named = [(name.lower(), value) for name, value in headers]
        keys = [(_KEY_PREFIX + name, value) for name, value in named if not name.startswith(_KEY_PREFIX)]
        self._metadata = (*named, *keys)
        self._model = model
        self._slo_ms = slo_ms
        self._channels: list[grpc.aio.Channel] = []
        self._calls: list[Any] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests: dict[int, bytes] = {}

    async def metadata(self) -> TargetModel:
        """Read the model's metadata."""
        async with self._channel() as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            request = service_pb2.ModelMetadataRequest(name=self._model)
            try:
                answer = await stub.ModelMetadata(request, timeout=_TIMEOUT_S, metadata=self._metadata)
            except grpc.aio.AioRpcError as error:
                if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    reason = error.details() or error.code().name
                    hint = connection_hint(reason, self._credentials is not None)
                    raise TargetUnreachable(f"--target {self._address}: {reason}{hint}") from error
                raise ConfigError(f"--model {self._model}: {error.code().name} {error.details()}") from error
        return TargetModel(_specs(answer.inputs), _specs(answer.outputs))

    async def prepare(self, samples: Mapping[int, Tensors], listener: QueryListener, keep_answers: bool) -> None:
        """Serialise all requests and connect all channels."""
        self._listener = listener
        self._keep_answers = keep_answers
        self._requests = {sample: self._request(tensors) for sample, tensors in samples.items()}
        self._channels = [self._channel() for _ in range(_CHANNELS)]
        self._calls = [channel.unary_unary(_INFER, None, None) for channel in self._channels]
        try:
            await asyncio.wait_for(asyncio.gather(*(c.channel_ready() for c in self._channels)), _TIMEOUT_S)
        except TimeoutError as error:
            raise TargetUnreachable(f"--target {self._address}: no connection in {_TIMEOUT_S:g} s") from error

    def issue(self, query: int, sample: int) -> None:
        """Start a call on the next channel."""
        if len(self._tasks) >= MAX_IN_FLIGHT:
            self._listener.done(query, Status.DROPPED, reason=f"{MAX_IN_FLIGHT} calls were in flight")
            return
        task = asyncio.get_running_loop().create_task(self._call(query, self._requests[sample]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel the calls in flight and close the channels."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(channel.close(None) for channel in self._channels))

    def decode(self, answer: object, output: str) -> npt.NDArray[np.generic]:
        """Decode one output of a kept answer, which must carry raw contents."""
        response = service_pb2.ModelInferResponse.FromString(answer)
        for tensor, content in zip(response.outputs, response.raw_output_contents, strict=False):
            if tensor.name == output:
                return from_wire(content, DataType(tensor.datatype), tuple(tensor.shape))
        raise ConfigError(f"--output {output}: not in the answers' raw contents")

    async def _call(self, query: int, request: bytes) -> None:
        call = self._calls[query % _CHANNELS](request, metadata=self._metadata)
        self._listener.sent(query)
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            status = Status.SHED if _shed(error) else Status.ERROR
            self._listener.done(query, status, reason=f"{error.code().name}: {error.details()}")
        else:
            self._listener.done(query, Status.OK, answer if self._keep_answers else None)

    def _channel(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._address, options=_OPTIONS)
        return grpc.aio.secure_channel(self._address, self._credentials, options=_OPTIONS)

    def _request(self, tensors: Tensors) -> bytes:
        request = service_pb2.ModelInferRequest(model_name=self._model)
        if self._slo_ms is not None:
            request.parameters["slo_ms"].double_param = self._slo_ms
        for name, array in tensors.items():
            request.inputs.add(name=name, datatype=datatype_of(array.dtype).value, shape=array.shape)
            request.raw_input_contents.append(wire_bytes(array))
        return bytes(request.SerializeToString())


def _shed(error: grpc.aio.AioRpcError) -> bool:
    """True when the server shed the call. UNAVAILABLE alone does not say so: it also means a server out of reach."""
    trailing: Any = error.trailing_metadata()
    return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED or _RETRY_AFTER in trailing


def _specs(tensors: Any) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(t.name, DataType(t.datatype), tuple(t.shape)) for t in tensors)
