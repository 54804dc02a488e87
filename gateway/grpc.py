"""The gRPC server: inference, health and metadata; the calls that manage it are in `grpc_management`."""

from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.codec_grpc import decode_request, encode_response
from gateway.controlplane import ControlPlane
from gateway.dataplane import EXPLAIN_HEADER, DataPlane, asks_for_explanation, respond
from gateway.grpc_call import abort, parse_version
from gateway.grpc_health import HealthService
from gateway.grpc_management import ManagementCalls
from gateway.grpc_restricted import RestrictedCalls
from gateway.grpc_stream import InferStream, Told
from gateway.restricted import Restrictions
from models.errors import ConfigError, RequestError, ServingError
from models.tensor import TensorSpec
from models.units import NS_PER_S

ENDS_ON_ERROR = "triton_grpc_error"
"""Metadata of a stream: the first error ends it with a status."""

_SERVICE: str = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
_HEALTH: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_FINAL_MARK = "triton_enable_empty_final_response"


class InferenceService(ManagementCalls):
    """The service `inference.GRPCInferenceService`."""

    def __init__(self, dataplane: DataPlane, control: ControlPlane) -> None:
        super().__init__(control)
        self._dataplane = dataplane
        self._catalogue = control.catalogue

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        return service_pb2.ServerLiveResponse(live=self._catalogue.live)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        return service_pb2.ServerReadyResponse(ready=self._catalogue.server_ready())

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        # A model that is unknown is one that is not ready: clients poll this call while a model is put in place.
        try:
            ready = self._catalogue.ready(request.name, parse_version(request.version))
        except ServingError:
            ready = False
        return service_pb2.ModelReadyResponse(ready=ready)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        catalogue = self._catalogue
        return service_pb2.ServerMetadataResponse(
            name=catalogue.server_name, version=catalogue.server_version, extensions=self._control.extensions
        )

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        try:
            pipeline = self._catalogue.pipeline(request.name, parse_version(request.version))
        except ServingError as error:
            await abort(context, error)

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
        told: Told = []
        try:
            reply = await self._infer(request, context, told)
            if told:
                context.set_trailing_metadata(told)
            return reply
        except Exception as error:
            await abort(context, error, told)

    async def ModelStreamInfer(self, request_iterator: Any, context: Any) -> None:  # noqa: D102, N802
        ends_on_error = any(name == ENDS_ON_ERROR and value == "true" for name, value in context.invocation_metadata())
        stream = InferStream(
            lambda request, told: self._infer(request, context, told), context.write, ends_on_error=ends_on_error
        )
        failed: BaseException | None = None
        try:
            await stream.run(request_iterator)
        except* Exception as group:
            failed = group.exceptions[0]
        if isinstance(failed, Exception):
            await abort(context, failed)

    async def _infer(self, request: Any, context: Any, told: Told) -> Any:
        """The ModelInferResponse to a ModelInferRequest; `told` gets what is told beside it, even of one that fails."""
        remaining_s = context.time_remaining()
        budget_ns = None if remaining_s is None else int(remaining_s * NS_PER_S)
        marks_final = _takes_final_mark(request.parameters)
        signature = self._dataplane.signature(request.model_name, parse_version(request.model_version))
        explain = _explain(context)
        inputs, terms = self._dataplane.check(signature, decode_request(request), budget_ns)
        submission = self._dataplane.submit(signature, inputs, terms)
        answer = await self._dataplane.answer(submission)
        told += self._dataplane.told(submission, explain or terms.explain)
        response = respond(answer, terms)
        try:
            reply = encode_response(response, signature)
        finally:
            response.release()
        if marks_final:
            reply.parameters["triton_final_response"].bool_param = True
        return reply


def grpc_server(
    dataplane: DataPlane,
    control: ControlPlane,
    host: str,
    port: int,
    max_body_bytes: int,
    *,
    restrictions: Restrictions | None = None,
    credentials: grpc.ServerCredentials | None = None,
) -> tuple[grpc.aio.Server, int]:
    """A server, not started yet, and its port; port 0 takes a free one. Raises ConfigError if it cannot be bound.

    Messages of more than `max_body_bytes` are refused; what is sent has no bound. `credentials` make it a TLS server.
    """
    server = grpc.aio.server(
        interceptors=[RestrictedCalls(restrictions)] if restrictions else [],
        options=[
            ("grpc.max_receive_message_length", max_body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ],
    )
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(InferenceService(dataplane, control), server)
    health = HealthService(control.catalogue, (_SERVICE, _HEALTH))
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    reflection.enable_server_reflection((_SERVICE, _HEALTH, reflection.SERVICE_NAME), server)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if credentials is not None:
            return server, server.add_secure_port(address, credentials)
        return server, server.add_insecure_port(address)
    except RuntimeError as error:
        raise ConfigError(f"gRPC port {address} cannot be bound: it is in use or not allowed") from error


def _explain(context: Any) -> bool:
    """Whether the call's metadata asks for an explanation."""
    return any(name == EXPLAIN_HEADER and asks_for_explanation(value) for name, value in context.invocation_metadata())


def _takes_final_mark(parameters: Any) -> bool:
    """Whether the response is to say that it is the last one, as each is; the parameter is taken out."""
    if not parameters or _FINAL_MARK not in parameters:
        return False
    value = parameters[_FINAL_MARK]
    if value.WhichOneof("parameter_choice") != "bool_param":
        raise RequestError(f"parameter '{_FINAL_MARK}' must be true or false")
    marks = value.bool_param
    del parameters[_FINAL_MARK]
    return bool(marks)
