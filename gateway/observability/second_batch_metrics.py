"""Metrics of second batches."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from sluice.batcher.dispatch.second_batches import SecondBatches
from sluice.gateway.observability.metrics import MetricsSource


class SecondBatchMetrics(MetricsSource):
    """The batches that were revoked before they began, since they are worth more elsewhere or later."""

    def __init__(self, second_batches: SecondBatches) -> None:
        self._second_batches = second_batches

    def collect(self) -> Iterator[Metric]:
        """The family, for prometheus_client."""
        revoked = CounterMetricFamily(
            "sluice_batches_revoked",
            "Batches that were asked back from behind another one: moved to an idle partition, or overtaken.",
            labels=["reason"],
        )
        revoked.add_metric(["moved"], self._second_batches.moved)
        revoked.add_metric(["overtaken"], self._second_batches.overtaken)
        yield revoked
