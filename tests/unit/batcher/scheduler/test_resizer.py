"""Partitions get other cores and other shares of GPUs, by their load and by the plan."""

from collections.abc import Callable, Mapping
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from sluice.batcher.drivers.journal import JournalWriter, replay
from sluice.batcher.interface.config import PartitionConfig, PipelineConfig
from sluice.batcher.interface.decisions import AnyDecision, BuildPlan, JudgeSteps, ResizePartition
from sluice.batcher.interface.events import (
    AnyEvent,
    PartitionLost,
    PartitionReady,
    PartitionResized,
    PartitionsSampled,
    PlanBuilt,
    ResizeFailed,
    SizesKnown,
    StepsJudged,
)
from sluice.batcher.interface.resize_data import Ask, Cores, CoreStep, Judgement, Reason
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.planner.splits import best_step
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.partitions.balance import BalanceSettings, LoadChange, ResizeTrigger
from tests.support.scheduling.builders import MS, S, model, single, spec_of

GPU = "GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65"
STORED = {"cpu1": {"m": LatencyTable.from_ms({1: 10})}, "cpu2": {"m": LatencyTable.from_ms({1: 6})}}
OBJECTIVE = PipelineConfig("m", single("m").stages, slo_ns=S)
LOAD, PLAN = ResizeTrigger.LOAD, ResizeTrigger.PLAN


def sized(name: str, cores: int) -> PartitionConfig:
    return PartitionConfig(name, f"cpu{cores}", float(cores))


class Machine:
    """Partitions of cores and of a GPU that are sampled at intervals; what is ordered is done, or fails as `broken`.

    Steps are judged by `judge`, which takes `judging_ns`.
    """

    def __init__(
        self,
        settings: BalanceSettings,
        cores: dict[str, Cores],
        spare: Cores = (),
        shares: dict[str, int] | None = None,
        unpromised: int = 0,
        pipeline: PipelineConfig = OBJECTIVE,
    ) -> None:
        self.settings = settings
        self.cores, self.spare = cores, spare
        self.shares, self.unpromised = shares or {}, unpromised
        others = [PartitionConfig(name, f"mps-{share}") for name, share in self.shares.items()]
        partitions = [*(sized(name, len(each)) for name, each in cores.items()), *others]
        spec = msgspec.structs.replace(spec_of([model("m", 1)], [pipeline], partitions=partitions), resizing=settings)
        self.lines: list[bytes] = []
        self.scheduler = Scheduler(spec, LivePlanner())
        self.journal = JournalWriter(self.lines.append, spec)
        self.now_ns = 0
        self.broken = self.busy_by_hand = False
        self.judge: Callable[[JudgeSteps], Ask | None] = lambda order: None
        self.judging_ns = 0
        self.judged: list[tuple[int, JudgeSteps]] = []
        self.orders: list[tuple[float, ResizePartition]] = []
        for name in cores:
            self.tell(PartitionReady(name, dict(STORED["cpu1"])))

    def tell(self, event: AnyEvent) -> None:
        decisions = self.scheduler.handle(event, self.now_ns)
        self.journal.record(self.now_ns, event, decisions)
        for decision in decisions:
            self.carry_out(decision)

    def carry_out(self, decision: AnyDecision) -> None:
        if isinstance(decision, JudgeSteps):
            self.judged.append((self.now_ns, decision))
            ask = self.judge(decision)
            self.now_ns += self.judging_ns
            self.tell(StepsJudged(decision.judgement, ask))
            self.now_ns -= self.judging_ns
        elif isinstance(decision, ResizePartition):
            self.orders.append((self.now_ns / S, decision))
            if self.busy_by_hand:
                return
            if self.broken:
                self.tell(ResizeFailed(decision.partition, "the new worker was killed"))
            else:
                self.become(decision.partition, decision.held)
        elif isinstance(decision, BuildPlan):
            self.tell(PlanBuilt(decision.build, None))

    def become(self, name: str, held: Cores | int) -> None:
        """A partition has other cores, or another share."""
        if isinstance(held, int):
            self.unpromised += self.shares[name] - held
            self.shares[name] = held
            self.tell(PartitionResized(name, f"mps-{held}", 1.0, 1.0, {}))
        else:
            self.spare = tuple(sorted({*self.spare, *self.cores[name]} - {*held}))
            self.cores = {**self.cores, name: held}
            kind = f"cpu{len(held)}"
            self.tell(PartitionResized(name, kind, float(len(held)), 1.0, dict(STORED.get(kind, {}))))

    def sample(self, times: int, busy: float = 0.0, name: str = "a", rows: int = 0) -> None:
        for _ in range(times):
            self.now_ns += round(self.settings.every_s * S)
            self.scheduler.pipelines["m"].arrived_rows += rows
            shares = {GPU: dict(self.shares)} if self.shares else {}
            unpromised = dict.fromkeys(shares, self.unpromised)
            self.tell(PartitionsSampled({name: busy}, dict(self.cores), self.spare, shares, unpromised))

    @property
    def resized(self) -> list[tuple[float, str, Cores | int]]:
        return [(at_s, order.partition, order.held) for at_s, order in self.orders]


