"""Latencies of well-known models on GPU partitions by formulas fitted to published measurements.

The figures are simulated, and every profile labels them so. `mps-P` stands for P % of a V100 under MPS (TensorRT),
`mig-Ng` for a MIG instance of an A100 with 80 GB (PyTorch). With `+cC` a worker has C cores for its host work: batches
of more than `ROWS_A_CORE` rows for each of them take longer in proportion. That rule is an assumption, after figures in
which a few rows a core are prepared at no cost and many more are not; the fits themselves are for ample cores.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from sluice.models.errors import ConfigError
from sluice.models.profiles.measurement import Cell, Measurement
from sluice.models.profiles.partition_kind import parse_kind
from sluice.models.units import ms_to_ns

SIGMA = 0.03
"""Standard deviation of the logarithm of latencies; real partitions show 0.02 to 0.05."""

ROWS_A_CORE = 4
"""Rows of a batch that a core prepares while the device computes."""

_P90, _P99 = math.exp(1.2816 * SIGMA), math.exp(2.3263 * SIGMA)
_V100_SMS = 80
_MPS_RANGE = range(10, 101)
_MIG: dict[str, tuple[int, int]] = {
    "1g": (1, 1),
    "1g.10gb": (1, 1),
    "1g.20gb": (1, 2),
    "2g": (2, 2),
    "2g.20gb": (2, 2),
    "3g": (3, 4),
    "3g.40gb": (3, 4),
    "4g": (4, 4),
    "4g.40gb": (4, 4),
    "7g": (7, 8),
    "7g.80gb": (7, 8),
}
"""Compute slices of 7 and memory slices of 8, by profile."""


class GpuFraction(NamedTuple):
    """The part of a GPU that a partition has: of the multiprocessors and of the memory bandwidth, in (0, 1]."""

    compute: float
    memory: float


class LaunchBoundFit(NamedTuple):
    """A floor of launch times `l0` below work that the share divides: both in ms, joined by a norm of order `q`."""

    l0: float
    c: float
    m: float
    e: float
    q: float

    def latency_ms(self, batch: int, share: GpuFraction) -> float:
        """Latency of a batch."""
        work = self.e + batch * (self.c / share.compute + self.m / share.memory)
        largest = max(self.l0, work)
        sides = (self.l0 / largest, work / largest)  # at most 1, so that no power of them overflows
        return largest * math.pow(sum(math.pow(side, self.q) for side in sides), 1 / self.q)


class QuotientFit(NamedTuple):
    """Work that grows with the batch over the compute share, for models whose latency has no floor."""

    row: float
    batch: float
    offset: float
    rest: float

    def latency_ms(self, batch: int, share: GpuFraction) -> float:
        """Latency of a batch."""
        return (self.row * batch + self.batch) / (share.compute + self.offset) + self.rest


MPS: dict[str, LaunchBoundFit] = {
    "resnet50": LaunchBoundFit(2.311, 0.5571, 0.1021, 1.398, 5.36),
    "vgg19": LaunchBoundFit(0.05, 1.5783, 0.0791, 1.376, 6),
    "alexnet": LaunchBoundFit(0.05, 0.1060, 0.0247, 0.800, 6),
    "ssd": LaunchBoundFit(4.844, 2.2789, 0.5289, 1.716, 12),
}
MIG: dict[str, LaunchBoundFit | QuotientFit] = {
    "mobilenetv2": LaunchBoundFit(4.78, 0.1602, 0.0438, 0, 5.2),
    "resnet50": LaunchBoundFit(4.76, 0.2023, 0.1380, 1.68, 15),
    "resnet101": LaunchBoundFit(9.10, 0.3057, 0.2058, 2.97, 16),
    "resnet152": LaunchBoundFit(13.28, 0.4015, 0.3034, 4.10, 18),
    "densenet121": LaunchBoundFit(12.09, 0.3005, 0.1336, 2.08, 12),
    "densenet201": LaunchBoundFit(20.31, 0.4306, 0.2329, 4.84, 30),
    "inceptionv3": LaunchBoundFit(9.11, 0.2060, 0.0382, 3.20, 9),
    "vgg16": QuotientFit(0.5498, 0.5018, 0.0054, 0.436),
    "vgg19": QuotientFit(0.6340, 0.5534, 0.0038, 0.573),
    "bert": QuotientFit(4.35, 0, 0.50, 9.32),
}


def gpu_fraction_of(kind: str) -> GpuFraction:
    """The part of its GPU that a partition of kind `mps-P` or `mig-Ng` has; raises ConfigError for any other kind.

    MPS grants multiprocessors in pairs, rounded down. The figures were fitted from 10 % on.
    """
    parsed = parse_kind(kind)
    if parsed and parsed.profile in _MIG:
        compute, memory = _MIG[parsed.profile]
        return GpuFraction(compute / 7, memory / 8)
    if parsed and parsed.percent in _MPS_RANGE:
        pairs = math.floor(parsed.percent * _V100_SMS / 200)
        return GpuFraction(2 * pairs / _V100_SMS, 1.0)
    raise ConfigError(
        f"partition kind {kind}: cannot be simulated; expected mps-10 to mps-100 or one of mig-{', mig-'.join(_MIG)}"
    )


def latency_ms(model: str, kind: str, batch: int) -> float:
    """The fitted median latency of one batch, in milliseconds; raises ConfigError for an unknown model or kind."""
    share = gpu_fraction_of(kind)
    fits: dict[str, LaunchBoundFit] | dict[str, LaunchBoundFit | QuotientFit] = MPS if kind.startswith("mps-") else MIG
    if model not in fits:
        raise ConfigError(f"model {model}: cannot be simulated on {kind}; expected one of {', '.join(sorted(fits))}")
    return fits[model].latency_ms(batch, share) * _host_factor(kind, batch)


def _host_factor(kind: str, batch: int) -> float:
    """By what factor a batch takes longer because its worker has few cores."""
    parsed = parse_kind(kind)
    cores = 0 if parsed is None else parsed.host_cores
    return max(1.0, batch / (ROWS_A_CORE * cores)) if cores else 1.0


def simulate(model: str, kind: str, batches: Sequence[int]) -> Measurement:
    """Return a simulated measurement: medians by the formula, percentiles of a lognormal spread of `SIGMA`."""
    medians = [(batch, latency_ms(model, kind, batch)) for batch in batches]
    return Measurement(
        cells=tuple(
            Cell(batch, ms_to_ns(median), ms_to_ns(median * _P90), ms_to_ns(median * _P99), samples=0)
            for batch, median in medians
        )
    )
