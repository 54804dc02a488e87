"""The protocol of batch policies, and the base of their settings."""

from math import ceil
from typing import NamedTuple, Protocol

import msgspec

from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.interface.config import PolicyConfig
from sluice.batcher.interface.decisions import ReleaseReason
from sluice.batcher.queues.progress import place_of
from sluice.batcher.queues.queue import Queue
from sluice.batcher.state import Entry, ModelState, PartitionState


class Choice(NamedTuple):
    """Close a batch of up to `rows` rows now, or (`rows` is 0) ask again at `until_ns` at the latest.

    That is later than now. The policy is asked earlier when the queue has another head or holds `wanted_rows` rows,
    and, unless it is None, when a partition has been idle for `after_idle_ns`.
    """

    rows: int
    reason: ReleaseReason
    until_ns: int = 0
    wanted_rows: int = 0
    after_idle_ns: int | None = None


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

    def choose(
        self, queue: Queue, model: ModelState, partition: PartitionState, estimate: LatencyEstimate, now_ns: int
    ) -> Choice:
        """Decide on a queue that is not empty, for a partition that is idle or about to be."""
        ...


def planned_rows(entry: Entry) -> int:
    """The rows of the planned batch in which an entry has its place; 0 without one."""
    place = place_of(entry)
    return 0 if place is None else ceil(place[0].rows)


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
