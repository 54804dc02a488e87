"""The sources that the classes of remote partitions name in the configuration."""

from collections.abc import Sequence

from sluice.gateway.cluster.address_source import AddressSource
from sluice.gateway.cluster.dns import DnsSource
from sluice.gateway.cluster.ray.source import RayCluster
from sluice.gateway.cluster.source import WorkerSource
from sluice.gateway.cluster.static import StaticSource
from sluice.gateway.config.remote_settings import RemoteClass


def worker_sources(classes: Sequence[RemoteClass], gateway: str, version: str, key: str) -> dict[str, WorkerSource]:
    """The source of each class. Classes of Ray have all settings (see `with_ray_settled`).

    `gateway` is a name that no other gateway has, and `key` the text of the workers' key file, "" for none.
    """
    cluster = RayCluster({each.name: each.ray for each in classes if each.ray is not None}, gateway, version, key)
    return {each.name: worker_source(each) if each.ray is None else cluster.source(each.name) for each in classes}


def worker_source(given: RemoteClass) -> WorkerSource:
    """The source of a class that has addresses, or a name for which DNS has them.

    That of a class that is scaled places no worker until it is asked for a number.
    """
    source: AddressSource
    if given.urls is not None:
        source = StaticSource(given.name, given.slots, given.urls)
    else:
        assert given.dns is not None, "Ray places the workers of all its classes together"
        source = DnsSource(given.name, given.slots, given.dns.name, given.dns.port)
    if given.scale is not None:
        source.want(0)
    return source
