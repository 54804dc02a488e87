"""Log lines and metrics of workers that come and go."""

import logging

import pytest

from sluice.batcher.interface.events import ModelLoaded, ModelLoadFailed, ModelUnloaded, PartitionLost, PartitionReady
from sluice.gateway.deployment.registry import ModelRegistry
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.partitions.inventory import Inventory, ProcessDetails
from sluice.gateway.partitions.partition_log import log_change
from sluice.gateway.partitions.partition_metrics import PartitionMetrics
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import CpuPartition
from tests.support.gateway.inventory import resized

TABLE = LatencyTable.from_ms({1: 1})
READY = ProcessDetails(1, (0,), Evidence((0,)), failed={"big:1": "out of memory"})


class Bench:
    """An inventory of one partition, whose worker is up, and of a Triton server."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog
        self.inventory = Inventory([CpuPartition("cpu0", (0,))], ["triton"])
        self.inventory.subscribe(log_change)
        self.registry = ModelRegistry("1", [], (), self.inventory)
        self.metrics = ServerMetrics({}, self.inventory.names, queues=tuple, arena_bytes=lambda: 0)
        self.metrics.include(PartitionMetrics(self.inventory))
        self.inventory.apply(PartitionLost("triton", "connection refused"), ProcessDetails(url="host:1"))
        self.inventory.apply(PartitionReady("cpu0", {"m:1": TABLE}), READY)

    def lines(self) -> list[tuple[str, str, dict[str, object]]]:
        """The records logged since the last call: level, event and fields."""
        lines = [(record.levelname, record.getMessage(), record.__dict__["fields"]) for record in self._caplog.records]
        self._caplog.clear()
        return lines

    def figure(self, name: str, partition: str = "cpu0") -> str:
        lines = self.metrics.exposition().decode().splitlines()
        return next(line.rpartition(" ")[2] for line in lines if line.startswith(f'{name}{{partition="{partition}"}}'))


def test_processes_that_come_up_are_logged_with_the_models_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(caplog)
    assert bench.lines() == [
        ("ERROR", "triton lost", {"partition": "triton", "url": "host:1", "reason": "connection refused"}),
        ("ERROR", "model failed to load", {"model": "big:1", "partition": "cpu0", "reason": "out of memory"}),
        (
            "INFO",
            "worker ready",
            {"partition": "cpu0", "worker": 1, "cores": [0], "isolation": "enforced", "models": ["m:1"]},
        ),
    ]
    bench.inventory.apply(PartitionReady("triton", {"m:1": TABLE}), ProcessDetails(url="host:1"))
    assert bench.lines() == [
        ("INFO", "triton ready", {"partition": "triton", "url": "host:1", "models": ["m:1"]}),
    ]
    assert bench.figure("sluice_partition_ready", "triton") == "1.0"
    assert bench.figure("sluice_worker_restarts_total", "triton") == "1.0"


def test_a_planned_restart_is_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(caplog)
    bench.lines()
    reason = "the worker is being recycled to free memory"
    bench.inventory.apply(PartitionLost("cpu0", reason), ProcessDetails(planned=True))
    assert bench.lines() == [("INFO", "worker retired", {"partition": "cpu0", "reason": reason})]
    assert (bench.figure("sluice_worker_restarts_total"), bench.figure("sluice_partition_ready")) == ("0.0", "0.0")
    assert not bench.registry.server_ready()
    bench.inventory.apply(PartitionLost("cpu0", "killed by SIGKILL"), ProcessDetails(failed={"n:1": "killed"}))
    assert bench.lines() == [
        ("ERROR", "model failed to load", {"model": "n:1", "partition": "cpu0", "reason": "killed"}),
        ("ERROR", "worker lost", {"partition": "cpu0", "reason": "killed by SIGKILL"}),
    ]
    assert bench.figure("sluice_worker_restarts_total") == "1.0"


def test_a_partition_that_is_resized_is_up_all_the_time(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(caplog)
    bench.lines()
    resized(bench.inventory, CpuPartition("cpu0", (0, 1)))
    assert (bench.figure("sluice_worker_restarts_total"), bench.figure("sluice_partition_ready")) == ("0.0", "1.0")
    assert bench.figure("sluice_partition_enforced") == "1.0"
    assert bench.registry.server_ready()
    fields = {"partition": "cpu0", "kind": "cpu2", "worker": 1, "cores": [0, 1], "isolation": "enforced"}
    assert bench.lines() == [("INFO", "partition resized", fields)]


def test_models_are_logged_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(caplog)
    bench.lines()
    bench.inventory.apply(ModelLoaded("cpu0", "n:1", TABLE), ProcessDetails(evidence=Evidence((1,))))
    bench.inventory.apply(ModelLoadFailed("cpu0", "k:1", "torn"))
    bench.inventory.apply(ModelUnloaded("cpu0", "n:1"))
    reason = "the worker runs on cores 1, expected 0"
    assert bench.lines() == [
        ("ERROR", "partition unenforced", {"partition": "cpu0", "worker": 1, "reason": reason}),
        ("INFO", "model loaded", {"model": "n:1", "partition": "cpu0"}),
        ("ERROR", "model failed to load", {"model": "k:1", "partition": "cpu0", "reason": "torn"}),
        ("INFO", "model unloaded", {"model": "n:1", "partition": "cpu0"}),
    ]
