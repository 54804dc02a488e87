"""The curve of a Markov-modulated Poisson process (MMPP): a rate that jumps between states."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from sluice.loadgen.traffic.processes.bounds import Floats
from sluice.models.errors import ConfigError
from sluice.models.units import unit_of

MAX_STATES = 64
_MIN_STAY_S = 1e-3
_CHUNK = 4096


class RateState(msgspec.Struct, frozen=True):
    """A state of the rate: its `factor` relative to the other states, and its mean stay, which is exponential."""

    factor: float
    stay_s: float


def parse_states(text: str) -> tuple[RateState, ...]:
    """Read states `FACTOR@TIME`, separated by commas; raises ValueError that names the part."""
    unit = unit_of("_s")
    assert unit is not None
    states: list[RateState] = []
    for part in text.split(","):
        factor, at, stay = part.partition("@")
        try:
            state = RateState(float(factor), float(unit.number(stay)))
            if not (at and 0 <= state.factor < math.inf and _MIN_STAY_S <= state.stay_s < math.inf):
                raise ValueError
        except ValueError:
            raise ValueError(
                f"expected FACTOR@TIME, such as 4@2s, with a factor of at least 0 and at least 1ms, got '{part:.80}'"
            ) from None
        states.append(state)
    return tuple(states)


class ModulatedCurve:
    """The rate of a stationary Markov chain of `states`, each left for any other with equal chance; its mean is 1.

    This is AlpaServe's UniformMMPP (OSDI '23). Two states are an on-off source.
    """

    def __init__(self, states: Sequence[RateState], rng: np.random.Generator) -> None:
        stays_s = sum(state.stay_s for state in states)
        mean = sum(state.factor * state.stay_s for state in states) / stays_s if states else 0
        if not (2 <= len(states) <= MAX_STATES and mean > 0):
            raise ConfigError(f"--states: expected 2 to {MAX_STATES} states, one of them with a factor above 0")
        self._rng = rng
        self._factors = np.array([state.factor for state in states]) / mean
        self._stays_s = np.array([state.stay_s for state in states])
        shares = np.cumsum(self._stays_s / stays_s)
        self._state = min(int(np.searchsorted(shares, rng.random(), side="right")), len(states) - 1)
        self._times_s = np.zeros(1)
        self._integrals = np.zeros(1)

    def when(self, elapsed_s: Floats) -> Floats:
        """As in `RateCurve`: the integral is a straight line while a state lasts."""
        times, integrals = [self._times_s], [self._integrals]
        while not integrals[-1][-1] > elapsed_s[-1]:
            more_times, more_integrals = self._stay(float(times[-1][-1]), float(integrals[-1][-1]))
            times.append(more_times)
            integrals.append(more_integrals)
        known_s, known = np.concatenate(times), np.concatenate(integrals)
        # A state of factor 0 has no arrivals: of equal integrals the last one counts.
        after = np.searchsorted(known, elapsed_s, side="right")
        self._times_s, self._integrals = known_s[after[-1] - 1 :], known[after[-1] - 1 :]
        part = (elapsed_s - known[after - 1]) / (known[after] - known[after - 1])
        return np.asarray(known_s[after - 1] + part * (known_s[after] - known_s[after - 1]))

    def _stay(self, time_s: float, integral: float) -> tuple[Floats, Floats]:
        """The ends of the next stays, and the integral of the rate there."""
        uniform = self._rng.random((_CHUNK, 2))
        count = len(self._factors)
        jumps = 1 + (uniform[:, 1] * (count - 1)).astype(np.int64)
        states = (self._state + np.concatenate(([0], np.cumsum(jumps)))) % count
        self._state = int(states[-1])
        stays_s = -np.log1p(-uniform[:, 0]) * self._stays_s[states[:-1]]
        return time_s + np.cumsum(stays_s), integral + np.cumsum(stays_s * self._factors[states[:-1]])
