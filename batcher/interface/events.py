"""Events: facts, in the past tense, that the drivers report to the scheduler.

Each decision that starts work is answered by exactly one event. Events that fall on one instant are handled in the
order completions, cancellations, arrivals (`PRIORITY`), and the wake-up comes last. `LoopDelayed` comes first.
"""

import enum

import msgspec

from sluice.batcher.interface.config import DeviceShare, PartitionConfig, PipelineConfig, ScheduledModel
from sluice.batcher.interface.plan_data import Plan
from sluice.batcher.interface.resize_data import Ask
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.profiles.measurement import ModelMemory
from sluice.models.sequence_batching import SequenceStep

Confidences = tuple[tuple[float, ...], ...]
"""One tuple for each confidence that a model reports, with one value a row."""


class FailureCause(enum.StrEnum):
    """Why a batch did not complete."""

    BACKEND = "backend"
    """The model ran and failed: some row may be to blame, so the batch is bisected."""
    RESOURCES = "resources"
    """There was no memory for it or no worker to run it: it is retried in halves, which need less."""
    OUT_OF_MEMORY = "out_of_memory"
    """The model ran out of memory there: the batch is retried in halves, and the next ones are made smaller."""
    WORKER_LOST = "worker_lost"
    """The worker died or was lost with the batch: inference is idempotent, so it is retried."""
    STATES_LOST = "states_lost"
    """The states of all sequences of the model on that partition are gone: those sequences end."""


class Event(msgspec.Struct, frozen=True, tag=True):
    """Base of all events."""


class RequestArrived(Event, frozen=True, gc=False):
    """A valid request came in.

    `rows` is its number of rows (1 for an unbatchable model). `batch_key` tells apart inputs whose variable dimensions
    differ ("" when all are fixed). `memory_bytes` is the peak size of the tensors it will make. `max_cost` is the most
    that it may cost in all (None: whatever it takes). `priority` and `expires_ns` matter to models of the policy
    `timeout`: the level that it waits at (0 is the usual one), and when it is given up if it still waits (0: never).
    `client` tells the clients of a pipeline apart ("" where nothing does). By `received_ns` the machine had all of it
    (0: at the time of the event): it has waited for the driver since then at least. `is_call` says that a model has
    made it for a request that is under way, so that it is served while the server drains. `sequence` is its part in a
    sequence, which only models with sequences look at. Stages that several variants may run are run by one of an
    accuracy of `min_accuracy` or more (0: by the variant that the stage has). Where an instance policy chooses the
    partitions of a model, a request that was sent ahead of its time begins at `not_before_ns` at the earliest (0: it
    was not).
    """

    request: int
    pipeline: str
    rows: int
    deadline_ns: int
    batch_key: str = ""
    memory_bytes: int = 0
    max_cost: float | None = None
    priority: int = 0
    expires_ns: int = 0
    client: str = ""
    received_ns: int = 0
    is_call: bool = False
    sequence: SequenceStep | None = None
    min_accuracy: float = 0.0
    not_before_ns: int = 0


class LoopDelayed(Event, frozen=True, gc=False):
    """The driver's loop is behind: its last turn took `lag_ns` and left `waiting` arrivals, which are yet to come.

    Reported at the begin of a turn after one that took long or left some, and once with zeros when that is over.
    """

    lag_ns: int
    waiting: int


class RequestCancelled(Event, frozen=True, gc=False):
    """The client of a request went away; ignored for a request that is already settled."""

    request: int


class BatchCompleted(Event, frozen=True, gc=False, rename={"confidences": "verdicts"}):
    """The worker ran a batch from `started_ns` to `ended_ns`.

    `confidences` are those of `ScheduledModel.confidences`, for the rows of the batch. `batch_key` tells apart outputs
    whose variable dimensions differ. `failures` are the positions of members that the model gave an error, and why.
    """

    batch: int
    started_ns: int
    ended_ns: int
    confidences: Confidences = ()
    batch_key: str = ""
    failures: tuple[tuple[int, str], ...] = ()


