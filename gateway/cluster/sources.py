"""The source that a class of remote partitions names in the configuration."""

from sluice.gateway.cluster.source import WorkerSource
from sluice.gateway.cluster.static import StaticSource
from sluice.gateway.config.remote_settings import RemoteClass
from sluice.models.errors import ConfigError


def worker_source(given: RemoteClass) -> WorkerSource:
    """The source of the workers of a class. Raises ConfigError if this build has none for it."""
    if given.urls is not None:
        return StaticSource(dict(zip(given.slots, given.urls, strict=True)))
    wanted = "dns" if given.dns is not None else "ray"
    raise ConfigError(f"remote partitions {given.name}: this build cannot find workers by {wanted}, expected urls")
