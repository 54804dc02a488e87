"""Metrics of the measures against faults."""

from collections.abc import Callable, Collection, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.gateway.observability.exposition import ExposedMetric, Group
from sluice.gateway.observability.metrics import MetricsSource
from sluice.models.spec import public_key

BATCH_CEILING = ExposedMetric(
    "sluice_batch_ceiling_rows",
    "gauge",
    "Largest batch of the model in rows on partitions of the kind, since a larger one ran out of memory there.",
    ("kind", "model"),
)


class FaultMetrics(MetricsSource):
    """Batch limits after memory faults, and quarantine.

    `quarantined` returns the partitions in quarantine, among `partitions`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        partitions: Collection[str],
        quarantined: Callable[[], Collection[str]],
    ) -> None:
        self._scheduler = scheduler
        self._partitions = partitions
        self._quarantined = quarantined

    def groups(self) -> Iterator[Group]:
        """All families."""
        yield from super().groups()
        yield Group((BATCH_CEILING,), self._ceilings())

    def collect(self) -> Iterator[Metric]:
        """The families with few samples, for prometheus_client."""
        quarantine = GaugeMetricFamily(
            "sluice_partition_quarantined",
            "1 while the partition is in quarantine after repeated faults, else 0.",
            labels=["partition"],
        )
        quarantined = self._quarantined()
        for partition in self._partitions:
            quarantine.add_metric([partition], int(partition in quarantined))
        yield quarantine

    def _ceilings(self) -> Iterator[tuple[str, ...]]:
        for key, model in list(self._scheduler.dispatcher.models.items()):
            limits = model.batch_limits
            yield ("".join([BATCH_CEILING.sample((kind, public_key(key)), limits[kind].rows) for kind in limits]),)