def two(every_s: float = 1.0) -> Machine:
    """Two partitions of a core each and one unassigned core, by load."""
    return Machine(BalanceSettings(LOAD, every_s=every_s, pause_s=4.0), {"a": (0,), "b": (1,)}, (2,))


def test_a_busy_partition_is_lent_the_free_core_and_gives_it_back_when_it_is_idle() -> None:
    machine = two()
    machine.sample(10, busy=0.95)
    machine.sample(10, busy=0.5)
    machine.sample(5, busy=0.1)
    assert machine.orders == [
        (4.0, ResizePartition("a", (0, 2), (0,), LOAD, "busy", {"busy": 0.95})),
        (23.0, ResizePartition("a", (0,), (0, 2), LOAD, "idle", {"busy": 0.1})),
    ]


def test_a_busy_share_of_a_gpu_is_lent_what_nobody_was_promised_and_gives_it_back() -> None:
    settings = BalanceSettings(every_s=1.0, pause_s=4.0)
    machine = Machine(settings, {}, shares={"half": 50}, unpromised=15)
    machine.sample(20, busy=0.95, name="half")
    machine.sample(20, busy=0.1, name="half")
    assert [held for _, _, held in machine.resized] == [60, 65, 55, 50]
    times = [at_s for at_s, _, _ in machine.resized]
    assert all(later - earlier >= 4 for earlier, later in pairwise(times))


def test_one_that_cannot_be_resized_is_tried_again_after_the_pause() -> None:
    machine = two()
    machine.broken = True
    machine.sample(13, busy=1.0)
    assert [at_s for at_s, _, _ in machine.resized] == [4.0, 8.0, 12.0]


def test_what_is_resized_by_hand_stays_so_for_the_pause_and_three_looks() -> None:
    machine = two()
    machine.sample(20, busy=0.1)
    machine.become("b", (1, 2))
    machine.sample(10, busy=0.1)
    assert machine.resized == [(25.0, "b", (1,))]


def test_nothing_is_ordered_while_a_partition_is_being_resized() -> None:
    machine = two()
    machine.busy_by_hand = True
    machine.sample(10, busy=1.0)
    assert len(machine.orders) == 1
    machine.busy_by_hand = False
    machine.become("a", (0, 2))
    machine.sample(3, busy=0.1)
    machine.sample(4, busy=0.1)
    assert machine.resized[1:] == [(13.0, "a", (0,))]


def test_a_scheduler_without_settings_orders_nothing() -> None:
    scheduler = Scheduler(spec_of([model("m", 1)]))
    assert scheduler.handle(PartitionResized("cpu0", "cpu2", 2.0, 1.0, {}), 0) == []


