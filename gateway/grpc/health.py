"""The health service `grpc.health.v1`, for orchestrators and load balancers."""

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sluice.gateway.deployment.registry import ModelRegistry


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """SERVING while the server is ready. Clients may ask for the names in `services`, or "" for all."""

    def __init__(self, registry: ModelRegistry, services: tuple[str, ...]) -> None:
        self._registry = registry
        self._names = ("", *services)

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service '{request.service:.80}'")
        status = health_pb2.HealthCheckResponse
        return status(status=status.SERVING if self._registry.server_ready() else status.NOT_SERVING)

    async def Watch(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "health cannot be watched; ask for it with Check")
