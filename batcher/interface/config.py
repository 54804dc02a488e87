"""The spec of a scheduler: one form for the live gateway and for the simulator.

Specs, events and decisions are written to journals. A field or class that was renamed keeps its name there (`rename`,
`tag`), so that journals written before can be read.
"""

import msgspec

from sluice.batcher.interface.instance_config import InstanceConfig
from sluice.batcher.interface.planner_config import PlannerConfig
from sluice.batcher.interface.residency_config import Footprint, ResidencyConfig
from sluice.batcher.interface.scaling_config import ScalingConfig
from sluice.models.dynamic_batching import QueuePolicy
from sluice.models.pipelines.pipeline import PERCENTILE, Confidence, Late
from sluice.models.units import NS_PER_S, NS_PER_US
from sluice.mps.partitions.balance import BalanceSettings


class PriorityLevels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Levels of priority in the queue of a model, numbered from 1, the most urgent; 0 of them are one that is level 0.

    `policies` has the levels whose policy is another one.
    """

    count: int = 0
    default: int = 0
    policy: QueuePolicy = QueuePolicy()
    policies: dict[int, QueuePolicy] = {}

    def level_of(self, priority: int) -> int:
        """The level of requests of that priority; the default one when there is no such level."""
        if not self.count:
            return 0
        return priority if 1 <= priority <= self.count else self.default

    def policy_of(self, level: int) -> QueuePolicy:
        """The policy of a level."""
        return self.policies.get(level, self.policy)


class PolicyConfig:
    """The configuration of a batch policy: base of one struct for each policy, in its file in `batcher/policies`.

    Its methods are what the planner and admission need to know of a policy.
    """

    __slots__ = ()

    @property
    def combines(self) -> bool:
        """True where batches consist of several requests."""
        return True

    @property
    def run_sizes(self) -> tuple[int, ...]:
        """The only sizes that batches run with, ascending, since they are padded; empty where they run as they are."""
        return ()

    @property
    def most_under_way(self) -> int:
        """The most batches of a model that are on partitions at a time, retried ones aside; 0 where none is."""
        return 0

    @property
    def defers(self) -> bool:
        """True where a batch that could start waits for more rows for as long as its deadline allows."""
        return False

    def level_of(self, priority: int) -> int:
        """The level of requests of that priority: those of lower levels run first; 0 without levels."""
        return 0

    def longest_wait_ns(self, rate: float) -> int | None:
        """Time that the first row of a batch waits for others while a partition is idle; None: until the batch is full.

        `rate` is in rows a second.
        """
        return 0


class ConfidenceSpec(msgspec.Struct, frozen=True):
    """A confidence that is computed for every row of an output."""

    output: str
    confidence: Confidence


class SequenceConfig(msgspec.Struct, frozen=True):
    """The sequences of a model: each has one of `slots` slots of a partition, and ends when it is idle for `idle_ns`.

    `id_input` is the control input that takes the ids, of the datatype `id_datatype` ("": there is none).
    """

    slots: int
    idle_ns: int
    id_input: str = ""
    id_datatype: str = ""


class ScheduledModel(msgspec.Struct, frozen=True, rename={"confidences": "verdicts", "measured_bytes": "weighed"}):
    """One model version: `max_batch` is at least 1 (1 for an unbatchable model).

    `confidences` are what its batches report, in this order: all that some stage's `when` asks of this model, or of one
    that may run in its place. `memory_bytes` is what it takes on a partition that holds it, and `replicas` is how many
    partitions are to hold it, as far as there are enough with room. `footprints` are what was measured,
    by kind of partition, and `measured_bytes` what it was found to take there where that is more. One that is
    `pinned` makes room for no other model; of the rest those of lower `priority` go first, and never for one of a lower
    priority than their own. A batch of a `decoupled` model sends responses while it runs, so it runs once only: it is
    neither retried after its start nor copied while it is overdue. With `sequences`, its requests belong to sequences.
    A row of its inputs has `input_bytes` and one of its outputs `output_bytes`, as far as their sizes are fixed. One
    that `sees_requests` gets them one by one, so its batches are never padded. With `instances`, a rule chooses the
    partition of each of its batches; without, batches go where they end in time.
    """

    key: str
    max_batch: int
    policy: PolicyConfig
    confidences: tuple[ConfidenceSpec, ...] = ()
    memory_bytes: int = 0
    replicas: int = 1
    footprints: dict[str, Footprint] = {}
    pinned: bool = False
    priority: int = 0
    measured_bytes: dict[str, int] = {}
    decoupled: bool = False
    sequences: SequenceConfig | None = None
    input_bytes: int = 0
    output_bytes: int = 0
    sees_requests: bool = False
    instances: InstanceConfig | None = None

    @property
    def run_sizes(self) -> tuple[int, ...]:
        """The sizes that its batches are padded to; empty where they run as they are."""
        sizes = () if self.sees_requests else self.policy.run_sizes
        return tuple(size for size in sizes if size <= self.max_batch)

    def memory_on(self, kind: str) -> int:
        """Bytes that it takes on a partition of a kind that holds it: those of its largest batch."""
        footprint = self.footprints.get(kind)
        if footprint is not None:
            return footprint.memory_bytes(self.max_batch)
        return self.measured_bytes.get(kind, self.memory_bytes)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of its inputs and of its outputs together, as far as they are known."""
        return self.input_bytes + self.output_bytes

    @property
    def most_bytes(self) -> int:
        """Bytes that it takes where it takes the most."""
        return max(self.memory_bytes, *self.measured_bytes.values(), 0)


