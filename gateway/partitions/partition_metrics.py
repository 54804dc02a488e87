"""Metrics of partitions: whether they are up and enforced, and how often they were lost."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from sluice.gateway.observability.exposition import ExposedMetric, Group, of_metrics
from sluice.gateway.observability.metrics import MetricsSource
from sluice.gateway.partitions.inventory import Inventory, LinkReport

READY = ExposedMetric(
    "sluice_partition_ready",
    "gauge",
    "1 while the worker of the partition is up and takes batches, else 0; a slot without a worker has no sample.",
    ("partition",),
)
RESTARTS = ExposedMetric(
    "sluice_worker_restarts_total",
    "counter",
    "Workers of the partition that were lost unexpectedly and started again.",
    ("partition",),
)
ENFORCED = ExposedMetric(
    "sluice_partition_enforced",
    "gauge",
    "1 if the worker has proved that the partition's limits of cores, compute and memory hold, else 0.",
    ("partition",),
)
NODE = ExposedMetric(
    "sluice_partition_node",
    "gauge",
    "1 for the node that the remote worker of the partition is on; other metrics join it by the partition.",
    ("partition", "node"),
)


class PartitionMetrics(MetricsSource):
    """Shows the state of the inventory at each scrape, a partition at a time: there may be a thousand."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory

    def collect(self) -> Iterator[Metric]:
        """The families of nodes, for prometheus_client."""
        if self._inventory.has_remote:
            yield from self._nodes()

    def groups(self) -> Iterator[Group]:
        """All families."""
        yield Group((READY, RESTARTS, ENFORCED, NODE), self._texts())
        yield from of_metrics(self.collect())

    def _texts(self) -> Iterator[tuple[str, ...]]:
        inventory = self._inventory
        enforced, nodes = inventory.enforced(), inventory.nodes
        for name in inventory.names:
            is_enforced, node = enforced.get(name), nodes.get(name)
            yield (
                "" if inventory.is_vacant(name) else READY.sample((name,), inventory.is_up(name)),
                RESTARTS.sample((name,), inventory.losses(name)),
                "" if is_enforced is None else ENFORCED.sample((name,), is_enforced),
                "" if node is None else NODE.sample((name, node), 1),
            )

    def _nodes(self) -> Iterator[Metric]:
        """The ways to the nodes of remote workers."""
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
        for node in dict.fromkeys(self._inventory.nodes.values()):
            if (link := self._inventory.link_of(node)) is not None:
                found[node] = link
        for node, link in found.items():
            round_trips.add_metric([node], round(link.round_trip_ms / 1000, 6))
            if link.mb_per_s is not None:
                bandwidths.add_metric([node], link.mb_per_s * 1e6)
        yield from (round_trips, bandwidths)