MOVE = CoreStep((LoadChange("b", (1,)), LoadChange("a", (0, 2))), 0)
ASK = Ask(
    MOVE,
    Reason.OBJECTIVE,
    Judgement(("m:1", "n:1"), 1.2, 4 / 3, 0.034 / 3600),
    Judgement((), 0.61234, 1.0, 0.05 / 3600),
)
FIGURES: dict[str, float | tuple[str, ...]] = {
    "missed": ("m:1", "n:1"),
    "busiest": 1.2,
    "cost_per_hour": 0.034,
    "missed_after": (),
    "busiest_after": 0.612,
    "cost_per_hour_after": 0.05,
}


def asking(ask: Ask) -> Machine:
    """Partition b has two cores, and the plan asks for the same step each time."""
    machine = Machine(BalanceSettings(every_s=1.0, pause_s=4.0), {"a": (0,), "b": (1, 2)})
    machine.tell(SizesKnown({**STORED}, {name: (sized(name, 1), sized(name, 2)) for name in machine.cores}))
    machine.judge = lambda order: ask
    return machine


def test_where_other_sizes_are_known_the_plan_decides_and_its_step_is_done_one_partition_after_the_other() -> None:
    machine = asking(ASK)
    machine.sample(5, busy=0.95)
    assert machine.orders == [
        (5.0, ResizePartition("b", (1,), (1, 2), PLAN, "objective", FIGURES)),
        (5.0, ResizePartition("a", (0, 2), (0,), PLAN, "objective", FIGURES)),
    ]
    assert replay(machine.lines, LivePlanner()) is None


def test_the_rest_of_a_step_is_not_done_if_a_part_of_it_fails() -> None:
    machine = asking(ASK)
    machine.broken = True
    machine.sample(5)
    assert machine.resized == [(5.0, "b", (1,))]


def test_steps_to_sizes_that_are_not_known_are_not_judged() -> None:
    machine = Machine(BalanceSettings(every_s=1.0, pause_s=4.0), {"a": (0,), "b": (1, 2)}, (3,))
    machine.tell(SizesKnown({**STORED}, {name: (sized(name, 1), sized(name, 2)) for name in "ab"}))
    machine.sample(3)
    # Partition b would have three cores if it got the spare one.
    changes = [split.step.changes for _, order in machine.judged for split in order.splits]
    assert changes == [(LoadChange("a", (0, 3)),), (LoadChange("b", (1,)), LoadChange("a", (0, 2)))]


def test_where_no_other_sizes_are_known_load_decides() -> None:
    machine = Machine(BalanceSettings(every_s=1.0, pause_s=4.0), {"a": (0,)}, (1,))
    machine.sample(4, busy=0.95)
    assert [order.by for _, order in machine.orders] == [LOAD]
    assert machine.judged == []


def test_a_judgement_counts_no_more_when_a_partition_is_resized_by_hand_meanwhile() -> None:
    machine = asking(ASK)

    def by_hand(order: JudgeSteps) -> Ask:
        if machine.now_ns == 5 * S:
            machine.become("b", (1,))
        return ASK

    machine.judge = by_hand
    machine.sample(6)
    assert machine.resized == []


class Traffic(Machine):
    """One partition of core 0, with core 1 spare, and a planner that judges steps at the rates of the samples."""

    def __init__(self, pipeline: PipelineConfig = OBJECTIVE) -> None:
        super().__init__(BalanceSettings(), {"a": (0,)}, (1,), pipeline=pipeline)
        self.judge = lambda order: best_step(self.scheduler.spec, order.observed, order.later, order.splits)
        self.tell(SizesKnown({**STORED}, {"a": (sized("a", 1), sized("a", 2))}))
        self.sample(1)  # what the partition has is its own

    def come(self, *counts: int) -> None:
        """Have rows arrive in the next periods of 5 s, each ending with a sample."""
        for count in counts:
            self.sample(1, rows=count)

    @property
    def rates(self) -> list[tuple[Mapping[str, float], Mapping[str, float]]]:
        return [(order.observed.rates, order.later) for _, order in self.judged]


