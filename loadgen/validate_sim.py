"""Validation of the simulator: the same schedules live and in virtual time, after the live server was measured."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadgen.calibrate import Load
from loadgen.calibrated_file import calibrated, service_ms, write_simulation
from loadgen.comparison import LoadComparison, Pair
from loadgen.live_server import LiveServer, serve
from loadgen.live_steps import Window, read_journal
from loadgen.result import RunConfig, RunResult
from loadgen.scenario import run_server_scenario
from loadgen.target.simulated import SIMULATED
from loadgen.target.simulation_file import SimulationFile, read_simulation
from models.errors import ConfigError
from models.units import NS_PER_US

CALIBRATION_SHARES = (0.3, 0.7, 1.1)
"""Loads, as shares of the capacity, that the parameters are measured under, besides lone requests."""
LONE_SHARE, LEAST_LONE_RATE = 0.01, 10.0
CALIBRATION_S = 2.0
CALIBRATION_SEEDS = 1_000_000
"""The first seed of the runs that calibrate, far from those that validate."""
_FIRST_RATE = 100.0
_MAX_RATE = 50_000.0
_SATURATED, _CONFIRMATIONS = 0.9, 2

Report = Callable[[str], None]


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """What to validate: `run` is the run of the live and the simulated target but for target, rate and seed.

    `simulation` is the file that describes both; `loads` are shares of the capacity (rate, in queries/s, measured when
    it is None). The first seed is that of `run`. The first of `cores` is the gateway's; partitions get theirs from the
    end, and the client runs on what is left, or else beside the gateway.
    """

    run: RunConfig
    simulation: Path
    loads: tuple[float, ...]
    seeds: int
    cores: tuple[int, ...]
    capacity: float | None = None


@dataclass(frozen=True)
class _Measured:
    """A live run, its window in the journal, and the gateway's processor time in it."""

    result: RunResult
    window: Window
    cpu_ns: int


@dataclass(frozen=True)
class _Round:
    """The runs of one seed: of `lone` requests and several `loaded` ones to calibrate, and one `compared` a load."""

    lone: _Measured
    loaded: list[_Measured]
    compared: list[RunResult]

    @property
    def calibrating(self) -> list[_Measured]:
        return [self.lone, *self.loaded]


@dataclass(frozen=True)
class _Live:
    """All runs against the live server, but for those that found its capacity."""

    capacity: float
    rounds: list[_Round]


def validate(validation: Validation, write: Path, report: Report) -> tuple[float, list[LoadComparison]]:
    """Measure, write the calibrated simulation to `write`, and compare; returns the capacity and one item a load.

    Raises ConfigError for what cannot be run, and when the server dies.
    """
    file, repository = read_simulation(validation.simulation)
    directory = validation.simulation.parent / file.repository
    partitions, gateway, client = _place(file, validation.cores)
    with serve(file, directory, partitions) as server, _on_core(client):
        server.keep_on(gateway)
        live = _Runner(server, validation, report).run()
        server.stop()
        runs = sorted((run for each in live.rounds for run in each.calibrating), key=lambda run: run.window)
        journal = read_journal(server.journal, [run.window for run in runs])
    load_of = {
        run.window: Load(run.result, activity, _core_ns(run, gateway == client))
        for run, activity in zip(runs, journal.activities, strict=True)
    }
    lone = [load_of[each.lone.window] for each in live.rounds]
    pipeline = repository.pipelines.get(validation.run.model)
    measured = calibrated(file, journal.tables, lone, list(load_of.values()), pipeline)
    write_simulation(measured, directory, write)
    report(f"calibrated: {measured.host}")
    pairs: list[list[Pair]] = [[] for _ in validation.loads]
    for each in live.rounds:
        of_round = service_ms([load_of[run.window] for run in each.calibrating])
        with _written(msgspec.structs.replace(measured, service_ms=measured.service_ms | of_round), directory) as path:
            for result, of_load in zip(each.compared, pairs, strict=True):
                of_load.append((result, _simulate(result, path)))
    return live.capacity, [
        LoadComparison(share, share * live.capacity, of_load)
        for share, of_load in zip(validation.loads, pairs, strict=True)
    ]


