"""A server's configuration with what its Ray classes leave to the cluster, which is asked before the server starts."""

import importlib.util

import msgspec

from sluice.gateway.cluster.ray.ask import cluster_nodes
from sluice.gateway.cluster.ray.placement import found
from sluice.gateway.config.ray_settings import RaySettings
from sluice.gateway.config.remote_settings import PartitionSettings
from sluice.gateway.config.server_config import ServerConfig
from sluice.models.errors import ConfigError

EXTRA = "sluice-gateway[ray]"


def check_extra() -> None:
    """Raise ConfigError unless Ray is installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"partitions: ray needs Ray, which is not installed; install it with pip install '{EXTRA}'")


def with_ray_settled(config: ServerConfig) -> ServerConfig:
    """The configuration with resources and the number of workers in all classes that Ray places.

    Blocks for up to 30 s, if the cluster must be asked. Raises ConfigError without Ray, and for a cluster
    that does not answer or has no room.
    """
    settings = config.partitions
    if not isinstance(settings, PartitionSettings):
        return config
    given = {each.name: each.ray for each in settings.classes if each.ray is not None}
    if not given:
        return config
    check_extra()
    if settings.key_file is None and settings.tls is None:
        raise ConfigError(
            "partitions: ray needs key_file, the path of a file with a secret, or tls: workers listen at the addresses "
            "of their nodes, and run what gateways send them"
        )
    if len({(each.address, each.namespace) for each in given.values()}) > 1:
        raise ConfigError("partitions: ray: expected the same address and namespace in all classes")
    if all(each.resources and each.most is not None for each in given.values()):
        return config
    nodes = cluster_nodes(next(iter(given.values())).address)
    full = {name: found(name, each, nodes) for name, each in given.items()}
    classes = tuple(msgspec.structs.replace(each, ray=full.get(each.name)) for each in settings.remote)
    short: RaySettings | None = full["ray"] if settings.ray is not None else None
    try:
        return msgspec.structs.replace(config, partitions=msgspec.structs.replace(settings, remote=classes, ray=short))
    except ValueError as error:
        raise ConfigError(f"partitions: {error}") from error
