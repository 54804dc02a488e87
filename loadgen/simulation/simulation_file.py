"""The YAML file of a simulated target `sim:FILE`: a machine and the models it serves."""

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from sluice.batcher.drivers.simulated_machine import Host
from sluice.batcher.drivers.simulated_nodes import SimulatedNode
from sluice.batcher.settings.scheduling import ServingSettings, convert_settings
from sluice.loadgen.simulation.service import ServiceTimeDistribution
from sluice.models.backends.configured import load_backend
from sluice.models.errors import ConfigError
from sluice.models.measuring.quick import measure_table
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.repository.scan import ModelEntry, Repository
from sluice.models.spelling import did_you_mean
from sluice.models.tensors.spec import DeclaredTensors
from sluice.models.units import NS_PER_US
from sluice.models.yaml_file import YamlDocument, load_yaml


class SimulatedPartition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A partition with its number of cores."""

    name: str
    cores: int


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine beside the gateway's with some of the partitions, over a link of its own, as in `SimulatedNode`."""

    name: str
    partitions: tuple[str, ...]
    mb_per_s: float
    latency_us: float = 0
    keeps_outputs: bool = False

    def __post_init__(self) -> None:
        if not 1e-6 <= self.mb_per_s < math.inf:
            raise ValueError(f"mb_per_s: expected a finite number above 0, got {self.mb_per_s:g}")
        if not 0 <= self.latency_us < math.inf:
            raise ValueError(f"latency_us: expected a finite number of at least 0, got {self.latency_us:g}")

    def config(self) -> SimulatedNode:
        """The node in the simulator's units."""
        bytes_per_s, latency_ns = round(self.mb_per_s * 1e6), round(self.latency_us * NS_PER_US)
        return SimulatedNode(self.name, self.partitions, bytes_per_s, latency_ns, self.keeps_outputs)


class HostSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Host time of requests and batches outside the models, in microseconds, as in `simulator.Host`."""

    send_us: float = 0
    receive_us: float = 0
    handle_us: float = 0
    dispatch_us: float = 0
    dispatch_row_us: float = 0
    hand_off_us: float = 0
    between_us: float = 0
    return_us: float = 0
    complete_us: float = 0
    answers_us: float = 0
    answer_us: float = 0
    deliver_us: float = 0

    def __post_init__(self) -> None:
        if not all(0 <= value < math.inf for value in msgspec.structs.astuple(self)):
            raise ValueError("expected finite times of at least 0")

    def config(self) -> Host:
        """The times in the simulator's unit."""
        return Host(*(round(value * NS_PER_US) for value in msgspec.structs.astuple(self)))


class SimulationFile(ServingSettings, frozen=True, forbid_unknown_fields=True):
    """Content of the file: the settings of a server, with the same keys, and a model of its machine.

    - `repository`: the model repository, relative to the file
    - `latency_ms`: the latency table of a model, by name, for every partition; a model without one is loaded and timed
    - `service_ms`: the service times of a model by batch size, as quantiles at equal steps of probability; without
      them batches take the time of the table
    - `pace`: pieces of slowdown factors of successive batches, as the speed of a machine drifts
    - `host`: the time of the gateway, and of the transport between client, gateway and workers; without it they take
      none
    - `ways_us`: the jitter of a query's transport outside the gateway, as quantiles in microseconds
    - `strays_us`: the jitter of a batch's transport to its worker or back, likewise
    - `nodes`: machines beside the gateway's with some of the partitions, and the links to them; what is on none of them
      is on the gateway's own machine
    - `escalation`: by pipeline and stage, the probability that a row meets the stage's `when` (default 0.5)
    """

    repository: str
    partitions: tuple[SimulatedPartition, ...]
    latency_ms: dict[str, dict[int, float]] = msgspec.field(default_factory=dict)
    service_ms: dict[str, dict[int, tuple[float, ...]]] = msgspec.field(default_factory=dict)
    pace: dict[str, tuple[tuple[float, ...], ...]] = msgspec.field(default_factory=dict)
    host: HostSettings | None = None
    ways_us: tuple[float, ...] = ()
    strays_us: tuple[float, ...] = ()
    escalation: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    nodes: tuple[NodeSettings, ...] = ()


