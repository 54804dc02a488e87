"""Every mutable record of the core, as data: one line a field, with its unit, and one writer for each field.

The table names the only file that may assign a field of a record, or change a container that it holds. Fields that it
does not name never change after the record is made. `tests/unit/batcher/test_state_ownership.py` compares the table
with the code.

=============== ============================= ======================================================================
Record          Only writer (in batcher/)     Fields
=============== ============================= ======================================================================
PartitionState  fleet/fleet.py                kind price models ready lost_ns group closed is_scaled
PartitionState  fleet/partition_group.py      opening_ns is_listed_idle
PartitionState  fleet/nodes.py                node link keeps_outputs round_trip_ns ns_per_byte
PartitionState  fleet/speed.py                hand_off_ns own_hand_off_ns hand_offs last_end_ns between_ns
NodeState       fleet/nodes.py                partitions measured round_trip_ns ns_per_byte distance speed
NodeState       fleet/speed.py                hand_off_ns
PartitionState  fleet/member_table.py         position is_stale
PartitionState  fleet/device_sharing.py         throttled slowdown
PartitionState  dispatch/dispatcher.py        batches suspended free_at_ns idle_since_ns
PartitionState  dispatch/stragglers.py        overdue
PartitionState  places/planned_batches.py     planned planned_ns last_serial linked
PartitionGroup  fleet/fleet.py                models hosted partitions round_trip_ns ns_per_byte
PartitionGroup  fleet/partition_group.py      only ready_count idle opening busy
ModelState      fleet/fleet.py                groups nearest_ns
PartitionGroup  fleet/member_table.py         stale table
MemberTable     fleet/member_table.py         members until_ns free_ns order_ns planned_ns
MemberTable     fleet/member_table.py         least_until_ns least_free_ns most_order_ns most_planned_ns
ModelState      fleet/speed.py                estimates batch_limits limit_changes quickest_ns
ModelState      dispatch/dispatcher.py        outstanding extra_rows peak_rows typical_rows batches under_way
ModelState      dispatch/dispatcher.py        last_dispatch_ns
ModelState      scheduler/pipelines.py        pipelines
ModelState      scheduler/admission.py        demand
ModelState      places/places.py              open_batch
ModelState      residency/partition_memory.py config load_ns last_load_ns
StageState      scheduler/replanner.py        model cost_to_go rule plan_changes
StageState      queues/progress.py            run_probability
StageState      prediction/pipeline_times.py  remaining_path_ns
PipelineState   fleet/fleet.py                degraded
PipelineState   fleet/speed.py                changes
PipelineState   prediction/pipeline_times.py  predicted_changes critical_path_ns expected_runs steps reach
PipelineState   scheduler/scheduler.py        arrived_rows outstanding
PipelineState   scheduler/replanner.py        rate
PipelineState   scheduler/admission.py        last_probe_ns demand
Request         scheduler/scheduler.py        open_stages settled running entries missing runs ran_on
Request         scheduler/scheduler.py        given_up overdue_joins
PipelineState   places/places.py              row_gap_ns gaps last_row_ns drift owed raised_ns planned_rows
PipelineState   places/shares.py              clients
ClientState     places/shares.py              planned_rows row_gap_ns last_row_ns
Request         places/places.py              places placed waits_ns kept client models is_linked
PlannedBatch    places/planned_batches.py     partition rows room variance most members
PlannedBatch    places/planned_batches.py     merges depth length_ns from_ns limit_ns latest_ns ready_ns serial
PlannedBatch    places/planned_batches.py     links
PlannedBatch    places/timeline.py            end_ns
BatchLinks      places/planned_batches.py     after before fed_ns
StageRun        scheduler/scheduler.py        confidences batch_key kept_on is_done
Entry           queues/                       queued late retry_group queue_key
Entry           dispatch/dispatcher.py        batch was_revoked
Entry           dispatch/retries.py           lost_once nodes_lost
Entry           dispatch/timeouts.py          late_timeout
Entry           dispatch/copies.py            copies
Batch           dispatch/dispatcher.py        live suspect is_node_lost revoking is_suspended reforms
Batch           dispatch/copies.py            copied
Batch           scheduler/scheduler.py        entries
=============== ============================= ======================================================================
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from sluice.batcher.estimates.batch_limit import BatchLimit
from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.estimates.rate import RateEstimate
from sluice.batcher.estimates.recent_rows import RecentRows
from sluice.batcher.interface.config import PipelineConfig, ScheduledModel, StageConfig
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.interface.plan_data import CostToGo, FixedOption, GroupSearch
from sluice.models.units import INFINITE_NS, NS_PER_S

IN_FLIGHT = 2
"""Batches that a worker may hold: one runs, the next is there when it ends, so a device never waits for Python."""
RESTART_NS = NS_PER_S
"""Assumed time until a lost worker is back."""
UNAVAILABLE_NS = 5 * NS_PER_S
"""A partition that has been lost for longer than this is not expected back."""
ASKED_MEMORY_NS = 5 * NS_PER_S
"""Models move between partitions by the rows that came within this time, and not for a few rows."""

NO_STAGES: frozenset[int] = frozenset()

QueueKey = tuple[str, str]
"""(model key, batch key): requests with the same key may share a batch."""
Place = tuple["PlannedBatch", float]
"""(planned batch that a stage of a request has its place in, the rows that are expected to run)."""
WaitingStage = tuple["StageState", "ModelState", int]
"""(stage whose work may have to wait, its model, ns from its start to the pipeline's end if nothing else waits)."""


class LinkClass(NamedTuple):
    """The class of the ways to equal partitions: a name, and classes of bandwidth and of round trips."""

    name: str
    speed: int
    distance: int

    @property
    def text(self) -> str:
        """The name, or what is known of the links."""
        if self.name or not self.speed:
            return self.name or "a link"
        megabytes = (1 << self.speed - 1) / 1e6
        return f"{megabytes:.0f} MB/s" if self.distance == 1 else f"{megabytes:.0f} MB/s, {1 << self.distance - 1} ms"


LOCAL = LinkClass("", 0, 0)
"""Of partitions on the gateway's own machine; on other nodes, `distance` is at least 1."""


@dataclass(slots=True, eq=False)
class NodeState:
    """A machine other than the gateway's own, on which partitions are."""

    name: str
    hand_off_ns: int  # ns; the smoothed hand-off time of its partitions, without their ways
    partitions: dict[int, PartitionState] = field(default_factory=dict)  # those on it, by number
    measured: tuple[tuple[int, int], ...] = ()  # the last round trips (ns) and bandwidths (bytes a second)
    round_trip_ns: int = 0  # ns that a message takes there and back
    ns_per_byte: float = 0.0  # ns that each byte takes; 0 if that is not known
    distance: int = 1  # class of its round trip, at least 1
    speed: int = 0  # class of its bandwidth


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
    is_scaled: bool = False  # it is a slot of a scaled class: without a worker, none may be on its way
    closed: bool = False  # it is up, but gets neither batches nor models, since it is to be given up
    node: NodeState | None = None  # the machine that its worker is on; None for the gateway's own
    link: LinkClass = LOCAL
    keeps_outputs: bool = False  # what its batches answer stays on its node as well
    round_trip_ns: int = 0  # ns that a message to its node takes there and back; 0 on the gateway's own machine
    ns_per_byte: float = 0.0  # ns that each byte to its node or back takes
    own_hand_off_ns: int = 0  # ns; the smoothed hand-off time of its own batches, where its node has one of its own
    hand_offs: int = 0  # batches from which `own_hand_off_ns` was learned
    group: PartitionGroup | None = None  # its equals; None before it was ready for the first time
    batches: list[Batch] = field(default_factory=list)  # dispatched and not over; the first one runs
    suspended: list[Batch] = field(default_factory=list)  # not over, but waiting for other models and not counted
    free_at_ns: int = 0  # ns; when all its batches are expected to be over
    idle_since_ns: int = 0  # ns; when its last batch ended, or its worker came up
    overdue: bool = False  # its running batch takes far longer than predicted: it gets no other until that has ended
    last_end_ns: int = 0  # ns; when its worker says the last batch ended
    between_ns: float = 0.0  # ns from the end of a batch to the start of the next one that is there already
    opening_ns: int = 0  # ns; when it may be given a second batch; infinite if it is idle or full
    is_listed_idle: bool = False  # its number is in the group's `idle`
    throttled: bool = False  # it is over its share of a device that others need, and gets no batch
    slowdown: float = 1.0  # how many times as long its work takes while it is throttled now and then
    planned: list[PlannedBatch] = field(
        default_factory=list
    )  # what it is to run after `batches`, in order of deadlines
    planned_ns: int = 0  # ns; the time that `planned` takes
    linked: int = 0  # how many of `planned` have links, so that it may have to be idle between some of them
    last_serial: int = 0  # of the batches that were planned for it
    position: int = -1  # in its group's `table`; -1 while it is not there
    is_stale: bool = False  # it is in its group's `stale`

    def start_ns(self, now_ns: int) -> int:
        """When a batch dispatched now would start."""
        if self.ready:
            return self.free_at_ns if self.free_at_ns > now_ns else now_ns
        return max(now_ns, (now_ns if self.lost_ns is None else self.lost_ns) + RESTART_NS)

    def way_ns(self, model: ModelState, rows: float) -> int:
        """The time that a batch and its answers are on their way to its node and back; 0 on the gateway's machine."""
        return way_ns(self.round_trip_ns, self.ns_per_byte, model.config, rows)

    def occupied_ns(self, model: ModelState, rows: float, expected_ns: int) -> int:
        """The time that a batch takes of the partition where batches follow each other; see `occupied_ns`."""
        return occupied_ns(self.round_trip_ns, self.ns_per_byte, model.config, rows, expected_ns)

    def return_ns(self, model: ModelState, rows: float, expected_ns: int) -> int:
        """By how much later a batch is complete than it occupies the partition: what is left of its way."""
        if not self.round_trip_ns and not self.ns_per_byte:
            return 0
        return expected_ns + self.way_ns(model, rows) - self.occupied_ns(model, rows, expected_ns)

    def is_gone(self, now_ns: int) -> bool:
        """True if its worker was lost so long ago that it is not expected back, or if a scaled slot never had one."""
        if self.lost_ns is None:
            return self.is_scaled and not self.ready
        return now_ns - self.lost_ns >= UNAVAILABLE_NS


class ComingModel(NamedTuple):
    """A model that is being loaded: the partition, and when it is expected to be there."""

    partition: PartitionState
    ready_ns: int


@dataclass(slots=True, eq=False)
class PartitionGroup:
    """The partitions of one kind, price and class of links that hold the same models.

    Any of them can run what one of them can, in the same time.

    `idle`, `opening` and `busy` are heaps that are cleaned up lazily: an item that its partition contradicts is dropped
    when it comes to the front.
    """

    number: int  # order of creation; breaks ties
    kind: str
    models: frozenset[str]
    price: float
    link: LinkClass = LOCAL
    round_trip_ns: int = 0  # ns; the longest of its partitions
    ns_per_byte: float = 0.0  # ns; the most of its partitions
    hosted: dict[str, ModelState] = field(default_factory=dict)  # the states of `models`, by key
    partitions: dict[int, PartitionState] = field(default_factory=dict)  # by number
    only: PartitionState | None = None  # the partition, if there is only one
    ready_count: int = 0  # partitions that are up
    idle: list[int] = field(default_factory=list)  # heap of the numbers of idle partitions
    opening: list[tuple[int, int, PartitionState]] = field(default_factory=list)  # heap by `opening_ns`
    busy: list[tuple[int, int, PartitionState]] = field(default_factory=list)  # heap by `free_at_ns`
    stale: list[PartitionState] = field(default_factory=list)  # those that have changed since `table` was looked at
    table: MemberTable | None = None  # a view of all partitions, for groups of many

    @property
    def counted(self) -> int:
        """The number of partitions that are counted on: those that are up, or all while none is."""
        return self.ready_count or len(self.partitions)

    def way_ns(self, model: ModelState, rows: float) -> int:
        """As `PartitionState.way_ns`, for the slowest way."""
        return way_ns(self.round_trip_ns, self.ns_per_byte, model.config, rows)

    def occupied_ns(self, model: ModelState, rows: float, expected_ns: int) -> int:
        """As `PartitionState.occupied_ns`, for the slowest way."""
        return occupied_ns(self.round_trip_ns, self.ns_per_byte, model.config, rows, expected_ns)


@dataclass(slots=True, eq=False)
class MemberTable:
    """The partitions of a large group in the order in which they joined it, and bounds for blocks of them.

    The columns bound from below when a partition ends its work, without `between_ns` and slowdown, so that searches
    pass over most partitions.
    """

    members: list[PartitionState | None] = field(default_factory=list)  # None where one has left
    until_ns: list[int] = field(default_factory=list)  # ns; when it ends all that is planned; infinite if it is not up
    free_ns: list[int] = field(default_factory=list)  # ns; when it ends its batches; infinite if it is not up
    order_ns: list[int] = field(default_factory=list)  # ns; the order of its last planned batch, -1 without one
    planned_ns: list[int] = field(default_factory=list)  # ns; the time that its planned batches take
    least_until_ns: list[int] = field(default_factory=list)  # by block, the least of `until_ns`
    least_free_ns: list[int] = field(default_factory=list)  # by block, the least of `free_ns`
    most_order_ns: list[int] = field(default_factory=list)  # by block, the largest of `order_ns`
    most_planned_ns: list[int] = field(default_factory=list)  # by block, the most of `planned_ns`


@dataclass(slots=True, eq=False)
class ModelState:
    """One model version: which partitions hold it, how fast it is and how much is asked of it."""

    config: ScheduledModel
    by_deadline: bool  # its queues are ordered by deadline, else first come, first served
    mixes_keys: bool  # inputs of all batch keys wait in one queue
    full_rows: Callable[[LatencyEstimate], int]  # rows of its batches under load, by its batch policy
    run_sizes: tuple[int, ...] = ()  # the only sizes that its batches run with, padded; empty: they run as they are
    groups: list[PartitionGroup] = field(default_factory=list)  # those that hold it
    estimates: dict[str, LatencyEstimate] = field(default_factory=dict)  # by kind of partition
    batch_limits: dict[str, BatchLimit] = field(default_factory=dict)  # by kind, where larger batches had no memory
    limit_changes: int = 0  # how often the batch sizes that it may run with have changed
    quickest_ns: int = 0  # ns; least time of a row by itself
    nearest_ns: int = 0  # ns; least time that a row is on its way to a partition and back
    pipelines: list[PipelineState] = field(default_factory=list)  # those with a stage that it may run
    demand: RecentRows = field(default_factory=lambda: RecentRows(ASKED_MEMORY_NS))  # of requests that chose it
    open_batch: PlannedBatch | None = None  # the last planned one of its default queue, if it can be joined
    outstanding: int = 0  # rows that are queued or running; none that were sent ahead of their time
    extra_rows: int = 0  # those of them that run only because their stage competes
    peak_rows: float = 0.0  # decayed maximum of the others: rows that may be expected together
    typical_rows: float = 1.0  # smoothed rows of a batch
    batches: int = 0  # batches dispatched so far
    under_way: int = 0  # batches dispatched and not over
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

    def padded_rows(self, rows: int) -> int:
        """The rows that a batch of `rows` rows runs with if it is padded; 0 if it runs as it is."""
        position = bisect_left(self.run_sizes, rows)
        return self.run_sizes[position] if position < len(self.run_sizes) and self.run_sizes[position] > rows else 0

    def row_ns(self, kind: str) -> int:
        """Time that a row takes of a partition of that kind, in batches as large as the policy makes them."""
        estimate = self.estimates[kind]
        return estimate.row_ns(min(self.full_rows(estimate), self.config.max_batch))

    def row_on_ns(self, group: PartitionGroup) -> int:
        """As `row_ns`, for a partition of a group, whose way may bound how many batches it runs."""
        if not group.link.distance:
            return self.row_ns(group.kind)
        estimate = self.estimates[group.kind]
        rows = min(self.full_rows(estimate), self.config.max_batch)
        service_ns = estimate.service_ns(rows)
        return self.row_ns(group.kind) + (group.occupied_ns(self, rows, service_ns) - service_ns) // rows


@dataclass(slots=True, eq=False)
class StageState:
    """One stage of a pipeline."""

    index: int
    config: StageConfig
    model: ModelState | None  # the variant that runs it now; None for a combiner
    waits_for: tuple[int, ...]  # stages whose rows or confidences it needs, ascending
    dependents: list[int]  # stages that need its rows or confidences
    is_keyed: bool  # not all of its rows share batches: dimensions of inputs may differ, or it competes
    cost_to_go: CostToGo | None = None  # the plan's cost of all that follows; None without a plan or without a choice
    rule: FixedOption | GroupSearch | None = None  # the plan's, where options are not chosen among all that is free
    plan_changes: int = 0  # how often `model`, `cost_to_go` or `rule` were set
    run_probability: float = 1.0  # smoothed share of the rows offered to a conditional stage that it runs for
    remaining_path_ns: int = 0  # ns; predicted from this stage's end to the pipeline's end on the longest path

    def service_ns(self, hand_off_ns: int) -> int:
        """Predicted time of the stage in a batch of typical size; 0 for a combiner."""
        return service_ns(self.model, hand_off_ns)


@dataclass(slots=True, eq=False)
class PipelineState:
    """One pipeline: its stages, its requests and the predictions for a request that arrives now.

    Predictions are made again when a request arrives and `changes` is no longer `predicted_changes`.
    """

    number: int  # never used again
    config: PipelineConfig
    stages: list[StageState]
    stage_count: int
    missing: list[int]  # by stage, how many stages it waits for
    roots: list[StageState]  # stages that wait for none
    is_keyed: bool  # some stage is
    single: bool  # its only stage runs a model and does not use the response cache
    feeds: list[tuple[int, ...]]  # by stage, the later model stages that wait for its end; empty unless it is strict
    fed_by: list[tuple[int, ...]]  # by stage, the model stages for whose ends it waits; empty unless it is strict
    has_parallel_stages: bool  # two model stages may be there at the same time
    has_sequences: bool  # a stage runs a model with sequences
    partial: tuple[StageState, ...]  # its combiners that join what is there on time
    evicts: bool  # its requests are given up rather than answered late
    steps: list[WaitingStage] = field(default_factory=list)  # stages that a request may have to wait for
    critical_path_ns: int = 0  # ns that a request takes if all partitions are idle
    expected_runs: dict[ModelState, float] = field(default_factory=dict)  # stages of a model that a row runs on average
    reach: list[float] = field(default_factory=list)  # by stage, the share of the rows that it is expected to run for
    changes: int = 1  # how often partitions, models or estimates that it depends on have changed
    predicted_changes: int = 0  # the changes that the predictions include
    degraded: bool = True  # some partition that it could use is not there
    caution: float = 1.0  # how many times the tail of a batch's time its places keep
    drift: float = 0.0  # share of the time before a planned start that its places keep, since starts come later
    owed: int = 0  # requests that are to be in time before its places keep less
    raised_ns: int = 0  # when its places last kept more
    outstanding: int = 0  # requests that were admitted and have no outcome
    last_probe_ns: int | None = None  # ns; when corrections last decayed so that a request might be admitted
    arrived_rows: int = 0  # rows of all requests so far, admitted or not
    row_gap_ns: float = 0.0  # ns; smoothed time between two rows that arrive, admitted or not; 0 before the second
    gaps: int = 0  # how many of the first times between two rows it has
    last_row_ns: int = 0  # ns; when its last request arrived
    planned_rows: list[int] = field(default_factory=list)  # by stage, rows of its requests that have places there
    clients: dict[str, ClientState] = field(
        default_factory=dict
    )  # those that its requests name, if they are distinguished
    rate: RateEstimate = field(default_factory=RateEstimate)  # rows that arrive a second
    demand: RecentRows = field(default_factory=lambda: RecentRows(ASKED_MEMORY_NS))  # arrivals, for loading on demand


@dataclass(slots=True, eq=False)
class ClientState:
    """One client of a pipeline: what it asks for, and what is planned for it."""

    planned_rows: list[int]  # by stage, rows of its requests that have places there
    row_gap_ns: float = 0.0  # ns; smoothed time between two of its rows, admitted or not; 0 before the second
    last_row_ns: int = 0  # ns; when its last request arrived


@dataclass(slots=True, eq=False)
class StageRun:
    """One stage of one request: its rows, and what it reported of them."""

    row_index: tuple[int, ...] | None  # rows of the request that it runs for; None for all
    rows: int  # how many they are
    confidences: tuple[tuple[float, ...], ...] = ()  # one tuple a confidence of the model, each with one value a row
    batch_key: str = ""  # tells apart outputs whose variable dimensions differ
    kept_on: NodeState | None = None  # the node that has its outputs, too
    is_done: bool = False  # it has run, or been combined; noted only where a combiner may be partial


@dataclass(slots=True, eq=False, init=False)
class Request:
    """A request that was admitted and has no outcome.

    Each request that comes makes one of these and an `Entry`. Their `__init__` is written out, because one that
    `dataclass` generates stays Python where the core is compiled. They are compared by identity.
    """

    identity: int
    pipeline: PipelineState
    rows: int
    deadline_ns: int  # ns
    arrival: RequestArrived
    open_stages: int  # stages that are not over
    settled: bool  # it has its outcome
    running: int  # batches, combiners and held answers that use its tensors for nothing, as once it is settled
    entries: list[Entry]  # all that it has waiting or running, or had
    missing: list[int]  # by stage, how many stages it still waits for; empty if the pipeline has one stage
    runs: list[StageRun | None]  # by stage, None until its rows are known; empty if the pipeline has one stage
    ran_on: PartitionState | None  # where its last batch ran
    given_up: frozenset[int]  # stages whose answers are not waited for
    overdue_joins: frozenset[int]  # combiners that join with the first answer, since none was there on time
    waits_ns: int  # ns; its planned end at admission less the time then; 0 if it could start at once
    kept: float  # the share of `waits_ns` that its places keep
    client: ClientState | None  # whose rows its places count for; None where clients are not distinguished
    placed: int  # how many places it still has
    places: list[Place | None]  # by stage, its place in a planned batch until it starts; empty without places
    models: Sequence[ModelState | None]  # by stage, the variants that run it; empty where those of the stages do
    is_linked: bool  # the batches of its places are linked as its stages are

    def __init__(self, arrival: RequestArrived, pipeline: PipelineState) -> None:
        self.identity = arrival.request
        self.pipeline = pipeline
        self.rows = arrival.rows
        self.deadline_ns = arrival.deadline_ns
        self.arrival = arrival
        self.open_stages = pipeline.stage_count
        self.settled = False
        self.running = 0
        self.entries = []
        self.missing = []
        self.runs = []
        self.ran_on = None
        self.given_up = NO_STAGES
        self.overdue_joins = NO_STAGES
        self.waits_ns = 0
        self.kept = 0.0
        self.client = None
        self.placed = 0
        self.places = []
        self.models = ()
        self.is_linked = False

    def model_of(self, stage: StageState) -> ModelState | None:
        """The model that runs a stage of it; None for a combiner."""
        return self.models[stage.index] if self.models else stage.model


@dataclass(slots=True, eq=False, init=False)
class Entry:
    """The rows of one request that wait for a stage, or run in it."""

    request: Request
    stage: int
    rows: int
    row_index: tuple[int, ...] | None  # as in `StageRun`
    queue_key: QueueKey  # the queue that it waits in, or came from
    stage_deadline_ns: int  # ns; the request's deadline less the stages after this one
    enqueued_ns: int  # ns
    sequence: int  # order of creation
    queued: bool  # it waits in its queue
    late: bool  # it waits behind the entries that can still be in time
    late_timeout: int  # the serial of the timeout that evicts it, 0 for none
    lost_once: bool  # its worker was lost while it may have been the cause
    was_revoked: bool  # its batch was taken back once, so that it would run elsewhere or later
    nodes_lost: int  # how often it was running on a node that was lost
    batch: Batch | None  # the batch that it runs in
    retry_group: list[Entry] | None  # the entries that it is to be retried with
    copies: list[Entry] | None  # those that may be answered, with itself; None if it has no other

    def __init__(
        self,
        request: Request,
        stage: int,
        rows: int,
        row_index: tuple[int, ...] | None,
        queue_key: QueueKey,
        stage_deadline_ns: int,
        enqueued_ns: int,
        sequence: int,
    ) -> None:
        self.request = request
        self.stage = stage
        self.rows = rows
        self.row_index = row_index
        self.queue_key = queue_key
        self.stage_deadline_ns = stage_deadline_ns
        self.enqueued_ns = enqueued_ns
        self.sequence = sequence
        self.queued = True
        self.late = False
        self.late_timeout = 0
        self.lost_once = False
        self.was_revoked = False
        self.nodes_lost = 0
        self.batch = None
        self.retry_group = None
        self.copies = None

    def copy(self, enqueued_ns: int) -> Entry:
        """The same rows again, in no batch."""
        row_index, key, end_ns = self.row_index, self.queue_key, self.stage_deadline_ns
        entry = Entry(self.request, self.stage, self.rows, row_index, key, end_ns, enqueued_ns, self.sequence)
        entry.queued, entry.late = self.queued, self.late
        entry.lost_once, entry.nodes_lost = self.lost_once, self.nodes_lost
        entry.was_revoked = self.was_revoked
        entry.retry_group, entry.copies = self.retry_group, self.copies
        return entry

    @property
    def deadline_ns(self) -> int:
        """The deadline of its request (ns)."""
        return self.request.deadline_ns

    @property
    def place(self) -> Place | None:
        """Its place in a planned batch."""
        places = self.request.places
        return places[self.stage] if places else None

    @property
    def planned_rows(self) -> int:
        """The rows of the planned batch in which it has its place; 0 without one."""
        place = self.place
        return 0 if place is None else ceil(place[0].rows)

    @property
    def follows(self) -> bool:
        """True if its stage waited for other stages."""
        return bool(self.request.pipeline.stages[self.stage].waits_for)


@dataclass(slots=True, eq=False)
class PlannedBatch:
    """A batch that a partition is to run: the places of requests that run one model together.

    `rows` are those expected to run, so a place in a conditional stage counts as its share. `latest_ns` is its latest
    end with which all its members are in time, `limit_ns` the same before what is kept for long batches.
    """

    partition: PartitionState
    model: ModelState
    queue_key: QueueKey
    order_ns: int  # ns; the deadline of the stage that it was opened for: the earliest runs first
    caution: float  # how many times the tail of its time is kept
    depth: float  # how many times as much its end varies as its time, since batches before it vary as well
    gap_ns: int = 0  # ns that its partition is idle before it, since the stage before it is the batch that just ended
    full_rows: int = 1  # rows above which it is full
    level: int = 0  # priority level of its requests, where the policy has levels
    merges: bool = False  # its rows will run with those of the next batch of its queue
    rows: float = 0.0
    room: float = 0.0  # rows that its time is kept for
    variance: float = 0.0  # of its rows, since it is not known which of them will run
    most: float = 0.0  # rows if all of them run
    members: int = 0  # places
    length_ns: int = 0  # ns that it takes of its partition
    from_ns: int = INFINITE_NS  # ns; the earliest stage deadline of its members
    limit_ns: int = INFINITE_NS  # ns; the same as `from_ns`, less what is kept for the way there and back
    latest_ns: int = INFINITE_NS  # ns
    ready_ns: int = 0  # ns; when the stages before are expected to have ended for all its members
    serial: int = 0  # those of the same order run as they were planned
    links: BatchLinks | None = None  # of one that other planned batches wait for, or that waits for others
    end_ns: int = 0  # ns; when it ends by the plan; known on partitions with linked batches

    @property
    def begin_ns(self) -> int:
        """When it begins by the plan, on a partition with linked batches."""
        return self.end_ns - self.length_ns


@dataclass(slots=True, eq=False)
class BatchLinks:
    """The planned batches that one waits for, and those that wait for it, each with the number of requests."""

    after: dict[PlannedBatch, int] = field(default_factory=dict)  # those that it waits for
    before: dict[PlannedBatch, int] = field(default_factory=dict)  # those that wait for it
    fed_ns: int = 0  # ns; when all has ended that it waits for and that is not planned any more, as it has started


@dataclass(slots=True, eq=False)
class Batch:
    """A batch on a partition."""

    identity: int
    queue_key: QueueKey
    partition: PartitionState
    kind: str  # kind of the partition when the batch was dispatched
    entries: list[Entry]  # emptied once it has completed, so that no cycle is left to the garbage collector
    rows: int
    expected_ns: int  # ns that it is expected to take
    dispatched_ns: int  # ns
    live: int  # entries whose requests have no outcome
    suspect: bool = False  # it was running when its worker was lost, and may be the cause
    is_node_lost: bool = False  # its worker was lost with its whole node
    is_suspended: bool = False  # its model waits for other models
    revoking: bool = False  # its worker was asked to take it back
    reforms: bool = False  # once it is taken back, its entries wait as before: not for a batch of their own
    copied: bool = False  # some of its entries may have copies
    is_extra: bool = False  # it runs only because its stage competes
    way_ns: int = 0  # ns that it and its answers are expected to be on their way
    rule: str = ""  # by which rule of which planner it runs, such as "infless: fixed"; empty where none has one


def service_ns(model: ModelState | None, hand_off_ns: int) -> int:
    """Predicted time of a stage that a model runs, in a batch of typical size; 0 for a combiner."""
    if model is None or not model.estimates:
        return 0
    rows = model.usual_rows
    if model.nearest_ns:
        return (
            min(model.estimates[group.kind].service_ns(rows) + group.way_ns(model, rows) for group in model.groups)
            + hand_off_ns
        )
    return min(estimate.service_ns(rows) for estimate in model.estimates.values()) + hand_off_ns


def way_ns(round_trip_ns: int, ns_per_byte: float, model: ScheduledModel, rows: float) -> int:
    """The time that a batch of a model and its answers are on their way, as far as the sizes of its rows are known."""
    if not ns_per_byte:
        return round_trip_ns
    return round_trip_ns + int(ns_per_byte * rows * model.row_bytes)


def occupied_ns(round_trip_ns: int, ns_per_byte: float, model: ScheduledModel, rows: float, expected_ns: int) -> int:
    """The time that a batch which runs for `expected_ns` takes of a partition where batches follow each other.

    Its way overlaps with the batches before and behind it. But each direction of a link carries one batch at a time,
    and a worker holds `IN_FLIGHT` batches at most, so a batch takes at least that part of the time until it is back.
    """
    if not ns_per_byte:
        return max(expected_ns, (expected_ns + round_trip_ns) // IN_FLIGHT)
    there_ns = int(ns_per_byte * rows * model.input_bytes)
    back_ns = int(ns_per_byte * rows * model.output_bytes)
    return max(expected_ns, there_ns, back_ns, (expected_ns + round_trip_ns + there_ns + back_ns) // IN_FLIGHT)
