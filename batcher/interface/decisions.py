"""Decisions: orders of the scheduler that a driver carries out, in the order given."""

import enum

import msgspec

from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.plan_data import Observed
from sluice.batcher.interface.resize_data import Split
from sluice.models.sequence_batching import SequenceRow
from sluice.mps.partitions.balance import ResizeTrigger


class ReleaseReason(enum.StrEnum):
    """Why a batch was closed when it was (a metric label)."""

    FULL = "full"
    """It reached the size that the policy waits for."""
    IDLE = "idle"
    """Nothing else was expected: waiting would only have cost time."""
    DELAY = "delay"
    """The gathering time was over."""
    DEADLINE = "deadline"
    """Waiting longer would have missed the head's deadline."""
    RETRY = "retry"
    """It repeats (part of) a batch that failed, or that takes far too long."""
    COMPETE = "compete"
    """It has rows that run elsewhere as well, since their stage competes."""


class Member(msgspec.Struct, frozen=True, gc=False):
    """One request's part in a batch: its rows follow those of the member before.

    `row_index` selects rows of the request, ascending; None stands for all of them in order.
    """

    request: int
    stage: int
    rows: int
    row_index: tuple[int, ...] | None = None


class Decision(msgspec.Struct, frozen=True, tag=True):
    """Base of all decisions."""


class DispatchBatch(Decision, frozen=True):
    """Run a batch on a partition; answered by `BatchCompleted`, `BatchFailed` or `BatchRevoked`.

    `predicted_ns` is when it is expected to end, 0 when that is not known. For a model with sequences, `sequences` has
    the slot of each member and its part in its sequence. Unless `padded_rows` is 0, the batch runs with as many
    rows: those of the members, and after them rows that nobody waits for.
    """

    batch: int
    partition: str
    model: str
    rows: int
    members: tuple[Member, ...]
    reason: ReleaseReason
    predicted_ns: int = 0
    sequences: tuple[SequenceRow, ...] = ()
    padded_rows: int = 0

    @property
    def run_rows(self) -> int:
        """The rows that the partition runs."""
        return self.padded_rows or self.rows


class RevokeBatch(Decision, frozen=True, gc=False):
    """Take a batch back if it has not started; the batch still yields its one event (possibly `BatchCompleted`)."""

    batch: int


class CombineOutputs(Decision, frozen=True, omit_defaults=True):
    """Join answers for the rows of `member`; answered by `OutputsCombined` or `CombinationFailed`.

    `absent` are the stages among its sources that are given up, since they have no answer on time.
    """

    member: Member
    absent: tuple[int, ...] = ()


class LookUpCache(Decision, frozen=True, tag="RecallOutputs"):
    """See whether what a stage makes of these rows is known; answered by `OutputsRecalled` or `OutputsUnknown`."""

    member: Member


class LoadModel(Decision, frozen=True, gc=False):
    """Have a partition hold one more model; answered by `ModelLoaded` or `ModelLoadFailed`.

    The orders of a partition to load and unload are carried out one after the other. When the partition is lost first,
    `PartitionLost` is the only answer, and `PartitionReady` says what the partition holds when it comes back.
    """

    partition: str
    model: str


class UnloadModel(Decision, frozen=True, gc=False):
    """Have a partition forget a model after its last batch; no other may be dispatched.

    Answered by `ModelUnloaded`, and otherwise as `LoadModel`.
    """

    partition: str
    model: str


class BuildPlan(Decision, frozen=True):
    """Build a new plan from what was observed, beside everything else; answered by `PlanBuilt`."""

    build: int
    observed: Observed


class JudgeSteps(Decision, frozen=True):
    """Judge steps to other splits of the cores, beside everything else; answered by `StepsJudged`.

    `observed` is the present, and `later` are the highest rates that are to be expected.
    """

    judgement: int
    observed: Observed
    later: dict[str, float]
    splits: tuple[Split, ...]


class ResizePartition(Decision, frozen=True):
    """Give a partition other cores, or another percentage of its GPU; answered by `PartitionResized` or `ResizeFailed`.

    It is to fail if the partition no longer has what it had `before`. `by` and `reason` say why, with `figures`.
    """

    partition: str
    held: tuple[int, ...] | int
    before: tuple[int, ...] | int
    by: ResizeTrigger
    reason: str
    figures: dict[str, float | tuple[str, ...]]


class AcceptChange(Decision, frozen=True):
    """Serve what a `ServingChanged` brought; the orders to load its models follow, for each partition once it is up.

    `partitions` maps the key of each new model to the partitions that are to hold it. A model without any is loaded
    once it is in demand.
    """

    partitions: dict[str, tuple[str, ...]]


class RejectChange(Decision, frozen=True):
    """Serve nothing of a `ServingChanged`, since partitions have no room for one of its `models`.

    Another try may be worth it later if the lack of room is `passing`.
    """

    models: tuple[str, ...]
    reason: str
    passing: bool


class SetPartitions(Decision, frozen=True):
    """Have `count` slots of a class of partitions hold workers.

    `PartitionReady` says which slot has a new one. On the way down the slots in `leaving` go first: they have no batch
    and get none. Then slots go that are not up yet; never others. `PartitionLost` says that a slot is empty.
    """

    name: str
    count: int
    leaving: tuple[str, ...] = ()


class CompleteRequest(Decision, frozen=True, gc=False):
    """All stages of a request are done: answer it."""

    request: int
    outcome: Outcome


class RejectRequest(Decision, frozen=True, gc=False):
    """Refuse a request that was not queued.

    Another try may be worth it after `retry_after_ns`; None where it would be refused again.
    """

    request: int
    outcome: Outcome
    reason: str
    retry_after_ns: int | None = 0


class EvictRequest(Decision, frozen=True, gc=False):
    """Give up a request that was queued."""

    request: int
    outcome: Outcome
    reason: str
    retry_after_ns: int = 0


class FailRequest(Decision, frozen=True, gc=False):
    """Answer a request with an error."""

    request: int
    outcome: Outcome
    reason: str


class CancelRequest(Decision, frozen=True, gc=False):
    """A cancelled request is settled; its client waits for no answer."""

    request: int
    outcome: Outcome


Settlement = CompleteRequest | RejectRequest | EvictRequest | FailRequest | CancelRequest
"""The decisions of which every request gets exactly one."""

ChangeAnswer = AcceptChange | RejectChange
"""The decisions of which every change of what is served gets exactly one, if it brings models."""

AnyDecision = (
    DispatchBatch
    | RevokeBatch
    | CombineOutputs
    | LookUpCache
    | BuildPlan
    | JudgeSteps
    | ResizePartition
    | SetPartitions
    | LoadModel
    | UnloadModel
    | ChangeAnswer
    | Settlement
)
