"""The YAML file behind `sim:FILE`: a machine and what it serves."""

from functools import cache
from importlib import import_module
from pathlib import Path

import msgspec
import yaml

from batcher.config import Limits, PolicyConfig
from models.errors import ConfigError
from models.measure import measure_table
from models.profile import LatencyTable
from models.repository import DEFAULT_MAX_BATCH_SIZE, ModelEntry, Repository


class SimulatedPartition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A partition of so many cores."""

    name: str
    cores: int


class SimulationFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of the file.

    `repository` is relative to the file. `latency_ms` gives the latency table of a model (by name) for every partition;
    a model without one is loaded and timed. `escalation` gives, by pipeline and stage, the probability that a row meets
    the stage's `when` (0.5 unless given). `default_slo_ms` is the objective of queries that have none.
    """

    repository: str
    partitions: tuple[SimulatedPartition, ...]
    latency_ms: dict[str, dict[int, float]] = {}
    escalation: dict[str, dict[str, float]] = {}
    policy: PolicyConfig = PolicyConfig()
    limits: Limits = Limits()
    max_batch_size: int = DEFAULT_MAX_BATCH_SIZE
    default_slo_ms: float = 10_000.0


def read_simulation(path: Path) -> tuple[SimulationFile, Repository]:
    """The file and the repository it names; raises `ConfigError`, its message starting with the place."""
    try:
        file = msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), SimulationFile)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from error
    repository = Repository.scan(path.parent / file.repository, file.max_batch_size)
    names = {entry.spec.name for entry in repository.models.values()}
    if unknown := file.latency_ms.keys() - names:
        raise ConfigError(f"{path}: latency_ms: no model {min(unknown)!r} in the repository")
    if len({partition.name for partition in file.partitions}) != len(file.partitions) or not file.partitions:
        raise ConfigError(f"{path}: partitions: expected at least one, with different names")
    for partition in file.partitions:
        if partition.cores < 1:
            raise ConfigError(f"{path}: partitions: {partition.name} must have at least 1 core, got {partition.cores}")
    for pipeline, stages in file.escalation.items():
        for stage, probability in stages.items():
            if not 0 <= probability <= 1:
                raise ConfigError(f"{path}: escalation.{pipeline}.{stage}: must be in [0, 1], got {probability}")
    return file, repository


def latency_table(file: SimulationFile, entry: ModelEntry, cores: int) -> LatencyTable:
    """The table of a model: as the file gives it, else timed in this process with as many threads as `cores`."""
    if (given := file.latency_ms.get(entry.spec.name)) is not None:
        return LatencyTable.from_ms(given)
    return _measured(entry.backend, str(entry.path), cores, entry.spec.batchable, entry.spec.menu)


@cache  # every run of one process meets the same machine
def _measured(backend: str, path: str, cores: int, batchable: bool, menu: tuple[int, ...]) -> LatencyTable:
    return measure_table(import_module(f"models.backends.{backend}").load(path, cores), batchable, menu)
