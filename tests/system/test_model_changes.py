"""Real worker processes that load and unload models while they run batches of others."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sluice.batcher.interface.decisions import DispatchBatch, LoadModel, Member, ReleaseReason, UnloadModel
from sluice.batcher.interface.events import (
    AnyEvent,
    BatchCompleted,
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
)
from sluice.gateway.executors.worker.executor import WorkerExecutor
from sluice.gateway.partitions.inventory import NO_DETAILS
from sluice.gateway.tensors.pipeline_wiring import REQUEST_STAGE, PipelineWiring, StageWiring, TensorRef
from sluice.models.pipelines.memory import OutputMemory
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec
from sluice.mps.ipc.messages import BatchFinished, BatchRefused, LoadResult, ModelFile, RunBatch
from sluice.mps.supervisor.worker_spec import WorkerSpec
from tests.support.gateway.processes import children, until
from tests.support.gateway.workers import Gateway, direct, held, in_loop, model, partition, rows, serving, worker
from tests.support.models.onnx_models import save_mlp

MIB = 1 << 20
ENDS = (("inputs", "x"), ("outputs", "y"))


@pytest.fixture
def small(tmp_path: Path) -> ModelFile:
    return model(save_mlp(tmp_path / "small.onnx", (8, 16, 3)), "small:1")


@pytest.fixture
def big(tmp_path: Path) -> ModelFile:
    """36 MB of weights."""
    return model(save_mlp(tmp_path / "big.onnx", (8, 3000, 3000, 3)), "big:1")


def timed(path: Path, latency_ms: float, key: str = "timed:1", table: LatencyTable | None = None) -> ModelFile:
    """A model that sleeps, for the sizes 1 and 4."""
    tensors = {name: [{"name": tensor, "datatype": "FP32", "shape": [8]}] for name, tensor in ENDS}
    path.write_text(json.dumps({**tensors, "max_batch_size": 4, "latency_ms": {"1": latency_ms, "4": latency_ms}}))
    return ModelFile(key, str(path), "timed", (1, 4), batchable=True, table=table)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def change_under_traffic(
    gateway: Gateway, file: ModelFile, *orders: Callable[[], None]
) -> tuple[list[BatchFinished], Any]:
    """Batches of a model, two at a time, until a change is reported; both. After each ten of them an order is given.

    The batches are answered in order.
    """
    x, send, waiting = gateway.place(rows(4)), gateway.workers["cpu0"].send, list(orders)
    done: list[BatchFinished] = []
    sent: list[int] = []
    change = None
    while change is None or len(done) < len(sent):
        while len(sent) < len(done) + 2 and change is None:
            sent.append(next(gateway.numbers))
            send(RunBatch(sent[-1], file.key, (x,), tuple(each.slot for each in done[-1:])))
        report = await gateway.next()
        if isinstance(report, BatchFinished):
            done.append(report)
            if waiting and len(done) % 10 == 0:
                waiting.pop(0)()
        else:
            change = report
    assert [each.batch for each in done] == sent
    return done, change


@in_loop
async def test_a_model_is_loaded_and_unloaded_under_the_traffic_of_another(
    tmp_path: Path, small: ModelFile, big: ModelFile
) -> None:
    async with serving(worker(small)) as gateway:
        supervisor, before = gateway.supervisor, resident_bytes(gateway.workers["cpu0"].pid)
        x, expected = rows(4), direct(Path(small.path), rows(4))

        done, loaded = await change_under_traffic(gateway, small, lambda: supervisor.load("cpu0", big))
        np.testing.assert_array_equal(gateway.read(done[-1].outputs[0]), expected)
        assert (loaded.key, loaded.error) == ("big:1", "")
        assert [size for size, _ in loaded.table.cells] == [1, 4]
        assert 34 * MIB < loaded.memory.of(4) < 50 * MIB
        gateway.workers["cpu0"].send(RunBatch(next(gateway.numbers), "big:1", (gateway.place(x),)))
        answer = (await gateway.next()).outputs[0]
        np.testing.assert_allclose(gateway.read(answer), direct(Path(big.path), x), rtol=1e-4)
        assert resident_bytes(gateway.workers["cpu0"].pid) - before > 34 * MIB

        _, unloaded = await change_under_traffic(gateway, small, lambda: supervisor.unload("cpu0", "big:1"))
        assert unloaded == "cpu0: big:1 unloaded"
        assert resident_bytes(gateway.workers["cpu0"].pid) - before < 12 * MIB

        _, again = await change_under_traffic(gateway, small, lambda: supervisor.load("cpu0", big))
        assert again == msgspec.structs.replace(loaded, memory=None)  # Neither timed nor weighed again.

        slow = held(tmp_path / "held", "slow:1", at_load=True)
        end = (tmp_path / "held" / "go").touch
        _, loaded = await change_under_traffic(gateway, small, lambda: supervisor.load("cpu0", slow), end)
        assert (loaded.key, loaded.error) == ("slow:1", "")


@in_loop
async def test_a_model_that_takes_long_to_load_does_not_hold_up_another(tmp_path: Path, small: ModelFile) -> None:
    slow = msgspec.structs.replace(held(tmp_path / "held", "slow:1", at_load=True), memory_measured=True)
    async with serving(worker(small)) as gateway:
        gateway.supervisor.load("cpu0", slow)
        gateway.supervisor.load("cpu0", timed(tmp_path / "timed.json", 1))
        assert (await gateway.next()).key == "timed:1"
        (tmp_path / "held" / "go").touch()
        loaded = await gateway.next()
        assert (loaded.key, loaded.error) == ("slow:1", "")


@in_loop
async def test_a_model_is_unloaded_after_the_batches_that_were_sent_before(small: ModelFile) -> None:
    async with serving(worker(small)) as gateway:
        send, x = gateway.workers["cpu0"].send, gateway.place(rows(1))
        send(RunBatch(1, "small:1", (x,)))
        send(RunBatch(2, "small:1", (x,)))
        gateway.supervisor.unload("cpu0", "small:1")
        reports = [await gateway.next() for _ in range(3)]
        assert [each.batch for each in reports[:2]] == [1, 2]
        assert reports[2] == "cpu0: small:1 unloaded"
        send(RunBatch(3, "small:1", (x,)))
        assert await gateway.next() == BatchRefused(3, "small:1: the model is not loaded on this worker")


@in_loop
async def test_a_table_that_is_known_is_taken_for_timing(tmp_path: Path, small: ModelFile) -> None:
    known = LatencyTable.from_ms({1: 7.0, 4: 9.0})
    async with serving(worker(small)) as gateway:
        gateway.supervisor.load("cpu0", timed(tmp_path / "timed.json", 1, table=known))
        assert msgspec.structs.replace(await gateway.next(), memory=None) == LoadResult("timed:1", known)
        gateway.supervisor.load("cpu0", small)
        held = await gateway.next()
        assert (held.key, held.error) == ("small:1", "")


@in_loop
async def test_a_model_that_does_not_load_is_reported_and_harmless(tmp_path: Path, small: ModelFile) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"this is no model")
    async with serving(worker(small)) as gateway:
        _, failed = await change_under_traffic(
            gateway, small, lambda: gateway.supervisor.load("cpu0", model(broken, "bad:1"))
        )
        assert (failed.key, failed.table) == ("bad:1", None)
        assert "ONNX Runtime cannot load the model" in failed.error
        gateway.supervisor.load("cpu0", msgspec.structs.replace(small, key="good:1"))
        assert (await gateway.next()).error == ""


@in_loop
async def test_a_worker_that_restarts_holds_what_its_predecessor_held(tmp_path: Path, small: ModelFile) -> None:
    other = timed(tmp_path / "timed.json", 1)
    async with serving(worker(small)) as gateway:
        gateway.supervisor.load("cpu0", other)
        loaded = await gateway.next()
        gateway.supervisor.unload("cpu0", "small:1")
        assert await gateway.next() == "cpu0: small:1 unloaded"
        os.kill(gateway.workers["cpu0"].pid, signal.SIGKILL)
        assert await gateway.next() == "cpu0: the worker was killed by SIGKILL"
        ready = await gateway.next()
        (again,) = ready.models
        assert loaded.memory is not None
        # Neither timed nor weighed again.
        assert (again.key, again.table, again.memory) == ("timed:1", loaded.table, None)


@in_loop
async def test_a_worker_that_is_killed_while_it_loads_comes_back_without_that_model(
    tmp_path: Path, small: ModelFile, big: ModelFile
) -> None:
    stuck = held(tmp_path / "stuck", "stuck:1", at_load=True)
    slow = timed(tmp_path / "slow.json", 60_000, "slow:1")
    async with serving(worker(small)) as gateway:
        for file in (stuck, slow):  # Killed while the backend is made, and while it is warmed.
            gateway.supervisor.load("cpu0", file)
            if file is stuck:
                await asyncio.to_thread(until, (tmp_path / "stuck" / "waiting").exists)
            else:
                await asyncio.sleep(0.1)
            os.kill(gateway.workers["cpu0"].pid, signal.SIGKILL)
            assert await gateway.next() == "cpu0: the worker was killed by SIGKILL"
            ready = await gateway.next()
            assert [each.key for each in ready.models] == ["small:1"]
        gateway.supervisor.load("cpu0", big)
        assert (await gateway.next()).error == ""


@in_loop
async def test_a_worker_that_is_asked_to_end_while_it_loads_ends(tmp_path: Path, small: ModelFile) -> None:
    before = set(children(os.getpid()))  # of other tests, such as the tracker of shared memory that Python keeps
    async with serving(worker(small)) as gateway:
        gateway.supervisor.load("cpu0", timed(tmp_path / "slow.json", 2000))
        await asyncio.sleep(0.2)
    assert set(children(os.getpid())) <= before
    assert gateway.reports.empty()


@in_loop
async def test_a_slowed_partition_takes_a_multiple_of_the_time(tmp_path: Path) -> None:
    slowed = msgspec.structs.replace(partition(), slowdown=3)
    file = timed(tmp_path / "timed.json", 10)
    async with serving(WorkerSpec(slowed, (file,), MIB, initial=())) as gateway:
        gateway.supervisor.load("cpu0", file)
        loaded = await gateway.next()
        assert all(latency_ns >= 30e6 for _, latency_ns in loaded.table.cells)
        gateway.workers["cpu0"].send(RunBatch(1, "timed:1", (gateway.place(rows(1)),)))
        done = await gateway.next()
        assert done.ended_ns - done.started_ns >= 30e6


@in_loop
async def test_orders_of_the_scheduler_are_carried_out_and_answered(tmp_path: Path, small: ModelFile) -> None:
    """Each by one event, unless the worker is lost first."""
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"this is no model")
    slow = timed(tmp_path / "slow.json", 60_000, "slow:1")
    files = small, timed(tmp_path / "timed.json", 1), slow, model(broken, "bad:1")
    x, y = (TensorSpec(name, DataType.FP32, (8,)) for name in "xy")
    specs = {file.key: ModelSpec(file.key[:-2], 1, (x,), (y,), max_batch_size=4) for file in files}
    stages = (StageWiring({"x": TensorRef(REQUEST_STAGE, "x")}, None, "", ()),)
    plan = PipelineWiring(True, stages, {"y": (TensorRef(0, "y"),)}, OutputMemory(0, 1))
    spec = WorkerSpec(partition(), files, MIB, initial=("small:1",))
    executor = WorkerExecutor([spec], {"timed:1": plan}, specs, MIB)
    events: asyncio.Queue[AnyEvent] = asyncio.Queue()

    async def following() -> Any:
        async with asyncio.timeout(60):
            return await events.get()

    before = set(children(os.getpid()))
    executor.start(lambda event, _=NO_DETAILS: events.put_nowait(event))
    try:
        ready = await following()
        assert isinstance(ready, PartitionReady)
        assert list(ready.tables) == list(ready.memory) == ["small:1"]
        executor.load(LoadModel("cpu0", "timed:1"))
        executor.load(LoadModel("cpu0", "bad:1"))
        loaded, failed = await following(), await following()
        assert isinstance(loaded, ModelLoaded)
        assert (loaded.partition, loaded.model, len(loaded.table.cells)) == ("cpu0", "timed:1", 2)
        assert loaded.memory is not None
        assert isinstance(failed, ModelLoadFailed)
        assert (failed.partition, failed.model) == ("cpu0", "bad:1")

        executor.admit(1, "timed:1", {"x": rows(1)}, 1, 32)
        executor.run(DispatchBatch(1, "cpu0", "timed:1", 1, (Member(1, 0, 1),), ReleaseReason.IDLE))
        executor.unload(UnloadModel("cpu0", "small:1"))
        completed = await following()
        assert isinstance(completed, BatchCompleted)
        assert await following() == ModelUnloaded("cpu0", "small:1")

        executor.load(LoadModel("cpu0", "slow:1"))
        await asyncio.sleep(0.1)
        (pid,) = set(children(os.getpid())) - before
        os.kill(pid, signal.SIGKILL)
        assert await following() == PartitionLost("cpu0", "the worker was killed by SIGKILL")
        executor.load(LoadModel("cpu0", "slow:1"))  # Nobody is there: its loss was the answer.
        again = await following()
        assert isinstance(again, PartitionReady)
        assert again.tables == {"timed:1": loaded.table}
        assert again.memory == {}  # it is known
        assert events.empty()
    finally:
        with suppress(KeyError):
            executor.discard(1)
        await executor.drain()
