"""The diurnal curve: a rate that rises and falls as a sine."""

import math

import numpy as np

from sluice.loadgen.traffic.processes.bounds import Floats
from sluice.models.errors import ConfigError

_STEPS = 65_536
"""The rate is constant, and has the sine's exact mean, in each of these parts of a period."""


class DiurnalCurve:
    """The rate 1 + `amplitude` · sin(2πt / `period_s`)."""

    def __init__(self, amplitude: float, period_s: float) -> None:
        if not 0 <= amplitude <= 1:
            raise ConfigError(f"--amplitude: expected a number between 0 and 1, got {amplitude:g}")
        if not 0 < period_s < math.inf:
            raise ConfigError(f"--period: expected a positive number of seconds, got {period_s:g}")
        self._period_s = period_s
        self._phase = np.linspace(0, 1, _STEPS + 1)
        self._integral = self._phase + amplitude / (2 * np.pi) * (1 - np.cos(2 * np.pi * self._phase))

    def when(self, elapsed_s: Floats) -> Floats:
        """As in `RateCurve`."""
        periods, rest = np.divmod(elapsed_s / self._period_s, 1)
        return (periods + np.interp(rest, self._integral, self._phase)) * self._period_s
