"""The gRPC server: inference, health, metadata and the calls of the control plane."""

import contextlib
import socket
from collections.abc import Iterable
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluice.gateway.config.front_door import FrontDoorSettings, GrpcServerKind
from sluice.gateway.config.restricted import GRPC_PREFIX, ApiGroup, Restrictions
from sluice.gateway.config.tls import TlsSettings
from sluice.gateway.deployment.registry import ModelRegistry
from sluice.gateway.front_door.addresses import ipv6_blocker
from sluice.gateway.front_door.budget import Budget
from sluice.gateway.front_door.front_door import FrontDoor
from sluice.gateway.front_door.listener import listen
from sluice.gateway.grpc.errors import abort, parse_version
from sluice.gateway.grpc.infer import InferHandler
from sluice.gateway.grpc.management import ManagementCalls
from sluice.gateway.grpc.relayed import CallRelay
from sluice.gateway.grpc.stream import InferStream
from sluice.gateway.grpc.transport.grpcio.server import GrpcioServer
from sluice.gateway.grpc.transport.http2.server import BACKLOG, Http2Server
from sluice.gateway.grpc.transport.server import GrpcServer, Refusal
from sluice.gateway.inference.dataplane import DataPlane
from sluice.gateway.management.controlplane import ControlPlane
from sluice.models.errors import ConfigError, ServingError
from sluice.models.tensors.spec import TensorSpec

ERROR_ENDS_STREAM = "triton_grpc_error"
"""Metadata of a stream: its first error ends it with a status."""

MS_PER_S = 1000
KEEPALIVE_MS = 120_000
KEEPALIVE_TIMEOUT_MS = 20_000
"""A client that has not answered a ping by then is gone."""
PING_STRIKES = 2
"""Pings that may come too early before the connection is closed."""
BIND_ATTEMPTS = 8

_DEFAULTS = FrontDoorSettings()
_SERVICE: str = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
_HEALTH: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

_HEALTH_CALLS = (f"/{_HEALTH}/Check", f"/{_SERVICE}/ServerLive", f"/{_SERVICE}/ServerReady")
"""The calls for which connections are kept."""
_CALLS = {
    ApiGroup.HEALTH: ("ServerLive", "ServerReady", "ModelReady", "Check", "Watch"),
    ApiGroup.METADATA: ("ServerMetadata", "ModelMetadata"),
    ApiGroup.INFERENCE: ("ModelInfer", "ModelStreamInfer"),
    ApiGroup.SHARED_MEMORY: tuple(
        f"{kind}SharedMemory{what}" for kind in ("System", "Cuda") for what in ("Status", "Register", "Unregister")
    ),
    ApiGroup.MODEL_CONFIG: ("ModelConfig",),
    ApiGroup.MODEL_REPOSITORY: ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
    ApiGroup.STATISTICS: ("ModelStatistics",),
    ApiGroup.TRACE: ("TraceSetting",),
    ApiGroup.LOGGING: ("LogSettings",),
    ApiGroup.REFLECTION: ("ServerReflectionInfo",),
}
_GROUP = {method: group for group, methods in _CALLS.items() for method in methods}


class InferenceCalls:
    """The calls `ModelInfer` and `ModelStreamInfer`. A data plane that raises RelayNeeded has a `relay`."""

    def __init__(
        self, dataplane: DataPlane, budget: Budget, max_parsed_bytes: int, relay: CallRelay | None = None
    ) -> None:
        self._budget = budget
        self._inference = InferHandler(dataplane, max_parsed_bytes, relay)

    def add_to(self, server: GrpcServer) -> None:
        """Add both methods to a server."""
        infer = grpc.unary_unary_rpc_method_handler(self._inference.begin)
        stream = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=self._inference.parse,
            response_serializer=service_pb2.ModelStreamInferResponse.SerializeToString,
        )
        server.add_registered_method_handlers(_SERVICE, {"ModelInfer": infer, "ModelStreamInfer": stream})
        server.receive_into(f"/{_SERVICE}/ModelInfer", self._inference.memory)

    async def _stream(self, request_iterator: Any, context: Any) -> None:
        error_ends_stream = any(
            name == ERROR_ENDS_STREAM and value == "true" for name, value in context.invocation_metadata()
        )
        stream = InferStream(
            lambda request, metadata: self._inference.message(request, context, metadata),
            context.write,
            error_ends_stream=error_ends_stream,
            budget=self._budget,
        )
        failed: BaseException | None = None
        try:
            await stream.run(request_iterator)
        except* Exception as group:
            failed = group.exceptions[0]
        if isinstance(failed, Exception):
            await abort(context, failed)


