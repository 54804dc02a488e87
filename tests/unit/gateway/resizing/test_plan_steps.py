"""Questions to the planner about other splits of the cores, and the use of its answers."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, SchedulerSpec
from sluice.batcher.interface.plan_data import Observed
from sluice.batcher.planner.core_steps import Ask, Cores, Reason
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.planner.splits import Split, best_step
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.gateway.deployment.dependencies import DependencyGraph
from sluice.gateway.deployment.known_sizes import KnownSizes, Tables
from sluice.gateway.deployment.revision import Deployed
from sluice.gateway.resizing.plan_steps import PlanSteps, Rates, Watched, best_step_beside, watched
from sluice.models.profiles.file import FigureSource, ModelProfile, ProfileEntry, model_hash, write_profile
from sluice.models.profiles.hardware import hardware_id
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.profiles.measurement import Cell
from sluice.models.repository.scan import ModelEntry, entry_of_file
from sluice.mps.partitions.balance import BalanceSettings
from sluice.mps.partitions.partition import CpuPartition
from tests.support.models.onnx_models import save_mlp
from tests.support.scheduling.builders import S, arrival, model, single, spec_of
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual

STORED = {"cpu1": {"m": LatencyTable.from_ms({1: 10})}, "cpu2": {"m": LatencyTable.from_ms({1: 6})}}
OBJECTIVE = PipelineConfig("m", single("m").stages, slo_ns=1_000_000_000)


def configure(partition: CpuPartition) -> PartitionConfig:
    return PartitionConfig(partition.name, partition.profile_kind, float(len(partition.cores)))


class Traffic:
    """One partition, at first of core 0 with core 1 spare, and one model; batches take `slower` times as profiled."""

    def __init__(self, pipeline: PipelineConfig = OBJECTIVE) -> None:
        self.partition = CpuPartition("a", (0,))
        self.spare: Cores = (1,)
        self.rows = 0
        self.slower = 1.0
        self.up: tuple[str, ...] = ("a",)
        self.now_s = 0.0
        self.asked: list[tuple[Observed, Rates, Sequence[Split]]] = []
        self.resized: list[tuple[float, Reason, Cores]] = []
        self._pipeline = pipeline
        self.steps = PlanSteps(BalanceSettings(), {"a": (0,)}, self.watch, self.sizes, configure, self.best)

    def watch(self) -> Watched:
        kind = self.partition.profile_kind
        ms = STORED[kind]["m"].cells[0][1] / 1e6 * self.slower
        spec = spec_of([model("m", 1)], [self._pipeline], partitions=(configure(self.partition),))
        observed = Observed({"m": {kind: LatencyTable.from_ms({1: ms})}}, {"m": 7.0}, {}, {"a": ("m",)}, self.up)
        return Watched(spec, observed, {"m": self.rows}, {("m", kind): self.slower})

    async def sizes(self, partitions: Sequence[CpuPartition], most: int) -> Tables:
        assert (list(partitions), most) == ([self.partition], 2)
        return STORED

    async def best(self, spec: SchedulerSpec, observed: Observed, later: Rates, splits: Sequence[Split]) -> Ask | None:
        self.asked.append((observed, later, splits))
        return best_step(spec, observed, later, splits)

    def come(self, *counts: int) -> None:
        """Have rows arrive in the next periods of 5 s, each ending with a look; what is asked for is done."""

        async def look() -> Ask | None:
            known = await self.steps.known([self.partition], self.spare)
            return await self.steps.look(self.now_s, [self.partition], self.spare, known)

        for count in counts:
            self.rows += count
            self.now_s += 5
            if (done := asyncio.run(look())) is not None:
                (change,) = done.step.changes
                self.resized.append((self.now_s, done.reason, change.held))
                self.partition = CpuPartition("a", change.held)
                self.spare = tuple({0, 1} - set(change.held))


def test_rates_are_those_of_three_looks_and_may_become_a_quarter_and_three_deviations_more() -> None:
    traffic = Traffic()
    traffic.come(1000, 100, 200)
    assert [(seen.rates, later) for seen, later, _ in traffic.asked] == [
        ({"m": 20.0}, {"m": 20 * 1.25 + 3 * 100**0.5 / 5}),
        ({"m": 30.0}, {"m": pytest.approx(30 * 1.25 + 3 * 300**0.5 / 10)}),
    ]
    traffic.come(300, 300)
    assert traffic.asked[-1][0].rates == {"m": pytest.approx(800 / 15)}


def test_an_objective_that_was_ever_asked_for_is_to_be_kept_for_one_more_request() -> None:
    for pipeline, later in ((OBJECTIVE, 3 / 15), (single("m"), 0.0)):
        traffic = Traffic(pipeline)
        traffic.come(1, 0, 0, 0, 0)
        assert traffic.asked[-1][1] == {"m": pytest.approx(later)}


def test_a_core_is_given_when_the_rate_is_too_much_and_taken_when_it_is_much_less() -> None:
    traffic = Traffic()
    traffic.come(*[475] * 8)  # 95 a second: 96 % of the time of one core
    assert traffic.resized == [(20.0, Reason.OBJECTIVE, (0, 1))]
    traffic.come(*[400] * 20)  # as many as one core could do, but no more than that
    assert len(traffic.resized) == 1
    traffic.come(*[250] * 6)
    assert traffic.resized[1][1:] == (Reason.COST, (0,))


def test_what_is_slower_than_its_profile_is_taken_to_be_so_at_other_sizes() -> None:
    traffic = Traffic()
    traffic.slower = 2.0
    traffic.come(*[225] * 6)  # 45 a second, 20 ms each
    (observed, _, _) = traffic.asked[-1]
    assert observed.tables["m"]["cpu1"] == LatencyTable.from_ms({1: 20})  # as it was before the core was given
    assert [kept for _, _, kept in traffic.resized] == [(0, 1)]
    assert traffic.asked[0][0].tables["m"]["cpu2"] == LatencyTable.from_ms({1: 12})


def test_a_constant_load_of_requests_that_come_by_chance_leads_to_one_step_at_most() -> None:
    for rate in (5, 70, 86, 89, 95):
        traffic = Traffic()
        counts = np.random.default_rng(rate).poisson(5 * rate, 120)  # ten minutes
        traffic.come(*counts.tolist())
        assert len(traffic.resized) <= 1, rate


def test_nothing_is_asked_while_a_worker_is_not_up() -> None:
    traffic = Traffic()
    traffic.come(475, 475)
    traffic.up = ()
    traffic.come(475, 475, 475)
    assert len(traffic.asked) == 1
    traffic.up = ("a",)
    traffic.come(475, 475, 475)
    assert [at_s for at_s, *_ in traffic.resized] == [40.0]


def test_plans_that_take_long_are_made_less_often() -> None:
    traffic = Traffic()

    async def main(loop: VirtualLoop) -> None:
        judge = traffic.best

        async def slowly(spec: SchedulerSpec, observed: Observed, later: Rates, splits: Sequence[Split]) -> Ask | None:
            await asyncio.sleep(0.6)
            return await judge(spec, observed, later, splits)

        steps = PlanSteps(BalanceSettings(), {"a": (0,)}, traffic.watch, traffic.sizes, configure, slowly)
        for at_s in range(0, 40, 5):
            await steps.look(at_s, [traffic.partition], (1,), STORED)

    run_virtual(main)
    assert len(traffic.asked) == 3  # at 5, 20 and 35 s: the next look but 12 s after one


def test_the_planner_is_asked_in_a_thread() -> None:
    traffic = Traffic()
    traffic.come(475, 475)
    spec = traffic.watch().spec
    ask = asyncio.run(best_step_beside(spec, *traffic.asked[-1]))
    assert ask is not None
    assert ask.reason is Reason.OBJECTIVE


def test_what_a_scheduler_knows_of_its_traffic() -> None:
    scheduler = Scheduler(
        spec_of([model("m", 1)], [single("m")], partitions=(PartitionConfig("a", "cpu1"),)), LivePlanner()
    )
    scheduler.handle(arrival(1, S, pipeline="m", rows=3), 0)
    scheduler.handle_wakeup(0)
    scheduler.handle(arrival(2, S, pipeline="m"), 10)
    now = watched(scheduler, 10, {})
    assert (now.rows, now.observed.held, now.observed.up) == ({"m": 4}, {"a": ()}, ())


def profiled(directory: Path, *kinds: str) -> ModelEntry:
    entry = entry_of_file(save_mlp(directory / "mlp.onnx", [4, 3]), 1)
    cells = (Cell(1, 1000, 1100, 1200, 100),)
    stored = (
        ProfileEntry(
            fingerprint=hardware_id(),
            kind=kind,
            source=FigureSource.MEASURED,
            sha256=model_hash(entry.path),
            cells=cells,
        )
        for kind in kinds
    )
    write_profile(entry.path.with_name("mlp.profile.json"), ModelProfile(entries=tuple(stored)))
    return entry


@pytest.mark.parametrize(
    ("kinds", "known"),
    [
        ((), set()),
        (("cpu1",), set()),
        (("cpu1", "cpu2", "cpu7", "mps-50"), {"cpu1", "cpu2"}),
        (("cpu2/x3", "cpu3/x3"), set()),
    ],
)
def test_sizes_are_known_where_profiles_have_two_that_there_could_be(
    kinds: tuple[str, ...], known: set[str], tmp_path: Path
) -> None:
    sizes = KnownSizes(DependencyGraph({"mlp": Deployed((profiled(tmp_path, *kinds),), ())}))
    tables = asyncio.run(sizes.tables([CpuPartition("a", (0,))], 4))
    assert tables.keys() == known
    assert all(by_key == {"mlp:1": LatencyTable(((1, 1000),))} for by_key in tables.values())
    assert asyncio.run(sizes.tables([CpuPartition("a", (0,))], 4)) is tables
