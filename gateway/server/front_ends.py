"""The front ends of a server: HTTP and gRPC over the data and the control plane, and a port for metrics."""

import logging
from dataclasses import dataclass

from sluice.gateway.config.access import host_names, is_loopback
from sluice.gateway.config.restricted import ApiGroup, Restrictions
from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.front_door.addresses import listening_address
from sluice.gateway.front_door.budget import Budget
from sluice.gateway.front_door.faults import ClientFaults
from sluice.gateway.front_door.front_door import FrontDoor
from sluice.gateway.front_door.metrics import FrontDoorMetrics
from sluice.gateway.grpc.service import grpc_server
from sluice.gateway.grpc.transport.server import GrpcServer
from sluice.gateway.http.access import AccessRules
from sluice.gateway.http.app import build_app
from sluice.gateway.http.exchange import InferRoute
from sluice.gateway.http.metrics_server import MetricsServer
from sluice.gateway.http.server import HttpServer, http_config, http_server
from sluice.gateway.inference.dataplane import DataPlane
from sluice.gateway.management.controlplane import ControlPlane
from sluice.gateway.observability.logs import log
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.observability.trace import RecentTraces
from sluice.gateway.server.open_files import allowed_connections

logger = logging.getLogger(__name__)


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
    restrictions = config.restrictions
    access = AccessRules(host_names(config.host, config.allowed_hosts), config.cors.origins, tls=config.tls is not None)
    _log_access(config, restrictions)
    context = None if config.tls is None else config.tls.ssl_context()
    host = listening_address(config.host)
    limits = config.front_door
    http_connections, grpc_connections = allowed_connections(limits)
    budget = Budget(limits.buffer_bytes(config.limits.memory_mb, config.max_body_bytes))
    faults = ClientFaults()
    front_door = FrontDoor(limits, budget, faults, http_connections)
    grpc_door = FrontDoor(limits, budget, faults, grpc_connections)
    metrics.include(
        FrontDoorMetrics(budget, faults, lambda: len(front_door.connections), lambda: len(grpc_door.connections))
    )
    app = build_app(control, metrics, traces, config.max_body_bytes, restrictions)
    route = InferRoute(dataplane, config.max_body_bytes, limits.json_bytes, budget)
    settings = http_config(app, route, front_door, restrictions=restrictions, access=access)
    http = http_server(settings, host, config.http_port, context, front_door)
    grpc, grpc_port = grpc_server(
        dataplane,
        control,
        host,
        config.grpc_port,
        config.max_body_bytes,
        restrictions=restrictions,
        tls=config.tls,
        front_door=grpc_door,
        kind=config.grpc_server,
    )
    metrics_server = None
    if config.metrics_port is not None:
        metrics_server = MetricsServer(metrics, host, config.metrics_port, access, restrictions)
    return FrontEnds(http, grpc, metrics_server, (config.host, http.port, grpc_port))


def _log_access(config: ServerConfig, restrictions: Restrictions) -> None:
    """Log which groups are open to whom."""
    everyone = "this machine" if is_loopback(config.host) else "everyone who reaches the ports"
    keyed, closed = restrictions.keyed, restrictions.closed
    groups = {
        f"open to {everyone}": [group for group in ApiGroup if group not in keyed | closed],
        "open with a key": [group for group in ApiGroup if group in keyed],
        "closed": [group for group in ApiGroup if group in closed],
    }
    for state, names in groups.items():
        if names:
            log(logger, logging.INFO, f"groups {state}", groups=",".join(names))