def test_rates_are_those_of_three_looks_and_may_become_a_quarter_and_three_deviations_more() -> None:
    traffic = Traffic()
    traffic.come(1000, 100, 200)
    assert traffic.rates == [
        ({"m": 20.0}, {"m": 20 * 1.25 + 3 * 100**0.5 / 5}),
        ({"m": 30.0}, {"m": pytest.approx(30 * 1.25 + 3 * 300**0.5 / 10)}),
    ]
    traffic.come(300, 300)
    assert traffic.rates[-1][0] == {"m": pytest.approx(800 / 15)}


def test_an_objective_that_was_ever_asked_for_is_to_be_kept_for_one_more_request() -> None:
    for pipeline, later in ((OBJECTIVE, 3 / 15), (single("m"), 0.0)):
        traffic = Traffic(pipeline)
        traffic.come(1, 0, 0, 0, 0)
        assert traffic.rates[-1][1] == {"m": pytest.approx(later)}


def test_a_core_is_given_when_the_rate_is_too_much_and_taken_when_it_is_much_less() -> None:
    traffic = Traffic()
    traffic.come(*[475] * 8)  # 95 a second: 96 % of the time of one core
    assert [(order.reason, order.held) for _, order in traffic.orders] == [("objective", (0, 1))]
    assert traffic.orders[0][0] == 25.0
    traffic.come(*[400] * 20)  # as many as one core could do, but no more than that
    assert len(traffic.orders) == 1
    traffic.come(*[250] * 6)
    assert [(order.reason, order.held) for _, order in traffic.orders[1:]] == [("cost", (0,))]


def test_what_is_slower_than_its_profile_is_taken_to_be_so_at_other_sizes() -> None:
    traffic = Traffic()
    estimate = traffic.scheduler.dispatcher.models["m"].estimates["cpu1"]
    for _ in range(1000):
        estimate.observe(1, 20 * MS)
    slower = estimate.correction
    assert slower == pytest.approx(2, rel=0.01)
    traffic.come(225, 225)
    assert latest_ns(traffic) == {"cpu1": pytest.approx(20 * MS, rel=0.01), "cpu2": pytest.approx(6 * MS * slower)}
    traffic.come(*[225] * 6)  # 45 a second, 20 ms each
    assert [order.held for _, order in traffic.orders] == [(0, 1)]
    traffic.come(225)
    assert latest_ns(traffic)["cpu1"] == pytest.approx(20 * MS, rel=0.01)  # as it was before the core was given


def latest_ns(traffic: Traffic) -> dict[str, int]:
    """The latency of a row, by kind, that steps were last judged with."""
    _, order = traffic.judged[-1]
    return {kind: table.latency_ns(1) for kind, table in order.observed.tables["m"].items()}


def test_a_constant_load_of_requests_that_come_by_chance_leads_to_one_step_at_most() -> None:
    for rate in (5, 70, 86, 89, 95):
        traffic = Traffic()
        counts = np.random.default_rng(rate).poisson(5 * rate, 120)  # ten minutes
        traffic.come(*counts.tolist())
        assert len(traffic.orders) <= 1, rate


def test_nothing_is_judged_while_a_worker_is_not_up() -> None:
    traffic = Traffic()
    traffic.come(475, 475)
    traffic.tell(PartitionLost("a", "killed"))
    traffic.come(475, 475, 475)
    assert len(traffic.judged) == 1
    traffic.tell(PartitionReady("a", dict(STORED["cpu1"])))
    traffic.come(475, 475, 475)
    assert [at_s for at_s, _, _ in traffic.resized] == [45.0]


def test_judgements_that_take_long_are_made_less_often() -> None:
    traffic = Traffic()
    traffic.judging_ns = 600 * MS
    traffic.come(*[0] * 8)
    # The next sample but 12 s after one.
    assert [at_ns // S for at_ns, _ in traffic.judged] == [15, 30, 45]
