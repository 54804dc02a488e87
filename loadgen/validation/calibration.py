"""Calibration of a simulation file from measurements of the server that it describes."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import yaml

from sluice.loadgen.run.result import RunResult
from sluice.loadgen.simulation.simulation_file import SimulationFile
from sluice.loadgen.validation.host_times import LoadTimings, host_settings, transit_jitter_us, transport_jitter_us
from sluice.loadgen.validation.server_activity import ObservedBatch
from sluice.loadgen.validation.service_times import ServiceTimeFit
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.profiles.latency_table import LatencyTable


def calibrated(
    file: SimulationFile,
    tables: Mapping[str, LatencyTable],
    unloaded: Sequence[LoadTimings],
    loads: Sequence[LoadTimings],
    pipeline: Pipeline | None,
) -> SimulationFile:
    """Fill a file with measurements; `tables` are the server's initial latency tables by model key."""
    latencies = {_name(key): table.in_ms() for key, table in tables.items()}
    escalation = {} if pipeline is None else {pipeline.name: _escalation(pipeline, [load.result for load in loads])}
    return msgspec.structs.replace(
        with_service_times(file, loads, loads),
        latency_ms=file.latency_ms | latencies,
        host=host_settings(unloaded, loads),
        ways_us=transit_jitter_us(unloaded),
        strays_us=transport_jitter_us(unloaded),
        escalation=file.escalation | escalation,
    )


def with_service_times(
    file: SimulationFile, loads: Sequence[LoadTimings], neighbours: Sequence[LoadTimings]
) -> SimulationFile:
    """Fill a file with the service times of `loads`, and the pace of their `neighbours` in time."""
    runs, neighbour_runs = _by_model(loads), _by_model(neighbours)
    measured = {model: ServiceTimeFit(of_model) for model, of_model in runs.items()}
    paces = {model: service.pace(neighbour_runs.get(model, [])) for model, service in measured.items()}
    return msgspec.structs.replace(
        file,
        service_ms=file.service_ms | {model: service.quantiles_ms() for model, service in measured.items()},
        pace=file.pace | paces,
    )


def _by_model(loads: Sequence[LoadTimings]) -> dict[str, list[list[ObservedBatch]]]:
    """The batches of each load, by the name of their model."""
    runs: dict[str, list[list[ObservedBatch]]] = {}
    for load in loads:
        of_run: dict[str, list[ObservedBatch]] = {}
        for batch in load.batches:
            of_run.setdefault(_name(batch.model), []).append(batch)
        for model, batches in of_run.items():
            runs.setdefault(model, []).append(batches)
    return runs


def write_simulation(file: SimulationFile, repository: Path, path: Path) -> None:
    """Write a simulation file; `repository` is the folder of its models."""
    document = msgspec.to_builtins(msgspec.structs.replace(file, repository=os.path.relpath(repository, path.parent)))
    path.write_text(yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=120), encoding="utf-8")


def _escalation(pipeline: Pipeline, results: Sequence[RunResult]) -> dict[str, float]:
    """By conditional stage, the share of the rows that met its condition."""
    rows: dict[str, int] = {}
    for result in results:
        for stage in result.server.stages if result.server else ():
            if _name(stage.pipeline) == pipeline.name:
                rows[stage.stage] = rows.get(stage.stage, 0) + stage.rows
    return {
        stage.name: round(rows.get(stage.name, 0) / max(1, rows.get(stage.when.stage, 0)), 4)
        for stage in pipeline.stages
        if stage.when is not None
    }


def _name(key: str) -> str:
    """The name in `name:version`."""
    return key.rpartition(":")[0]
