"""The protocol of batch policies, and the base of their settings."""

from typing import NamedTuple, Protocol

import msgspec

from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.interface.config import PolicyConfig
from sluice.batcher.interface.decisions import ReleaseReason
from sluice.batcher.queues.fair_queue import Queue
from sluice.batcher.state.model import ModelState, PartitionState


class Choice(NamedTuple):
    """Close a batch of up to `rows` rows now, or (`rows` is 0) ask again at `until_ns`, or when something changes.

    What changes is that the queue has another head or holds `wanted_rows` rows, or, where that matters, that a
    partition has been idle for `after_idle_ns`.
    """

    rows: int
    reason: ReleaseReason
    until_ns: int = 0
    wanted_rows: int = 0
    after_idle_ns: int | None = None


class BatchPolicy(Protocol):
    """When the batch at the head of a queue closes and how big it is; one object a model, stateless or not."""

    by_deadline: bool
    """Whether queues are ordered by deadline, else first come, first served."""
    mixes_keys: bool
    """Whether inputs of all dimensions wait in one queue, else in one for each batch key."""

    def new_queue(self, model: str, batch_key: str) -> Queue:
        """An empty queue of a model."""
        ...

    def full_rows(self, estimate: LatencyEstimate) -> int:
        """Rows of a batch while there is more work than can be done: what the work of a row is reckoned by."""
        ...

    def choose(
        self, queue: Queue, model: ModelState, partition: PartitionState, estimate: LatencyEstimate, now_ns: int
    ) -> Choice:
        """Decide on the (non-empty) queue, for a partition that is idle or about to become so."""
        ...


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
