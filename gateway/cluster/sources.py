"""The sources that the classes of remote partitions name in the configuration."""

from collections.abc import Sequence

from sluice.gateway.cluster.dns import DnsSource
from sluice.gateway.cluster.ray.source import RayCluster
from sluice.gateway.cluster.source import WorkerSource
from sluice.gateway.cluster.static import StaticSource
from sluice.gateway.config.remote_settings import RemoteClass


def worker_sources(classes: Sequence[RemoteClass], gateway: str, version: str, key: str) -> dict[str, WorkerSource]:
    """The source of each class. Classes of Ray have all settings (see `with_ray_settled`).

    `gateway` is a name that no other gateway has, and `key` the text of the workers' key file, "" for none.
    """
    placed_by_ray = {each.name: each.ray for each in classes if each.ray is not None}
    cluster = RayCluster(placed_by_ray, gateway, version, key)
    return {each.name: _source(each, cluster) for each in classes}


def _source(given: RemoteClass, cluster: RayCluster) -> WorkerSource:
    if given.urls is not None:
        return StaticSource(given.name, given.slots, given.urls)
    if given.dns is not None:
        return DnsSource(given.name, given.slots, given.dns.name, given.dns.port)
    return cluster.source(given.name)
