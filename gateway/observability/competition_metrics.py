"""Metrics of competing stages."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from sluice.batcher.dispatch.competition import Competition
from sluice.gateway.observability.metrics import MetricsSource


class CompetitionMetrics(MetricsSource):
    """The copies that competing stages lack; those that ran are batches with the reason `compete`."""

    def __init__(self, competition: Competition) -> None:
        self._competition = competition

    def collect(self) -> Iterator[Metric]:
        """The family, for prometheus_client."""
        yield CounterMetricFamily(
            "sluice_competing_copies_unmade",
            "Copies of batches of competing stages that were due while no partition was idle.",
            value=self._competition.unmade,
        )
