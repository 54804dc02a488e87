"""Metrics of faults and of the measures against them."""

from collections.abc import Callable, Collection, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sluice.batcher.interface.events import FailureCause
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.gateway.observability.metrics import MetricsSource
from sluice.models.spec import public_key


class FaultMetrics(MetricsSource):
    """Failed batches by (model, partition, cause), batch limits after memory faults, and quarantine.

    `quarantined` returns the partitions in quarantine, among `partitions`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        failures: Mapping[tuple[str, str, FailureCause], int],
        partitions: Collection[str],
        quarantined: Callable[[], Collection[str]],
    ) -> None:
        self._scheduler = scheduler
        self._failures = failures
        self._partitions = partitions
        self._quarantined = quarantined

    async def refresh(self) -> None:
        """Nothing to refresh."""

    def collect(self) -> Iterator[Metric]:
        """The families, for prometheus_client."""
        failures = CounterMetricFamily(
            "sluice_batch_failures", "Batches that failed, by cause.", labels=["model", "partition", "cause"]
        )
        for labels, count in self._failures.items():
            failures.add_metric(labels, count)
        limits = GaugeMetricFamily(
            "sluice_batch_ceiling_rows",
            "Largest batch in rows since a larger one ran out of memory.",
            labels=["model", "kind"],
        )
        for key, model in self._scheduler.dispatcher.models.items():
            for kind, limit in model.batch_limits.items():
                limits.add_metric([public_key(key), kind], limit.rows)
        quarantine = GaugeMetricFamily(
            "sluice_partition_quarantined",
            "1 while the partition is in quarantine after repeated faults.",
            labels=["partition"],
        )
        quarantined = self._quarantined()
        for partition in self._partitions:
            quarantine.add_metric([partition], int(partition in quarantined))
        yield from (failures, limits, quarantine)
