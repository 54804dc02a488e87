"""The protocol of batch policies, what they see of the core, and the base of their settings."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.interface.config import PolicyConfig
from sluice.batcher.interface.decisions import ReleaseReason
from sluice.batcher.queues.queue import Queue


class Choice(NamedTuple):
    """Close a batch of up to `rows` rows now, or (`rows` is 0) ask again at `until_ns` at the latest.

    That is later than now. The policy is asked earlier when the queue has another head or holds `wanted_rows` rows,
    and, unless it is None, when a partition has been idle for `after_idle_ns`. If the queue is ordered by deadline and
    the choice `yields`, it counts only while the partition is not kept for rows that are planned before.
    """

    rows: int
    reason: ReleaseReason
    until_ns: int = 0
    wanted_rows: int = 0
    after_idle_ns: int | None = None
    yields: bool = True


def number_error(choice: Choice) -> str | None:
    """The first number of a choice that is not an int, with what was expected; None if all are.

    Checked here, outside of what can be compiled: there, a wrong type would be met before it can be named.
    """
    if type(choice.rows) is int and type(choice.until_ns) is int and type(choice.wanted_rows) is int:
        return None
    numbers = {"rows": choice.rows, "until_ns": choice.until_ns, "wanted_rows": choice.wanted_rows}
    return next(f"{name} is {number!r}; expected an int" for name, number in numbers.items() if type(number) is not int)


class EntryView(Protocol):
    """The rows of one request that wait in a queue."""

    @property
    def rows(self) -> int:
        """Their number; they are never split."""
        ...

    @property
    def enqueued_ns(self) -> int:
        """Since when they wait."""
        ...

    @property
    def stage_deadline_ns(self) -> int:
        """When their stage has to end: the request's deadline less the stages after this one."""
        ...

    @property
    def deadline_ns(self) -> int:
        """The request's deadline."""
        ...

    @property
    def planned_rows(self) -> int:
        """The rows of the planned batch in which they have their place; 0 without one."""
        ...

    @property
    def follows(self) -> bool:
        """True if their stage waited for other stages."""
        ...


class QueueView(Protocol):
    """The queue that a batch is taken from; it holds at least one entry."""

    @property
    def rows(self) -> int:
        """All rows that wait."""
        ...

    @property
    def live(self) -> int:
        """All entries that wait."""
        ...

    def head(self) -> EntryView:
        """The first entry."""
        ...

    def companions(self) -> Iterator[EntryView]:
        """The entries, in order, that may share a batch with the first one."""
        ...

    def first_not_before(self, order_ns: int) -> EntryView | None:
        """The first entry with a stage deadline of `order_ns` or later, where queues are ordered by deadline."""
        ...


class BatchContext(NamedTuple):
    """The facts for a choice besides the queue: of its model, and of the partition that a batch would close for."""

    now_ns: int
    start_ns: int
    """When a batch that closes now starts; later than now if the partition is expected to be busy until then."""
    idle_since_ns: int
    """When the last batch of the partition ended."""
    is_busy: bool
    """The partition runs a batch."""
    runs_own: bool
    """The partition runs a batch of this queue."""
    has_more_planned: bool
    """More than one batch is planned for the partition."""
    estimate: LatencyEstimate
    """Latencies of the model on the partition."""
    quickest_ns: int
    """Least time of a row by itself on any partition."""
    expected_rows: int
    """Rows that are expected to come together, at least 1: the decayed peak of the rows that were queued or running."""
    typical_rows: float
    """Smoothed rows of a batch."""
    round_trip_ns: int = 0
    """Time that a message takes to the partition's node and back; 0 on the gateway's own machine."""
    row_way_ns: float = 0.0
    """Time that a row and its answers take in addition to that."""
    partition: str = ""
    """The name of the partition."""
    under_way: int = 0
    """Batches of the model that are on partitions: they run, or wait there."""

    def way_ns(self, rows: int) -> int:
        """Time that a batch and its answers are on their way."""
        return self.round_trip_ns + int(self.row_way_ns * rows)


class BatchPolicy(Protocol):
    """Decides when the batch at the head of a queue closes and how many rows it has; each model has its own object."""

    by_deadline: bool
    """True: queues are ordered by deadline. False: first come, first served."""
    mixes_keys: bool
    """True: inputs of all dimensions wait in one queue. False: each batch key has its own queue."""

    def new_queue(self, model: str, batch_key: str) -> Queue:
        """An empty queue of a model."""
        ...

    def full_rows(self, estimate: LatencyEstimate) -> int:
        """Rows of a batch under full load, from which the cost of a row is predicted."""
        ...

    def choose(self, queue: QueueView, context: BatchContext) -> Choice:
        """Decide on a queue that is not empty, for a partition that is idle or about to be."""
        ...


@runtime_checkable
class LearningPolicy(BatchPolicy, Protocol):
    """A batch policy that learns from the batches that have run; what it knows is its own, and only it changes that."""

    def observe(self, partition: str, rows: int, took_ns: int) -> None:
        """Learn that a batch of `rows` rows took `took_ns` on a partition; called once for each that completed."""
        ...

    def sizes(self) -> Mapping[str, int]:
        """The most rows of a batch that it allows now, by partition that it knows."""
        ...


def worthwhile_rows(head: EntryView, estimate: LatencyEstimate) -> int:
    """The rows of a batch that is worth closing: the efficient size, or what is planned with `head` if that is more."""
    return max(estimate.efficient_rows, min(head.planned_rows, estimate.max_rows))


class AnyPolicySettings:
    """Settings of any batch policy, as users write them."""

    __slots__ = ()

    def config(self) -> PolicyConfig:
        """The form that the policy is built from and that journals hold."""
        raise NotImplementedError


class PolicySettings(
    AnyPolicySettings, PolicyConfig, msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name"
):
    """Base of a policy's settings: the struct's `tag` is the policy's name, its docstring the help."""

    def config(self) -> PolicyConfig:
        """The settings themselves, unless the policy is built from another form."""
        return self
