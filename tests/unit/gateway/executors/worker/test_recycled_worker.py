"""Workers whose place another one takes, and those that are lost while they load models."""

import asyncio

import pytest

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import LoadModel, UnloadModel
from sluice.batcher.interface.events import BatchCompleted, PartitionLost
from sluice.models.errors import PartitionError
from sluice.mps.ipc.messages import LoadResult
from sluice.mps.partitions.partition import CpuPartition
from tests.unit.gateway.executors.worker.test_executor import TABLE, Bench, benched

REASON = "the worker is being recycled to free memory"


def recycled(bench: Bench) -> list[str]:
    """The partitions whose workers the supervisor is to replace from now on."""
    recycled_names: list[str] = []
    setattr(bench.supervisor, "recycle", recycled_names.append)  # noqa: B010  # mypy takes no assignment to a method
    return recycled_names


@benched
async def test_a_worker_goes_when_it_has_done_what_it_was_sent(bench: Bench) -> None:
    recycled_names = recycled(bench)
    bench.send(1)
    bench.executor.recycle("cpu0")
    bench.send(2)  # the scheduler does not know yet
    await asyncio.sleep(0)
    assert bench.events[1:] == [PartitionLost("cpu0", REASON)]
    bench.done(1)
    assert recycled_names == []
    bench.done(2)
    assert recycled_names == ["cpu0"]
    assert bench.events[2:] == [BatchCompleted(1, 5, 9, (), "y=3"), BatchCompleted(2, 5, 9, (), "y=3")]
    bench.executor.worker_lost("cpu0", "its memory is given back")
    assert bench.reported == ["cpu0 ready mlp:1; big:1: out of memory", f"cpu0 retired: {REASON}"]
    assert len(bench.events) == 4


@benched
async def test_an_idle_worker_goes_once_and_takes_no_orders(bench: Bench) -> None:
    recycled_names = recycled(bench)
    bench.executor.recycle("cpu0")
    await asyncio.sleep(0)
    bench.executor.recycle("cpu0")
    bench.executor.load(LoadModel("cpu0", "big:1"))
    bench.executor.unload(UnloadModel("cpu0", "mlp:1"))
    bench.executor.model_loaded("cpu0", LoadResult("big:1", TABLE))
    bench.executor.model_unloaded("cpu0", "mlp:1")
    assert (recycled_names, bench.worker.sent) == (["cpu0"], [])
    assert bench.reported == ["cpu0 ready mlp:1; big:1: out of memory", f"cpu0 retired: {REASON}"]
    assert bench.events[1:] == [PartitionLost("cpu0", REASON)]


@benched
async def test_a_worker_is_retired_from_the_order_on(bench: Bench) -> None:
    recycled_names = recycled(bench)
    bench.send(1)
    bench.executor.recycle("cpu0")
    bench.executor.recycle("cpu0")
    partition = CpuPartition("cpu0", (0,))
    with pytest.raises(PartitionError, match="its worker is being replaced already"):
        await bench.executor.resize(partition, PartitionConfig("cpu0", partition.profile_kind), {}, 60.0)
    bench.done(1)
    assert recycled_names == []
    await asyncio.sleep(0)
    assert recycled_names == ["cpu0"]
    assert bench.reported[1:] == [f"cpu0 retired: {REASON}"]


@benched
async def test_a_worker_that_is_lost_as_it_is_retired_is_lost_once(bench: Bench) -> None:
    bench.executor.recycle("cpu0")
    bench.executor.worker_lost("cpu0", "killed by SIGKILL")
    assert bench.events[1:] == [PartitionLost("cpu0", REASON)]


@benched
async def test_a_worker_that_does_not_end_its_batch_does_not_stay_for_that(bench: Bench) -> None:
    bench.send(1)
    bench.executor.recycle("cpu0")
    await bench.at(10.1)
    assert bench.worker.killed == ["batch 1 did not end within 10 s"]


@benched
async def test_of_the_models_that_a_lost_worker_was_to_load_the_first_has_failed(bench: Bench) -> None:
    bench.executor.load(LoadModel("cpu0", "big:1"))
    bench.executor._workers["cpu0"].loading["other:1"] = None
    bench.executor.worker_lost("cpu0", "killed by SIGSEGV")
    assert bench.reported[1:] == [
        "cpu0 did not load big:1: the worker of cpu0 was lost: killed by SIGSEGV",
        "cpu0 lost: killed by SIGSEGV",
    ]


@benched
async def test_a_worker_that_was_lost_is_not_asked_whether_its_models_are_ready(bench: Bench) -> None:
    bench.executor.model_loaded("cpu0", LoadResult("mlp:1", TABLE, tells_ready=True))
    bench.executor.worker_lost("cpu0", "killed")
    asked_at = bench.loop.time()
    await bench.executor.says_ready("mlp:1")
    assert bench.loop.time() == asked_at
