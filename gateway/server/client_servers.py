"""The servers that clients talk to: HTTP and gRPC over the data and the control plane, and a port for metrics."""

import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from sluice.gateway.config.access import host_names, is_loopback
from sluice.gateway.config.configured_partitions import configured_partitions
from sluice.gateway.config.front_door import FrontDoorSettings, GrpcServerKind
from sluice.gateway.config.restricted import ApiGroup, Restrictions
from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.front_door.addresses import listening_address
from sluice.gateway.front_door.budget import Budget
from sluice.gateway.front_door.faults import ClientFaults
from sluice.gateway.front_door.front_door import FrontDoor
from sluice.gateway.front_door.listener import listen, listen_shared
from sluice.gateway.front_door.metrics import FrontDoorCounts, FrontDoorMetrics
from sluice.gateway.front_ends.child import launch_front_end
from sluice.gateway.front_ends.front_ends import FrontEnds, WatchedRegions, front_end_count
from sluice.gateway.grpc.relayed import RelayedCalls
from sluice.gateway.grpc.service import add_services, grpc_server
from sluice.gateway.grpc.transport.server import GrpcServer
from sluice.gateway.http.access import AccessControl, AccessRules
from sluice.gateway.http.app import build_app, explanation_json
from sluice.gateway.http.exchange import InferRoute
from sluice.gateway.http.metrics_server import MetricsServer, PageAccess
from sluice.gateway.http.page_files import PageFiles
from sluice.gateway.http.relayed import HEADER_BYTES, HEADER_LINES, RelayedConnection
from sluice.gateway.http.server import BACKLOG, Application, HttpServer, http_config, http_server
from sluice.gateway.inference.local import LocalDataPlane
from sluice.gateway.management.controlplane import ControlPlane
from sluice.gateway.observability.logs import log
from sluice.gateway.observability.machine_metrics import MachineMetrics
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.observability.process_metrics import ProcessMetrics
from sluice.gateway.observability.traces.trace import RecentTraces
from sluice.gateway.overview.live import LiveOverview
from sluice.gateway.partitions.inventory import Inventory
from sluice.gateway.server.open_files import raise_open_files
from sluice.models.units import NS_PER_MS, NS_PER_S
from sluice.mps.partitions.partition import CpuPartition

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientServers:
    """The servers that clients talk to; `address` is (host, HTTP port, gRPC port).

    `doors` are those through which clients connect to this process. With `front_ends`, these have the connections of
    clients, and `http` and `grpc` serve what they pass on. The gRPC server of grpcio has connections of its own.
    """

    http: HttpServer
    grpc: GrpcServer
    metrics: MetricsServer | None
    front_ends: FrontEnds | None
    doors: tuple[FrontDoor, ...]
    address: tuple[str, int, int]

    def ask_to_go(self, *, last: bool) -> None:
        """Ask all clients to go, as `FrontDoor.ask_to_go` does; the core of grpcio has no way to ask."""
        for door in self.doors:
            door.ask_to_go(last=last)
        if self.front_ends is not None:
            self.front_ends.ask_to_go(last=last)


