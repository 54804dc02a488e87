"""Arrival processes: the due times of an open-loop run's queries."""

import enum
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from sluice.loadgen.traffic.trace import read_trace
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S

Times = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MIN_CV, MAX_CV = 0.01, 20.0
DEFAULT_CV = 4.0
"""Burstiness of AlpaServe's workloads (OSDI '23)."""
MAX_QUERIES = 20_000_000
"""Upper bound on the queries of one run; each takes some 50 bytes of columns."""

_CHUNK = 65_536


class ArrivalProcess(enum.StrEnum):
    """A stochastic process of arrivals, or a recorded trace."""

    POISSON = "poisson"
    GAMMA = "gamma"
    TRACE = "trace"


class Arrivals(msgspec.Struct, frozen=True):
    """An arrival process with its parameters: `cv` is used by `gamma`, and the CSV file `trace` by `trace`."""

    process: ArrivalProcess = ArrivalProcess.POISSON
    cv: float = DEFAULT_CV
    trace: str = ""

    def describe(self) -> str:
        """The process and its parameters, for a report."""
        match self.process:
            case ArrivalProcess.POISSON:
                return "poisson"
            case ArrivalProcess.GAMMA:
                return f"gamma, coefficient of variation {self.cv:g}"
            case ArrivalProcess.TRACE:
                return f"trace {self.trace}"

    def draw(self, rate: float, duration_s: float | None, queries: int | None, rng: np.random.Generator) -> Times:
        """Draw arrivals with `poisson`, `gamma` or `replay`; raises `ConfigError` as they do."""
        match self.process:
            case ArrivalProcess.POISSON:
                return poisson(rate, duration_s, queries, rng)
            case ArrivalProcess.GAMMA:
                return gamma(rate, self.cv, duration_s, queries, rng)
            case ArrivalProcess.TRACE:
                return replay(read_trace(self.trace), rate, duration_s, queries)


def poisson(rate: float, duration_s: float | None, queries: int | None, rng: np.random.Generator) -> Times:
    """Arrivals of a Poisson process of `rate` a second, int64 nanoseconds from the start of the run, ascending.

    The process ends before `duration_s` seconds or after `queries` arrivals, whichever comes first. Raises
    `ConfigError` when a bound is missing or not positive, or allows more than `MAX_QUERIES` arrivals.
    """
    # -ln(1 - u) instead of numpy's own method, which may change with a release.
    return _renewal(rate, duration_s, queries, lambda count: -np.log1p(-rng.random(count)))


def gamma(rate: float, cv: float, duration_s: float | None, queries: int | None, rng: np.random.Generator) -> Times:
    """Arrivals whose gaps are independent and gamma-distributed, with the bounds and errors of `poisson`.

    `cv` is the coefficient of variation of the gaps, from 0.01 to 20: 0 would be a clock, 1 is a Poisson process, and
    larger values make bursts.
    """
    if not MIN_CV <= cv <= MAX_CV:
        raise ConfigError(f"--cv: expected a number between {MIN_CV} and {MAX_CV}, got {cv}")
    shape = 1 / cv**2
    return _renewal(rate, duration_s, queries, lambda count: _gamma_variates(shape, count, rng) / shape)


def replay(times: Floats, rate: float, duration_s: float | None, queries: int | None) -> Times:
    """A trace's arrivals, scaled in time to a mean rate of `rate` a second; with the bounds of `poisson`.

    `times` ascend, in any unit, and are not all equal. The trace starts at its beginning and repeats while the run is
    longer; without a bound it is played once. The rate of a part may differ from that of the whole.
    """
    if duration_s is None and queries is None:
        queries = len(times)
    _check(rate, duration_s, queries)
    mean_gap = (times[-1] - times[0]) / (len(times) - 1)
    offsets = (times - times[0]) / mean_gap * (NS_PER_S / rate)
    length_ns = len(times) * NS_PER_S / rate
    rounds = MAX_QUERIES // len(times) + 1
    if queries is not None:
        rounds = min(rounds, -(-queries // len(times)))
    if duration_s is not None:
        rounds = min(rounds, int(duration_s * NS_PER_S / length_ns) + 1)
    arrivals = (np.arange(rounds)[:, np.newaxis] * length_ns + offsets).astype(np.int64).reshape(-1)
    return _bounded(arrivals[:queries], duration_s)


def _renewal(rate: float, duration_s: float | None, queries: int | None, draw_gaps: Callable[[int], Floats]) -> Times:
    """Arrivals with independent gaps; `draw_gaps` draws gaps of mean 1."""
    _check(rate, duration_s, queries)
    end_ns = np.iinfo(np.int64).max if duration_s is None else round(duration_s * NS_PER_S)
    wanted = MAX_QUERIES if queries is None else queries
    chunks: list[Times] = []
    drawn, last_ns = 0, 0
    while drawn < wanted and last_ns < end_ns:
        gaps = draw_gaps(min(_CHUNK, wanted - drawn)) * (NS_PER_S / rate)
        chunk = last_ns + np.cumsum(gaps.astype(np.int64))
        chunks.append(chunk)
        drawn, last_ns = drawn + len(chunk), int(chunk[-1])
    return _bounded(np.concatenate(chunks), duration_s)


def _bounded(arrivals: Times, duration_s: float | None) -> Times:
    """The arrivals before the end of the run."""
    return arrivals if duration_s is None else arrivals[: int(np.searchsorted(arrivals, round(duration_s * NS_PER_S)))]


def _gamma_variates(shape: float, count: int, rng: np.random.Generator) -> Floats:
    """Gamma variates of scale 1 by the method of Marsaglia and Tsang (2000), with their boost for shapes below 1.

    Uses uniform numbers only, as `poisson` does; normal ones come from them by Box and Muller.
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


def _check(rate: float, duration_s: float | None, queries: int | None) -> None:
    if not 0 < rate <= NS_PER_S:
        raise ConfigError(f"--rate: expected a number above 0 and at most {NS_PER_S} queries a second, got {rate}")
    if duration_s is None and queries is None:
        raise ConfigError("schedule: no end; expected --duration, --queries, or both")
    if duration_s is not None and not 0 < duration_s < np.inf:
        raise ConfigError(f"--duration: expected a positive number of seconds, got {duration_s}")
    if queries is not None and not 1 <= queries <= MAX_QUERIES:
        raise ConfigError(f"--queries: expected 1 to {MAX_QUERIES}, got {queries}")
    if queries is None and duration_s is not None and rate * duration_s > MAX_QUERIES / 2:
        raise ConfigError(
            f"schedule: too long; expected at most {MAX_QUERIES // 2} queries, got {rate}/s for {duration_s} s"
        )
