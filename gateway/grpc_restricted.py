"""Refuses gRPC calls of restricted groups that come without the key."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from gateway.restricted import GRPC_PREFIX, Group, Restrictions

_GROUPS = {
    Group.HEALTH: ("ServerLive", "ServerReady", "ModelReady", "Check", "Watch"),
    Group.METADATA: ("ServerMetadata", "ModelMetadata"),
    Group.INFERENCE: ("ModelInfer", "ModelStreamInfer"),
    Group.SHARED_MEMORY: tuple(
        f"{kind}SharedMemory{what}" for kind in ("System", "Cuda") for what in ("Status", "Register", "Unregister")
    ),
    Group.MODEL_CONFIG: ("ModelConfig",),
    Group.MODEL_REPOSITORY: ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
    Group.STATISTICS: ("ModelStatistics",),
    Group.TRACE: ("TraceSetting",),
    Group.LOGGING: ("LogSettings",),
}
_GROUP_OF = {method: group for group, methods in _GROUPS.items() for method in methods}

Next = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class RestrictedCalls(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Ends calls without their group's key with UNAVAILABLE, as Triton does."""

    def __init__(self, restrictions: Restrictions) -> None:
        self._restrictions = restrictions

    async def intercept_service(self, continuation: Next, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The handler of a call, or one that refuses it."""
        handler = await continuation(handler_call_details)
        group = _GROUP_OF.get(handler_call_details.method.rpartition("/")[2])
        if handler is None or group is None:
            return handler
        metadata: Any = handler_call_details.invocation_metadata
        refusal = self._restrictions.refusal(group, dict(metadata or ()), GRPC_PREFIX)
        if not refusal:
            return handler

        async def refuse(_: Any, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, refusal)

        if handler.response_streaming:
            kind = grpc.stream_stream_rpc_method_handler
            kind = kind if handler.request_streaming else grpc.unary_stream_rpc_method_handler
        else:
            kind = grpc.unary_unary_rpc_method_handler
        return kind(refuse, handler.request_deserializer, handler.response_serializer)
