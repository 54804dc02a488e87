"""Renewal processes: arrivals whose gaps are independent and have one distribution."""

import math
from collections.abc import Callable, Iterator

import numpy as np

from sluice.loadgen.traffic.processes.bounds import ArrivalBounds, Floats, Times
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S

MIN_CV, MAX_CV = 0.01, 20.0
MAX_UNIFORM_CV = 0.577
"""Just below 1/√3, where the shortest gap would be 0."""
MIN_SHAPE, MAX_SHAPE = 1.05, 100.0

CHUNK = 65_536

DrawGaps = Callable[[int], Floats]
"""Draws a number of gaps with a mean of 1."""


def renewal(bounds: ArrivalBounds, draw_gaps: DrawGaps) -> Times:
    """Arrivals with independent gaps, int64 nanoseconds from the start of the run, ascending."""
    return bounds.cut(_chunks(bounds, draw_gaps))


def _chunks(bounds: ArrivalBounds, draw_gaps: DrawGaps) -> Iterator[Times]:
    drawn, last_ns = 0, 0
    while drawn < bounds.most:
        gaps = draw_gaps(min(CHUNK, bounds.most - drawn)) * (NS_PER_S / bounds.rate)
        # A gap of 2**53 ns (104 days) is longer than any run; a heavy tail has longer ones, which must not overflow.
        chunk = last_ns + np.cumsum(np.minimum(gaps, 2.0**53).astype(np.int64))
        yield chunk
        drawn, last_ns = drawn + len(chunk), int(chunk[-1])
        if last_ns >= 2**62:
            return


def poisson_gaps(rng: np.random.Generator) -> DrawGaps:
    """Exponential gaps: those of a Poisson process."""
    # -ln(1 - u) instead of numpy's own method, which may change with a release.
    return lambda count: -np.log1p(-rng.random(count))


def constant_gaps() -> DrawGaps:
    """Equal gaps: a clock."""
    return np.ones


def uniform_gaps(cv: float, rng: np.random.Generator) -> DrawGaps:
    """Gaps that are uniform around their mean, with the coefficient of variation `cv`, from 0.01 to 0.577."""
    if not MIN_CV <= cv <= MAX_UNIFORM_CV:
        raise ConfigError(f"--cv: expected a number between {MIN_CV} and {MAX_UNIFORM_CV} for uniform gaps, got {cv:g}")
    half = cv * math.sqrt(3)
    return lambda count: 1 + half * (2 * rng.random(count) - 1)


def pareto_gaps(shape: float, rng: np.random.Generator) -> DrawGaps:
    """Gaps with a heavy tail: Pareto's distribution of type II (Lomax), by inversion.

    The share of gaps longer than x falls as x to the power of -`shape`, which is from 1.05 to 100. Up to a shape of 2
    the gaps have no finite variance.
    """
    if not MIN_SHAPE <= shape <= MAX_SHAPE:
        raise ConfigError(f"--shape: expected a number between {MIN_SHAPE} and {MAX_SHAPE:g}, got {shape:g}")
    # The mean of ((1 - u) ** (-1 / shape) - 1) is 1 / (shape - 1).
    return lambda count: ((1 - rng.random(count)) ** (-1 / shape) - 1) * (shape - 1)


def gamma_gaps(cv: float, rng: np.random.Generator) -> DrawGaps:
    """Gamma-distributed gaps with the coefficient of variation `cv`, from 0.01 to 20.

    0 would be a clock, 1 is a Poisson process, and larger values make bursts.
    """
    if not MIN_CV <= cv <= MAX_CV:
        raise ConfigError(f"--cv: expected a number between {MIN_CV} and {MAX_CV}, got {cv}")
    shape = 1 / cv**2
    return lambda count: _gamma_variates(shape, count, rng) / shape


def _gamma_variates(shape: float, count: int, rng: np.random.Generator) -> Floats:
    """Gamma variates of scale 1 by the method of Marsaglia and Tsang (2000), with their boost for shapes below 1.

    Uses uniform numbers only; normal ones come from them by Box and Muller.
    """
    boosted = shape + 1 if shape < 1 else shape
    d = boosted - 1 / 3
    c = 1 / np.sqrt(9 * d)
    accepted = np.empty(0)
    while len(accepted) < count:
        uniform = 1 - rng.random((count - len(accepted), 4))
        normal = np.sqrt(-2 * np.log(uniform[:, 0])) * np.cos(2 * np.pi * uniform[:, 1])
        cube = (1 + c * normal) ** 3
        possible = cube > 0
        log_cube = np.log(cube, where=possible, out=np.zeros_like(cube))
        fits = possible & (np.log(uniform[:, 2]) < normal**2 / 2 + d * (1 - cube + log_cube))
        variates = d * cube
        if shape < 1:
            variates *= uniform[:, 3] ** (1 / shape)
        accepted = np.concatenate((accepted, variates[fits]))
    return accepted