class BatchFailed(Event, frozen=True):
    """A batch did not complete."""

    batch: int
    cause: FailureCause
    message: str


class BatchSuspended(Event, frozen=True, gc=False):
    """The model of a batch waits for other models that it has called: its worker takes other batches meanwhile.

    The batch ends like any other, by `BatchCompleted` or `BatchFailed`.
    """

    batch: int


class BatchRevoked(Event, frozen=True, gc=False):
    """A batch was taken back before it started, as ordered by `RevokeBatch`."""

    batch: int


class OutputsCombined(Event, frozen=True, gc=False, rename={"confidences": "verdicts"}):
    """A combiner ran; `confidences` and `batch_key` as in `BatchCompleted`, one confidence a row it ran for."""

    request: int
    stage: int
    confidences: Confidences = ()
    batch_key: str = ""


class CombinationFailed(Event, frozen=True, gc=False):
    """A combiner could not join its answers, for instance because their shapes differ."""

    request: int
    stage: int
    message: str


class CacheHit(Event, frozen=True, gc=False, tag="OutputsRecalled"):
    """The outputs of a stage are in the response cache, so it need not run; `batch_key` as in `BatchCompleted`."""

    request: int
    stage: int
    batch_key: str = ""


class CacheMiss(Event, frozen=True, gc=False, tag="OutputsUnknown"):
    """The outputs of a stage are not in the response cache: it is to run."""

    request: int
    stage: int


class PartitionReady(Event, frozen=True):
    """The worker of a partition is up; `tables` holds a latency table for every model it has loaded, by model key.

    `memory` is what they were found to take, as far as that could be measured. `node` is the machine that the worker is
    on, "" for the gateway's own, and `link` the bandwidth class of the way there: partitions of one kind whose links
    differ are no equals. With `keeps_outputs`, what a batch answers stays on its node as well, so that a next stage
    there need not be sent it again.
    """

    partition: str
    tables: dict[str, LatencyTable]
    memory: dict[str, ModelMemory] = {}
    node: str = ""
    link: str = ""
    keeps_outputs: bool = False


class PartitionLost(Event, frozen=True):
    """The worker of a partition is gone; a `BatchFailed` follows for each of its batches, the running one first.

    Also reported for a worker that is gone before it was up. With `is_node_lost` its node is gone, and every partition
    of that node is lost for the same `reason`: no request that ran there can be the cause.
    """

    partition: str
    reason: str
    is_node_lost: bool = False


class LinkMeasured(Event, frozen=True, gc=False):
    """The way to a node and back was measured: a message takes `round_trip_ns`, and a byte more 1 / `bytes_per_s`.

    `bytes_per_s` is 0 where it is not known: then the time of tensors on their way counts as hand-off.
    """

    node: str
    round_trip_ns: int
    bytes_per_s: int = 0


class PartitionResized(Event, frozen=True):
    """A worker on another share of the machine has taken the place of a partition's, and holds the same models.

    `kind`, `price`, `share` and `device` are as in `PartitionConfig`; `tables` are how fast the models are there, and
    `memory` what they take. What the worker before has it completes, or fails, as if nothing had happened.
    """

    partition: str
    kind: str
    price: float
    share: float
    tables: dict[str, LatencyTable]
    device: DeviceShare | None = None
    memory: dict[str, ModelMemory] = {}


class ModelLoaded(Event, frozen=True):
    """A worker that is up holds a model, warm; `table` is how fast it is there, `memory` what it takes, if known."""

    partition: str
    model: str
    table: LatencyTable
    memory: ModelMemory | None = None


class ModelLoadFailed(Event, frozen=True):
    """A worker could not load a model; what it held before it still holds."""

    partition: str
    model: str
    reason: str


class ModelUnloaded(Event, frozen=True, gc=False):
    """A worker has given the memory of a model back."""

    partition: str
    model: str


class PlanBuilt(Event, frozen=True):
    """A plan was built, as ordered by `BuildPlan`; None when that failed."""

    build: int
    plan: Plan | None


