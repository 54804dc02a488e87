"""Metrics of the front door."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sluice.gateway.front_door.budget import Budget
from sluice.gateway.front_door.faults import ClientFaults
from sluice.gateway.observability.metrics import MetricsSource


class FrontDoorMetrics(MetricsSource):
    """The connections over HTTP and gRPC, the bytes in the buffer, and the faults of clients."""

    def __init__(
        self,
        budget: Budget,
        faults: ClientFaults,
        connections: Callable[[], int],
        grpc_connections: Callable[[], int],
    ) -> None:
        self._budget = budget
        self._faults = faults
        self._connections = connections
        self._grpc_connections = grpc_connections

    async def refresh(self) -> None:
        """Nothing to refresh."""

    def collect(self) -> Iterator[Metric]:
        """The families, for prometheus_client."""
        yield GaugeMetricFamily("sluice_http_connections", "Open connections over HTTP.", self._connections())
        yield GaugeMetricFamily(
            "sluice_grpc_connections",
            "Open connections over gRPC; 0 with the server of grpcio.",
            self._grpc_connections(),
        )
        yield GaugeMetricFamily(
            "sluice_buffer_used_bytes",
            "Bytes of requests that are read and not answered, and of answers that are not taken.",
            self._budget.used,
        )
        faults = CounterMetricFamily(
            "sluice_client_faults", "Requests and connections ended by the front door.", labels=["reason"]
        )
        for reason, count in self._faults.counts.items():
            faults.add_metric([reason], count)
        yield faults