def client_servers(
    config: ServerConfig,
    dataplane: LocalDataPlane,
    control: ControlPlane,
    metrics: ServerMetrics,
    traces: RecentTraces,
    regions: WatchedRegions,
    overview: LiveOverview,
) -> ClientServers:
    """The servers of both protocols, which listen already. `regions` is the memory that is shared with workers."""
    restrictions = config.restrictions
    access = AccessRules(host_names(config.host, config.allowed_hosts), config.cors.origins, tls=config.tls is not None)
    _log_access(config, restrictions)
    context = None if config.tls is None else config.tls.ssl_context()
    host = listening_address(config.host)
    limits = config.front_door
    files = raise_open_files(limits, configured_partitions(config))
    count = front_end_count(config.front_ends)
    budget = Budget(limits.buffer_bytes(config.limits.memory_mb, config.max_body_bytes, count + 1))
    faults = ClientFaults()
    grpc_door = FrontDoor(limits, budget, faults, files.grpc)
    app = build_app(
        control, dataplane, metrics, traces, config.max_body_bytes, overview, restrictions, config.json_rules
    )
    route = InferRoute(dataplane, config.max_body_bytes, config.json_rules, budget, default_model=config.default_model)
    ends: FrontEnds | None = None
    grpc: GrpcServer | None = None
    if count:
        listeners: list[list[socket.socket]] = [listen_shared("HTTP", host, config.http_port, count, BACKLOG)]
        http_port: int = listeners[0][0].getsockname()[1]
        application: Application = AccessControl(app, access)
        if config.grpc_server is GrpcServerKind.SLUICE:
            listeners.append(listen_shared("gRPC", host, config.grpc_port, count, BACKLOG))
            application = grpc = RelayedCalls(application)
            add_services(grpc, dataplane, control, grpc_door)
        ports = {name: each[0].getsockname()[1] for name, each in zip(("HTTP", "gRPC"), listeners, strict=False)}
        grpc_port = ports.get("gRPC", 0)
        door = FrontDoor(_for_relays(limits, files.http + files.grpc), budget)
        scheme = "http" if context is None else "https"
        connection = partial(RelayedConnection, client_scheme=scheme)
        http = HttpServer(
            http_config(application, route, door, restrictions=restrictions, access=access, connection=connection),
            None,
            front_door=door,
        )
        ends = FrontEnds(
            _for_front_ends(config, count),
            list(zip(*listeners, strict=True)),
            lambda: [listen(name, host, port, BACKLOG, reuse_port=True) for name, port in ports.items()],
            (-(-files.http // count), -(-files.grpc // count), budget.limit),
            dataplane,
            control.registry,
            regions,
            http.attach,
            launch_front_end,
        )
        metrics.include(ends)
        metrics.add_input_memory(ends.input_bytes)
        http_counts = ends.counts
    else:
        door = FrontDoor(limits, budget, faults, files.http)
        settings = http_config(app, route, door, restrictions=restrictions, access=access)
        http = http_server(settings, host, config.http_port, context, door)
        http_port = http.port

        def http_counts() -> FrontDoorCounts:
            return FrontDoorCounts(len(door.connections), 0, 0, {})

    def counts() -> FrontDoorCounts:
        http = http_counts()
        every_fault = faults.counts.copy()
        every_fault.update(http.faults)
        return FrontDoorCounts(
            http.http_connections,
            http.grpc_connections + len(grpc_door.connections),
            http.buffer_bytes + budget.used,
            every_fault,
        )

    _add_metrics(metrics, counts, config, control.inventory, ends)
    if grpc is None:
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
    page = PageAccess(PageFiles(), overview, lambda id: explanation_json(traces, id, control.clock()))
    port = config.metrics_port
    metrics_server = None if port is None else MetricsServer(metrics, host, port, access, restrictions, page)
    return ClientServers(
        http, grpc, metrics_server, ends, () if count else (door, grpc_door), (config.host, http_port, grpc_port)
    )


def _add_metrics(
    metrics: ServerMetrics,
    counts: Callable[[], FrontDoorCounts],
    config: ServerConfig,
    inventory: Inventory,
    ends: FrontEnds | None,
) -> None:
    """Add the metrics of the front door, of the server's processes and of the machine."""
    metrics.include(FrontDoorMetrics(counts))
    interval_s = config.metrics_interval_ms * NS_PER_MS / NS_PER_S
    metrics.include(ProcessMetrics(lambda: _process_ids(inventory, ends)))
    metrics.include(MachineMetrics(interval_s, lambda: _devices(inventory)))


def _process_ids(inventory: Inventory, ends: FrontEnds | None) -> dict[str, int]:
    """The processes of the server beside its main one, by what they are called in metrics."""
    workers = {f"worker {name}": process for name, process in inventory.processes.items()}
    return workers if ends is None else workers | ends.process_ids


def _devices(inventory: Inventory) -> dict[str, str]:
    """The GPUs and MIG instances of partitions, by the names of these."""
    return {each.name: each.uuid for each in inventory.partitions if not isinstance(each, CpuPartition)}


def _for_relays(limits: FrontDoorSettings, connections: int) -> FrontDoorSettings:
    """The bounds on connections from front ends, which have enforced those on clients."""
    return msgspec.structs.replace(
        limits,
        max_connections=2 * connections,
        max_connections_per_address=0,
        head_lines=limits.head_lines + HEADER_LINES,
        head_bytes=limits.head_bytes + HEADER_BYTES,
    )


def _for_front_ends(config: ServerConfig, count: int) -> ServerConfig:
    """The configuration of one of `count` front ends, which has its part of what a client may have."""
    limit = config.front_door.max_connections_per_address
    part = msgspec.structs.replace(config.front_door, max_connections_per_address=-(-limit // count))
    return msgspec.structs.replace(config, front_door=part)


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
