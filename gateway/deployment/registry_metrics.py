"""Metrics of what is served: whether the server is ready, and its models and pipelines by status."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from sluice.gateway.deployment.registry import ModelRegistry, VersionStatus
from sluice.gateway.observability.exposition import ExposedMetric, Group
from sluice.gateway.observability.metrics import MetricsSource
from sluice.models.repository.names import is_foreign

MODELS = ExposedMetric(
    "sluice_models",
    "gauge",
    "Versions of models and pipelines by status, as the repository index has it: ready, loading, unloading or "
    "unavailable.",
    ("status",),
)


class RegistryMetrics(MetricsSource):
    """Shows the state of the registry at each scrape."""

    def __init__(self, registry: ModelRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """The families with few samples, for prometheus_client."""
        yield GaugeMetricFamily(
            "sluice_ready",
            "1 while the server takes requests, as /v2/health/ready says, else 0.",
            int(self._registry.server_ready()),
        )

    def groups(self) -> Iterator[Group]:
        """All families."""
        yield from super().groups()
        yield Group((MODELS,), self._texts())

    def _texts(self) -> Iterator[tuple[str, ...]]:
        counts = Counter(dict.fromkeys(VersionStatus, 0))
        for name in self._registry.names():
            if not is_foreign(name):
                counts.update(status for _, status, _ in self._registry.states(name))
            yield ()
        for status, count in counts.items():
            yield (MODELS.sample((status.lower(),), count),)
