"""Arrivals: the due times of an open-loop run's queries, by a stochastic process, a profile of the rate, or a trace."""

import enum

import msgspec
import numpy as np

from sluice.loadgen.traffic.processes.bounds import ArrivalBounds, Times
from sluice.loadgen.traffic.processes.diurnal import DiurnalCurve
from sluice.loadgen.traffic.processes.mmpp import ModulatedCurve, RateState
from sluice.loadgen.traffic.processes.profile import ProfileCurve, RateSegment
from sluice.loadgen.traffic.processes.renewal import (
    DrawGaps,
    constant_gaps,
    gamma_gaps,
    pareto_gaps,
    poisson_gaps,
    renewal,
    uniform_gaps,
)
from sluice.loadgen.traffic.processes.replay import replay
from sluice.loadgen.traffic.processes.varying_rate import RateCurve, varying
from sluice.loadgen.traffic.traces.formats.found import open_trace
from sluice.models.errors import ConfigError

DEFAULT_CV = 4.0
"""Burstiness of AlpaServe's workloads (OSDI '23)."""
DEFAULT_SHAPE = 1.5
DEFAULT_STATES = (RateState(1, 8.0), RateState(4, 2.0))
"""Bursts of four times the usual rate, a fifth of the time."""
DEFAULT_AMPLITUDE = 0.5
DEFAULT_PERIOD_S = 60.0


class ArrivalProcess(enum.StrEnum):
    """A stochastic process of arrivals, or a recorded trace."""

    POISSON = "poisson"
    GAMMA = "gamma"
    CONSTANT = "constant"
    UNIFORM = "uniform"
    PARETO = "pareto"
    MMPP = "mmpp"
    DIURNAL = "diurnal"
    TRACE = "trace"
    MLPERF = "mlperf"
    """The queries of MLPerf's LoadGen: times and samples, which its scenarios make together."""


RENEWAL = (
    ArrivalProcess.POISSON,
    ArrivalProcess.GAMMA,
    ArrivalProcess.CONSTANT,
    ArrivalProcess.UNIFORM,
    ArrivalProcess.PARETO,
)
"""The processes with independent gaps, which a profile may speed up and slow down."""


class Arrivals(msgspec.Struct, frozen=True):
    """An arrival process with its parameters.

    `cv` is used by `gamma` and `uniform`, `shape` by `pareto`, `states` by `mmpp`, `amplitude` and `period_s` by
    `diurnal`, and the CSV file `trace` by `trace`. A `profile` changes the rate of a process with independent gaps.
    """

    process: ArrivalProcess = ArrivalProcess.POISSON
    cv: float = DEFAULT_CV
    trace: str = ""
    shape: float = DEFAULT_SHAPE
    states: tuple[RateState, ...] = DEFAULT_STATES
    amplitude: float = DEFAULT_AMPLITUDE
    period_s: float = DEFAULT_PERIOD_S
    profile: tuple[RateSegment, ...] = ()

    def __post_init__(self) -> None:
        if self.profile and self.process not in RENEWAL:
            raise ConfigError(f"--profile: requires --arrivals {', '.join(RENEWAL)}; got --arrivals {self.process}")

    def describe(self) -> str:
        """The process and its parameters, for a report."""
        match self.process:
            case ArrivalProcess.GAMMA | ArrivalProcess.UNIFORM:
                text = f"{self.process}, coefficient of variation {self.cv:g}"
            case ArrivalProcess.PARETO:
                text = f"pareto, shape {self.shape:g}"
            case ArrivalProcess.MMPP:
                text = f"mmpp, states {','.join(f'{state.factor:g}@{state.stay_s:g}s' for state in self.states)}"
            case ArrivalProcess.DIURNAL:
                text = f"diurnal, amplitude {self.amplitude:g}, period {self.period_s:g} s"
            case ArrivalProcess.TRACE:
                text = f"trace {self.trace}"
            case _:
                text = self.process.value
        return f"{text}, profile of {ProfileCurve(self.profile).duration_s:g} s" if self.profile else text

    def own_rate(self) -> float | None:
        """The mean rate that a profile or a trace has by itself; None for a process.

        Raises `ConfigError` as `draw` does.
        """
        if self.process is ArrivalProcess.TRACE:
            return open_trace(self.trace).mean_rate
        return ProfileCurve(self.profile).mean_rate if self.profile else None

    def draw(self, rate: float, duration_s: float | None, queries: int | None, rng: np.random.Generator) -> Times:
        """Draw arrivals of `rate` a second on average, int64 nanoseconds from the start of the run, ascending.

        The process ends before `duration_s` seconds or after `queries` arrivals, whichever comes first; without
        either, a profile or a trace is played once. Raises `ConfigError` for parameters that cannot be drawn, and as
        `Bounds` does.
        """
        if self.process is ArrivalProcess.MLPERF:
            raise ConfigError("--arrivals mlperf: requires --scenario server, offline, single-stream or multi-stream")
        if self.process is ArrivalProcess.TRACE:
            times = open_trace(self.trace).t_s
            if duration_s is None and queries is None:
                queries = len(times)
            return replay(times, ArrivalBounds(rate, duration_s, queries))
        if self.profile and duration_s is None and queries is None:
            duration_s = ProfileCurve(self.profile).duration_s
        bounds = ArrivalBounds(rate, duration_s, queries)
        curve = self._curve(rng)
        gaps = self._gaps(rng)
        return renewal(bounds, gaps) if curve is None else varying(bounds, curve, gaps)

    def _curve(self, rng: np.random.Generator) -> RateCurve | None:
        if self.profile:
            return ProfileCurve(self.profile)
        if self.process is ArrivalProcess.DIURNAL:
            return DiurnalCurve(self.amplitude, self.period_s)
        if self.process is ArrivalProcess.MMPP:
            # The states have random numbers of their own, so that the number of arrivals does not move them.
            return ModulatedCurve(self.states, rng.spawn(1)[0])
        return None

    def _gaps(self, rng: np.random.Generator) -> DrawGaps:
        match self.process:
            case ArrivalProcess.GAMMA:
                return gamma_gaps(self.cv, rng)
            case ArrivalProcess.UNIFORM:
                return uniform_gaps(self.cv, rng)
            case ArrivalProcess.PARETO:
                return pareto_gaps(self.shape, rng)
            case ArrivalProcess.CONSTANT:
                return constant_gaps()
            case _:
                return poisson_gaps(rng)
