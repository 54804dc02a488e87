"""`sluice profile`: measures or simulates models, and shows, exports and imports stored profiles."""

import argparse
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from sluice.gateway.cli.local_path import local_path
from sluice.gateway.cli.progress import progress
from sluice.gateway.cli.text.partition_report import partition_lines
from sluice.gateway.cli.text.profile_report import report, summary
from sluice.gateway.config.server_config import ServerConfig, read_config
from sluice.gateway.deployment.read import read_models
from sluice.gateway.deployment.worker_files import file_to_measure
from sluice.gateway.partitions.mps_daemons import mps_daemons
from sluice.gateway.what_if.profiled_partitions import profiled_partitions
from sluice.models.errors import ConfigError, ServingError
from sluice.models.profiles.csv_format import read_csv, write_csv
from sluice.models.profiles.file import (
    FigureSource,
    ModelProfile,
    ProfileEntry,
    ProfileMissing,
    model_hash,
    profile_path,
    read_profile,
    write_profile,
)
from sluice.models.profiles.hardware import SIMULATED, hardware_id
from sluice.models.profiles.measurement import Measurement
from sluice.models.profiles.simulated_gpu import simulate
from sluice.models.repository.scan import ModelEntry
from sluice.mps.nvidia.free_memory import free_capacity
from sluice.mps.partitions.capacity_check import check_capacity
from sluice.mps.partitions.isolation_report import isolation_violations
from sluice.mps.partitions.partition import MpsPartition, Partition
from sluice.mps.supervisor.profiling import as_measured, measure_on

INTERRUPTED = 130
"""Exit status after a keyboard interrupt, as shells define it."""


def add_arguments(profile: argparse.ArgumentParser) -> None:
    """Add the actions of the command."""
    actions = profile.add_subparsers(required=True, metavar="[measure] | show | export | import")
    measure = _action(actions, "measure", _measure_all, "measure models and store their profiles (the default)")
    add = measure.add_argument
    add("--partitions", metavar="N|KIND,KIND", help="a number of equal core sets, or kinds such as cpu1,cpu2,mps-30")
    add(
        "--batches",
        type=_sizes,
        metavar="N,N",
        help="batch sizes (default: those that the server uses)",
    )
    add(
        "--simulate",
        metavar="NAME",
        help="compute the figures of a well-known model, for a GPU that is not here",
    )
    _action(actions, "show", _show_all, "print stored profiles as tables and plots")
    export = _action(actions, "export", _export, "write the stored profile of one model as CSV")
    import_ = _action(actions, "import", _import, "add the contents of a CSV file to the stored profile of one model")
    for parser in (export, import_):
        parser.add_argument("--csv", type=Path, metavar="FILE", required=True, help="the CSV file")


def _action(actions: Any, name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
    parser.set_defaults(command=run)
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help="a model file, or with --repository NAME or NAME:VERSION")
    add("--repository", type=local_path, metavar="DIR", help="a repository; without MODEL, all its models are used")
    add("--config", type=Path, metavar="FILE", help="settings of the server: partitions and batch sizes")
    return parser


def _measure_all(options: argparse.Namespace) -> int:
    config, batches = _config(options), options.batches
    entries = _chosen(options)
    if options.simulate is None:
        partitions, configured = profiled_partitions(options.partitions, config)
        devices = {each.uuid for each in partitions if isinstance(each, MpsPartition)}
        sharing = [each for each in configured if isinstance(each, MpsPartition) and each.uuid in devices]
        with mps_daemons(sharing, adopted=_tell):
            return each_model(
                (entry, partial(measure_model, entry, partition, batches, config.strict))
                for entry in entries
                for partition in partitions
            )
    if options.partitions is None:
        raise ConfigError("--simulate: expected --partitions with the kinds to compute, e.g. mig-1g,mig-2g,mps-20")
    kinds = options.partitions.split(",")
    return each_model((entry, partial(_simulate, entry, options.simulate, kinds, batches)) for entry in entries)


def each_model(work: Iterable[tuple[ModelEntry, Callable[[], None]]]) -> int:
    """Do the work on each model; a failure is printed and the others go on. Returns the exit status."""
    status, steps = 0, list(work)
    with progress(len(steps)) as shown:
        for entry, do in steps:
            shown.begin(entry.spec.key)
            try:
                do()
            except (ServingError, OSError) as error:
                print(f"sluice: {entry.spec.key}: {error}", file=sys.stderr)
                status = 1
            except KeyboardInterrupt:  # finished measurements are stored
                print("sluice: interrupted", file=sys.stderr)
                return INTERRUPTED
            shown.advance()
    return status


