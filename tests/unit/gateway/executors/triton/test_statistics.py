"""The counters of Triton servers in our metrics."""

import asyncio
from collections.abc import Mapping

import pytest

from sluice.gateway.executors.triton import statistics as triton_statistics
from sluice.gateway.executors.triton.statistics import ModelCounts, TritonStatistics
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.models.errors import PartitionError

COUNTS = ModelCounts(640, 10, 250_000_000, 500_000_000, 2_000_000_000, 0)


class Server:
    """Counts what the test says; with None it hangs."""

    def __init__(self, counts: Mapping[str, ModelCounts] | None) -> None:
        self.now = counts
        self.error: PartitionError | None = None

    async def counts(self) -> Mapping[str, ModelCounts]:
        if self.error is not None:
            raise self.error
        if self.now is None:
            await asyncio.Event().wait()
        return self.now or {}


def scraped(metrics: ServerMetrics) -> list[str]:
    lines = b"".join(asyncio.run(metrics.scrape())).decode().splitlines()
    return [line for line in lines if line.startswith("sluice_triton_") and "breaker" not in line]


def metrics_of(**servers: Server) -> ServerMetrics:
    metrics = ServerMetrics({}, [], queues=tuple, arena_bytes=lambda: 0)
    metrics.include(TritonStatistics(servers))
    return metrics


def test_the_counts_of_each_server_are_shown() -> None:
    assert scraped(metrics_of(gpu0=Server({"mlp:1": COUNTS}))) == [
        'sluice_triton_inferences_total{model="mlp:1",partition="gpu0"} 640.0',
        'sluice_triton_executions_total{model="mlp:1",partition="gpu0"} 10.0',
        'sluice_triton_seconds_total{model="mlp:1",partition="gpu0",phase="queue"} 0.25',
        'sluice_triton_seconds_total{model="mlp:1",partition="gpu0",phase="input"} 0.5',
        'sluice_triton_seconds_total{model="mlp:1",partition="gpu0",phase="infer"} 2.0',
        'sluice_triton_seconds_total{model="mlp:1",partition="gpu0",phase="output"} 0.0',
    ]


def test_of_a_server_that_does_not_answer_the_last_counts_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_statistics, "TIMEOUT_S", 0.01)
    slow, other = Server({"a:1": COUNTS}), Server({"b:1": COUNTS})
    metrics = metrics_of(slow=slow, other=other)
    scraped(metrics)
    slow.now, other.now = None, {"b:1": COUNTS._replace(executions=11)}
    assert [line for line in scraped(metrics) if "executions" in line] == [
        'sluice_triton_executions_total{model="a:1",partition="slow"} 10.0',
        'sluice_triton_executions_total{model="b:1",partition="other"} 11.0',
    ]


@pytest.mark.parametrize("lost", [True, False])
def test_of_a_server_that_is_lost_the_last_counts_stand(lost: bool) -> None:
    server = Server({"a:1": COUNTS})
    metrics = metrics_of(t=server)
    before = scraped(metrics)
    server.now = {}
    server.error = PartitionError("gone") if lost else None
    assert scraped(metrics) == before
