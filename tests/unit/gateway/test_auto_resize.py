import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import pytest

from gateway.auto_resize import AutoResize
from gateway.partition_states import PartitionStates
from gateway.resizing import Resizing
from models.errors import PartitionError
from mps.core_balance import BalanceSettings
from mps.messages import Ready
from mps.partition import CpuPartition, MigPartition
from tests.support.virtual_time import VirtualLoop, run_virtual

MS = 1_000_000


class Machine:
    """Five cores, one of a Triton server and one of a GPU's host; partition a is busy for a part of the time."""

    def __init__(self) -> None:
        gpu = MigPartition("gpu", "MIG-8f3a1c52-0000-4000-8000-000000000002", "2g", cores=(4,))
        self.states = PartitionStates([CpuPartition("a", (0,)), CpuPartition("b", (1,)), gpu])
        self.busy_ns = {"a": 0, "b": 0, "triton": 0}
        self.resized: list[tuple[float, str, list[int]]] = []
        self.broken = False
        self.under_way = False
        settings = BalanceSettings(every_s=1.0, pause_s=4.0)
        self.auto = AutoResize(settings, self.states, cast(Resizing, self), lambda: self.busy_ns, taken=[3])

    async def resize(self, name: str, cores: Sequence[int]) -> None:
        self.resized.append((asyncio.get_running_loop().time(), name, list(cores)))
        if self.broken:
            raise PartitionError("the new worker was killed")
        self.states.replaced(CpuPartition(name, tuple(cores)), Ready(1, tuple(cores), len(cores), ()))

    async def work(self, seconds: int, busy: float) -> None:
        for _ in range(10 * seconds):
            await asyncio.sleep(0.1)
            self.busy_ns["a"] += round(100 * MS * busy)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.auto_resize.available_cores", lambda: (0, 1, 2, 3, 4))


@pytest.mark.usefixtures("cores")
def test_a_busy_partition_is_lent_the_free_core_and_gives_it_back_when_it_is_idle() -> None:
    async def main(loop: VirtualLoop) -> None:
        machine = Machine()
        running = asyncio.create_task(machine.auto.run())
        await machine.work(10, busy=0.95)
        await machine.work(10, busy=0.5)
        await machine.work(5, busy=0.1)
        running.cancel()
        (grown_s, *grown), (shrunk_s, *shrunk) = machine.resized
        assert (grown, shrunk) == (["a", [0, 2]], ["a", [0]])
        assert 3 <= grown_s <= 4
        assert 20 < shrunk_s <= 24.1

    run_virtual(main)


@pytest.mark.usefixtures("cores")
def test_one_that_cannot_be_resized_is_tried_again_after_the_pause(caplog: pytest.LogCaptureFixture) -> None:
    async def main(loop: VirtualLoop) -> None:
        machine = Machine()
        machine.broken = True
        running = asyncio.create_task(machine.auto.run())
        await machine.work(12, busy=1.0)
        running.cancel()
        times = [at_s for at_s, *_ in machine.resized]
        assert len(times) == 3
        assert all(later - earlier >= 4 for earlier, later in pairwise(times))

    run_virtual(main)
    assert "a partition could not be resized" in caplog.text


@pytest.mark.usefixtures("cores")
def test_what_is_resized_by_hand_stays_so_for_the_pause_and_three_looks() -> None:
    async def main(loop: VirtualLoop) -> None:
        machine = Machine()
        running = asyncio.create_task(machine.auto.run())
        await machine.work(20, busy=0.1)
        machine.states.replaced(CpuPartition("b", (1, 2)), Ready(1, (1, 2), 2, ()))
        await machine.work(10, busy=0.1)
        running.cancel()
        ((changed_s, *change),) = machine.resized
        assert change == ["b", [1]]
        assert 24 <= changed_s <= 25.1

    run_virtual(main)


@pytest.mark.usefixtures("cores")
def test_nothing_is_decided_while_a_partition_is_being_resized_by_hand() -> None:
    async def main(loop: VirtualLoop) -> None:
        machine = Machine()
        running = asyncio.create_task(machine.auto.run())
        machine.under_way = True
        await machine.work(10, busy=1.0)
        assert machine.resized == []
        machine.under_way = False
        await machine.work(4, busy=1.0)
        running.cancel()
        assert [name for _, name, _ in machine.resized] == ["a"]

    run_virtual(main)
