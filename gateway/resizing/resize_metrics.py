"""Metrics of partitions that were given other shares of the machine."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric

from sluice.gateway.observability.metrics import MetricsSource
from sluice.gateway.resizing.resizing import Asked


class ResizeMetrics(MetricsSource):
    """Who asked for how many resizes of each partition, and why."""

    def __init__(self, done: Mapping[tuple[str, Asked], int]) -> None:
        self._done = done

    async def refresh(self) -> None:
        """Nothing has to be asked for."""

    def collect(self) -> Iterator[Metric]:
        """The family, for prometheus_client."""
        resizes = CounterMetricFamily(
            "sluice_partition_resizes", "Other shares that it was given.", labels=["partition", "by", "reason"]
        )
        for (partition, asked), count in self._done.items():
            resizes.add_metric([partition, *asked], count)
        yield resizes