def read_simulation(path: Path, policy_file: str = "") -> tuple[SimulationFile, Repository]:
    """Read a simulation file and scan its repository; raises `ConfigError` that starts with the file and the key.

    The settings of a server in `policy_file`, if there is one, replace those of the simulation.
    """
    value, lines = _read_yaml(path)
    file = convert_settings(value, SimulationFile, str(path), lines=lines)
    if policy_file:
        other, other_lines = _read_yaml(Path(policy_file))
        settings = convert_settings(other, ServingSettings, policy_file, lines=other_lines)
        given = other if isinstance(other, dict) else {}
        file = msgspec.structs.replace(file, **{key: getattr(settings, key) for key in given})
    repository = Repository.scan(path.parent / file.repository, file.max_batch_size, file.batch_sizes())
    for wrong in _mistakes(file, repository):
        raise ConfigError(f"{lines.prefix(str(path), wrong.partition(': ')[0], wrong)} {wrong}")
    return file, repository


def _read_yaml(path: Path) -> YamlDocument:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return load_yaml(text, str(path))


def _mistakes(file: SimulationFile, repository: Repository) -> Iterator[str]:
    if not file.partitions or len({partition.name for partition in file.partitions}) != len(file.partitions):
        yield "partitions: expected at least one, with different names"
    for number, partition in enumerate(file.partitions):
        if partition.cores < 1:
            yield f"partitions[{number}].cores: expected at least 1, got {partition.cores}"
    names = {entry.spec.name for entry in repository.models.values()} | {each.name for each in repository.broken}
    for setting, given in (
        ("models", file.models),
        ("latency_ms", file.latency_ms),
        ("service_ms", file.service_ms),
        ("pace", file.pace),
    ):
        if unknown := given.keys() - names:
            yield f"{setting}: no model {min(unknown)!r} in the repository{did_you_mean(min(unknown), names)}"
    yield from _bad_nodes(file)
    yield from _bad_times(file)
    yield from _bad_escalations(file, repository)


def _bad_nodes(file: SimulationFile) -> Iterator[str]:
    known = {partition.name for partition in file.partitions}
    placed: dict[str, str] = {}
    for number, node in enumerate(file.nodes):
        if any(node.name == other.name for other in file.nodes[:number]):
            yield f"nodes[{number}].name: there is a node {node.name!r} already"
        for name in node.partitions:
            if name not in known:
                yield f"nodes[{number}].partitions: no partition {name!r}{did_you_mean(name, known)}"
            if name in placed:
                yield f"nodes[{number}].partitions: {name!r} is on node {placed[name]!r} already"
            placed[name] = node.name


def _bad_times(file: SimulationFile) -> Iterator[str]:
    for model, table in file.latency_ms.items():
        try:
            LatencyTable.from_ms(table)
        except ConfigError as error:
            yield f"latency_ms.{model}: {error}"
    for model, quantiles in file.service_ms.items():
        try:
            ServiceTimeDistribution(quantiles)
        except ConfigError as error:
            yield f"service_ms.{model}: {error}"
    for model, pieces in file.pace.items():
        if not all(piece and all(0 < factor < math.inf for factor in piece) for piece in pieces):
            yield f"pace.{model}: expected non-empty pieces of positive factors"
    for setting, times_us in (("ways_us", file.ways_us), ("strays_us", file.strays_us)):
        if list(times_us) != sorted(times_us) or not all(map(math.isfinite, times_us)):
            yield f"{setting}: expected finite ascending times"


def _bad_escalations(file: SimulationFile, repository: Repository) -> Iterator[str]:
    for name, probabilities in file.escalation.items():
        pipeline = repository.pipelines.get(name)
        if pipeline is None:
            yield f"escalation: no pipeline {name!r} in the repository{did_you_mean(name, repository.pipelines)}"
            continue
        conditional = {stage.name for stage in pipeline.stages if stage.when}
        for stage, probability in probabilities.items():
            if stage not in conditional:
                yield f"escalation.{name}: no stage {stage!r} with a `when`"
            if not 0 <= probability <= 1:
                yield f"escalation.{name}.{stage}: expected 0 to 1, got {probability}"


def latency_table(file: SimulationFile, entry: ModelEntry, cores: int) -> LatencyTable:
    """The latency table of a model: from the file, or measured in this process with `cores` threads."""
    if (given := file.latency_ms.get(entry.spec.name)) is not None:
        return LatencyTable.from_ms(given)
    spec = entry.spec
    return _measured(entry.backend, str(entry.path), cores, spec.batchable, spec.menu, spec.config, spec.declared)


@cache  # all runs of one process have the same machine
def _measured(
    backend: str,
    path: str,
    cores: int,
    batchable: bool,
    menu: tuple[int, ...],
    config: str,
    declared: DeclaredTensors,
) -> LatencyTable:
    return measure_table(load_backend(backend, path, cores, config), batchable, menu, declared=declared)
