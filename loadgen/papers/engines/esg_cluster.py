"""ESG's cluster in virtual time: 16 nodes of seven GPU slices and 16 cores, and the four applications.

HPDC 2024 has nodes, slices, cores, applications, planners, and objectives of 0.8, 1 and 1.2 times L, the time that an
application takes with one slice, one core and batches of one. Neither code nor profiles are public. The times of
functions and the gaps between requests are those that are recalled from the paper. Assumed here: six sevenths of the
time of a row are the GPU's; a batch of b rows takes the GPU 0.4 + 0.6 b times as long, g slices make that quicker by
g^0.7, and each core takes one row of a batch at a time through the rest. The slices of a node are cut into instances of
a layout, with two cores for each slice, where ESG has an instance of any size for each batch: a planner that fixes one
kind of instance has only those of that kind. All models are loaded, and transfers take no time.
"""

import random
from collections import defaultdict
from collections.abc import Iterator
from math import ceil

import msgspec

from sluice.batcher.drivers.simulated_nodes import SimulatedNode
from sluice.batcher.interface.config import (
    PartitionConfig,
    PipelineConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
)
from sluice.batcher.interface.decisions import AnyDecision, DispatchBatch
from sluice.batcher.interface.events import AnyEvent, PlanBuilt, RequestArrived
from sluice.batcher.interface.plan_data import FixedOption, kind_over
from sluice.batcher.interface.planner_config import PlannerConfig
from sluice.batcher.policies.deadline import DeadlineSettings, Objective
from sluice.loadgen.papers.engines.virtual_gateway import EndedRequest, Tables, VirtualGateway
from sluice.loadgen.papers.nodes_and_links import APPLICATIONS, FUNCTIONS
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS, NS_PER_S

NODES, SLICES = 16, 7
LAYOUTS = (((1, 2),) * 7, ((2, 4), (2, 4), (2, 4), (1, 2)), ((4, 8), (2, 4), (1, 2)))
"""Slices and cores of each instance; nodes have these layouts in turn."""
SIZES = (1, 2, 4, 8)
ON_GPU = 6 / 7
CORE_PRICE, SLICE_PRICE = 0.034 / 3600, 0.67 / 3600
"""Prices a second."""
OBJECTIVES = {"strict": 0.8, "moderate": 1.0, "relaxed": 1.2}
GAPS_MS = {"light": (40.0, 67.2), "normal": (20.0, 33.6), "heavy": (10.0, 16.8)}
FROM_NS = 2 * NS_PER_S
"""Requests that come before have plans that were made without a rate, and do not count."""


class EsgCell(msgspec.Struct, frozen=True):
    """An objective with a load."""

    objective: str
    load: str

    @property
    def name(self) -> str:
        """As the paper names it, e.g. `strict-light`."""
        return f"{self.objective}-{self.load}"

    @property
    def demand(self) -> float:
        """The part of all slices that would be busy if every function ran alone on one slice."""
        row_ms = sum(own_time_ns(chain) for chain in APPLICATIONS.values()) / len(APPLICATIONS) / NS_PER_MS
        return row_ms / (sum(GAPS_MS[self.load]) / 2) / (NODES * SLICES)


CELLS = tuple(EsgCell(objective, load) for load in GAPS_MS for objective in OBJECTIVES)


class EsgRun(msgspec.Struct, frozen=True):
    """One run: requests, those in time, those answered late, the cost of all batches, latencies by application.

    `work_s` is the time that the requests in time take with one slice and one core. `off_plan` is the part of the
    batches that are not of the size and on the kind of partition that the plan names, `quick_busy` the part of the time
    for which instances of several slices ran batches that began before the last request came.
    """

    requests: int
    in_time: int
    late: int
    work_s: float
    cost: float
    latencies_ms: dict[str, list[float]]
    off_plan: float
    quick_busy: float


def own_time_ns(chain: tuple[str, ...]) -> int:
    """L of an application."""
    return sum(table_of(name, 1, 1).latency_ns(1) for name in chain)


def objective_ns(application: str, cell: EsgCell) -> int:
    """The time in which a request is to be answered."""
    return int(OBJECTIVES[cell.objective] * own_time_ns(APPLICATIONS[application]))


def table_of(function: str, slices: int, cores: int) -> LatencyTable:
    """The times of batches of a function on an instance."""
    row_ms = FUNCTIONS[function].row_ms
    return LatencyTable.from_ms(
        {
            size: row_ms * (ON_GPU * (0.4 + 0.6 * size) / slices**0.7 + (1 - ON_GPU) * ceil(size / cores))
            for size in SIZES
        }
    )


def partitions() -> dict[str, tuple[int, int]]:
    """The slices and cores of all instances, by the names of partitions."""
    return {
        f"node{node}-{number}": instance
        for node in range(NODES)
        for number, instance in enumerate(LAYOUTS[node % len(LAYOUTS)])
    }


