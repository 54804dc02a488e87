"""The counts that Triton servers keep, beside Sluice's own counts of the batches that it sends them."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

from prometheus_client.core import CounterMetricFamily, Metric

from sluice.gateway.observability.metrics import MetricsSource
from sluice.models.errors import ServingError
from sluice.models.units import NS_PER_S

TIMEOUT_S = 0.25
"""Time for all servers together; a server that does not answer in it keeps its last counts."""


class ModelCounts(NamedTuple):
    """A server's counts of a version of a model; a batch is an execution, a row an inference."""

    inferences: int
    executions: int
    queue_ns: int
    input_ns: int
    infer_ns: int
    output_ns: int


class Counting(Protocol):
    """A server that counts."""

    async def counts(self) -> Mapping[str, ModelCounts]:
        """By `name:version`; nothing while the server is lost. Raises ServingError."""
        ...


class TritonStatistics(MetricsSource):
    """The latest counts of servers, by the name of each."""

    def __init__(self, servers: Mapping[str, Counting]) -> None:
        self._servers = servers
        self._counts: dict[str, Mapping[str, ModelCounts]] = {}

    async def refresh(self) -> None:
        """Ask all servers, for `TIMEOUT_S` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                await asyncio.gather(*(self._ask(name, server) for name, server in self._servers.items()))

    async def _ask(self, name: str, server: Counting) -> None:
        with suppress(ServingError):
            self._counts[name] = await server.counts() or self._counts.get(name, {})

    def collect(self) -> Iterator[Metric]:
        """The families, for prometheus_client."""
        inferences = CounterMetricFamily(
            "sluice_triton_inferences", "Rows that the Triton server has run.", labels=["partition", "model"]
        )
        executions = CounterMetricFamily(
            "sluice_triton_executions", "Batches that the Triton server has run.", labels=["partition", "model"]
        )
        seconds = CounterMetricFamily(
            "sluice_triton_seconds",
            "Time of batches in the Triton server, by phase.",
            labels=["partition", "model", "phase"],
        )
        for partition, models in self._counts.items():
            for model, counts in models.items():
                inferences.add_metric([partition, model], counts.inferences)
                executions.add_metric([partition, model], counts.executions)
                for phase in ("queue", "input", "infer", "output"):
                    seconds.add_metric([partition, model, phase], getattr(counts, f"{phase}_ns") / NS_PER_S)
        yield from (inferences, executions, seconds)
