"""Partitions that are handed over to workers on other shares, which are played here."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from sluice.models.errors import PartitionError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.messages import (
    AddModel,
    BatchReport,
    BatchWithdrawn,
    CallModel,
    DropModel,
    FromWorker,
    LoadResult,
    ModelAdded,
    ModelDropped,
    ModelFile,
    ReadinessReport,
    WorkerReady,
)
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import CpuPartition, Partition
from sluice.mps.supervisor import supervisor
from sluice.mps.supervisor.child import Launch
from sluice.mps.supervisor.process import WorkerProcess
from sluice.mps.supervisor.supervisor import Supervisor
from sluice.mps.supervisor.worker_spec import WorkerSpec
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual

A, B, C = (ModelFile(key, f"{key}.onnx", "onnxruntime", (1,), batchable=True) for key in "abc")
SLOW, FAST = LatencyTable.from_ms({1: 4.0}), LatencyTable.from_ms({1: 2.0})
SMALL, LARGE = CpuPartition("cpu0", (0,)), CpuPartition("cpu0", (0, 1))


class Process:
    """A worker that is here: what it is sent, and how it answers and ends."""

    def __init__(
        self,
        partition: Partition,
        on_message: Callable[[FromWorker, tuple[int, ...]], None],
        on_exit: Callable[[str], None],
    ) -> None:
        self.partition = partition
        self.sent: list[Any] = []
        self.killed: list[str] = []
        self.closed = False
        self.wedged = False
        self.exited = asyncio.Event()
        self._say = on_message
        self._end = on_exit

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        self.sent.append(message)

    def deliver_pending(self) -> None:
        """Nothing has arrived that was not said."""

    def kill(self, reason: str) -> None:
        self.killed.append(reason)

    def close(self) -> None:
        self.closed = True
        if not self.wedged:
            self.exited.set()

    def end(self, reason: str) -> None:
        self.exited.set()
        self._end(reason)

    def say(self, message: FromWorker) -> None:
        self._say(message, ())

    def come_up(self, *models: LoadResult, cores: tuple[int, ...] | None = None) -> None:
        output = Region.create("sluice-test-outputs", 4096)
        evidence = Evidence(self.partition.cores if cores is None else cores)
        self._say(WorkerReady(1, evidence.cores, len(evidence.cores), models, evidence), (os.dup(output.fd),))
        output.close()

    @property
    def changes(self) -> list[AddModel | DropModel]:
        return [message for message in self.sent if isinstance(message, AddModel | DropModel)]


class Bench:
    """A supervisor over workers that the test plays; the first one holds `a` and `b`."""

    def __init__(self) -> None:
        self.made: list[Process] = []
        self.reported: list[str] = []
        self.tables: dict[str, LatencyTable] = {}
        other = WorkerSpec(CpuPartition("cpu1", (2,)), (), 4096)
        self.supervisor = Supervisor([WorkerSpec(SMALL, (A, B), 4096), other], self)

    def make(self, *arguments: Any, launch: Launch) -> Process:
        self.made.append(Process(*arguments))
        return self.made[-1]

    def start(self) -> None:
        self.supervisor.start()
        self.made[0].come_up(LoadResult("a", SLOW), LoadResult("b", SLOW))
        self.made[1].come_up()
        self.reported.clear()

    def resize(self, partition: Partition = LARGE) -> tuple["asyncio.Future[None]", Process]:
        done = self.supervisor.resize(partition, {})
        return done, self.made[-1]

    def worker_ready(self, partition: str, worker: WorkerProcess, ready: WorkerReady, output_region: int) -> None:
        self.reported.append(f"{partition} ready")

    def worker_lost(self, partition: str, reason: str) -> None:
        self.reported.append(f"{partition} lost: {reason}")

    def runs_retry(self, partition: str) -> bool:
        return False

    def worker_replaced(
        self,
        partition: str,
        worker: WorkerProcess,
        ready: WorkerReady,
        output_region: int,
        tables: dict[str, LatencyTable],
    ) -> None:
        self.reported.append(f"{partition} has cores {list(worker.partition.cores)}")
        self.tables = tables

    def worker_gone(self, worker: WorkerProcess, reason: str) -> None:
        self.reported.append(f"the one on {list(worker.partition.cores)} is gone: {reason}")

    def model_loaded(self, partition: str, model: LoadResult) -> None:
        self.reported.append(f"{partition} loaded {model.key}")

    def model_unloaded(self, partition: str, key: str) -> None:
        self.reported.append(f"{partition} unloaded {key}")

    def model_called(self, partition: str, worker: WorkerProcess, call: CallModel, fd: int) -> None:
        os.close(fd)

    def readiness_reported(self, partition: str, report: ReadinessReport) -> None: ...

    def message(
        self,
        partition: str,
        worker: WorkerProcess,
        message: BatchReport,
    ) -> None:
        self.reported.append(f"{partition}: batch {message.batch}")


@pytest.fixture
def benched(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Bench], Coroutine[Any, Any, None]]], None]:
    """Run a conversation with a supervisor on a loop of its own."""
    monkeypatch.setattr("sluice.mps.partitions.cpu.available_cores", lambda: (0, 1, 2))

    def run(conversation: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
        async def main(loop: VirtualLoop) -> None:
            bench = Bench()
            monkeypatch.setattr(supervisor, "WorkerProcess", bench.make)
            bench.start()
            await conversation(bench)
            await bench.supervisor.drain()

        run_virtual(main)

    return run


Run = Callable[[Callable[[Bench], Coroutine[Any, Any, None]]], None]


def test_a_worker_takes_over_with_all_models_and_the_one_before_ends_when_it_is_asked_to(benched: Run) -> None:
    async def conversation(bench: Bench) -> None:
        done, successor = bench.resize()
        assert (successor.sent[0].partition, [file.key for file in successor.sent[0].models]) == (LARGE, ["a", "b"])
        assert [file.table for file in successor.sent[0].models] == [None, None]
        bench.made[0].say(BatchWithdrawn(7))
        assert not done.done()
        successor.come_up(LoadResult("a", FAST), LoadResult("b", FAST))
        await done
        assert (bench.reported, bench.tables) == (["cpu0: batch 7", "cpu0 has cores [0, 1]"], {"a": FAST, "b": FAST})
        # Both answer now.
        bench.made[0].say(BatchWithdrawn(8))
        successor.say(BatchWithdrawn(9))
        bench.supervisor.load("cpu0", C)
        assert (bench.made[0].changes, [change.file.key for change in successor.changes]) == ([], ["c"])  # type: ignore[union-attr]
        bench.supervisor.retire(bench.made[0])  # type: ignore[arg-type]
        assert bench.made[0].closed
        bench.made[0].end("it exited with status 0")
        assert bench.reported[2:] == [
            "cpu0: batch 8",
            "cpu0: batch 9",
            "the one on [0] is gone: it exited with status 0",
        ]

    benched(conversation)


def test_the_worker_that_took_over_is_restarted_on_its_share(benched: Run) -> None:
    async def conversation(bench: Bench) -> None:
        _, successor = bench.resize()
        successor.come_up(LoadResult("a", FAST), LoadResult("b", FAST))
        successor.end("it was killed")
        await asyncio.sleep(1)
        assert (bench.made[-1].partition, [file.table for file in bench.made[-1].sent[0].models]) == (
            LARGE,
            [FAST, FAST],
        )
        bench.supervisor.retire(bench.made[0])  # type: ignore[arg-type]

    benched(conversation)


def test_one_that_does_not_end_is_killed(benched: Run) -> None:
    async def conversation(bench: Bench) -> None:
        _, successor = bench.resize()
        successor.come_up(LoadResult("a", FAST), LoadResult("b", FAST))
        bench.supervisor.retire(bench.made[0])  # type: ignore[arg-type]
        await asyncio.sleep(5.1)
        assert bench.made[0].killed == ["it did not exit in time"]

    benched(conversation)


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (lambda bench: bench.made[2].end("it was killed by SIGKILL"), "it was killed by SIGKILL"),
        (
            lambda bench: bench.made[2].come_up(LoadResult("a", FAST), LoadResult("b", None, "out of memory")),
            "model b does not load there: out of memory",
        ),
        (
            lambda bench: bench.made[2].come_up(LoadResult("a", FAST), LoadResult("b", FAST), cores=(0,)),
            "the partition of the new worker is not enforced: the worker runs on cores 0, expected 0, 1",
        ),
        (
            lambda bench: bench.made[0].end("it crashed"),
            "the worker that it was to replace was lost: it crashed",
        ),
        (lambda bench: bench.supervisor.cancel_replacement("cpu0", "it was given up"), "it was given up"),
    ],
)
def test_when_the_new_worker_cannot_take_over_all_stays_as_it_is(
    benched: Run, happens: Callable[[Bench], None], reason: str
) -> None:
    async def conversation(bench: Bench) -> None:
        done, successor = bench.resize()
        happens(bench)
        with pytest.raises(PartitionError) as refusal:
            await done
        assert str(refusal.value) == reason
        assert successor.killed == ([] if successor.exited.is_set() else [reason])
        if not successor.exited.is_set():
            successor.end("it was killed")
        bench.supervisor.load("cpu0", C)
        assert "has cores" not in " ".join(bench.reported)
        await asyncio.sleep(1)
        again, _ = bench.resize() if not bench.made[0].exited.is_set() else (done, successor)
        bench.supervisor.cancel_replacement("cpu0", "it was given up")
        assert again.exception() is not None

    benched(conversation)


@pytest.mark.parametrize("order", [(0, 2), (2, 0)])
def test_when_both_die_the_partition_has_its_share_again_and_can_be_resized_again(
    benched: Run, order: tuple[int, int]
) -> None:
    async def conversation(bench: Bench) -> None:
        done, _ = bench.resize()
        for number in order:
            bench.made[number].end("it was killed by SIGKILL")
        assert "it was killed by SIGKILL" in str(done.exception())
        await asyncio.sleep(1)
        assert [each.partition for each in bench.made[3:]] == [SMALL]
        bench.made[3].come_up(LoadResult("a", SLOW), LoadResult("b", SLOW))
        assert bench.reported == ["cpu0 lost: it was killed by SIGKILL", "cpu0 ready"]
        again, successor = bench.resize()
        successor.come_up(LoadResult("a", FAST), LoadResult("b", FAST))
        await again
        assert bench.reported[2:] == ["cpu0 has cores [0, 1]"]
        bench.supervisor.retire(bench.made[3])  # type: ignore[arg-type]

    benched(conversation)


def test_what_is_loaded_and_unloaded_meanwhile_is_so_on_the_new_worker_before_it_takes_over(benched: Run) -> None:
    async def conversation(bench: Bench) -> None:
        first, _ = bench.made[:2]
        done, successor = bench.resize()
        bench.supervisor.load("cpu0", C)
        bench.supervisor.unload("cpu0", "a")
        successor.come_up(LoadResult("a", FAST), LoadResult("b", FAST))
        first.say(ModelAdded(LoadResult("c", SLOW)))
        assert successor.changes == []  # the first one is not done
        first.say(ModelDropped("a"))
        assert successor.changes == [AddModel(C), DropModel("a")]
        successor.say(ModelAdded(LoadResult("c", FAST)))
        successor.say(ModelDropped("a"))
        await done
        assert bench.reported == ["cpu0 loaded c", "cpu0 unloaded a", "cpu0 has cores [0, 1]"]
        assert bench.tables == {"b": FAST, "c": FAST}
        bench.supervisor.retire(first)  # type: ignore[arg-type]

    benched(conversation)


def test_a_model_that_no_worker_could_load_is_no_reason(benched: Run) -> None:
    async def conversation(bench: Bench) -> None:
        bench.made[0].end("it crashed")
        await asyncio.sleep(1)
        bench.made[2].come_up(LoadResult("a", SLOW), LoadResult("b", None, "it is broken"))
        done, successor = bench.resize()
        successor.come_up(LoadResult("a", FAST), LoadResult("b", None, "it is broken"))
        await done
        assert bench.tables == {"a": FAST}
        bench.supervisor.retire(bench.made[2])  # type: ignore[arg-type]

    benched(conversation)


def test_a_model_that_is_on_its_way_out_is_no_reason_and_is_not_loaded_again(benched: Run) -> None:
    async def conversation(bench: Bench) -> None:
        done, successor = bench.resize()
        bench.supervisor.unload("cpu0", "b")
        successor.come_up(LoadResult("a", FAST), LoadResult("b", None, "out of memory"))
        bench.made[0].say(ModelDropped("b"))
        await done
        assert bench.tables == {"a": FAST}
        bench.supervisor.retire(bench.made[0])  # type: ignore[arg-type]
        successor.end("it was killed")
        await asyncio.sleep(1)
        assert [file.key for file in bench.made[-1].sent[0].models] == ["a"]

    benched(conversation)


def test_what_a_profile_says_of_the_new_share_counts_as_it_is(benched: Run) -> None:
    async def conversation(bench: Bench) -> None:
        stored = LatencyTable.from_ms({1: 5.0})
        bench.supervisor.resize(LARGE, {"a": stored})
        successor = bench.made[-1]
        assert [file.table for file in successor.sent[0].models] == [stored, None]
        successor.come_up(LoadResult("a", stored), LoadResult("b", FAST))
        assert bench.tables == {"a": stored, "b": FAST}
        bench.supervisor.retire(bench.made[0])  # type: ignore[arg-type]

    benched(conversation)


def test_no_worker_is_started_once_all_are_to_end(benched: Run) -> None:
    async def conversation(bench: Bench) -> None:
        done, successor = bench.resize()
        ending = asyncio.create_task(bench.supervisor.drain())
        await asyncio.sleep(0)
        assert str(done.exception()) == "the server is stopping"
        with pytest.raises(PartitionError, match="the server is stopping"):
            bench.resize()
        assert (len(bench.made), successor.killed) == (3, ["the server is stopping"])
        await ending

    benched(conversation)


def test_latencies_are_no_worse_than_in_proportion_to_the_share(benched: Run) -> None:
    async def conversation(bench: Bench) -> None:
        noisy = LatencyTable.from_ms({1: 9.0})
        _, grown = bench.resize()
        grown.come_up(LoadResult("a", noisy), LoadResult("b", FAST))
        assert bench.tables == {"a": SLOW, "b": FAST}
        _, shrunk = bench.resize(CpuPartition("cpu0", (1,)))
        shrunk.come_up(LoadResult("a", noisy), LoadResult("b", noisy))
        assert bench.tables == {"a": LatencyTable.from_ms({1: 8.0}), "b": SLOW}
        for process in (bench.made[0], grown):
            bench.supervisor.retire(process)  # type: ignore[arg-type]

    benched(conversation)


def test_cores_of_others_and_a_second_worker_at_a_time_are_refused(benched: Run) -> None:
    async def conversation(bench: Bench) -> None:
        with pytest.raises(PartitionError, match="core 2 already belongs to partition cpu0"):
            bench.resize(CpuPartition("cpu0", (0, 2)))
        done, _ = bench.resize()
        with pytest.raises(PartitionError, match="partition cpu0: a resize is already under way"):
            bench.resize()
        with pytest.raises(PartitionError, match="core 1 already belongs to partition cpu1"):
            bench.resize(CpuPartition("cpu1", (1, 2)))
        assert len(bench.made) == 3
        bench.supervisor.cancel_replacement("cpu0", "it was given up")
        assert done.exception() is not None
        bench.made[0].end("it crashed")
        with pytest.raises(PartitionError, match="partition cpu0: its worker is not ready"):
            bench.resize()

    benched(conversation)
