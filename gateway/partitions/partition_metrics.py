"""Metrics of partitions: whether they are up and enforced, and how often they were lost."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sluice.gateway.observability.metrics import MetricsSource
from sluice.gateway.partitions.inventory import Inventory


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
