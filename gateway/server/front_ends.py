"""The front ends: the data plane and the control plane, and the servers of both protocols over them."""

import logging
from time import monotonic_ns, time_ns

from sluice.gateway.config.restricted import Restrictions
from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.deployment.deployer import Deployer
from sluice.gateway.deployment.registry import ModelRegistry
from sluice.gateway.grpc.service import grpc_server
from sluice.gateway.grpc.transport.server import GrpcServer
from sluice.gateway.http.app import build_app
from sluice.gateway.http.exchange import InferRoute
from sluice.gateway.http.server import HttpServer, http_config, http_server
from sluice.gateway.inference.dataplane import DataPlane
from sluice.gateway.management.controlplane import ControlPlane
from sluice.gateway.management.repository_api import RepositoryApi
from sluice.gateway.observability.log_settings import LogSettings
from sluice.gateway.observability.logs import log
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.observability.trace_settings import TraceSettings
from sluice.gateway.partitions.states import PartitionStates
from sluice.gateway.protocol.shared_memory import SharedMemory
from sluice.gateway.resizing.resizing import Resizing
from sluice.gateway.runtime.driver import Runtime
from sluice.gateway.tensors.response_cache import ResponseCache

logger = logging.getLogger(__name__)


def front_ends(
    config: ServerConfig,
    catalogue: ModelRegistry,
    lifecycle: Deployer,
    runtime: Runtime,
    metrics: ServerMetrics,
    trace_settings: TraceSettings,
    states: PartitionStates,
    resizing: Resizing,
    max_tensor_bytes: int,
    cache: ResponseCache | None,
) -> tuple[HttpServer, GrpcServer, int]:
    """The servers of both protocols, and the port of the second."""
    shared_memory = SharedMemory(config.allow_client_shm, max_tensor_bytes)
    dataplane = DataPlane(
        catalogue, runtime, config.default_slo_ms, monotonic_ns, shared_memory, cache, config.statuses
    )
    control = ControlPlane(
        catalogue,
        RepositoryApi(catalogue, lifecycle, config.control),
        metrics.statistics,
        shared_memory,
        LogSettings(),
        trace_settings,
        monotonic_ns,
        time_ns() - monotonic_ns(),
        states,
        resizing,
    )
    restrictions = Restrictions(config.restricted)
    context = credentials = None
    if config.tls is not None:
        context, credentials = config.tls.ssl_context(), config.tls.grpc_credentials()
    app = build_app(control, metrics, runtime.traces, config.max_body_bytes, restrictions)
    settings = http_config(app, InferRoute(dataplane, config.max_body_bytes), restrictions=restrictions)
    http = http_server(settings, config.host, config.http_port, context)
    grpc, grpc_port = grpc_server(
        dataplane,
        control,
        config.host,
        config.grpc_port,
        config.max_body_bytes,
        restrictions=restrictions,
        credentials=credentials,
    )
    return http, grpc, grpc_port


def response_cache(config: ServerConfig, catalogue: ModelRegistry, metrics: ServerMetrics) -> ResponseCache | None:
    """The cache of answers and of what stages make, if there is to be one."""
    if config.cache_bytes:
        return ResponseCache(config.cache_bytes, metrics.statistics, monotonic_ns)
    for name in catalogue.caching():
        log(logger, logging.WARNING, "response_cache has no effect without cache_bytes", name=name)
    return None
