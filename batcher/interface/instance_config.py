"""Instance policies: which waiting model runs next, and on which of the partitions that may run it."""

import enum
import math

import msgspec


class InstanceRule(enum.StrEnum):
    """The rule by which models share partitions.

    Five of them are those of the schedulers in A. Ramkumar, Making the Most of Serverless Accelerators (UC Berkeley,
    EECS-2022-88, section 6.1).
    """

    LOCALITY = "locality"
    """Batches go where they end in time, of equal partitions to that of the stage before, or near the model's home."""
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


_OWNERS = {"seed": InstanceRule.MLFQ, "steal_at": InstanceRule.EXCLUSIVE, "off_affinity": InstanceRule.CFS_AFFINITY}
"""The rules to which single settings belong."""


class InstanceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The instance policy of a model; models with equal ones share their partitions by it.

    With `lookahead` a request that was sent ahead of its time has its turn in the order of the rule, and those behind
    it wait; without, only requests whose time has come compete. `seed` is that of the draws of `mlfq`. Of `exclusive`,
    a model takes a partition of another one whose load a partition is less than its own by the factor `steal_at`. Of
    `cfs_affinity`, time counts `off_affinity` times where the model has to be loaded.
    """

    name: InstanceRule
    lookahead: bool = False
    seed: int = 0
    steal_at: float = 1.5
    off_affinity: float = 10.0

    def __post_init__(self) -> None:
        if self.lookahead and self.name is InstanceRule.LOCALITY:
            raise ValueError("lookahead: expected another rule than locality, which does not look ahead")
        defaults = dict(zip(self.__struct_fields__[1:], self.__struct_defaults__, strict=True))
        for key, owner in _OWNERS.items():
            if getattr(self, key) != defaults[key] and self.name is not owner:
                raise ValueError(f"{key} belongs to {owner}, not to {self.name}")
        if self.seed < 0:
            raise ValueError(f"seed: expected at least 0, got {self.seed}")
        for key in ("steal_at", "off_affinity"):
            if not 1 <= getattr(self, key) < math.inf:
                raise ValueError(f"{key}: expected a finite number of at least 1, got {getattr(self, key):g}")


InstanceSetting = InstanceRule | InstanceConfig
"""An instance policy as users write it: its name, or its name with settings."""


def instance_config(setting: InstanceSetting) -> InstanceConfig | None:
    """The policy of a setting; None for `locality`, which is how batches find their partitions without one."""
    config = setting if isinstance(setting, InstanceConfig) else InstanceConfig(setting)
    return None if config.name is InstanceRule.LOCALITY else config
