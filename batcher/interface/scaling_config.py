"""Autoscaling settings: the classes of partitions whose number follows the load, and the windows of the rule."""

import msgspec

from sluice.models.units import NS_PER_S


class ScaledClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A class of equal partitions, `slots` of `SchedulerSpec.partitions`, of which `least` to `most` are to be up.

    With `to_zero` none is up while the class has no traffic, whatever `least` says. Partitions are to be busy for
    `target` of their time, in (0, 1]. `start_ns` is how long one is taken to start until some were seen to start.
    """

    name: str
    slots: tuple[str, ...]
    least: int
    most: int
    to_zero: bool = False
    target: float = 0.7
    start_ns: int = 10 * NS_PER_S

    @property
    def initial(self) -> int:
        """The number that is to be up at the start, as without traffic."""
        return 0 if self.to_zero else self.least


class ScalingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The scaled classes, and the times of the rule.

    The demand is looked at every `every_ns`, as its mean over `stable_ns` and over `panic_ns`. Panic begins where the
    latter is at least `panic_threshold` times what the partitions that are up can take at their target. A class
    without traffic for `idle_ns` may go to zero.
    """

    classes: tuple[ScaledClass, ...] = ()
    every_ns: int = 2 * NS_PER_S
    stable_ns: int = 60 * NS_PER_S
    panic_ns: int = 6 * NS_PER_S
    panic_threshold: float = 2.0
    idle_ns: int = 30 * NS_PER_S
