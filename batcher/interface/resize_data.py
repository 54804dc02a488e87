"""Steps from one split of the cores to another, as data: what the planner is asked, and what it answers."""

import enum
from typing import NamedTuple

from sluice.batcher.interface.config import PartitionConfig
from sluice.mps.partitions.balance import LoadChange

Cores = tuple[int, ...]


class CoreStep(NamedTuple):
    """One core given, taken or moved: the new cores of partitions, in the order in which they are to be changed.

    `cores` is the change of the total. A step that is not `free` takes a core from a partition that has no more than
    its own.
    """

    changes: tuple[LoadChange[Cores], ...]
    cores: int
    free: bool = True


class Judgement(NamedTuple):
    """The planner's judgement of a split of the cores.

    `missed` are the pipelines that cannot meet their objectives, or whose rate is too high. `busiest` is the share of
    time that all models take at best of the busiest partitions, `overload` the factor by which it is too high (at least
    1). `cost` is the cost of a second.
    """

    missed: tuple[str, ...]
    busiest: float
    overload: float
    cost: float


class Reason(enum.StrEnum):
    """The reason for a step: an objective that is missed now, or the cost."""

    OBJECTIVE = "objective"
    COST = "cost"


class Ask(NamedTuple):
    """The plan asks for a step, which takes the judgement from `before` to `after`."""

    step: CoreStep
    reason: Reason
    before: Judgement
    after: Judgement


class Split(NamedTuple):
    """A step, and the partitions that it changes as they are after it."""

    step: CoreStep
    partitions: tuple[PartitionConfig, ...]
