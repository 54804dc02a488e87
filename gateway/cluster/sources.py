"""The source that a class of remote partitions names in the configuration."""

from sluice.gateway.cluster.dns import DnsSource
from sluice.gateway.cluster.source import WorkerSource
from sluice.gateway.cluster.static import StaticSource
from sluice.gateway.config.remote_settings import RemoteClass
from sluice.models.errors import ConfigError


def worker_source(given: RemoteClass) -> WorkerSource:
    """The source of the workers of a class. Raises ConfigError if this build has none for it."""
    if given.urls is not None:
        return StaticSource(given.name, given.slots, given.urls)
    if given.dns is not None:
        return DnsSource(given.name, given.slots, given.dns.name, given.dns.port)
    raise ConfigError(f"remote partitions {given.name}: this build cannot find workers by ray, expected urls or dns")
