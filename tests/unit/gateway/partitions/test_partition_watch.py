"""What is told, and counted, of workers that are replaced as planned."""

import logging

import pytest

from sluice.gateway.deployment.load_waiter import LoadWaiter
from sluice.gateway.deployment.registry import ModelRegistry
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.partitions.states import PartitionStates
from sluice.gateway.server.server import PartitionWatch
from sluice.mps.ipc.messages import WorkerReady
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import CpuPartition


class Bench:
    """A watch over one partition, whose worker is up."""

    def __init__(self) -> None:
        self.catalogue = ModelRegistry("1", [], (), ["cpu0"])
        self.metrics = ServerMetrics({}, ["cpu0"], queue_depths=dict, arena_bytes=lambda: 0)
        self.states = PartitionStates([CpuPartition("cpu0", (0,))])
        self.watch = PartitionWatch(self.catalogue, self.metrics, LoadWaiter(), self.states)
        self.watch.worker_ready("cpu0", WorkerReady(1, (0,), 1, (), Evidence((0,))))

    def figure(self, name: str) -> str:
        lines = self.metrics.exposition().decode().splitlines()
        return next(line.rpartition(" ")[2] for line in lines if line.startswith(f'{name}{{partition="cpu0"}}'))


def test_a_planned_restart_is_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    bench.watch.worker_retired("cpu0", "another one takes its place, so that its memory returns")
    assert [(record.levelname, record.message) for record in caplog.records[-1:]] == [("INFO", "worker retired")]
    assert (bench.figure("sluice_worker_restarts_total"), bench.figure("sluice_partition_ready")) == ("0.0", "0.0")
    assert not bench.catalogue.server_ready()
    bench.watch.worker_lost("cpu0", "killed by SIGKILL")
    assert (bench.figure("sluice_worker_restarts_total"), caplog.records[-1].levelname) == ("1.0", "ERROR")


def test_a_partition_that_is_resized_is_up_all_the_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    bench.watch.worker_replaced(CpuPartition("cpu0", (0, 1)), WorkerReady(2, (0, 1), 2, (), Evidence((0, 1))))
    state = bench.states.all()["cpu0"]
    assert (state.profile_kind, state.worker, state.enforcement.value) == ("cpu2", 2, "enforced")
    assert (bench.figure("sluice_worker_restarts_total"), bench.figure("sluice_partition_ready")) == ("0.0", "1.0")
    assert bench.catalogue.server_ready()
    assert [(record.levelname, record.message) for record in caplog.records[-1:]] == [("INFO", "partition resized")]