def spec_of(cell: EsgCell, planner: PlannerConfig) -> SchedulerSpec:
    """The spec of a gateway of the cluster."""
    return SchedulerSpec(
        tuple(ScheduledModel(name, SIZES[-1], DeadlineSettings(Objective.COST)) for name in FUNCTIONS),
        tuple(
            PipelineConfig(
                name,
                tuple(StageConfig(each, each, (index - 1,) if index else ()) for index, each in enumerate(chain)),
                slo_ns=objective_ns(name, cell),
            )
            for name, chain in APPLICATIONS.items()
        ),
        tuple(
            PartitionConfig(
                name, f"{slices}g+c{cores}", slices * SLICE_PRICE + cores * CORE_PRICE, share=slices / SLICES
            )
            for name, (slices, cores) in partitions().items()
        ),
        planner=planner,
    )


def arrivals(cell: EsgCell, seed: int, seconds: int) -> Iterator[tuple[int, RequestArrived]]:
    """Requests for the four applications by chance, equally often; the same for every planner."""
    chance, now_ns = random.Random(seed), 0
    names = list(APPLICATIONS)
    for request in range(1 << 30):
        now_ns += int(chance.uniform(*GAPS_MS[cell.load]) * NS_PER_MS)
        if now_ns > seconds * NS_PER_S:
            return
        name = chance.choice(names)
        yield now_ns, RequestArrived(request, name, 1, now_ns + objective_ns(name, cell))


def play(cell: EsgCell, planner: PlannerConfig, seed: int, seconds: int) -> EsgRun:
    """One run of a planner in virtual time; the same every time."""
    instances = partitions()
    spec = spec_of(cell, planner)
    tables = {name: {each: table_of(each, *instance) for each in FUNCTIONS} for name, instance in instances.items()}
    bill = _Bill(spec, tables, seconds)
    nodes = [
        SimulatedNode(f"node{node}", tuple(each for each in instances if each.startswith(f"node{node}-")), 1 << 60)
        for node in range(NODES)
    ]
    played = VirtualGateway(spec, tables, nodes=nodes, observe=bill.observe).play(arrivals(cell, seed, seconds))
    counted = [each for each in played.requests if each.came_ns >= FROM_NS]
    in_time = [each for each in counted if each.is_in_time]
    return EsgRun(
        requests=len(counted),
        in_time=len(in_time),
        late=sum(each.outcome.answered for each in counted) - len(in_time),
        work_s=sum(own_time_ns(APPLICATIONS[each.pipeline]) for each in in_time) / NS_PER_S,
        cost=bill.cost,
        latencies_ms=_latencies(counted),
        off_plan=bill.off_plan / bill.planned if bill.planned else 0.0,
        quick_busy=bill.quick_busy,
    )


class _Bill:
    """Adds up what batches cost, and compares them with what plans have fixed for their stages."""

    def __init__(self, spec: SchedulerSpec, tables: Tables, seconds: int) -> None:
        self._quick_ns = 0
        self._until_ns = seconds * NS_PER_S
        self._partitions = {each.name: each for each in spec.partitions}
        self._tables = tables
        self._fixed: dict[tuple[str, int], FixedOption] = {}
        self._pipelines: dict[int, str] = {}
        self.cost = 0.0
        self.planned = self.off_plan = 0

    def observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        if isinstance(event, RequestArrived):
            self._pipelines[event.request] = event.pipeline
        elif isinstance(event, PlanBuilt) and event.plan is not None:
            for plan in event.plan.pipelines:
                for index, stage in enumerate(plan.stages):
                    if isinstance(stage.rule, FixedOption):
                        self._fixed[plan.pipeline, index] = stage.rule
        for decision in decisions:
            if isinstance(decision, DispatchBatch) and now_ns >= FROM_NS:
                self._add(decision, now_ns)

    @property
    def quick_busy(self) -> float:
        """As in `EsgRun`."""
        quick = sum(slices > 1 for slices, _ in partitions().values())
        return self._quick_ns / quick / (self._until_ns - FROM_NS)

    def _add(self, batch: DispatchBatch, now_ns: int) -> None:
        partition, first = self._partitions[batch.partition], batch.members[0]
        took_ns = self._tables[batch.partition][batch.model].latency_ns(batch.rows)
        self.cost += partition.price * took_ns / NS_PER_S
        if partition.share > 1 / SLICES:
            self._quick_ns += max(min(took_ns, self._until_ns - now_ns), 0)
        if (fixed := self._fixed.get((self._pipelines[first.request], first.stage))) is not None:
            self.planned += 1
            is_kind = fixed.kind == partition.kind or fixed.kind.startswith(kind_over(partition.kind, ""))
            self.off_plan += batch.rows != fixed.rows or not is_kind


def _latencies(requests: list[EndedRequest]) -> dict[str, list[float]]:
    found = defaultdict[str, list[float]](list)
    for each in requests:
        if each.outcome.answered:
            found[each.pipeline].append((each.ended_ns - each.came_ns) / NS_PER_MS)
    return dict(found)
