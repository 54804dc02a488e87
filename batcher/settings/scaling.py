"""Settings of autoscaling as users write them, for one class of remote partitions."""

import math
from collections.abc import Sequence

import msgspec

from sluice.batcher.interface.scaling_config import ScaledClass
from sluice.models.units import NS_PER_S


class ScaleSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keeps `min` to `max` partitions of the class up, as its load requires (`max` null: all).

    Without `to_zero` at least one stays. With it, and with `min` 0, none is up while the class has no traffic.
    Partitions are to be busy for the part `target` of their time. `start_s` is how long one takes to start, until the
    server has seen it.
    """

    min: int = 0
    max: int | None = None
    to_zero: bool = False
    target: float = 0.7
    start_s: float = 10.0

    def __post_init__(self) -> None:
        if self.min < 0:
            raise ValueError(f"min: expected at least 0, got {self.min}")
        if self.max is not None and self.max < max(self.min, 1):
            raise ValueError(f"max: expected at least {max(self.min, 1)}, got {self.max}")
        if self.to_zero and self.min:
            raise ValueError(f"to_zero: expected a min of 0 beside it, got {self.min}")
        if not 0 < self.target <= 1:
            raise ValueError(f"target: expected a number above 0 and at most 1, got {self.target:g}")
        if not 0 <= self.start_s < math.inf:
            raise ValueError(f"start_s: expected a finite number of at least 0, got {self.start_s:g}")

    def check(self, slots: int) -> None:
        """Raise ValueError unless a class with that number of slots has room for them."""
        for name, number in (("min", self.min), ("max", self.max)):
            if number is not None and number > slots:
                raise ValueError(f"{name}: expected at most the {slots} partitions of the class, got {number}")

    def scaled(self, name: str, slots: Sequence[str]) -> ScaledClass:
        """The class as the scheduler takes it."""
        return ScaledClass(
            name,
            tuple(slots),
            0 if self.to_zero else max(self.min, 1),
            len(slots) if self.max is None else self.max,
            self.to_zero,
            self.target,
            round(self.start_s * NS_PER_S),
        )
