"""Search for the highest rate at which the objective is still met."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from sluice.loadgen.run.result import RunResult
from sluice.models.errors import ConfigError

MAX_PROBES = 30
MAX_RATE = 50_000.0
"""Rate that is not exceeded: more than a client can send, and a simulated target may have no limit to find."""


@dataclass(frozen=True)
class Probe:
    """One run at one rate; the rows of the result are not kept."""

    rate: float
    result: RunResult

    @property
    def passed(self) -> bool:
        """Whether the rate is within the objective. A short run will do here: it is only less certain."""
        return self.result.slo_met and not self.result.client_limits


@dataclass(frozen=True)
class Peak:
    """The highest rate that passed and the lowest above it that failed; None for one that was not found."""

    rate: float | None
    limit: float | None
    probes: tuple[Probe, ...]

    @property
    def client_limited(self) -> bool:
        """Whether the rate that failed was too much for the client, which says nothing about the target."""
        return any(probe.rate == self.limit and probe.result.client_limits for probe in self.probes)


def find_max(
    run: Callable[[float, int], RunResult],
    start: float,
    precision: float = 0.02,
    max_probes: int = MAX_PROBES,
    max_rate: float = MAX_RATE,
    report: Callable[[Probe], None] = lambda probe: None,
) -> Peak:
    """Double from `start` until a rate fails (halve until one passes), then bisect on the logarithm.

    `run` takes a rate and the number of the probe, which should choose fresh seeds. Ends when the bracket is narrower
    than `precision` (relative), after `max_probes` probes, at `max_rate`, or with a probe that was interrupted.
    `report` sees every probe as it ends.
    """
    if not 0 < precision < 1:
        raise ConfigError(f"--precision: must be between 0 and 100 %, got {precision * 100:g} %")
    if max_probes < 1:
        raise ConfigError(f"--max-probes: must be at least 1, got {max_probes}")
    if start > max_rate:
        raise ConfigError(f"--start: must be at most --max-rate ({max_rate:g}/s), got {start:g}/s")
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
        rate = min(_next_rate(low, high), max_rate)
    return Peak(low, high, tuple(probes))


def _next_rate(low: float | None, high: float | None) -> float:
    if low is None:
        assert high is not None
        return high / 2
    return low * 2 if high is None else math.sqrt(low * high)
