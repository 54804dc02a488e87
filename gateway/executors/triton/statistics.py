"""The counts that Triton servers keep, beside Sluice's own counts of the batches that it sends them."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

from prometheus_client.core import Metric

from sluice.gateway.observability.exposition import ExposedMetric, Group
from sluice.gateway.observability.metrics import MetricsSource
from sluice.models.errors import ServingError
from sluice.models.units import NS_PER_S

INFERENCES = ExposedMetric(
    "sluice_triton_inferences_total",
    "counter",
    "Rows that the Triton server says that it has run.",
    ("model", "partition"),
)
EXECUTIONS = ExposedMetric(
    "sluice_triton_executions_total",
    "counter",
    "Batches that the Triton server says that it has run.",
    ("model", "partition"),
)
SECONDS = ExposedMetric(
    "sluice_triton_seconds_total",
    "counter",
    "Time of batches in the Triton server by its own count, by phase: queue, input, infer or output.",
    ("model", "partition", "phase"),
)
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
        """No family has few samples."""
        yield from ()

    def groups(self) -> Iterator[Group]:
        """All families."""
        yield Group((INFERENCES, EXECUTIONS, SECONDS), self._texts())

    def _texts(self) -> Iterator[tuple[str, ...]]:
        for partition, models in list(self._counts.items()):
            for model, counts in models.items():
                labels = model, partition
                phases = {
                    "queue": counts.queue_ns,
                    "input": counts.input_ns,
                    "infer": counts.infer_ns,
                    "output": counts.output_ns,
                }
                yield (
                    INFERENCES.sample(labels, counts.inferences),
                    EXECUTIONS.sample(labels, counts.executions),
                    "".join([SECONDS.sample((*labels, phase), ns / NS_PER_S) for phase, ns in phases.items()]),
                )
