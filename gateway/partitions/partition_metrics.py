"""Metrics of partitions: whether they are up and enforced, and how often they were lost."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sluice.gateway.observability.metrics import MetricsSource
from sluice.gateway.partitions.inventory import Inventory, LinkReport


class PartitionMetrics(MetricsSource):
    """Shows the state of the inventory at each scrape."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory

    def collect(self) -> Iterator[Metric]:
        """The families, for prometheus_client."""
        ready = GaugeMetricFamily(
            "sluice_partition_ready",
            "1 while the worker of the partition is up and takes batches, else 0.",
            labels=["partition"],
        )
        restarts = CounterMetricFamily(
            "sluice_worker_restarts",
            "Workers of the partition that were lost unexpectedly and started again.",
            labels=["partition"],
        )
        for name in self._inventory.names:
            ready.add_metric([name], int(self._inventory.is_up(name)))
            restarts.add_metric([name], self._inventory.losses(name))
        enforced = GaugeMetricFamily(
            "sluice_partition_enforced",
            "1 if the worker has proved that the partition's limits of cores, compute and memory hold, else 0.",
            labels=["partition"],
        )
        for name, is_enforced in self._inventory.enforced().items():
            enforced.add_metric([name], int(is_enforced))
        yield from (ready, restarts, enforced)
        if self._inventory.has_remote:
            yield from self._nodes()

    def _nodes(self) -> Iterator[Metric]:
        """The nodes of remote workers, and the ways there."""
        nodes = GaugeMetricFamily(
            "sluice_partition_node",
            "1 for the node that the remote worker of the partition is on; other metrics join it by the partition.",
            labels=["partition", "node"],
        )
        round_trips = GaugeMetricFamily(
            "sluice_node_round_trip_seconds",
            "The quickest of the last round trips of a small message to the node.",
            labels=["node"],
        )
        bandwidths = GaugeMetricFamily(
            "sluice_node_bandwidth_bytes_per_second",
            "The rate at which large tensors reach the node and come back, once some have.",
            labels=["node"],
        )
        found: dict[str, LinkReport] = {}
        for name, node in self._inventory.nodes.items():
            nodes.add_metric([name, node], 1)
            if node not in found and (link := self._inventory.link_of(node)) is not None:
                found[node] = link
        for node, link in found.items():
            round_trips.add_metric([node], round(link.round_trip_ms / 1000, 6))
            if link.mb_per_s is not None:
                bandwidths.add_metric([node], link.mb_per_s * 1e6)
        yield from (nodes, round_trips, bandwidths)
