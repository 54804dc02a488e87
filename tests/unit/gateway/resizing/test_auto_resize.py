import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import cast

import pytest

from sluice.batcher.planner.core_steps import Ask, Cores, CoreStep, Judgement, Reason
from sluice.gateway.partitions.inventory import Inventory
from sluice.gateway.resizing.auto_resize import AutoResize
from sluice.gateway.resizing.plan_steps import PlanSteps
from sluice.gateway.resizing.resizing import CLIENT_REQUEST, ResizeCause, ResizeMetrics, Resizing
from sluice.models.errors import PartitionError
from sluice.mps.partitions.balance import BalanceSettings, LoadChange
from sluice.mps.partitions.partition import CpuPartition, MigPartition, MpsPartition, ShareMode
from tests.support.gateway.inventory import resized
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual

MS = 1_000_000
GPU = "GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65"


class Plan:
    """Knows other sizes, or does not; asks for what is in `asks`, look by look, while `meanwhile` happens."""

    def __init__(self, *asks: Ask | None, knows: bool = True, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.asks = list(asks)
        self.knows = knows
        self.meanwhile = meanwhile
        self.spare: list[Cores] = []
        self.changed_s: list[float] = []

    async def known(self, partitions: Sequence[CpuPartition], spare: Cores) -> dict[str, object]:
        self.spare.append(spare)
        return {"cpu1": {}, "cpu2": {}} if self.knows else {}

    async def look(self, now_s: float, partitions: object, spare: Cores, known: object) -> Ask | None:
        self.meanwhile()
        return self.asks.pop(0) if self.asks else None

    def changed(self, now_s: float) -> None:
        self.changed_s.append(now_s)


class Machine:
    """Five cores, one of a Triton server and one of a GPU's host; partition a is busy for a part of the time."""

    def __init__(self, *shares: MpsPartition, plan: Plan | None = None) -> None:
        gpu = MigPartition("gpu", "MIG-8f3a1c52-0000-4000-8000-000000000002", "2g", cores=(4,))
        self.inventory = Inventory([CpuPartition("a", (0,)), CpuPartition("b", (1,)), gpu, *shares])
        self.busy_ns = {"a": 0, "b": 0, "triton": 0} | {each.name: 0 for each in shares}
        self.resized: list[tuple[float, str, list[int]]] = []
        self.asked: list[ResizeCause] = []
        self.broken = False
        self.under_way = False
        settings = BalanceSettings(every_s=1.0, pause_s=4.0)
        self.auto = AutoResize(
            settings, self.inventory, cast(Resizing, self), lambda: self.busy_ns, [3], cast(PlanSteps, plan)
        )

    async def resize(
        self, name: str, cores: Sequence[int] = (), share_percent: int = 0, cause: ResizeCause = CLIENT_REQUEST
    ) -> None:
        self.asked.append(cause)
        self.resized.append((asyncio.get_running_loop().time(), name, list(cores) or [share_percent]))
        if self.broken:
            raise PartitionError("the new worker was killed")
        if not cores:
            resized(self.inventory, MpsPartition(name, GPU, share_percent, 1000))
            return
        resized(self.inventory, CpuPartition(name, tuple(cores)))

    async def work(self, seconds: int, busy: float, name: str = "a") -> None:
        for _ in range(10 * seconds):
            await asyncio.sleep(0.1)
            self.busy_ns[name] += round(100 * MS * busy)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.gateway.resizing.auto_resize.available_cores", lambda: (0, 1, 2, 3, 4))


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
        assert machine.asked == [ResizeCause("load", "busy"), ResizeCause("load", "idle")]
        assert 3 <= grown_s <= 4
        assert 20 < shrunk_s <= 24.1

    run_virtual(main)


@pytest.mark.usefixtures("cores")
def test_a_busy_share_of_a_gpu_is_lent_what_nobody_was_promised_and_gives_it_back() -> None:
    async def main(loop: VirtualLoop) -> None:
        shares = [MpsPartition("half", GPU, 50, 1000), MpsPartition("rest", GPU, 35, 1000, ShareMode.ELASTIC)]
        machine = Machine(*shares)
        running = asyncio.create_task(machine.auto.run())
        await machine.work(20, busy=0.95, name="half")
        await machine.work(20, busy=0.1, name="half")
        running.cancel()
        assert [(name, share) for _, name, (share,) in machine.resized] == [
            ("half", 60),
            ("half", 65),  # with the 35 % of the other one that is all
            ("half", 55),
            ("half", 50),
        ]
        assert all(later - earlier >= 4 for (earlier, *_), (later, *_) in pairwise(machine.resized))

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
        resized(machine.inventory, CpuPartition("b", (1, 2)))
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


MOVE = CoreStep((LoadChange("b", (1,)), LoadChange("a", (0, 2))), 0)
ASK = Ask(
    MOVE,
    Reason.OBJECTIVE,
    Judgement(("m:1", "n:1"), 1.2, 4 / 3, 0.034 / 3600),
    Judgement((), 0.61234, 1.0, 0.05 / 3600),
)


@pytest.mark.usefixtures("cores")
def test_where_the_plan_knows_other_sizes_it_is_asked_instead_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    async def main(loop: VirtualLoop) -> None:
        plan = Plan(None, None, ASK)
        machine = Machine(plan=plan)
        running = asyncio.create_task(machine.auto.run())
        await machine.work(10, busy=0.95)
        running.cancel()
        assert plan.spare[0] == (2,)
        assert machine.resized == [(3.0, "b", [1]), (3.0, "a", [0, 2])]
        assert machine.asked == [ResizeCause("plan", "objective")] * 2

    caplog.set_level(logging.INFO)
    run_virtual(main)
    reported = [record.__dict__["fields"] for record in caplog.records if record.message == "partition to be resized"]
    figures = {
        "by": "plan",
        "reason": "objective",
        "missed": ["m:1", "n:1"],
        "busiest": 1.2,
        "cost_per_hour": 0.034,
        "missed_after": [],
        "busiest_after": 0.612,
        "cost_per_hour_after": 0.05,
    }
    assert reported == [{"partition": "b", "cores": [1], **figures}, {"partition": "a", "cores": [0, 2], **figures}]


@pytest.mark.usefixtures("cores")
def test_where_the_plan_knows_no_other_sizes_it_goes_by_load() -> None:
    async def main(loop: VirtualLoop) -> None:
        machine = Machine(plan=Plan(ASK, knows=False))
        running = asyncio.create_task(machine.auto.run())
        await machine.work(5, busy=0.95)
        running.cancel()
        assert machine.asked == [ResizeCause("load", "busy")]

    run_virtual(main)


@pytest.mark.usefixtures("cores")
def test_what_was_resized_by_hand_while_the_plan_was_asked_is_not_undone() -> None:
    async def main(loop: VirtualLoop) -> None:
        def by_hand() -> None:
            resized(machine.inventory, CpuPartition("b", (1, 2)))

        plan = Plan(ASK, meanwhile=by_hand)
        machine = Machine(plan=plan)
        running = asyncio.create_task(machine.auto.run())
        await machine.work(5, busy=0.5)
        running.cancel()
        assert machine.resized == []
        assert plan.changed_s == [2.0]

    run_virtual(main)


def test_resizes_are_counted_by_origin() -> None:
    (family,) = ResizeMetrics({("a", ResizeCause("plan", "cost")): 2, ("a", CLIENT_REQUEST): 1}).collect()
    assert [(sample.labels, sample.value) for sample in family.samples] == [
        ({"partition": "a", "by": "plan", "reason": "cost"}, 2),
        ({"partition": "a", "by": "client", "reason": "request"}, 1),
    ]