class InferenceService(ManagementCalls):
    """The service `inference.GRPCInferenceService`, without inference."""

    def __init__(self, control: ControlPlane) -> None:
        super().__init__(control)
        self._registry = control.registry

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        return service_pb2.ServerLiveResponse(live=self._registry.live)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        return service_pb2.ServerReadyResponse(ready=self._registry.server_ready())

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        # An unknown model is reported as not ready: clients poll this call while a model is deployed.
        try:
            ready = await self._registry.says_ready(request.name, parse_version(request.version))
        except ServingError:
            ready = False
        return service_pb2.ModelReadyResponse(ready=ready)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        registry = self._registry
        return service_pb2.ServerMetadataResponse(
            name=registry.server_name, version=registry.server_version, extensions=self._control.extensions
        )

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        try:
            pipeline = self._registry.pipeline(request.name, parse_version(request.version))
        except ServingError as error:
            await abort(context, error)

        def tensors(specs: tuple[TensorSpec, ...]) -> list[Any]:
            metadata = service_pb2.ModelMetadataResponse.TensorMetadata
            return [
                metadata(name=spec.name, datatype=spec.datatype.value, shape=pipeline.wire_shape(spec))
                for spec in specs
            ]

        versions = [str(pipeline.version)] if request.version else self._registry.served(request.name)
        return service_pb2.ModelMetadataResponse(
            name=pipeline.name,
            versions=versions,
            platform=pipeline.platform,
            inputs=tensors(pipeline.inputs),
            outputs=tensors(pipeline.outputs),
        )


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """SERVING while the server is ready. Clients may ask for the names in `services`, or "" for all."""

    def __init__(self, registry: ModelRegistry, services: tuple[str, ...]) -> None:
        self._registry = registry
        self._names = ("", *services)

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service '{request.service:.80}'")
        status = health_pb2.HealthCheckResponse
        return status(status=status.SERVING if self._registry.server_ready() else status.NOT_SERVING)

    async def Watch(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        await unsupported_watch(request, context)


async def unsupported_watch(request: Any, context: Any) -> None:
    """Refuse a call that would follow the state of the server."""
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Watch is not supported; call Check instead")


def grpc_server(
    dataplane: DataPlane,
    control: ControlPlane,
    host: str,
    port: int,
    max_body_bytes: int,
    *,
    restrictions: Restrictions | None = None,
    tls: TlsSettings | None = None,
    front_door: FrontDoor | None = None,
    kind: GrpcServerKind = GrpcServerKind.SLUICE,
) -> tuple[GrpcServer, int]:
    """A server that is not started yet, and its port; port 0 takes a free one.

    Messages larger than `max_body_bytes` are refused; responses have no bound. `front_door` bounds the connections; the
    core of grpcio follows only its settings, and counts in its budget.
    Raises ConfigError if the port cannot be bound.
    """
    if front_door is None:
        budget = Budget(_DEFAULTS.buffer_bytes(256, max_body_bytes))
        front_door = FrontDoor(_DEFAULTS, budget, max_connections=_DEFAULTS.grpc_connections)
    refusal = partial(_refusal, restrictions) if restrictions else None
    server: GrpcServer
    if kind is GrpcServerKind.GRPCIO:
        server, bound = _grpcio_server(host, port, max_body_bytes, front_door, refusal, tls)
    else:
        context = None if tls is None else tls.ssl_context(("h2",))
        listener = listen("gRPC", host, port, BACKLOG)
        bound = listener.getsockname()[1]
        server = Http2Server(listener, front_door, max_body_bytes, refusal, context, _HEALTH_CALLS)
    add_services(server, dataplane, control, front_door)
    return server, bound


def add_services(server: GrpcServer, dataplane: DataPlane, control: ControlPlane, front_door: FrontDoor) -> None:
    """Add all services to a server."""
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(InferenceService(control), server)
    InferenceCalls(dataplane, front_door.budget, front_door.settings.json_bytes).add_to(server)
    health_pb2_grpc.add_HealthServicer_to_server(HealthService(control.registry, (_SERVICE, _HEALTH)), server)
    _add_reflection(server)


def front_end_server(
    dataplane: DataPlane,
    relay: CallRelay,
    listener: socket.socket,
    max_body_bytes: int,
    restrictions: Restrictions,
    tls: TlsSettings | None,
    front_door: FrontDoor,
) -> Http2Server:
    """The server of a front end, which passes all calls on but inference and reflection."""
    refusal = partial(_refusal, restrictions) if restrictions else None
    context = None if tls is None else tls.ssl_context(("h2",))
    server = Http2Server(listener, front_door, max_body_bytes, refusal, context, _HEALTH_CALLS)
    passed_on = grpc.unary_unary_rpc_method_handler(relay.answer)
    names = [method.name for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods]
    server.add_registered_method_handlers(_SERVICE, dict.fromkeys(names, passed_on))
    InferenceCalls(dataplane, front_door.budget, front_door.settings.json_bytes, relay).add_to(server)
    watch = grpc.unary_stream_rpc_method_handler(unsupported_watch)
    server.add_registered_method_handlers(_HEALTH, {"Check": passed_on, "Watch": watch})
    _add_reflection(server)
    return server


def _add_reflection(server: GrpcServer) -> None:
    reflected = reflection.aio.ReflectionServicer(  # type: ignore[attr-defined]
        (_SERVICE, _HEALTH, reflection.SERVICE_NAME)
    )
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, server)


