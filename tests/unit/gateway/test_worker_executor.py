from typing import Any, cast

import numpy as np
import pytest

from batcher.decisions import DispatchBatch, Member, ReleaseReason
from batcher.events import (
    AnyEvent,
    BatchCompleted,
    BatchFailed,
    BatchRevoked,
    FailureCause,
    PartitionLost,
    PartitionReady,
)
from gateway.executors.worker import WorkerExecutor
from gateway.plan import OF_REQUEST, PipelinePlan, StagePlan, Wire
from models.errors import PartitionError
from models.profile import LatencyTable
from models.spec import ModelSpec
from models.tensor import VARIABLE, DataType, TensorSpec
from mps.arena import Region
from mps.cpu import default_partitions
from mps.messages import Done, Failed, LoadedModel, OutputTensor, Ready, Revoke, Revoked, Run
from mps.process import WorkerProcess
from mps.supervisor import WorkerSpec

SPEC = ModelSpec(
    "mlp", 1, (TensorSpec("x", DataType.FP32, (2,)),), (TensorSpec("y", DataType.FP32, (VARIABLE,)),), max_batch_size=4
)
PLAN = PipelinePlan(True, (StagePlan((Wire(OF_REQUEST, "x"),), None, "", ()),), {"y": (Wire(0, "y"),)}, 0, 1)
TABLE = LatencyTable.from_ms({1: 1.0})
READY = Ready(1, (0,), 1, (LoadedModel("mlp:1", TABLE), LoadedModel("big:1", None, "out of memory")))


class Packets:
    """The sending end of a worker's channel."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Bench:
    """An executor whose one worker is played by the test, over the real supervisor's regions."""

    def __init__(self) -> None:
        (partition,) = default_partitions(1)
        self.told: list[str] = []
        self.events: list[AnyEvent] = []
        self.executor = WorkerExecutor(
            [WorkerSpec(partition, (), 4096)], {"mlp:1": PLAN}, {"mlp:1": SPEC}, 1 << 16, self
        )
        self.supervisor = self.executor._supervisor
        self.executor._post = self.events.append
        self.worker = Packets()
        self.output = self.supervisor.share_region(Region.create("test-outputs", 4096))
        self.executor.worker_ready("cpu0", cast("WorkerProcess", self.worker), READY, self.output)
        self._batches = 0

    def worker_ready(self, partition: str, ready: Ready) -> None:
        self.told.append(f"{partition} ready")

    def worker_lost(self, partition: str, reason: str) -> None:
        self.told.append(f"{partition} lost: {reason}")

    def send(self, request: int) -> int:
        """One request, one row, one batch; returns the batch."""
        self._batches += 1
        self.executor.admit(request, "mlp:1", {"x": np.ones((1, 2), np.float32)}, 1, 8)
        members = (Member(request, 0, 1),)
        self.executor.run(DispatchBatch(self._batches, "cpu0", "mlp:1", 1, members, ReleaseReason.IDLE))
        return self._batches

    def done(self, batch: int, slot: int = 0, region: int | None = None) -> None:
        place = (self.output if region is None else region), max(slot, 0), 12
        self.executor.message("cpu0", Done(batch, 5, 9, (OutputTensor("y", DataType.FP32, (1, 3), *place),), slot))

    def mapped(self, region: int) -> bool:
        try:
            self.supervisor.region(region)
        except KeyError:
            return False
        return True


def test_a_worker_that_is_ready_reports_the_models_it_loaded() -> None:
    bench = Bench()
    assert bench.events == [PartitionReady("cpu0", {"mlp:1": TABLE})]
    assert bench.told == ["cpu0 ready"]


def test_a_completed_batch_tells_times_and_the_shapes_of_variable_outputs() -> None:
    bench = Bench()
    bench.done(bench.send(1))
    assert bench.events[1:] == [BatchCompleted(1, 5, 9, (), "y=3")]


def test_a_slot_goes_back_with_the_next_batch_after_its_answer_was_released() -> None:
    bench = Bench()
    bench.done(bench.send(1), slot=64)
    bench.send(2)
    _, release = bench.executor.take(1)
    release()
    bench.send(3)
    assert [message.release for message in bench.worker.sent if isinstance(message, Run)] == [(), (), (64,)]


def test_outputs_of_their_own_region_are_unmapped_when_the_answer_was_released() -> None:
    bench = Bench()
    overflow = bench.supervisor.share_region(Region.create("test-overflow", 4096))
    bench.done(bench.send(1), slot=-1, region=overflow)
    _, release = bench.executor.take(1)
    assert bench.mapped(overflow)
    release()
    assert not bench.mapped(overflow)


def test_a_lost_worker_fails_its_batches_and_its_outputs_live_until_they_are_released() -> None:
    bench = Bench()
    bench.done(bench.send(1))
    running = bench.send(2)
    bench.executor.worker_lost("cpu0", "killed by SIGKILL")
    assert bench.events[2:] == [
        PartitionLost("cpu0", "killed by SIGKILL"),
        BatchFailed(running, FailureCause.WORKER_LOST, "killed by SIGKILL"),
    ]
    assert bench.told[1:] == ["cpu0 lost: killed by SIGKILL"]
    assert bench.executor.arena_bytes == 0
    assert bench.mapped(bench.output)
    _, release = bench.executor.take(1)
    release()
    assert not bench.mapped(bench.output)
    with pytest.raises(PartitionError, match="partition cpu0 has no worker"):
        bench.send(3)


def test_failed_and_revoked_batches_are_reported_and_give_their_inputs_back() -> None:
    bench = Bench()
    failed, revoked = bench.send(1), bench.send(2)
    bench.executor.revoke(revoked)
    assert bench.worker.sent[-1] == Revoke(revoked)
    bench.executor.message("cpu0", Failed(failed, "mlp:1: bad row"))
    bench.executor.message("cpu0", Revoked(revoked))
    assert bench.events[1:] == [BatchFailed(failed, FailureCause.BACKEND, "mlp:1: bad row"), BatchRevoked(revoked)]
    assert bench.executor.arena_bytes == 0
