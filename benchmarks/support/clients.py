"""Clients of a server under measurement: the load generator in processes of its own, against models that sleep."""

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.record import Status
from sluice.loadgen.run.runner import run
from sluice.loadgen.scenarios.config import RunConfig
from sluice.models.units import NS_PER_S

PROTOCOLS = ("http", "grpc")
Times = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class Queries(NamedTuple):
    """The queries of a run in columns. Times are seconds on the monotonic clock, which all processes share.

    `took_s` counts from when a query was due. Without labels, `right` is true for each answer. `reasons` counts the
    failures, and `notes` says why the run is invalid, as where the client was late.
    """

    due_s: Times
    took_s: Times
    answered: Flags
    refused: Flags
    right: Flags
    reasons: dict[str, int]
    notes: list[str]

    @property
    def done_s(self) -> Times:
        """The ends of the queries."""
        return self.due_s + self.took_s

    def good(self, slo_ms: float) -> Flags:
        """The queries that were answered in time."""
        return self.answered & (self.took_s <= slo_ms / 1000)


def send(config: RunConfig) -> Queries:
    """Run the load generator; a function of a module, so that another process can run it."""
    result = run(config)
    record = result.record
    answered = record.status == Status.OK
    right = answered
    if result.predictions is not None and result.expected is not None:
        right = answered & (result.predictions == result.expected).all(axis=1)
    return Queries(
        due_s=(result.start_ns + record.due_ns) / NS_PER_S,
        took_s=(record.done_ns - record.due_ns) / NS_PER_S,
        answered=answered,
        refused=record.status == Status.SHED,
        right=right,
        reasons=record.reasons,
        notes=result.invalid,
    )


@contextmanager
def client_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that run `send`; they are fresh ones, since neither gRPC nor uvloop survives a fork."""
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        list(pool.map(time.sleep, [0.1] * count))  # Until all have started, which takes a second of a core each.
        yield pool


def save_sleeping(repository: Path, name: str, latency_ms: Mapping[int, float]) -> None:
    """Write a model that sleeps for the time of a table and echoes a whole number for each row."""
    tensor = {"datatype": "INT64", "shape": [1]}
    file = {
        "inputs": [{"name": "x"} | tensor],
        "outputs": [{"name": "y"} | tensor],
        "max_batch_size": max(latency_ms),
        "latency_ms": latency_ms,
    }
    path = repository / name / "1" / "model.timed.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(file))
