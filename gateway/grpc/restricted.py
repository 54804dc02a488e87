"""Refuses gRPC calls of restricted groups without the key."""

from sluice.gateway.config.restricted import GRPC_PREFIX, ApiGroup, Restrictions
from sluice.gateway.grpc.transport.call import Metadata

_GROUPS = {
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
}
_GROUP_OF = {method: group for group, methods in _GROUPS.items() for method in methods}


def refusal(restrictions: Restrictions, method: str, metadata: Metadata) -> str:
    """Why a call is refused, with UNAVAILABLE as Triton does: the key of its group is missing. "" if it is allowed."""
    group = _GROUP_OF.get(method.rpartition("/")[2])
    return "" if group is None else restrictions.refusal(group, dict(metadata), GRPC_PREFIX)
