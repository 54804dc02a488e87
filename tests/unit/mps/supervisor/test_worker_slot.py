import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from sluice.models.errors import PartitionError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.ipc.messages import AddModel, DropModel, LoadResult, ModelFile
from sluice.mps.partitions.partition import CpuPartition
from sluice.mps.supervisor.process import WorkerProcess
from sluice.mps.supervisor.worker_slot import WorkerSlot
from sluice.mps.supervisor.worker_spec import WorkerSpec
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual

A, B, C, D = (ModelFile(key, f"{key}.onnx", "onnxruntime", (1,), batchable=True) for key in "abcd")
TABLE = LatencyTable.from_ms({1: 2.0})


class Process:
    """The sending end of a worker's channel, and its end."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.killed: list[str] = []
        self.arrived: Callable[[], None] = lambda: None

    def deliver_pending(self) -> None:
        self.arrived()

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        self.sent.append(message)

    def kill(self, reason: str) -> None:
        self.killed.append(reason)


def ready_post(process: Process) -> WorkerSlot:
    """A slot whose worker holds `a` and `b` of three models, and has to load within 120 s."""
    spec = WorkerSpec(CpuPartition("cpu0", (0,), slowdown=2), (A, B, C), 4096, initial=("a", "b"))
    slot = WorkerSlot(spec, 120.0, lambda name, worker, reason: worker.kill(f"{name}: {reason}"))
    slot.process_started(cast("WorkerProcess", process))
    slot.cancel_timer()
    slot.ready = True
    return slot


def test_a_worker_begins_with_the_initial_models_and_its_successor_with_what_it_held() -> None:
    async def main(loop: VirtualLoop) -> None:
        process = Process()
        slot = ready_post(process)
        assert process.sent[0].models == (A, B)
        assert process.sent[0].partition.slowdown == 2
        slot.request_change(AddModel(C))
        slot.request_change(DropModel("a"))
        slot.model_loaded(LoadResult("c", TABLE))
        slot.model_unloaded("a")
        assert process.sent[1:] == [AddModel(C), DropModel("a")]
        assert list(slot.models) == ["b", "c"]
        assert slot.models["c"].table == TABLE

    run_virtual(main)


def test_a_load_that_is_overtaken_has_no_more_time_for_that() -> None:
    async def main(loop: VirtualLoop) -> None:
        process = Process()
        slot = ready_post(process)
        slot.request_change(AddModel(C))
        slot.request_change(AddModel(D))
        await asyncio.sleep(100)
        slot.model_loaded(LoadResult("d", TABLE))
        assert slot.models["d"].table == TABLE
        await asyncio.sleep(19)
        assert process.killed == []
        await asyncio.sleep(2)
        assert process.killed == ["cpu0: it did not load a model within 120 s"]

    run_virtual(main)


def test_only_what_was_loaded_is_kept_and_what_was_to_go_does_not_come_back() -> None:
    async def main(loop: VirtualLoop) -> None:
        slot = ready_post(Process())
        slot.request_change(DropModel("a"))
        slot.request_change(AddModel(C))
        slot.process_lost()
        assert list(slot.models) == ["b"]

    run_virtual(main)


def test_changes_of_one_model_count_in_their_order() -> None:
    async def main(loop: VirtualLoop) -> None:
        slot = ready_post(Process())
        slot.request_change(AddModel(C))
        slot.request_change(DropModel("c"))
        slot.model_loaded(LoadResult("c", TABLE))
        slot.model_unloaded("c")
        assert list(slot.models) == ["a", "b"]
        slot.request_change(AddModel(C))
        slot.model_loaded(LoadResult("c", None, "out of memory"))
        assert list(slot.models) == ["a", "b"]

    run_virtual(main)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (AddModel(C), "it did not load a model within 120 s"),
        (DropModel("b"), "it did not unload a model within 120 s"),
    ],
)
def test_each_change_has_its_time(change: AddModel | DropModel, reason: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        process = Process()
        slot = ready_post(process)
        slot.request_change(DropModel("a"))
        slot.request_change(change)
        await asyncio.sleep(119.0)
        slot.model_unloaded("a")
        await asyncio.sleep(119.0)
        assert process.killed == []
        await asyncio.sleep(1.1)
        assert process.killed == [f"cpu0: {reason}"]

    run_virtual(main)


def test_a_change_that_was_answered_is_not_missed_because_the_loop_was_busy() -> None:
    async def main(loop: VirtualLoop) -> None:
        process = Process()
        slot = ready_post(process)
        process.arrived = lambda: slot.model_unloaded("a")
        slot.request_change(DropModel("a"))
        await asyncio.sleep(121.0)
        slot.request_change(DropModel("b"))
        process.arrived = slot.process_lost
        await asyncio.sleep(121.0)
        assert process.killed == []

    run_virtual(main)


def test_a_post_without_a_worker_takes_no_orders() -> None:
    async def main(loop: VirtualLoop) -> None:
        process = Process()
        slot = ready_post(process)
        slot.process_lost()
        slot.request_change(AddModel(C))
        await asyncio.sleep(200.0)
        assert (len(process.sent), process.killed) == (1, [])

    run_virtual(main)


def test_an_answer_to_another_change_than_the_first_one_is_refused() -> None:
    async def main(loop: VirtualLoop) -> None:
        slot = ready_post(Process())
        slot.request_change(AddModel(C))
        slot.request_change(DropModel("a"))
        with pytest.raises(PartitionError, match="model a is unloaded, which was not ordered"):
            slot.model_unloaded("a")
        with pytest.raises(PartitionError, match="model b is loaded, which was not ordered"):
            slot.model_loaded(LoadResult("b", TABLE))
        slot.model_loaded(LoadResult("c", TABLE))
        slot.model_unloaded("a")
        assert not slot.has_pending_changes

    run_virtual(main)
