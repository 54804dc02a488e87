"""Metrics of the front door."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sluice.gateway.observability.metrics import MetricsSource


class FrontDoorCounts(NamedTuple):
    """The open connections, the bytes in the buffer, and the faults of clients by reason."""

    http_connections: int
    grpc_connections: int
    buffer_bytes: int
    faults: Mapping[str, int]


class FrontDoorMetrics(MetricsSource):
    """The counts of all front doors of a server together, which `counts` returns at each scrape."""

    def __init__(self, counts: Callable[[], FrontDoorCounts]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """The families, for prometheus_client."""
        counts = self._counts()
        yield GaugeMetricFamily(
            "sluice_http_connections", "Open connections of clients over HTTP.", counts.http_connections
        )
        yield GaugeMetricFamily(
            "sluice_grpc_connections",
            "Open connections of clients over gRPC; always 0 with grpc_server: grpcio.",
            counts.grpc_connections,
        )
        yield GaugeMetricFamily(
            "sluice_buffer_used_bytes",
            "Bytes of requests that are read and not answered, and of answers that clients have not taken.",
            counts.buffer_bytes,
        )
        faults = CounterMetricFamily(
            "sluice_client_faults",
            "Requests and connections that the front door has ended because of their clients, by reason.",
            labels=["reason"],
        )
        for reason, count in counts.faults.items():
            faults.add_metric([reason], count)
        yield faults