class _Runner:
    """Runs loads against a live server: those that calibrate in turns with those that are compared."""

    def __init__(self, server: LiveServer, validation: Validation, report: Report) -> None:
        self._server = server
        self._validation = validation
        self._report = report
        self._calibrations = 0

    def run(self) -> _Live:
        """One round a seed: noise and drift of the machine then fall on all loads alike."""
        validation = self._validation
        capacity = validation.capacity or self._capacity()
        self._report(f"capacity {capacity:.0f}/s")
        return _Live(
            capacity, [self._round(capacity, validation.run.seed + number) for number in range(validation.seeds)]
        )

    def _round(self, capacity: float, seed: int) -> _Round:
        """Loads that are compared, by size, each after those that calibrate and are no larger."""
        duration_s = self._validation.run.duration_s
        lone = self._calibrate(max(LONE_SHARE * capacity, LEAST_LONE_RATE))
        loaded: list[_Measured] = []
        compared: dict[float, RunResult] = {}
        calibrating = list(CALIBRATION_SHARES)
        for share in sorted(self._validation.loads):
            while calibrating and calibrating[0] <= share:
                loaded.append(self._calibrate(calibrating.pop(0) * capacity))
            compared[share] = self._measure(share * capacity, seed, duration_s).result
        loaded += [self._calibrate(share * capacity) for share in calibrating]
        return _Round(lone, loaded, [compared[share] for share in self._validation.loads])

    def _capacity(self) -> float:
        """The rate that is completed when more is asked for: rates double until one is twice not completed."""
        rate, short, highest = _FIRST_RATE, 0, 0.0
        while short < _CONFIRMATIONS:
            metrics = self._calibrate(rate).result.metrics
            highest = max(highest, metrics.completed_per_s)
            if metrics.completed_per_s < _SATURATED * metrics.offered_per_s:
                short += 1
            elif rate >= _MAX_RATE:
                break
            else:
                rate, short = rate * 2, 0
        return highest

    def _calibrate(self, rate: float) -> _Measured:
        self._calibrations += 1
        return self._measure(rate, CALIBRATION_SEEDS + self._calibrations, CALIBRATION_S)

    def _measure(self, rate: float, seed: int, duration_s: float | None) -> _Measured:
        server = self._server
        config = msgspec.structs.replace(
            self._validation.run,
            target=server.url,
            metrics_url=f"{server.url}/metrics",
            rate=rate,
            seed=seed,
            duration_s=duration_s,
        )
        since_ns, cpu_ns = time.monotonic_ns(), server.cpu_ns()
        result = run_server_scenario(config)
        run = _Measured(result, (since_ns, time.monotonic_ns()), server.cpu_ns() - cpu_ns)
        latency = result.metrics.latency_ms
        p50 = "no answers" if latency is None else f"p50 {latency.p50:.2f} ms, p99 {latency.p99:.2f} ms"
        self._report(f"{rate:9.1f}/s  seed {seed}  {p50}  {'; '.join(result.client_limits)}")
        if result.interrupted:
            raise KeyboardInterrupt
        return run


def _place(file: SimulationFile, cores: Sequence[int]) -> tuple[dict[str, Sequence[int]], int, int]:
    """The cores of each partition, the gateway's and the client's."""
    needed = sum(partition.cores for partition in file.partitions)
    if len(cores) <= needed:
        raise ConfigError(f"--cores: the partitions take {needed} and the gateway one more, got {list(cores)}")
    free, left = list(cores[: len(cores) - needed]), list(cores[len(cores) - needed :])
    partitions: dict[str, Sequence[int]] = {}
    for partition in file.partitions:
        partitions[partition.name], left = left[: partition.cores], left[partition.cores :]
    return partitions, free[0], free[-1]


@contextmanager
def _on_core(core: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _core_ns(run: _Measured, shared: bool) -> int:
    """Processor time of the gateway's core: also the client's, if that is on it."""
    client_us = run.result.client_cpu_us_per_query or 0.0
    return run.cpu_ns + (round(client_us * len(run.result.record) * NS_PER_US) if shared else 0)


@contextmanager
def _written(file: SimulationFile, repository: Path) -> Iterator[Path]:
    """A simulation file that is there until the block is left."""
    with tempfile.TemporaryDirectory(prefix="loadgen-") as directory:
        path = Path(directory) / "simulation.yaml"
        write_simulation(file, repository.resolve(), path)
        yield path


def _simulate(live: RunResult, simulation: Path) -> RunResult:
    config = msgspec.structs.replace(live.config, target=f"{SIMULATED}{simulation}", metrics_url="")
    result = run_server_scenario(config)
    if result.schedule_digest != live.schedule_digest:
        raise ConfigError(f"{simulation}: the simulated schedule of seed {config.seed} is not the live one")
    return result.without_rows()
