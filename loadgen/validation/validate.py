"""Validation of the simulator: measures a live server, then compares its runs with simulations of their schedules."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sluice.loadgen.run import runner
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.simulation.simulation_file import SimulationFile, read_simulation
from sluice.loadgen.simulation.target import SIMULATED
from sluice.loadgen.validation.calibration import calibrated, with_service_times, write_simulation
from sluice.loadgen.validation.comparison import LoadComparison, Pair
from sluice.loadgen.validation.host_times import LoadTimings
from sluice.loadgen.validation.measurement import LoadMeasurement, MeasuredRun, MeasurementRound, ProgressReport
from sluice.loadgen.validation.server_activity import read_journal
from sluice.loadgen.validation.server_process import run_gateway
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_US

NEIGHBOUR_RUNS = 2
"""Number of runs before, and after, a run that give the machine's pace during it."""


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """A validation of the simulation file `simulation`, which describes the live server as well.

    All runs have the configuration `run`, except for its target, rate and seed; seeds count up from its seed. `loads`
    are shares of the `capacity` in queries a second, which is measured when None. The gateway gets the first of
    `cores`, partitions get the last ones, and the client the core before them, which may be the gateway's.
    """

    run: RunConfig
    simulation: Path
    loads: tuple[float, ...]
    seeds: int
    cores: tuple[int, ...]
    capacity: float | None = None


def validate(validation: Validation, write: Path, report: ProgressReport) -> tuple[float, list[LoadComparison]]:
    """Measure, write the calibrated simulation to `write`, and compare; returns the capacity and a comparison a load.

    Raises ConfigError for a validation that cannot be run, and when the server dies.
    """
    file, repository = read_simulation(validation.simulation)
    directory = validation.simulation.parent / file.repository
    partitions, gateway, client = _assign_cores(file, validation.cores)
    with run_gateway(file, directory, partitions) as server, _on_core(client):
        server.pin(gateway)
        measurement = LoadMeasurement(server, validation.run, validation.loads, report)
        capacity = validation.capacity or measurement.capacity()
        report(f"capacity {capacity:.0f}/s")
        seed = validation.run.seed
        rounds = [measurement.round(capacity, seed + number) for number in range(validation.seeds)]
        server.stop()
        runs = sorted((run for each in rounds for run in each.runs), key=lambda run: run.window)
        journal = read_journal(server.journal, [run.window for run in runs])
    load_of = {
        run.window: LoadTimings(run.result, activity, _core_ns(run, gateway == client))
        for run, activity in zip(runs, journal.activities, strict=True)
    }
    unloaded = [load_of[each.unloaded.window] for each in rounds]
    loaded = [load_of[run.window] for each in rounds for run in each.loaded]
    pipeline = repository.pipelines.get(validation.run.model)
    measured = calibrated(file, journal.tables, unloaded, [*unloaded, *loaded], pipeline)
    write_simulation(measured, directory, write)
    report(f"calibrated: {measured.host}")
    pairs: list[list[Pair]] = [[] for _ in validation.loads]
    for each in rounds:
        for run, of_load in zip(each.compared, pairs, strict=True):
            # Service times at that time come from the round's other loads, not from the load to predict.
            others = [load_of[other.window] for other in (*each.loaded, *each.compared) if other is not run]
            neighbours = [load_of[other.window] for other in _neighbours(run, rounds)]
            with _written(with_service_times(measured, others, neighbours), directory) as path:
                of_load.append((run.result, _simulate(run.result, path)))
    return capacity, [
        LoadComparison(share, share * capacity, of_load) for share, of_load in zip(validation.loads, pairs, strict=True)
    ]


def _neighbours(run: MeasuredRun, rounds: Sequence[MeasurementRound]) -> list[MeasuredRun]:
    """The runs just before and after a run, except unloaded ones, in which workers are mostly idle."""
    ordered = sorted((other for each in rounds for other in (*each.loaded, *each.compared)), key=lambda run: run.window)
    index = [other.window for other in ordered].index(run.window)
    return ordered[max(index - NEIGHBOUR_RUNS, 0) : index] + ordered[index + 1 : index + 1 + NEIGHBOUR_RUNS]


def _assign_cores(file: SimulationFile, cores: Sequence[int]) -> tuple[dict[str, Sequence[int]], int, int]:
    """The cores of each partition, the gateway's and the client's."""
    needed = sum(partition.cores for partition in file.partitions)
    if len(cores) <= needed:
        raise ConfigError(
            f"--cores: too few; expected {needed} for the partitions and 1 for the gateway, got {list(cores)}"
        )
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


def _core_ns(run: MeasuredRun, shared: bool) -> int:
    """CPU time of the gateway's core, with the client's when it runs on the same core."""
    client_us = run.result.client_cpu_us_per_query or 0.0
    return run.cpu_ns + (round(client_us * len(run.result.record) * NS_PER_US) if shared else 0)


@contextmanager
def _written(file: SimulationFile, repository: Path) -> Iterator[Path]:
    """Write a simulation file that exists until the block ends."""
    with tempfile.TemporaryDirectory(prefix="loadgen-") as directory:
        path = Path(directory) / "simulation.yaml"
        write_simulation(file, repository.resolve(), path)
        yield path


def _simulate(live: RunResult, simulation: Path) -> RunResult:
    config = msgspec.structs.replace(live.config, target=f"{SIMULATED}{simulation}", metrics_url="")
    result = runner.run(config)
    if result.schedule_digest != live.schedule_digest:
        raise ConfigError(f"{simulation}: seed {config.seed}: the simulated schedule differs from the live schedule")
    return result.without_rows()
