"""The protocol of instance policies, and the part of the core that they see."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from sluice.batcher.queues.queue import Queue
from sluice.batcher.state import Entry, ModelState, PartitionState


class InstanceLoads(Protocol):
    """Loads models on partitions that a policy chose."""

    def may_load(self, name: str, model: ModelState) -> bool:
        """True if a partition may ever load a model."""
        ...

    def room_on(self, name: str, model: ModelState, stays: Collection[str], now_ns: int) -> tuple[str, ...] | None:
        """The models to evict so that a partition can load a model now, none of them in `stays`; None if it cannot."""
        ...

    def load_on(self, name: str, model: ModelState, leaving: tuple[str, ...], now_ns: int) -> None:
        """Load a model on a partition in place of others."""
        ...

    def load_time_ns(self, name: str, model: ModelState) -> int:
        """The expected time of a load."""
        ...


class Contender(NamedTuple):
    """A queue with work: its first entry competes for a partition.

    `order` is when that came, or was to begin, and its number. An entry that is not `due` was sent ahead of its time.
    """

    queue: Queue
    model: ModelState
    head: Entry
    order: tuple[int, int]
    due: bool

    @property
    def remaining_ns(self) -> int:
        """The predicted time from the start of the entry's stage to the end of its request; O(kinds of partitions)."""
        stage = self.head.request.pipeline.stages[self.head.stage]
        return _quickest_ns(self.model, self.head.rows) + stage.remaining_path_ns

    @property
    def batch_ns(self) -> int:
        """The predicted time of a batch of the queue."""
        return _quickest_ns(self.model, max(self.queue.rows, self.head.rows))


class Assignment(NamedTuple):
    """The partition that runs the next batch of a contender's queue."""

    contender: Contender
    partition: PartitionState


class PoolView:
    """The part of the core that a policy may go by at one instant.

    `partitions` are all that are up, by number, and `free` those of them that may be given a batch, the one that was
    given one the longest ago first. `loads` loads models, and `stays` gives the models that a partition needs.
    """

    __slots__ = ("_loads", "_stays", "free", "now_ns", "partitions")

    def __init__(
        self,
        partitions: Sequence[PartitionState],
        free: list[PartitionState],
        loads: InstanceLoads,
        stays: Callable[[PartitionState], Collection[str]],
        now_ns: int,
    ) -> None:
        self.partitions = partitions
        self.free = free
        self.now_ns = now_ns
        self._loads = loads
        self._stays = stays

    def may_run(self, partition: PartitionState, model: ModelState) -> bool:
        """True if a partition that is up holds a model, or may load it."""
        return model.config.key in partition.models or self._loads.may_load(partition.name, model)

    def can_take(self, partition: PartitionState, model: ModelState) -> bool:
        """True if a free partition holds a model, or can load it now."""
        return model.config.key in partition.models or self.leaving(partition, model) is not None

    def leaving(self, partition: PartitionState, model: ModelState) -> tuple[str, ...] | None:
        """The models that leave a partition so that it can load another one; None if it cannot now."""
        return self._loads.room_on(partition.name, model, self._stays(partition), self.now_ns)

    def load_ns(self, partition: PartitionState, model: ModelState) -> int:
        """The expected time of a load."""
        return self._loads.load_time_ns(partition.name, model)

    def first_free(self, model: ModelState) -> PartitionState | None:
        """The free partition that can take a model and was given a batch the longest ago."""
        return next((each for each in self.free if self.can_take(each, model)), None)


class InstancePolicy(Protocol):
    """Decides which queue's batch runs next, and where; each pool of models has its own object."""

    def entered(self, model: ModelState, entry: Entry) -> None:
        """Take note of an entry that came."""
        ...

    def choose(self, contenders: list[Contender], view: PoolView) -> Assignment | None:
        """The next batch and its partition, which is free and can take it; None to wait.

        `contenders` has at least one, in the order in which they came, and `view` at least one free partition. What is
        chosen is carried out.
        """
        ...


def _quickest_ns(model: ModelState, rows: int) -> int:
    """The predicted time of a batch of `rows` rows, at most one full batch, where it is the quickest; 0: not known."""
    return min([each.service_ns(min(rows, each.max_rows)) for each in model.estimates.values()], default=0)
