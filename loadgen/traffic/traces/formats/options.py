"""The options of an import."""

import enum

import msgspec
import numpy as np

from sluice.loadgen.traffic.seeds import generator
from sluice.models.errors import ConfigError


class Spread(enum.StrEnum):
    """The arrivals that a count stands for: that number at uniform times, or a Poisson process of that mean."""

    UNIFORM = "uniform"
    POISSON = "poisson"


class ImportOptions(msgspec.Struct, frozen=True):
    """Options of an import: how counts spread, the share of arrivals to keep, and the seed of both."""

    spread: Spread = Spread.UNIFORM
    keep: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ConfigError(f"--keep: expected a share above 0 and at most 1, got {self.keep:g}")

    def generator(self) -> np.random.Generator:
        """The random numbers of one import."""
        return generator(self.seed, "trace")
