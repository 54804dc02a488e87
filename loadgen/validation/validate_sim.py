"""Validation of the simulator: the same schedules live and in virtual time, after the live server was measured."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sluice.loadgen.run.comparison import LoadComparison, Pair
from sluice.loadgen.run.result import RunConfig, RunResult
from sluice.loadgen.run.scenario import run_server_scenario
from sluice.loadgen.target.simulated import SIMULATED
from sluice.loadgen.target.simulation_file import SimulationFile, read_simulation
from sluice.loadgen.validation.calibrate import MeasuredLoad
from sluice.loadgen.validation.calibrated_file import calibrated, with_service, write_simulation
from sluice.loadgen.validation.live_rounds import LiveRounds, LiveRun, Report, Round
from sluice.loadgen.validation.live_server import serve
from sluice.loadgen.validation.live_steps import read_journal
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_US

NEAR = 2
"""Runs before and after a run that say how fast the machine is during it."""


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


def validate(validation: Validation, write: Path, report: Report) -> tuple[float, list[LoadComparison]]:
    """Measure, write the calibrated simulation to `write`, and compare; returns the capacity and one item a load.

    Raises ConfigError for what cannot be run, and when the server dies.
    """
    file, repository = read_simulation(validation.simulation)
    directory = validation.simulation.parent / file.repository
    partitions, gateway, client = _place(file, validation.cores)
    with serve(file, directory, partitions) as server, _on_core(client):
        server.keep_on(gateway)
        live = LiveRounds(server, validation.run, validation.loads, report)
        capacity = validation.capacity or live.capacity()
        report(f"capacity {capacity:.0f}/s")
        seed = validation.run.seed
        rounds = [live.round(capacity, seed + number) for number in range(validation.seeds)]
        server.stop()
        runs = sorted((run for each in rounds for run in each.runs), key=lambda run: run.window)
        journal = read_journal(server.journal, [run.window for run in runs])
    load_of = {
        run.window: MeasuredLoad(run.result, activity, _core_ns(run, gateway == client))
        for run, activity in zip(runs, journal.activities, strict=True)
    }
    lone = [load_of[each.lone.window] for each in rounds]
    loaded = [load_of[run.window] for each in rounds for run in each.loaded]
    pipeline = repository.pipelines.get(validation.run.model)
    measured = calibrated(file, journal.tables, lone, [*lone, *loaded], pipeline)
    write_simulation(measured, directory, write)
    report(f"calibrated: {measured.host}")
    pairs: list[list[Pair]] = [[] for _ in validation.loads]
    for each in rounds:
        for run, of_load in zip(each.compared, pairs, strict=True):
            # What batches take at that time, from all loads but the one that is to be predicted.
            others = [load_of[other.window] for other in (*each.loaded, *each.compared) if other is not run]
            near = [load_of[other.window] for other in _near(run, rounds)]
            with _written(with_service(measured, others, near), directory) as path:
                of_load.append((run.result, _simulate(run.result, path)))
    return capacity, [
        LoadComparison(share, share * capacity, of_load) for share, of_load in zip(validation.loads, pairs, strict=True)
    ]


def _near(run: LiveRun, rounds: Sequence[Round]) -> list[LiveRun]:
    """The runs just before and after a run, but for those of lone requests: a worker that waits is another matter."""
    ordered = sorted((other for each in rounds for other in (*each.loaded, *each.compared)), key=lambda run: run.window)
    place = [other.window for other in ordered].index(run.window)
    return ordered[max(place - NEAR, 0) : place] + ordered[place + 1 : place + 1 + NEAR]


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


def _core_ns(run: LiveRun, shared: bool) -> int:
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
