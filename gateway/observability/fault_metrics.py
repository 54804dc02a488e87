"""Metrics of what fails, and of what is done about it."""

from collections.abc import Callable, Collection, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sluice.batcher.interface.events import FailureCause
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.gateway.observability.metrics import MetricsSource
from sluice.models.spec import public_key


class FaultMetrics(MetricsSource):
    """Batches that failed, by (model, partition, cause), and what partitions are kept to since.

    `quarantined` are the partitions that are left alone, of `partitions`.
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
        """Nothing has to be asked for."""

    def collect(self) -> Iterator[Metric]:
        """The families, for prometheus_client."""
        failures = CounterMetricFamily(
            "sluice_batch_failures", "Batches that did not complete.", labels=["model", "partition", "cause"]
        )
        for labels, count in self._failures.items():
            failures.add_metric(labels, count)
        ceilings = GaugeMetricFamily(
            "sluice_batch_ceiling_rows", "Rows of the largest batch, as more had no memory.", labels=["model", "kind"]
        )
        for key, model in self._scheduler.dispatcher.models.items():
            for kind, ceiling in model.ceilings.items():
                ceilings.add_metric([public_key(key), kind], ceiling.rows)
        quarantine = GaugeMetricFamily(
            "sluice_partition_quarantined", "1 while it is left alone after faults.", labels=["partition"]
        )
        quarantined = self._quarantined()
        for partition in self._partitions:
            quarantine.add_metric([partition], int(partition in quarantined))
        yield from (failures, ceilings, quarantine)