class ServingChanged(Event, frozen=True):
    """Other pipelines are served: `pipelines` may get requests from now on, those named in `retired` no more.

    `models` are those that some of the pipelines need and that were not there yet. A change with models is answered by
    `AcceptChange` or `RejectChange`; if it is rejected, nothing of it counts. It `is_reload` if a model of it comes in
    place of a revision that is served until then, so that models without room cannot wait for requests. What the last
    request of a retired pipeline leaves without one is unloaded; retired names that are not served are ignored. A
    model's key and a pipeline's name are never used again.
    """

    models: tuple[ScheduledModel, ...] = ()
    pipelines: tuple[PipelineConfig, ...] = ()
    retired: tuple[str, ...] = ()
    is_reload: bool = False


class PartitionsSampled(Event, frozen=True):
    """The driver looked at the partitions, as it does from time to time while none is resized and some may be.

    `busy` is the part of its time that each partition was busy since the last look. `cores` are the sets of cores,
    `spare` are the unassigned ones. `shares` are the percents of GPUs, by GPU and partition, and `unpromised` the
    percents of a GPU that no partition was promised.
    """

    busy: dict[str, float]
    cores: dict[str, tuple[int, ...]]
    spare: tuple[int, ...]
    shares: dict[str, dict[str, int]] = {}
    unpromised: dict[str, int] = {}


class MemorySampled(Event, frozen=True):
    """The driver looked at the memory in use, as it does each second while a policy packs models on demand.

    `used` are bytes by partition.
    """

    used: dict[str, int]


class SizesKnown(Event, frozen=True):
    """The latencies of all models are known at other sizes of sets of cores, so that the plan decides about cores.

    `tables` has them by kind and model key; without any, load decides. `sizes` has each partition as it would be with
    1, 2, … cores.
    """

    tables: dict[str, dict[str, LatencyTable]]
    sizes: dict[str, tuple[PartitionConfig, ...]]


class StepsJudged(Event, frozen=True):
    """The planner has judged steps, as ordered by `JudgeSteps`; it asks for one of them, or (None) for none."""

    judgement: int
    ask: Ask | None


class ResizeFailed(Event, frozen=True):
    """A partition could not be resized, as ordered by `ResizePartition`; it stays as it is."""

    partition: str
    reason: str


class DrainStarted(Event, frozen=True):
    """The gateway is stopping: what is in flight finishes, new requests are rejected."""


AnyEvent = (
    RequestArrived
    | LoopDelayed
    | RequestCancelled
    | BatchCompleted
    | BatchFailed
    | BatchRevoked
    | BatchSuspended
    | OutputsCombined
    | CombinationFailed
    | CacheHit
    | CacheMiss
    | PartitionReady
    | PartitionLost
    | LinkMeasured
    | PartitionResized
    | ModelLoaded
    | ModelLoadFailed
    | ModelUnloaded
    | PlanBuilt
    | ServingChanged
    | PartitionsSampled
    | MemorySampled
    | SizesKnown
    | StepsJudged
    | ResizeFailed
    | DrainStarted
)

PRIORITY: dict[type[Event], int] = {
    LoopDelayed: 0,
    PartitionReady: 0,
    PartitionLost: 0,
    LinkMeasured: 0,
    PartitionResized: 0,
    ModelLoaded: 0,
    ModelLoadFailed: 0,
    ModelUnloaded: 0,
    PlanBuilt: 0,
    PartitionsSampled: 0,
    MemorySampled: 0,
    SizesKnown: 0,
    StepsJudged: 0,
    ResizeFailed: 0,
    BatchCompleted: 0,
    BatchFailed: 0,
    BatchRevoked: 0,
    BatchSuspended: 0,
    OutputsCombined: 0,
    CombinationFailed: 0,
    CacheHit: 0,
    CacheMiss: 0,
    RequestCancelled: 1,
    DrainStarted: 1,
    ServingChanged: 2,
    RequestArrived: 2,
}
"""Order in which events of one instant are handled; equal ones keep the order in which they were reported."""
