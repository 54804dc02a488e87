"""Instance policies: which waiting model runs next, and on which of the partitions that may run it."""

import enum

import msgspec


class InstanceRule(enum.StrEnum):
    """The rule by which models share partitions.

    The first five are those of the schedulers in A. Ramkumar, Serverless Computing for Model Serving (UC Berkeley,
    EECS-2022-88, section 6.1).
    """

    ROUND_ROBIN = "round_robin"
    """First come, first served; partitions take turns, and a busy one is waited for."""
    BALANCE = "balance"
    """First come, first served, on any free partition."""
    SRTF = "srtf"
    """The request with the shortest time remaining goes first, on any free partition."""
    MLFQ = "mlfq"
    """Requests are in buckets by their time remaining, and each batch is of a bucket that is drawn at random."""
    EXCLUSIVE = "exclusive"
    """Each model has partitions of its own, as many as its load asks for."""
    CFS_AFFINITY = "cfs_affinity"
    """The model that has had the least time goes first; time on a partition that does not hold it counts more."""
    HOME_HASH = "home_hash"
    """First come, first served, on the first free partition in the order of OpenWhisk's load balancer."""


class InstanceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The instance policy of a model; models with equal ones share their partitions by it.

    With `lookahead` a request that was sent ahead of its time has its turn in the order of the rule, and those behind
    it wait; without, only requests whose time has come compete. `seed` is that of the draws of `mlfq`. Of `exclusive`,
    a model takes a partition of another one whose load a partition is less than its own by the factor `steal_at`. Of
    `cfs_affinity`, time counts `off_affinity` times where the model has to be loaded.
    """

    rule: InstanceRule
    lookahead: bool = False
    seed: int = 0
    steal_at: float = 1.5
    off_affinity: float = 10.0