def measure_model(entry: ModelEntry, partition: Partition, batches: tuple[int, ...] | None, strict: bool) -> None:
    """Measure a model on a partition at these batch sizes (None: all that the server uses), and store its profile.

    Raises ConfigError for a broken profile or for sizes beyond the model's, and BackendFailed or PartitionError for
    a model or a partition that fails.
    """
    _stored(entry)  # fails before the work, not after it, if the stored file is broken
    file = file_to_measure(entry, _batches(entry, batches))
    (line,) = partition_lines([as_measured(partition)])
    print(f"{entry.spec.key}: measuring on {partition.profile_kind} ({line})", flush=True)
    check_capacity([partition], free_capacity([partition]))
    measured = measure_on(partition, file, strict=strict)
    assert measured.measurement is not None, "what cannot be measured is raised"
    reasons = tuple(isolation_violations(as_measured(partition), measured.evidence))
    _store(entry, hardware_id(), partition.profile_kind, FigureSource.MEASURED, measured.measurement, reasons)


def _simulate(entry: ModelEntry, name: str, kinds: Iterable[str], batches: tuple[int, ...] | None) -> None:
    for kind in kinds:
        _store(entry, SIMULATED, kind, FigureSource.SIMULATED, simulate(name, kind, _batches(entry, batches)))


def _store(
    entry: ModelEntry,
    hardware: str,
    kind: str,
    source: FigureSource,
    measurement: Measurement,
    unenforced: tuple[str, ...] = (),
) -> None:
    fields = {name: getattr(measurement, name) for name in measurement.__struct_fields__}
    sha256 = model_hash(entry.path)
    measured = ProfileEntry(
        fingerprint=hardware, kind=kind, source=source, sha256=sha256, unenforced=unenforced, **fields
    )
    path = profile_path(entry.path, entry.spec.name)
    write_profile(path, _stored(entry).merged([measured]))
    print(f"{entry.spec.key}: {summary(measured)} -> {path}")
    for warning in measured.warnings:
        print(f"{entry.spec.key}: warning: {measured.label}: {warning}")


def _show_all(options: argparse.Namespace) -> int:
    return each_model((entry, partial(_show, entry)) for entry in _chosen(options))


def _show(entry: ModelEntry) -> None:
    path = profile_path(entry.path, entry.spec.name)
    print(f"{entry.spec.key}  {path}\n\n{report(read_profile(path), hardware_id(), model_hash(entry.path))}\n")


def _export(options: argparse.Namespace) -> int:
    entry = _only(options)
    write_csv(options.csv, read_profile(profile_path(entry.path, entry.spec.name)))
    return 0


def _import(options: argparse.Namespace) -> int:
    entry = _only(options)
    write_profile(profile_path(entry.path, entry.spec.name), _stored(entry).merged(read_csv(options.csv).entries))
    return 0


def _only(options: argparse.Namespace) -> ModelEntry:
    entries = _chosen(options)
    if len(entries) != 1:
        raise ConfigError(f"expected one model, got {', '.join(entry.spec.key for entry in entries) or 'none'}")
    return entries[0]


def _stored(entry: ModelEntry) -> ModelProfile:
    """The stored profile of a model, empty if there is none."""
    try:
        return read_profile(profile_path(entry.path, entry.spec.name))
    except ProfileMissing:
        return ModelProfile(entries=())


def _config(options: argparse.Namespace) -> ServerConfig:
    return ServerConfig() if options.config is None else read_config(options.config)


def _chosen(options: argparse.Namespace) -> list[ModelEntry]:
    """The named models, or all models of the repository."""
    repository: Path | None = options.repository
    names: list[str] = options.models
    config = _config(options)
    if repository is None:
        if not names:
            raise ConfigError("expected model files, or --repository DIR")
        found = read_models([], [Path(name) for name in names], config)
        for broken in found.broken:
            raise ConfigError(broken.reason)
        return list(found.models.values())
    found = read_models([repository], [], config)
    chosen: dict[str, ModelEntry] = {}
    for name in names:
        here = {key: entry for key, entry in found.models.items() if name in (key, entry.spec.name)}
        if not here:
            reasons = "".join(f"\n  {broken.reason}" for broken in found.broken if broken.name == name)
            raise ConfigError(
                f"{repository}: no model '{name}'; there are {', '.join(found.models) or 'none'}{reasons}"
            )
        chosen |= here
    return list((chosen if names else found.models).values())


def _tell(sentence: str) -> None:
    print(f"sluice: {sentence}", file=sys.stderr)


def _batches(entry: ModelEntry, batches: tuple[int, ...] | None) -> tuple[int, ...]:
    if batches is None:
        return entry.spec.menu
    largest = max(1, entry.spec.max_batch_size)
    if batches[-1] > largest:
        raise ConfigError(f"--batches: {batches[-1]} exceeds the model's largest batch, {largest}")
    return batches


def _sizes(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise argparse.ArgumentTypeError(f"expected batch sizes of at least 1 such as 1,2,4, got '{text}'")
    return tuple(sorted(set(map(int, sizes))))
