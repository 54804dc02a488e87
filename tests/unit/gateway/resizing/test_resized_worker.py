"""Workers whose place one on another share takes: what each of them runs, and what is reported of it."""

import asyncio
from typing import Any, cast

import pytest

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.events import BatchCompleted, BatchFailed, FailureCause, PartitionResized
from sluice.models.errors import PartitionError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.messages import BatchFault, BatchRefused, RunBatch, WorkerReady
from sluice.mps.partitions.partition import CpuPartition
from sluice.mps.supervisor.process import WorkerProcess
from tests.unit.gateway.executors.worker.test_executor import Bench, Packets, benched

SHARE = CpuPartition("cpu0", (0, 1))
CONFIG = PartitionConfig("cpu0", "cpu2", 2.0, 0.5)
FAST = LatencyTable.from_ms({1: 0.5})
READY = WorkerReady(2, (0, 1), 2, ())


class Resized:
    """A bench whose supervisor starts new workers as the test says."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.successor = Packets()
        self.output = bench.supervisor.share_region(Region.create("test-outputs-next", 4096))
        self.retired: list[object] = []
        self.kept: list[str] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        replaced: dict[str, Any] = {
            "resize": lambda partition, tables: self.done,
            "retire": self.retired.append,
            "cancel_replacement": self.cancel_replacement,
        }
        for name, method in replaced.items():
            setattr(bench.supervisor, name, method)

    def cancel_replacement(self, partition: str, reason: str) -> None:
        self.kept.append(reason)
        if not self.done.done():
            self.done.set_exception(PartitionError(reason))

    async def begin(self) -> "asyncio.Task[None]":
        resizing = asyncio.create_task(self.bench.executor.resize(SHARE, CONFIG, {"big:1": FAST}, 60.0))
        await asyncio.sleep(0)
        return resizing

    def take_over(self) -> None:
        worker = cast("WorkerProcess", self.successor)
        self.bench.executor.worker_replaced("cpu0", worker, READY, self.output, {"mlp:1": FAST})
        self.done.set_result(None)


@benched
async def test_batches_go_to_the_new_worker_while_the_one_before_ends_what_it_has(bench: Bench) -> None:
    resized = Resized(bench)
    bench.send(1)
    resizing = await resized.begin()
    bench.send(2)
    assert [type(message) for message in bench.worker.sent] == [RunBatch, RunBatch]
    resized.take_over()
    await resizing
    assert bench.events[1:] == [PartitionResized("cpu0", "cpu2", 2.0, 0.5, {"mlp:1": FAST})]
    assert bench.reported == ["cpu0 ready mlp:1; big:1: out of memory", "cpu0 is cpu2"]
    bench.send(3)
    assert [message.batch for message in resized.successor.sent] == [3]
    bench.done(3, region=resized.output, worker=resized.successor)
    bench.done(1)
    assert resized.retired == []
    bench.done(2)
    assert resized.retired == [bench.worker]
    done = [BatchCompleted(batch, 5, 9, (), "y=3") for batch in (3, 1, 2)]
    assert bench.events[2:] == done
    assert bench.executor._files["cpu0"]["big:1"].table == FAST


@benched
async def test_neither_worker_may_answer_what_the_other_one_was_sent(bench: Bench) -> None:
    resized = Resized(bench)
    bench.send(1)
    resizing = await resized.begin()
    with pytest.raises(PartitionError, match="batch 1, expected one of those sent to it: none"):
        bench.done(1, worker=resized.successor)
    resized.take_over()
    await resizing
    bench.send(2)
    with pytest.raises(PartitionError, match=r"batch 1, expected one of those sent to it: \[2\]"):
        bench.done(1, worker=resized.successor)
    with pytest.raises(PartitionError, match=r"batch 2, expected one of those sent to it: \[1\]"):
        bench.done(2)
    assert len(bench.events) == 2


@benched
async def test_outputs_of_the_worker_before_stay_readable_until_nobody_needs_them(bench: Bench) -> None:
    resized = Resized(bench)
    bench.send(1)
    resizing = await resized.begin()
    resized.take_over()
    await resizing
    bench.done(1)
    bench.executor.worker_gone(cast("WorkerProcess", bench.worker), "it exited with status 0")
    assert bench.mapped(bench.output)
    _, release = bench.executor.take_outputs(1)
    release()
    assert not bench.mapped(bench.output)
    assert len(bench.events) == 3  # nothing is lost


@benched
async def test_an_idle_worker_is_retired_at_once(
    bench: Bench,
) -> None:
    resized = Resized(bench)
    resizing = await resized.begin()
    resized.take_over()
    await resizing
    assert resized.retired == [bench.worker]


@benched
async def test_a_worker_that_dies_with_batches_after_its_place_was_taken_loses_them(bench: Bench) -> None:
    resized = Resized(bench)
    bench.send(1)
    resizing = await resized.begin()
    resized.take_over()
    await resizing
    bench.executor.worker_gone(cast("WorkerProcess", bench.worker), "killed by SIGKILL")
    assert bench.events[2:] == [BatchFailed(1, FailureCause.WORKER_LOST, "killed by SIGKILL")]
    assert bench.reported == ["cpu0 ready mlp:1; big:1: out of memory", "cpu0 is cpu2"]


@benched
async def test_one_that_hangs_after_its_place_was_taken_is_killed(bench: Bench) -> None:
    resized = Resized(bench)
    bench.send(1)
    resizing = await resized.begin()
    resized.take_over()
    await resizing
    await bench.at(10.1)
    assert bench.worker.killed == ["batch 1 did not end within 10 s"]


@benched
async def test_a_new_worker_that_fails_leaves_all_as_it_was(bench: Bench) -> None:
    resized = Resized(bench)
    resizing = await resized.begin()
    resized.done.set_exception(PartitionError("it was killed by SIGKILL"))
    with pytest.raises(PartitionError, match="it was killed by SIGKILL"):
        await resizing
    bench.send(1)
    bench.done(1)
    assert bench.events[1:] == [BatchCompleted(1, 5, 9, (), "y=3")]


@benched
async def test_a_new_worker_has_its_time_and_nobody_else_takes_over_meanwhile(bench: Bench) -> None:
    resized = Resized(bench)
    resizing = await resized.begin()
    with pytest.raises(PartitionError, match="its worker is being replaced already"):
        await bench.executor.resize(SHARE, CONFIG, {}, 60.0)
    with pytest.raises(PartitionError, match="the new worker did not take over within 60 s"):
        await resizing
    assert (bench.loop.time(), resized.kept) == (60.0, ["the new worker did not take over within 60 s"])


@benched
async def test_one_that_takes_over_when_its_time_is_just_over_has_taken_over(bench: Bench) -> None:
    resized = Resized(bench)
    resizing = await resized.begin()
    bench.loop.call_at(60.0, resized.take_over)
    await resizing
    assert (bench.loop.time(), bench.reported) == (60.0, ["cpu0 ready mlp:1; big:1: out of memory", "cpu0 is cpu2"])


@benched
async def test_nobody_hears_how_a_hand_over_ends_that_was_given_up(bench: Bench) -> None:
    resized = Resized(bench)
    resizing = await resized.begin()
    resizing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await resizing
    assert (len(resized.kept), resized.done.cancelled()) == (1, True)
    bench.send(1)
    bench.done(1)
    assert bench.events[1:] == [BatchCompleted(1, 5, 9, (), "y=3")]


@benched
async def test_a_worker_that_is_recycled_is_not_resized(bench: Bench) -> None:
    resized = Resized(bench)
    bench.send(1)
    resizing = await resized.begin()
    bench.executor.recycle("cpu0")
    assert resized.kept == ["the worker is being recycled to free memory"]
    with pytest.raises(PartitionError, match=resized.kept[0]):
        await resizing
    with pytest.raises(PartitionError, match="its worker is being replaced already"):
        await bench.executor.resize(SHARE, CONFIG, {}, 60.0)


@benched
async def test_one_whose_context_is_lost_after_its_place_was_taken_goes_alone(bench: Bench) -> None:
    resized = Resized(bench)
    failed = bench.send(1)
    resizing = await resized.begin()
    resized.take_over()
    await resizing
    bench.supervisor._by_name["cpu0"].process = cast("WorkerProcess", resized.successor)
    bench.say(BatchRefused(failed, "mlp:1: CUDA failure 700", BatchFault.DEVICE))
    assert (bench.worker.killed, resized.successor.killed) == (["mlp:1: CUDA failure 700"], [])
    bench.supervisor._by_name["cpu0"].process = None
    bench.executor.worker_gone(cast("WorkerProcess", bench.worker), "mlp:1: CUDA failure 700")
    assert bench.events[2:] == [BatchFailed(failed, FailureCause.WORKER_LOST, "mlp:1: CUDA failure 700")]
    assert bench.reported == ["cpu0 ready mlp:1; big:1: out of memory", "cpu0 is cpu2"]
