"""Measurement of a live server: finds its capacity, then runs rounds of loads to calibrate with and to compare."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from sluice.loadgen.run import runner
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.validation.server_activity import Window
from sluice.loadgen.validation.server_process import GatewayProcess

CALIBRATION_SHARES = (0.3, 0.7, 1.1)
"""Loads of the calibration as shares of the capacity, beside the unloaded run."""
UNLOADED_SHARE, MIN_UNLOADED_RATE = 0.01, 10.0
"""Rate of the unloaded run, whose requests do not overlap: a share of the capacity, and a minimum per second."""
CALIBRATION_S = 3.0
"""Duration of a calibration run after its warm-up."""
CALIBRATION_SEEDS = 1_000_000
"""First seed of the calibration runs, far from the seeds of the compared runs."""
_FIRST_RATE = 100.0
_MAX_RATE = 50_000.0
_SATURATED, _CONFIRMATIONS = 0.9, 2
_COARSE_STEP, _FINE_STEP = 2.0, 1.25

ProgressReport = Callable[[str], None]


@dataclass(frozen=True)
class MeasuredRun:
    """A live run, its window in the journal, and the gateway's CPU time in it."""

    result: RunResult
    window: Window
    cpu_ns: int


@dataclass(frozen=True)
class MeasurementRound:
    """The runs of one seed: an `unloaded` and several `loaded` ones for calibration, one `compared` for each load."""

    unloaded: MeasuredRun
    loaded: list[MeasuredRun]
    compared: list[MeasuredRun]

    @property
    def runs(self) -> list[MeasuredRun]:
        """All runs of the round."""
        return [self.unloaded, *self.loaded, *self.compared]


class LoadMeasurement:
    """Runs loads against a live server; `run` is their common configuration, and `loads` are shares of the capacity."""

    def __init__(self, server: GatewayProcess, run: RunConfig, loads: Sequence[float], report: ProgressReport) -> None:
        self._server = server
        self._run = run
        self._loads = loads
        self._report = report
        self._calibrations = 0

    def capacity(self) -> float:
        """Find the highest completed rate: coarse steps until the server saturates, then fine steps."""
        self._calibrate(_FIRST_RATE)
        last, highest = self._climb(_FIRST_RATE, _COARSE_STEP, 1)
        return max(highest, self._climb(last * _FINE_STEP, _FINE_STEP, _CONFIRMATIONS)[1])

    def round(self, capacity: float, seed: int) -> MeasurementRound:
        """Run one round: compared loads in ascending order, interleaved with the calibration loads.

        Noise and drift of the machine then affect all loads of both kinds alike.
        """
        unloaded = self._calibrate(max(UNLOADED_SHARE * capacity, MIN_UNLOADED_RATE))
        loaded: list[MeasuredRun] = []
        compared: dict[float, MeasuredRun] = {}
        calibrating = list(CALIBRATION_SHARES)
        for share in sorted(self._loads):
            while calibrating and calibrating[0] <= share:
                loaded.append(self._calibrate(calibrating.pop(0) * capacity))
            compared[share] = self._measure(share * capacity, seed, self._run.duration_s)
        # The largest calibration load runs once more, so that compared loads lie between two calibration loads.
        loaded += [self._calibrate(share * capacity) for share in (*calibrating, CALIBRATION_SHARES[-1])]
        return MeasurementRound(unloaded, loaded, [compared[share] for share in self._loads])

    def _climb(self, rate: float, step: float, failures: int) -> tuple[float, float]:
        """Raise the rate until the server fails to complete it `failures` times in a row.

        Returns the last rate before the failures, and the highest completed rate.
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

    def _calibrate(self, rate: float) -> MeasuredRun:
        self._calibrations += 1
        return self._measure(rate, CALIBRATION_SEEDS + self._calibrations, self._run.warmup_s + CALIBRATION_S)

    def _measure(self, rate: float, seed: int, duration_s: float | None) -> MeasuredRun:
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
        result = runner.run(config)
        measured = MeasuredRun(result, (since_ns, time.monotonic_ns()), server.cpu_ns() - cpu_ns)
        latency = result.metrics.latency_ms
        p50 = "no answers" if latency is None else f"p50 {latency.p50:.2f} ms, p99 {latency.p99:.2f} ms"
        self._report(f"{rate:9.1f}/s  seed {seed}  {p50}  {'; '.join(result.client_limits)}")
        if result.interrupted:
            raise KeyboardInterrupt
        return measured
