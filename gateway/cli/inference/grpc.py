"""An inference over gRPC."""

from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluice.gateway.cli.client.http import TIMEOUT_S, Headers, Refused
from sluice.gateway.cli.inference.messages import Inference, Inferred, ModelInfo, TensorInfo, from_wire, to_wire
from sluice.models.client_tls import ClientTls, connection_hint
from sluice.models.errors import ConfigError, NotFoundError, ServingError
from sluice.models.tensors.spec import DataType

MAX_MESSAGE_BYTES = 1 << 30

_KEY_PREFIX = "triton-grpc-protocol-"
"""Servers of Triton's protocol expect the key of a restricted group under its name with this prefix."""
_REQUEST_ID = "x-sluice-request"
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_CONNECT_S = 1.0
"""Time to find out whether there is a connection."""


class GrpcInference:
    """Asks a server at `grpc://host:port`, or over TLS at `grpcs://host:port`; a context manager.

    Raises NotFoundError for an unknown model, Refused for other errors of the server, and ServingError if it cannot be
    reached.
    """

    def __init__(self, url: str, headers: Headers, tls: ClientTls, model: str, version: str, timeout_s: float) -> None:
        scheme, _, address = url.partition("://")
        options = [
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.enable_http_proxy", 0),
        ]
        self._url, self._secure = url, scheme == "grpcs"
        address = address.rstrip("/")
        if self._secure:
            credentials = grpc.ssl_channel_credentials(*tls.pem())
            self._channel = grpc.secure_channel(address, credentials, options)
        else:
            self._channel = grpc.insecure_channel(address, options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        named = [(name.lower(), value) for name, value in headers]
        self._metadata = (*named, *((_KEY_PREFIX + name, value) for name, value in named))
        self._model, self._version, self._timeout_s = model, version, timeout_s

    def __enter__(self) -> "GrpcInference":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def metadata(self) -> ModelInfo:
        """The metadata of the model."""
        asked = service_pb2.ModelMetadataRequest(name=self._model, version=self._version)
        answer = self._call(self._stub.ModelMetadata, asked, TIMEOUT_S)[0]
        inputs, outputs = (
            tuple(TensorInfo(each.name, DataType(each.datatype), tuple(each.shape)) for each in tensors)
            for tensors in (answer.inputs, answer.outputs)
        )
        return ModelInfo(answer.name, inputs, outputs)

    def infer(self, inference: Inference) -> Inferred:
        """Send the request, and wait for the answer. Raises ConfigError for what gRPC cannot carry."""
        message = service_pb2.ModelInferRequest(model_name=self._model, model_version=self._version)
        try:
            message.id = inference.id
            for name, value in inference.parameters.items():
                _set(message.parameters[name], value)
        except ValueError as error:  # also for texts that are not Unicode
            raise ConfigError(f"id or parameters cannot be sent over gRPC: {error}") from error
        for name, tensor in inference.inputs.items():
            message.inputs.add(name=name, datatype=tensor.datatype, shape=tensor.array.shape)
            message.raw_input_contents.append(to_wire(tensor))
        answer, trailers = self._call(self._stub.ModelInfer, message, self._timeout_s)
        outputs = {
            each.name: from_wire(raw, DataType(each.datatype), tuple(each.shape))
            for each, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
        }
        return Inferred(answer.model_version, trailers.get(_REQUEST_ID, answer.id), outputs)

    def _call(self, method: Any, message: Any, timeout_s: float) -> tuple[Any, dict[str, str]]:
        try:
            answer, call = method.with_call(message, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._meaning(error) from error
        pairs = (*(call.initial_metadata() or ()), *(call.trailing_metadata() or ()))
        return answer, {each.key: str(each.value) for each in pairs}

    def _meaning(self, error: Any) -> ServingError:
        code, details = error.code(), error.details() or error.code().name
        if code is grpc.StatusCode.NOT_FOUND:
            return NotFoundError(f"{self._url}: {details}")
        # A server may refuse with the same codes as a lost connection.
        if code in _LOST and not self._is_connected():
            hint = connection_hint(details, self._secure)
            return ServingError(f"{self._url}: cannot be reached: {details}{hint}")
        return Refused(f"{self._url}: {code.name}: {details}")

    def _is_connected(self) -> bool:
        try:
            grpc.channel_ready_future(self._channel).result(_CONNECT_S)
        except grpc.FutureTimeoutError:
            return False
        return True


def _set(parameter: Any, value: object) -> None:
    match value:
        case bool():
            parameter.bool_param = value
        case int():
            parameter.int64_param = value
        case float():
            parameter.double_param = value
        case _:
            parameter.string_param = str(value)
