"""Loads on a live server: those that find its capacity, then by rounds those that calibrate and are compared."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from sluice.loadgen.run.result import RunConfig, RunResult
from sluice.loadgen.run.scenario import run_server_scenario
from sluice.loadgen.validation.live_server import LiveServer
from sluice.loadgen.validation.live_steps import Window

CALIBRATION_SHARES = (0.3, 0.7, 1.1)
"""Loads, as shares of the capacity, that the parameters are measured under, besides lone requests."""
LONE_SHARE, LEAST_LONE_RATE = 0.01, 10.0
CALIBRATION_S = 3.0
"""How long the runs that calibrate last after their warm-up."""
CALIBRATION_SEEDS = 1_000_000
"""The first seed of the runs that calibrate, far from those that validate."""
_FIRST_RATE = 100.0
_MAX_RATE = 50_000.0
_SATURATED, _CONFIRMATIONS = 0.9, 2
_COARSE_STEP, _FINE_STEP = 2.0, 1.25

Report = Callable[[str], None]


@dataclass(frozen=True)
class LiveRun:
    """A live run, its window in the journal, and the gateway's processor time in it."""

    result: RunResult
    window: Window
    cpu_ns: int


@dataclass(frozen=True)
class Round:
    """The runs of one seed: of `lone` requests and several `loaded` ones to calibrate, and one `compared` a load."""

    lone: LiveRun
    loaded: list[LiveRun]
    compared: list[LiveRun]

    @property
    def runs(self) -> list[LiveRun]:
        """All of them."""
        return [self.lone, *self.loaded, *self.compared]


class LiveRounds:
    """Runs loads against a live server; `run` is what they have in common, `loads` are shares of the capacity."""

    def __init__(self, server: LiveServer, run: RunConfig, loads: Sequence[float], report: Report) -> None:
        self._server = server
        self._run = run
        self._loads = loads
        self._report = report
        self._calibrations = 0

    def capacity(self) -> float:
        """The most that is completed a second: coarse steps up to a rate that is not, then fine ones from before it."""
        self._calibrate(_FIRST_RATE)
        last, highest = self._climb(_FIRST_RATE, _COARSE_STEP, 1)
        return max(highest, self._climb(last * _FINE_STEP, _FINE_STEP, _CONFIRMATIONS)[1])

    def round(self, capacity: float, seed: int) -> Round:
        """Loads that are compared, by size, each after those that calibrate and are no larger.

        Noise and drift of the machine then fall on all loads alike, and on those of either purpose.
        """
        lone = self._calibrate(max(LONE_SHARE * capacity, LEAST_LONE_RATE))
        loaded: list[LiveRun] = []
        compared: dict[float, LiveRun] = {}
        calibrating = list(CALIBRATION_SHARES)
        for share in sorted(self._loads):
            while calibrating and calibrating[0] <= share:
                loaded.append(self._calibrate(calibrating.pop(0) * capacity))
            compared[share] = self._measure(share * capacity, seed, self._run.duration_s)
        # The largest once more, so that what is compared lies between two that calibrate.
        loaded += [self._calibrate(share * capacity) for share in (*calibrating, CALIBRATION_SHARES[-1])]
        return Round(lone, loaded, [compared[share] for share in self._loads])

    def _climb(self, rate: float, step: float, failures: int) -> tuple[float, float]:
        """Ask for more and more until a rate is so many times not completed.

        Returns the last rate before that one, and the most that was completed at any.
        """
        failed, highest = 0, 0.0
        while failed < failures and rate <= _MAX_RATE:
            metrics = self._calibrate(rate).result.metrics
            highest = max(highest, metrics.completed_per_s)
            if metrics.completed_per_s < _SATURATED * metrics.offered_per_s:
                failed += 1
            else:
                rate, failed = rate * step, 0
        return rate / step, highest

    def _calibrate(self, rate: float) -> LiveRun:
        self._calibrations += 1
        return self._measure(rate, CALIBRATION_SEEDS + self._calibrations, self._run.warmup_s + CALIBRATION_S)

    def _measure(self, rate: float, seed: int, duration_s: float | None) -> LiveRun:
        server = self._server
        config = msgspec.structs.replace(
            self._run,
            target=server.url,
            metrics_url=f"{server.url}/metrics",
            rate=rate,
            seed=seed,
            duration_s=duration_s,
        )
        since_ns, cpu_ns = time.monotonic_ns(), server.cpu_ns()
        result = run_server_scenario(config)
        run = LiveRun(result, (since_ns, time.monotonic_ns()), server.cpu_ns() - cpu_ns)
        latency = result.metrics.latency_ms
        p50 = "no answers" if latency is None else f"p50 {latency.p50:.2f} ms, p99 {latency.p99:.2f} ms"
        self._report(f"{rate:9.1f}/s  seed {seed}  {p50}  {'; '.join(result.client_limits)}")
        if result.interrupted:
            raise KeyboardInterrupt
        return run
