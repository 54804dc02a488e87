"""Search for the highest rate that meets the objective."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from sluice.loadgen.run.result import RunResult
from sluice.models.errors import ConfigError

MAX_PROBES = 30
RATE_LIMIT = 50_000.0
"""Default bound of the search: more than a client can send. A simulated target may have no limit to find."""


@dataclass(frozen=True)
class Probe:
    """One run at one rate; its result has no per-query data."""

    rate: float
    result: RunResult

    @property
    def passed(self) -> bool:
        """True when the run confirms that the rate meets the objective."""
        return self.result.slo_met


@dataclass(frozen=True)
class MaxRate:
    """The highest rate that passed and the lowest rate above it that did not; None where the search found none."""

    rate: float | None
    failed_rate: float | None
    probes: tuple[Probe, ...]

    @property
    def client_limited(self) -> bool:
        """True when the failed rate exceeded the client's capacity, which says nothing about the target."""
        return any(probe.rate == self.failed_rate and probe.result.client_limits for probe in self.probes)

    @property
    def too_short(self) -> bool:
        """True when no rate passed, and runs at the last one were too short to confirm any."""
        if self.rate is not None:
            return False
        last = self.probes[-1].result
        return last.too_short and not last.interrupted


def find_max(
    run: Callable[[float, int], RunResult],
    start: float,
    precision: float = 0.02,
    max_probes: int = MAX_PROBES,
    max_rate: float = RATE_LIMIT,
    report: Callable[[Probe], None] = lambda probe: None,
) -> MaxRate:
    """Double from `start` until a rate fails (halve until one passes), then bisect on the logarithm.

    `run` takes a rate and the number of the probe, from which it should choose a fresh seed. The search ends when the
    bracket is narrower than `precision` (relative), after `max_probes` probes, at `max_rate`, with an interrupted
    probe, or where the rates left to try are too low for a run to have enough queries. `report` is called with every
    probe as it ends.
    """
    if not 0 < precision < 1:
        raise ConfigError(f"--precision: expected a number between 0 and 100 %, got {precision * 100:g} %")
    if max_probes < 1:
        raise ConfigError(f"--max-probes: expected at least 1, got {max_probes}")
    if start > max_rate:
        raise ConfigError(f"--start: expected at most --max-rate ({max_rate:g}/s), got {start:g}/s")
    low: float | None = None
    high: float | None = None
    probes: list[Probe] = []
    rate = start
    while len(probes) < max_probes and not (low and high and high / low <= 1 + precision):
        probe = Probe(rate, run(rate, len(probes)).without_rows())
        probes.append(probe)
        report(probe)
        if probe.result.interrupted:
            break
        if probe.passed:
            low = rate
            if rate >= max_rate:
                break
        else:
            high = rate
            if low is None and probe.result.too_short:
                break
        rate = min(_next_rate(low, high), max_rate)
    return MaxRate(low, high, tuple(probes))


def _next_rate(low: float | None, high: float | None) -> float:
    if low is None:
        assert high is not None
        return high / 2
    return low * 2 if high is None else math.sqrt(low * high)