def _grpcio_server(
    host: str,
    port: int,
    max_body_bytes: int,
    front_door: FrontDoor,
    refusal: Refusal | None,
    tls: TlsSettings | None,
) -> tuple[GrpcioServer, int]:
    """A server on the core of grpcio, and its port. Raises ConfigError if it cannot be bound."""
    settings = front_door.settings
    options = (
        ("grpc.max_receive_message_length", max_body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
        *_bounds(settings, front_door.max_connections),
    )
    server = GrpcioServer(options, refusal, front_door.budget, settings.grpc_message_s)
    try:
        return server, _bind(server, host, port, None if tls is None else tls.grpc_credentials())
    except RuntimeError as error:
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise ConfigError(f"gRPC port {address} cannot be bound: it is in use or not allowed") from error


def _bounds(settings: FrontDoorSettings, max_connections: int) -> tuple[tuple[str, int], ...]:
    """The options of the core that bound connections and streams."""
    return (
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.max_concurrent_streams", settings.grpc_streams),
        ("grpc.max_connection_idle_ms", round(settings.grpc_idle_s * MS_PER_S)),
        ("grpc.max_connection_age_ms", round(settings.grpc_age_s * MS_PER_S)),
        ("grpc.server_handshake_timeout_ms", round(settings.head_timeout_s * MS_PER_S)),
        ("grpc.http2.min_ping_interval_without_data_ms", round(settings.grpc_ping_s * MS_PER_S)),
        ("grpc.http2.max_ping_strikes", PING_STRIKES),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    )


def _bind(server: GrpcioServer, host: str, port: int, credentials: grpc.ServerCredentials | None) -> int:
    """Bind the port. The core would take the host 0.0.0.0 for all addresses of both families, unless IPv6 is taken."""
    if host != "0.0.0.0":
        return server.add_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", credentials)
    for attempt in range(BIND_ATTEMPTS):
        with contextlib.ExitStack() as stack:
            blocker = ipv6_blocker(port)
            free = port
            if blocker is not None:
                stack.enter_context(blocker)
                free = blocker.getsockname()[1]
            try:
                return server.add_port(f"{host}:{free}", credentials)
            except RuntimeError:  # the port that is free for IPv6 may be taken for IPv4
                if port or attempt == BIND_ATTEMPTS - 1:
                    raise
    raise AssertionError("unreachable")


def _refusal(restrictions: Restrictions, method: str, metadata: Iterable[tuple[str, str]]) -> str:
    """The reason to refuse a call without the key of its group, "" if it is allowed.

    Refused calls end with UNAVAILABLE, as in Triton.
    """
    group = _GROUP.get(method.rpartition("/")[2])
    return "" if group is None else restrictions.refusal(group, dict(metadata), GRPC_PREFIX)
