"""The front ends of a server: HTTP and gRPC over the data and the control plane, and a port for metrics."""

from dataclasses import dataclass

from sluice.gateway.config.restricted import Restrictions
from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.front_door.addresses import listening_address
from sluice.gateway.front_door.budget import Budget
from sluice.gateway.front_door.faults import ClientFaults
from sluice.gateway.front_door.metrics import FrontDoorMetrics
from sluice.gateway.grpc.service import grpc_server
from sluice.gateway.grpc.transport.server import GrpcServer
from sluice.gateway.http.app import build_app
from sluice.gateway.http.exchange import InferRoute
from sluice.gateway.http.front_door import FrontDoor
from sluice.gateway.http.metrics_server import MetricsServer
from sluice.gateway.http.server import HttpServer, http_config, http_server
from sluice.gateway.inference.dataplane import DataPlane
from sluice.gateway.management.controlplane import ControlPlane
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.observability.trace import RecentTraces
from sluice.gateway.server.open_files import allowed_connections


@dataclass(frozen=True, slots=True)
class FrontEnds:
    """The servers that clients talk to; `address` is (host, HTTP port, gRPC port)."""

    http: HttpServer
    grpc: GrpcServer
    metrics: MetricsServer | None
    address: tuple[str, int, int]


def front_ends(
    config: ServerConfig, dataplane: DataPlane, control: ControlPlane, metrics: ServerMetrics, traces: RecentTraces
) -> FrontEnds:
    """The servers of both protocols, which listen already."""
    restrictions = Restrictions(config.restricted)
    context = credentials = None
    if config.tls is not None:
        context, credentials = config.tls.ssl_context(), config.tls.grpc_credentials()
    host = listening_address(config.host)
    limits = config.front_door
    http_connections, grpc_connections = allowed_connections(limits)
    budget = Budget(limits.buffer_bytes(config.limits.memory_mb, config.max_body_bytes))
    faults = ClientFaults()
    door = FrontDoor(limits, budget, faults, http_connections)
    metrics.include(FrontDoorMetrics(budget, faults, lambda: len(door.connections)))
    app = build_app(control, metrics, traces, config.max_body_bytes, restrictions)
    route = InferRoute(dataplane, config.max_body_bytes, limits.json_bytes, budget)
    http = http_server(http_config(app, route, door, restrictions=restrictions), host, config.http_port, context, door)
    grpc, grpc_port = grpc_server(
        dataplane,
        control,
        host,
        config.grpc_port,
        config.max_body_bytes,
        restrictions=restrictions,
        credentials=credentials,
        settings=limits,
        max_connections=grpc_connections,
        budget=budget,
    )
    metrics_server = None if config.metrics_port is None else MetricsServer(metrics, host, config.metrics_port)
    return FrontEnds(http, grpc, metrics_server, (config.host, http.port, grpc_port))