class WhenConfig(msgspec.Struct, frozen=True, rename={"confidence": "verdict"}):
    """Rows run whose confidence is below `below`; `confidence` is an index into the confidences of stage `stage`."""

    stage: int
    confidence: int
    below: float


class CompeteConfig(msgspec.Struct, frozen=True):
    """The rows of a stage run on up to `copies` partitions, and the first answer counts.

    They run again `after_ns` after the dispatch of their batch (0: at once) or, with a `percentile` in (0, 100), once
    the batch has taken longer than that percentage of such batches.
    """

    copies: int
    after_ns: int = 0
    percentile: float = 0.0

    @property
    def batch_key(self) -> str:
        """The part of the batch keys that keeps the rows of stages with other settings, or none, out of a batch."""
        return f"compete={self.copies}/{self.after_ns}/{self.percentile:g}"


class StageConfig(msgspec.Struct, frozen=True, rename={"confidences": "verdicts", "uses_cache": "recalls"}):
    """One stage of a pipeline; `model` is None for a combiner.

    `sources` are the indices of the stages whose tensors it takes. Inputs whose variable dimensions differ have
    different batch keys: with `request_keyed` the request's key tells them apart, with `source_keyed` those of its
    sources; both are False if every dimension is fixed. `renamed` names the inputs where the request or its sources
    call them otherwise, so that only stages that rename alike share batches. `confidences` are those that a
    combiner reports; a model stage reports its model's. `variants` are all models that may run the stage, `model`
    among them; empty if there is no choice. `accuracies` are those of the `variants`, where they are known. With
    `uses_cache` the driver first looks the rows up in the response cache. Of a row of the inputs, `source_bytes`
    come from other stages, as far as their sizes are fixed. With `compete`, its rows may run on several partitions,
    and share no batch with those of stages that compete otherwise, or not at all.
    A combiner that is `partial` joins what is there on time, and gives the other members up.
    """

    name: str
    model: str | None
    sources: tuple[int, ...] = ()
    when: WhenConfig | None = None
    confidences: tuple[ConfidenceSpec, ...] = ()
    request_keyed: bool = False
    source_keyed: bool = False
    variants: tuple[str, ...] = ()
    renamed: str = ""
    uses_cache: bool = False
    source_bytes: int = 0
    compete: CompeteConfig | None = None
    accuracies: tuple[float, ...] = ()
    partial: bool = False


class PipelineConfig(msgspec.Struct, frozen=True):
    """A pipeline as the scheduler sees it: stages in topological order (sources have smaller indices).

    `slo_ns` is the objective that it is planned for (0: none). `weight` is its share of a model that it has to share
    with other pipelines, against their weights. `percentile` is the share of the admitted requests that are to be in
    time, in percent, in (50, 100]: with 100, batches run strictly as they are planned.
    """

    name: str
    stages: tuple[StageConfig, ...]
    late: Late = Late.SERVE
    slo_ns: int = 0
    weight: float = 1.0
    percentile: float = PERCENTILE


class DeviceShare(msgspec.Struct, frozen=True):
    """The part of the device `name` that a partition is `promised`, and its `cap`, both in [0, 1].

    A share is elastic if it is promised something and may have more.
    """

    name: str
    promised: float
    cap: float

    @property
    def elastic(self) -> bool:
        """True if it borrows time that others leave idle."""
        return 0 < self.promised < self.cap


class PartitionConfig(msgspec.Struct, frozen=True):
    """A partition; `kind` keys the latency tables. `PartitionReady` says which models its worker holds.

    `price` is what a second of it costs, `share` how much of the machine it is, in (0, 1]. `memory_bytes` bounds the
    models that it holds at a time (0: no bound), `models` are the keys of all that it may hold (None: any). One that is
    `fixed` may hold no model that comes later. `device` is what it has of a device that others are on as well (None: it
    does not share one by time).
    """

    name: str
    kind: str
    price: float = 1.0
    share: float = 1.0
    memory_bytes: int = 0
    models: tuple[str, ...] | None = None
    device: DeviceShare | None = None
    fixed: bool = False


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds and constants of the scheduler.

    `hand_off_ns` is the time from a decision to the worker's start plus from its end to the event. It is added to
    every prediction, and the second batch of a worker is closed this long, or as long as hand-offs are seen to take,
    before the first one's expected end. With a `straggler_factor` above 1, a batch runs elsewhere as well once it takes
    that many times its median (0: once it takes far longer than nearly all do).
    """

    queue_requests: int = 4096
    memory_bytes: int = 256 << 20
    hand_off_ns: int = 150 * NS_PER_US
    gather_fraction: float = 0.1
    gather_floor_ns: int = 20 * NS_PER_US
    probe_interval_ns: int = NS_PER_S
    straggler_factor: float = 0.0


class SchedulerSpec(msgspec.Struct, frozen=True):
    """All that a scheduler needs to know before the first event; also the first line of a journal.

    With `resizing`, the scheduler resizes partitions by these settings, as far as the driver samples them. The numbers
    of partitions of the classes in `scaling` follow the load. Plans are those of `planner`.
    """

    models: tuple[ScheduledModel, ...]
    pipelines: tuple[PipelineConfig, ...]
    partitions: tuple[PartitionConfig, ...]
    limits: Limits = Limits()
    residency: ResidencyConfig = ResidencyConfig()
    resizing: BalanceSettings | None = None
    scaling: ScalingConfig = ScalingConfig()
    planner: PlannerConfig = PlannerConfig()
