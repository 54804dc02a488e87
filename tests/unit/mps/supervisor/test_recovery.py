"""When lost workers are started again, and which of them are ended together."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import cast

import pytest

from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.daemon.control import MpsControl
from sluice.mps.ipc.messages import ModelFile
from sluice.mps.partitions.partition import CpuPartition, MigPartition, MpsPartition, Partition
from sluice.mps.supervisor import recovery
from sluice.mps.supervisor.process import WorkerProcess
from sluice.mps.supervisor.quarantine import QuarantineSettings
from sluice.mps.supervisor.recovery import Recovery
from sluice.mps.supervisor.worker_slot import WorkerSlot
from sluice.mps.supervisor.worker_spec import WorkerSpec
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual

KILLED = "the worker was killed by SIGKILL"
FAULT = "m:1: CUDA failure 700: an illegal memory access was encountered"
SETTINGS = QuarantineSettings(faults=3, within_s=10, first_s=60, last_s=600)
CPUS = (CpuPartition("cpu0", (0,)), CpuPartition("cpu1", (1,)))
GPU0, GPU1 = "GPU-0", "GPU-1"
SHARES = (
    MpsPartition("a", GPU0, 50),
    MpsPartition("b", GPU0, 50),
    MpsPartition("c", GPU1, 100),
    CpuPartition("cpu0", (0,)),
)


M, N = (ModelFile(key, f"{key}.onnx", "onnxruntime", (1,), batchable=True) for key in "mn")
TABLE = LatencyTable.from_ms({1: 2.0})


class Worker:
    """A process that ends when `drained`, or at once when it is killed."""

    def __init__(self, ended: Callable[[str], None]) -> None:
        self.exited = asyncio.Event()
        self.reported: list[str] = []
        self._ended = ended

    def end(self, reason: str) -> None:
        self.exited.set()
        self._ended(reason)

    def close(self, reason: str = "") -> None:
        self.reported.append("close")

    def kill(self, reason: str) -> None:
        self.reported.append("kill")
        self.end(reason)


class World:
    """Partitions with workers: what was launched, at which second, and what was said of losses."""

    def __init__(
        self,
        loop: VirtualLoop,
        partitions: Sequence[Partition],
        controls: Sequence[str] = (),
        models: Sequence[ModelFile] = (),
    ) -> None:
        self._loop = loop
        held = tuple(models)
        self.slots = {each.name: WorkerSlot(WorkerSpec(each, held, 4096), 120, self.end) for each in partitions}
        known = {device: cast(MpsControl, object()) for device in controls}
        self.recovery = Recovery(list(self.slots.values()), self.slots, self.launch, SETTINGS, known)
        self.launched: list[tuple[str, float]] = []
        self.workers: dict[str, Worker] = {}
        self.said: list[str] = []
        self.answered = self.explained = False
        for slot in self.slots.values():
            self.launch(slot)
        self.launched.clear()

    def launch(self, slot: WorkerSlot) -> None:
        self.launched.append((slot.name, round(self._loop.time(), 3)))
        worker = self.workers[slot.name] = Worker(lambda reason: self.lost(slot, reason))
        slot.process = cast(WorkerProcess, worker)

    def lost(self, slot: WorkerSlot, reason: str) -> None:
        slot.process_lost()
        self.said.append(
            self.recovery.worker_lost(slot, reason, answered=self.answered, explained=self.explained),
        )

    def ready(self, name: str) -> None:
        slot = self.slots[name]
        slot.ready = True
        slot.tables = dict.fromkeys(slot.models, TABLE)
        slot.back_off.ready(self._loop.time())
        self.recovery.worker_ready(name)

    def end(self, name: str, process: WorkerProcess, reason: str) -> None:
        self.recovery.end_worker(name, process, reason)

    def context_lost(self, name: str) -> dict[str, str]:
        return self.recovery.context_lost(name, cast(WorkerProcess, self.workers[name]), FAULT)

    async def lose(self, *names: str) -> None:
        for name in names:
            self.workers[name].end(KILLED)
            await asyncio.sleep(2)


def run(test: Callable[[VirtualLoop], Coroutine[object, object, None]]) -> None:
    run_virtual(test)


async def at_once(control: MpsControl) -> bool:
    return True


@pytest.fixture(autouse=True)
def _daemons_answer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "wait_until_answering", at_once)


def test_a_partition_in_quarantine_is_tried_again_when_that_is_over() -> None:
    async def main(loop: VirtualLoop) -> None:
        world = World(loop, CPUS)
        await world.lose("cpu0", "cpu0", "cpu0")
        assert world.launched == [("cpu0", 0), ("cpu0", 2.5)]
        reason = f"{KILLED}; the partition is in quarantine for 60 s: its worker was lost 3 times within 10 s: {KILLED}"
        assert world.said == [KILLED, KILLED, reason]
        assert list(world.recovery.quarantined) == ["cpu0"]
        await asyncio.sleep(57)
        assert len(world.launched) == 2
        await asyncio.sleep(2)
        assert world.launched[2:] == [("cpu0", 64)]
        assert list(world.recovery.quarantined) == []

    run(main)


def test_what_was_ended_on_purpose_is_not_held_against_a_partition() -> None:
    async def main(loop: VirtualLoop) -> None:
        world = World(loop, CPUS)
        for _ in range(5):
            world.recovery.expect_exit("cpu0")
            world.slots["cpu0"].back_off.ready(0)
            await world.lose("cpu0")
            await asyncio.sleep(8)
        assert list(world.recovery.quarantined) == []

    run(main)


def test_a_worker_that_answers_is_restarted_at_once_however_often_it_is_killed() -> None:
    async def main(loop: VirtualLoop) -> None:
        world = World(loop, CPUS[:1], models=(M,))
        world.answered = True
        await world.lose(*["cpu0"] * 100)
        assert world.launched == [("cpu0", 2 * number) for number in range(100)]
        assert list(world.recovery.quarantined) == []

    run(main)


def test_losses_that_requests_explain_lead_neither_to_a_delay_nor_to_quarantine() -> None:
    async def main(loop: VirtualLoop) -> None:
        world = World(loop, CPUS)
        await world.lose("cpu0")
        world.explained = True
        await world.lose(*["cpu0"] * 5)
        assert world.launched == [("cpu0", 2 * number) for number in range(6)]
        assert list(world.recovery.quarantined) == []

    run(main)


def test_the_last_worker_of_a_model_is_back_after_half_a_second_and_never_in_quarantine() -> None:
    async def main(loop: VirtualLoop) -> None:
        world = World(loop, CPUS, models=(M, N))
        world.ready("cpu1")
        del world.slots["cpu1"].tables["n"]
        await world.lose(*["cpu0"] * 5)
        assert world.launched == [("cpu0", 0), ("cpu0", 2.5), ("cpu0", 4.5), ("cpu0", 6.5), ("cpu0", 8.5)]
        assert list(world.recovery.quarantined) == []
        world.ready("cpu1")
        await world.lose("cpu0")
        assert list(world.recovery.quarantined) == ["cpu0"]

    run(main)


def test_a_lost_context_takes_all_workers_of_its_daemon_along_and_none_is_started_before_the_last_is_gone() -> None:
    async def main(loop: VirtualLoop) -> None:
        world = World(loop, SHARES, [GPU0, GPU1])
        assert world.context_lost("a") == {"a": FAULT, "b": FAULT}
        await asyncio.sleep(0.1)
        assert [world.workers[name].reported for name in ("a", "b", "c", "cpu0")] == [["close"], ["close"], [], []]
        world.workers["a"].end(FAULT)
        assert world.context_lost("b") == {}  # it notices as well
        await asyncio.sleep(1)
        assert world.launched == []
        world.workers["b"].end(FAULT)
        await asyncio.sleep(0.1)
        assert world.launched == [("a", 1.1), ("b", 1.1)]
        assert world.said == [FAULT, FAULT]

    run(main)


def test_a_daemon_whose_clients_fault_again_and_again_has_the_first_to_tell_in_quarantine() -> None:
    async def main(loop: VirtualLoop) -> None:
        world = World(loop, SHARES, [GPU0])
        for _ in range(3):
            world.context_lost("a")
            await asyncio.sleep(0.1)
            for name in ("a", "b"):
                world.workers[name].end(FAULT)
            await asyncio.sleep(3)
        assert list(world.recovery.quarantined) == ["a"]
        assert [name for name, _ in world.launched] == ["a", "b", "a", "b", "b"]

    run(main)


def test_a_client_that_hangs_is_ended_in_order_and_nobody_else_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []

    async def main(loop: VirtualLoop) -> None:
        world = World(loop, SHARES, (GPU0, GPU1))
        hung = cast(WorkerProcess, world.workers["a"])

        async def end_client(worker: WorkerProcess, control: MpsControl, reason: str) -> None:
            await asyncio.sleep(1)  # its contexts are destroyed, which its batch fails by
            assert world.context_lost("a") == {}
            reported.append(reason)

        def exits() -> None:
            assert world.context_lost("a") == {}, "it said so before it was killed"
            world.workers["a"].end("it hangs")

        monkeypatch.setattr(recovery, "end_client", end_client)
        world.recovery.end_worker("a", hung, "it hangs")
        world.recovery.end_worker("a", hung, "it still hangs")
        loop.call_later(3, exits)
        await asyncio.sleep(10)
        assert world.launched == [("a", 3)]
        assert [world.workers[name].reported for name in ("b", "c", "cpu0")] == [[], [], []]
        on_cores = world.workers["cpu0"]
        world.recovery.end_worker("cpu0", cast(WorkerProcess, on_cores), "it hangs")
        assert on_cores.reported == ["kill"]

    run(main)
    assert reported == ["it hangs"]


def test_without_a_daemon_a_lost_context_is_that_of_one_process() -> None:
    async def main(loop: VirtualLoop) -> None:
        world = World(loop, (MigPartition("a", "MIG-0", "1g"), MigPartition("b", "MIG-1", "1g")))
        world.context_lost("a")
        await asyncio.sleep(0.1)
        assert (world.workers["b"].reported, world.launched) == ([], [("a", 0)])

    run(main)


def test_the_partitions_of_a_lost_device_are_left_alone() -> None:
    async def main(loop: VirtualLoop) -> None:
        world = World(loop, SHARES, [GPU0])
        reason = f"{GPU0} has Xid 79"
        world.recovery.device_lost(frozenset({GPU0}), reason)
        world.recovery.device_lost(frozenset({GPU0}), "it is reported twice")
        await asyncio.sleep(59)
        assert world.said == [f"{reason}; the partition is in quarantine for 60 s: {reason}"] * 2
        assert sorted(world.recovery.quarantined) == ["a", "b"]
        assert world.launched == []
        await asyncio.sleep(2)
        assert sorted(world.launched) == [("a", 60), ("b", 60)]
        # A worker that comes up on a device that is still lost shows nothing: the next time it is for longer.
        world.recovery.device_lost(frozenset({GPU0}), reason)
        await asyncio.sleep(119)
        assert len(world.launched) == 2
        await asyncio.sleep(2)
        assert len(world.launched) == 4

    run(main)
