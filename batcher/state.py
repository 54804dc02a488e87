"""Every mutable record of the core, as data: one line a field, with its unit, and one writer for each field.

The table names the only file that may assign a field of a record, or change a container that it holds. Fields that it
does not name never change after the record is made. `tests/unit/batcher/test_state_ownership.py` compares the table
with the code.

=============== ============================= ======================================================================
Record          Only writer (in batcher/)     Fields
=============== ============================= ======================================================================
PartitionState  fleet/fleet.py                kind price models ready lost_ns group
PartitionState  fleet/partition_group.py      opening_ns is_listed_idle
PartitionState  fleet/speed.py                hand_off_ns last_end_ns
PartitionState  fleet/device_sharing.py         throttled slowdown
PartitionState  dispatch/dispatcher.py        batches free_at_ns idle_since_ns
PartitionGroup  fleet/fleet.py                models hosted partitions
PartitionGroup  fleet/partition_group.py      only ready_count idle opening busy
PartitionGroup  prediction/backlog.py         backlog_ns
ModelState      fleet/fleet.py                groups
ModelState      fleet/speed.py                estimates batch_limits limit_changes quickest_ns
ModelState      dispatch/dispatcher.py        outstanding peak_rows typical_rows batches last_dispatch_ns
ModelState      scheduler/pipelines.py        pipelines
ModelState      residency/partition_memory.py config load_ns last_load_ns
StageState      scheduler/replanner.py        model cost_to_go plan_changes
StageState      queues/progress.py            run_probability
StageState      prediction/pipeline_times.py  remaining_path_ns
PipelineState   fleet/fleet.py                degraded
PipelineState   fleet/speed.py                changes
PipelineState   prediction/pipeline_times.py  predicted_changes critical_path_ns expected_runs steps work shared
PipelineState   scheduler/scheduler.py        arrived_rows outstanding rows_under_way inflow asked
PipelineState   scheduler/replanner.py        rate
PipelineState   scheduler/admission.py        last_probe_ns demand
Request         scheduler/scheduler.py        open_stages settled running entries missing runs ran_on
Request         prediction/backlog.py         work committed
StageRun        scheduler/scheduler.py        confidences batch_key
Entry           queues/                       queued late retry_group
Entry           dispatch/dispatcher.py        batch
Entry           dispatch/retries.py           lost_once
Batch           dispatch/dispatcher.py        live suspect revoking
Batch           scheduler/scheduler.py        entries
=============== ============================= ======================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from sluice.batcher.estimates.batch_limit import BatchLimit
from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.estimates.rate import RateEstimate
from sluice.batcher.estimates.recent_rows import RecentRows
from sluice.batcher.interface.config import PipelineConfig, ScheduledModel, StageConfig
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.interface.plan_data import CostToGo
from sluice.models.units import NS_PER_S

IN_FLIGHT = 2
"""Batches that a worker may hold: one runs, the next is there when it ends, so a device never waits for Python."""
RESTART_NS = NS_PER_S
"""Assumed time until a lost worker is back."""
UNAVAILABLE_NS = 5 * NS_PER_S
"""A partition that has been lost for longer than this is not expected back."""
ASKED_MEMORY_NS = 5 * NS_PER_S
"""Models move between partitions by the rows that came within this time, and not for a few rows."""
INFLOW_MEMORY_NS = NS_PER_S // 4
"""Shares of pipelines follow the rows that came within this time, which is as long as objectives are."""

QueueKey = tuple[str, str]
"""(model key, batch key): requests with the same key may share a batch."""
Shares = tuple[tuple["PartitionGroup", int], ...]
"""(group, expected nanoseconds of its partitions that one row of a request takes)."""
WaitingStage = tuple["StageState", "ModelState", int, float]
"""(stage whose work may have to wait, its model, ns from its start to the pipeline's end if nothing else has to wait,
ns that a row takes of all partitions that hold the model)."""


@dataclass(slots=True, eq=False)
class PartitionState:
    """One partition: what it can run, and the batches that its worker holds."""

    number: int  # position in the spec; breaks ties
    name: str
    kind: str  # key of the latency tables
    price: float  # cost of a second
    hand_off_ns: int  # ns before it is free at which the next batch is closed: as configured, or as seen if longer
    least_hand_off_ns: int  # ns; the configured hand-off time
    models: frozenset[str] = frozenset()  # keys of the models whose batches it may be given
    ready: bool = False  # its worker is up
    lost_ns: int | None = None  # ns; when its worker was lost; None while it is up, or if it never was
    group: PartitionGroup | None = None  # its equals; None before it was ready for the first time
    batches: list[Batch] = field(default_factory=list)  # dispatched and not over; the first one runs
    free_at_ns: int = 0  # ns; when all its batches are expected to be over
    idle_since_ns: int = 0  # ns; when its last batch ended, or its worker came up
    last_end_ns: int = 0  # ns; when its worker says the last batch ended
    opening_ns: int = 0  # ns; when it may be given a second batch; infinite if it is idle or full
    is_listed_idle: bool = False  # its number is in the group's `idle`
    throttled: bool = False  # it is over its share of a device that others need, and gets no batch
    slowdown: float = 1.0  # how many times as long its work takes while it is throttled now and then

    def start_ns(self, now_ns: int) -> int:
        """When a batch dispatched now would start."""
        if self.ready:
            return self.free_at_ns if self.free_at_ns > now_ns else now_ns
        return max(now_ns, (now_ns if self.lost_ns is None else self.lost_ns) + RESTART_NS)

    def is_gone(self, now_ns: int) -> bool:
        """True if its worker was lost so long ago that it is not expected back."""
        return self.lost_ns is not None and now_ns - self.lost_ns >= UNAVAILABLE_NS


@dataclass(slots=True, eq=False)
class PartitionGroup:
    """The partitions of one kind and price that hold the same models: any of them can run what one of them can.

    `idle`, `opening` and `busy` are heaps that are cleaned up lazily: an item that its partition contradicts is dropped
    when it comes to the front.
    """

    number: int  # order of creation; breaks ties
    kind: str
    models: frozenset[str]
    price: float
    hosted: dict[str, ModelState] = field(default_factory=dict)  # the states of `models`, by key
    partitions: dict[int, PartitionState] = field(default_factory=dict)  # by number
    only: PartitionState | None = None  # the partition, if there is only one
    ready_count: int = 0  # partitions that are up
    backlog_ns: int = 0  # ns; work that was promised to requests and is not dispatched
    idle: list[int] = field(default_factory=list)  # heap of the numbers of idle partitions
    opening: list[tuple[int, int, PartitionState]] = field(default_factory=list)  # heap by `opening_ns`
    busy: list[tuple[int, int, PartitionState]] = field(default_factory=list)  # heap by `free_at_ns`


@dataclass(slots=True, eq=False)
class ModelState:
    """One model version: which partitions hold it, how fast it is and how much is asked of it."""

    config: ScheduledModel
    by_deadline: bool  # its queues are ordered by deadline, else first come, first served
    mixes_keys: bool  # inputs of all batch keys wait in one queue
    full_rows: Callable[[LatencyEstimate], int]  # rows of its batches under load, by its batch policy
    groups: list[PartitionGroup] = field(default_factory=list)  # those that hold it
    estimates: dict[str, LatencyEstimate] = field(default_factory=dict)  # by kind of partition
    batch_limits: dict[str, BatchLimit] = field(default_factory=dict)  # by kind, where larger batches had no memory
    limit_changes: int = 0  # how often the batch sizes that it may run with have changed
    quickest_ns: int = 0  # ns; least time of a row by itself
    pipelines: list[PipelineState] = field(default_factory=list)  # those with a stage that it may run
    outstanding: int = 0  # rows that are queued or running
    peak_rows: float = 0.0  # decayed maximum of `outstanding`: rows that may be expected together
    typical_rows: float = 1.0  # smoothed rows of a batch
    batches: int = 0  # batches dispatched so far
    last_dispatch_ns: int = 0  # ns; when its last batch was dispatched
    last_load_ns: int = 0  # ns; when a partition last loaded it
    load_ns: dict[str, int] = field(default_factory=dict)  # ns that loads take, by kind, as far as some were seen

    @property
    def partitions(self) -> list[PartitionState]:
        """The partitions that hold the model, in the order of their numbers; O(partitions)."""
        return sorted(
            (host for group in self.groups for host in group.partitions.values()), key=lambda host: host.number
        )

    @property
    def served(self) -> bool:
        """True if a partition that is up holds the model."""
        return any(group.ready_count for group in self.groups)

    @property
    def last_used_ns(self) -> int:
        """When it was used last: loading counts as use."""
        return max(self.last_dispatch_ns, self.last_load_ns)

    @property
    def usual_rows(self) -> int:
        """Rows of a batch, going by the last ones."""
        return min(int(self.typical_rows + 0.5), self.config.max_batch) or 1

    def row_ns(self, kind: str) -> int:
        """Time that a row takes of a partition of that kind, in batches as large as the policy makes them."""
        estimate = self.estimates[kind]
        return estimate.row_ns(min(self.full_rows(estimate), self.config.max_batch))

    @property
    def spread_row_ns(self) -> float:
        """Time that a row takes of all partitions when each does as much as it can; 0 without a partition."""
        rates = [len(group.partitions) / max(self.row_ns(group.kind), 1) for group in self.groups]
        return 1 / sum(rates) if rates else 0.0


class Work:
    """The work of a row of a request in each group, stage by stage and in all; immutable.

    `stages` has the expected work of a row. `whole` is the work of a row that runs the stage for certain.
    """

    __slots__ = ("_whole", "stages", "total")

    def __init__(self, expected: tuple[Shares, ...], whole: tuple[Shares, ...]) -> None:
        self.stages = stages = expected
        self._whole = whole
        sums: dict[PartitionGroup, int] = {}
        for shares in stages:
            for group, row_ns in shares:
                sums[group] = sums.get(group, 0) + row_ns
        self.total: Shares = tuple(sums.items())

    def known(self, stage: int, share: float) -> Work:
        """The work once it is known which share of the rows a stage runs for."""
        shares = self._whole[stage]
        if share < 1:
            shares = tuple((group, round(row_ns * share)) for group, row_ns in shares)
        return Work((*self.stages[:stage], shares, *self.stages[stage + 1 :]), self._whole)


class Precedence:
    """Which model stages of a pipeline come directly before and after each other; immutable.

    Made from the stages that each stage waits for (in topological order) and from which of them run a model. Combiners
    take no time, so they are left out: what comes before a combiner comes before what follows it.
    """

    __slots__ = ("after", "before", "stages")

    def __init__(self, waits_for: Sequence[Collection[int]], runs: Sequence[bool]) -> None:
        before: list[set[int]] = []
        for sources in waits_for:
            before.append(set[int]().union(*({source} if runs[source] else before[source] for source in sources)))
        self.stages = tuple(stage for stage, is_model in enumerate(runs) if is_model)
        self.before = tuple(tuple(sorted(sources)) for sources in before)
        self.after = tuple(
            tuple(later for later in self.stages if stage in before[later]) for stage in range(len(before))
        )


@dataclass(slots=True, eq=False)
class StageState:
    """One stage of a pipeline."""

    index: int
    config: StageConfig
    model: ModelState | None  # the variant that runs it now; None for a combiner
    waits_for: set[int]  # stages whose rows or confidences it needs
    dependents: list[int]  # stages that need its rows or confidences
    is_keyed: bool  # its inputs have dimensions that may differ, so that not all of them share batches
    cost_to_go: CostToGo | None = None  # the plan's cost of all that follows; None without a plan or without a choice
    plan_changes: int = 0  # how often `model` or `cost_to_go` were set
    run_probability: float = 1.0  # smoothed share of the rows offered to a conditional stage that it runs for
    remaining_path_ns: int = 0  # ns; predicted from this stage's end to the pipeline's end on the longest path

    def service_ns(self, hand_off_ns: int) -> int:
        """Predicted time of the stage in a batch of typical size; 0 for a combiner."""
        model = self.model
        if model is None or not model.estimates:
            return 0
        return min(estimate.service_ns(model.usual_rows) for estimate in model.estimates.values()) + hand_off_ns


@dataclass(slots=True, eq=False)
class PipelineState:
    """One pipeline: its stages, its requests and the predictions for a request that arrives now.

    Predictions are made again when a request arrives and `changes` is no longer `predicted_changes`.
    """

    number: int  # never used again; tells its entries apart in a queue
    config: PipelineConfig
    stages: list[StageState]
    stage_count: int
    all_stages: int  # a bit for each stage
    missing: list[int]  # by stage, how many stages it waits for
    roots: list[StageState]  # stages that wait for none
    single: bool  # its only stage runs a model and does not use the response cache
    has_parallel_stages: bool  # two model stages may be there at the same time
    precedence: Precedence
    evicts: bool  # its requests are given up rather than answered late
    work: Work  # work of a row of a request
    steps: list[WaitingStage] = field(default_factory=list)  # stages that a request may have to wait for
    critical_path_ns: int = 0  # ns that a request takes if all partitions are idle
    expected_runs: dict[ModelState, float] = field(default_factory=dict)  # stages of a model that a row runs on average
    shared: bool = False  # another pipeline uses one of its models
    changes: int = 1  # how often partitions, models or estimates that it depends on have changed
    predicted_changes: int = 0  # the changes that the predictions include
    degraded: bool = True  # some partition that it could use is not there
    outstanding: int = 0  # requests that were admitted and have no outcome
    rows_under_way: int = 0  # their rows; counted while slots are reserved
    last_probe_ns: int | None = None  # ns; when corrections last decayed so that a request might be admitted
    arrived_rows: int = 0  # rows of all requests so far, admitted or not
    rate: RateEstimate = field(default_factory=RateEstimate)  # rows that arrive a second
    demand: RecentRows = field(default_factory=lambda: RecentRows(ASKED_MEMORY_NS))  # arrivals, for loading on demand
    inflow: RecentRows = field(default_factory=lambda: RecentRows(INFLOW_MEMORY_NS))  # admitted rows, if shared
    asked: RecentRows = field(default_factory=lambda: RecentRows(INFLOW_MEMORY_NS))  # arrivals, if slots are reserved


class StageRun(msgspec.Struct, eq=False):
    """One stage of one request: its rows, and what it reported of them."""

    row_index: tuple[int, ...] | None  # rows of the request that it runs for; None for all
    rows: int  # how many they are
    confidences: tuple[tuple[float, ...], ...] = ()  # one tuple a confidence of the model, each with one value a row
    batch_key: str = ""  # tells apart outputs whose variable dimensions differ


class Request(msgspec.Struct, eq=False):
    """A request that was admitted and has no outcome.

    Requests, entries and batches are `msgspec.Struct`s because several are made for each request, and that is the
    quickest way. They are compared by identity.
    """

    identity: int
    pipeline: PipelineState
    rows: int
    deadline_ns: int  # ns
    arrival: RequestArrived
    work: Work  # work of one of its rows, as far as it is known
    committed: int  # a bit for each stage whose expected work is counted in the backlogs of groups
    open_stages: int  # stages that are not over
    settled: bool = False  # it has its outcome
    running: int = 0  # once it is settled: batches, combiners and held answers that still use its tensors
    entries: list[Entry] = []  # all that it has waiting or running, or had
    missing: list[int] = []  # by stage, how many stages it still waits for; empty if the pipeline has one stage
    runs: list[StageRun | None] = []  # by stage, None until its rows are known; empty if the pipeline has one stage
    ran_on: PartitionState | None = None  # where its last batch ran


class Entry(msgspec.Struct, eq=False):
    """The rows of one request that wait for a stage, or run in it."""

    request: Request
    stage: int
    rows: int
    row_index: tuple[int, ...] | None  # as in `StageRun`
    queue_key: QueueKey  # the queue that it waits in, or came from
    stage_deadline_ns: int  # ns; the request's deadline less the stages after this one
    enqueued_ns: int  # ns
    sequence: int  # order of creation
    flow: int = 0  # number of its pipeline, whose entries it waits with
    queued: bool = True  # it waits in its queue, or for its reserved slot
    late: bool = False  # it waits behind the entries that can still be in time
    lost_once: bool = False  # its worker was lost while it may have been the cause
    batch: Batch | None = None  # the batch that it runs in
    retry_group: list[Entry] | None = None  # the entries that it is to be retried with


class Batch(msgspec.Struct, eq=False):
    """A batch on a partition."""

    identity: int
    queue_key: QueueKey
    partition: PartitionState
    kind: str  # kind of the partition when the batch was dispatched
    entries: list[Entry]  # emptied once it has completed, so that no cycle is left to the garbage collector
    rows: int
    median_ns: int  # ns that it is expected to take
    dispatched_ns: int  # ns
    live: int  # entries whose requests have no outcome
    suspect: bool = False  # it was running when its worker was lost, and may be the cause
    revoking: bool = False  # its worker was asked to take it back
