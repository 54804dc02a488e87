"""The supervisor handles the messages of its workers; `tests/system/test_workers.py` has real ones."""

import asyncio
import gc
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sluice.models.errors import PartitionError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.profiles.measurement import ModelMemory
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.messages import (
    BatchFinished,
    BatchRefused,
    BatchReport,
    CallModel,
    FromWorker,
    LoadResult,
    ModelAdded,
    ModelDropped,
    ModelFile,
    ModelMeasured,
    OverflowCreated,
    ReadinessReport,
    WorkerReady,
)
from sluice.mps.partitions.partition import CpuPartition, Partition
from sluice.mps.supervisor import supervisor
from sluice.mps.supervisor.child import Launch
from sluice.mps.supervisor.process import WorkerProcess
from sluice.mps.supervisor.supervisor import Supervisor
from sluice.mps.supervisor.worker_spec import WorkerSpec
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual

A, B = (ModelFile(key, f"{key}.onnx", "onnxruntime", (1,), batchable=True) for key in "ab")
TABLE = LatencyTable.from_ms({1: 2.0})


class Process:
    """A worker that is here: what it is sent, and how it answers and ends."""

    made: list["Process"]

    def __init__(
        self,
        partition: Partition,
        on_message: Callable[[FromWorker, tuple[int, ...]], None],
        on_exit: Callable[[str], None],
        launch: Launch,
    ) -> None:
        self.sent: list[Any] = []
        self.say = on_message
        self.end = on_exit
        self.exited = asyncio.Event()
        self.made.append(self)

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        self.sent.append(message)

    def close(self) -> None:
        self.exited.set()


class Owner:
    """Counts the workers that got ready."""

    ready = 0

    def worker_ready(self, partition: str, worker: WorkerProcess, ready: WorkerReady, output_region: int) -> None:
        self.ready += 1

    def worker_lost(self, partition: str, reason: str) -> None: ...

    def runs_retry(self, partition: str) -> bool:
        return False

    def worker_replaced(
        self,
        partition: str,
        worker: WorkerProcess,
        ready: WorkerReady,
        output_region: int,
        tables: dict[str, LatencyTable],
    ) -> None: ...

    def worker_gone(self, worker: WorkerProcess, reason: str) -> None: ...

    def model_loaded(self, partition: str, model: LoadResult) -> None: ...

    def model_unloaded(self, partition: str, key: str) -> None: ...

    def model_called(self, partition: str, worker: WorkerProcess, call: CallModel, fd: int) -> None:
        os.close(fd)

    def readiness_reported(self, partition: str, report: ReadinessReport) -> None: ...

    def message(
        self,
        partition: str,
        worker: WorkerProcess,
        message: BatchReport,
    ) -> None: ...


def test_a_model_that_is_forgotten_while_a_worker_starts_is_not_held_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(loop: VirtualLoop) -> None:
        owner = Owner()
        workers = Supervisor([WorkerSpec(CpuPartition("cpu0", (0,)), (A, B), 4096)], owner)
        workers.start()
        workers.forget_model("a")
        output = Region.create("sluice-test-outputs", 4096)
        first = Process.made[0]
        results = (LoadResult("a", TABLE), LoadResult("b", TABLE, memory=ModelMemory(4096, 8)))
        first.say(WorkerReady(1, (0,), 1, results), (os.dup(output.fd),))
        output.close()
        assert owner.ready == 1
        first.end("it was killed")
        await asyncio.sleep(1)
        (load,) = Process.made[1].sent
        assert [(file.key, file.table, file.memory_measured) for file in load.models] == [("b", TABLE, True)]
        await workers.drain()

    Process.made = []
    monkeypatch.setattr(supervisor, "WorkerProcess", Process)
    run_virtual(main)


ADDED = ModelAdded(LoadResult("b", TABLE))


def with_overflow() -> tuple[Supervisor, Process, Region]:
    """A supervisor whose worker holds `a` and has announced an overflow region; all its regions are the same memory."""
    workers = Supervisor([WorkerSpec(CpuPartition("cpu0", (0,)), (A,), 4096)], Owner())
    workers.start()
    region = Region.create("sluice-test-outputs", 4096)
    (process,) = Process.made
    process.say(WorkerReady(1, (0,), 1, (LoadResult("a", TABLE),)), (os.dup(region.fd),))
    process.say(OverflowCreated(-1, 4096), (os.dup(region.fd),))
    return workers, process, region


@pytest.mark.parametrize(
    ("message", "regions", "reason"),
    [
        (WorkerReady(1, (0,), 1, ()), 1, "it got ready twice"),
        (WorkerReady(1, (0,), 1, ()), 0, "message of a worker: expected one descriptor of a region, got 0"),
        (ADDED, 0, "model b is loaded, which was not ordered"),
        (ADDED, 2, "ModelAdded came with 2 descriptors, expected none"),
        (ModelDropped("a"), 0, "model a is unloaded, which was not ordered"),
        (ModelMeasured(), 0, "a model was measured, which was not ordered"),
        (OverflowCreated(1, 4096), 1, "region 1 cannot be an overflow region now"),
        (OverflowCreated(-2, 4096), 1, "region -2 cannot be an overflow region now"),
    ],
)
def test_a_message_that_does_not_fit_what_a_worker_was_sent_is_refused_and_leaves_no_memory(
    message: FromWorker, regions: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(loop: VirtualLoop) -> None:
        workers, process, region = with_overflow()
        gc.collect()
        before = os.listdir("/proc/self/fd")
        with pytest.raises(PartitionError) as error:
            process.say(message, tuple(os.dup(region.fd) for _ in range(regions)))
        assert str(error.value) == reason
        gc.collect()
        assert os.listdir("/proc/self/fd") == before
        region.close()
        await workers.drain()

    Process.made = []
    monkeypatch.setattr(supervisor, "WorkerProcess", Process)
    run_virtual(main)


def test_a_worker_answers_nothing_before_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualLoop) -> None:
        workers = Supervisor([WorkerSpec(CpuPartition("cpu0", (0,)), (A,), 4096)], Owner())
        workers.start()
        (process,) = Process.made
        for answer in (BatchFinished(1, 0, 1, (), 0), BatchRefused(1, "too many batches"), ADDED):
            with pytest.raises(PartitionError, match=f"{type(answer).__name__} came before it was ready"):
                process.say(answer, ())
        await workers.drain()

    Process.made = []
    monkeypatch.setattr(supervisor, "WorkerProcess", Process)
    run_virtual(main)


def test_an_overflow_region_of_an_answer_that_never_came_goes_with_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualLoop) -> None:
        workers, process, region = with_overflow()
        process.say(BatchRefused(1, "another batch failed"), ())
        assert workers.region(-1).nbytes == 4096
        process.end("it was killed")
        with pytest.raises(KeyError):
            workers.region(-1)
        region.close()
        await workers.drain()

    Process.made = []
    monkeypatch.setattr(supervisor, "WorkerProcess", Process)
    run_virtual(main)
