"""Reads the models that a server begins with, from repositories, model files and Triton servers."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from sluice.gateway.config.configured_partitions import configured_partitions
from sluice.gateway.config.server_config import ModelControlMode, ServerConfig, source_directory
from sluice.gateway.deployment.load_alone import why_not_loadable
from sluice.gateway.deployment.model_notes import log_notes
from sluice.gateway.deployment.revision import RevisionSource
from sluice.gateway.executors.triton.discovery import NOTHING, Discovery, discover
from sluice.gateway.executors.triton.process import TritonProcess
from sluice.gateway.observability.logs import log
from sluice.models.errors import ConfigError
from sluice.models.repository.scan import (
    EVERYTHING,
    REMOTE,
    BrokenEntry,
    ModelEntry,
    Repository,
    Selection,
    entry_of_file,
    name_of_file,
)
from sluice.models.sources.mirror import Mirror
from sluice.models.sources.source import FsspecSource, SourceError
from sluice.models.triton_config.instance_groups import CPU, GPU
from sluice.mps.partitions.partition import CpuPartition

logger = logging.getLogger(__name__)

Watch = Callable[[Callable[[], tuple[int, int]]], AbstractContextManager[object]]
"""Makes a context from a function that gives how much of some work is done, and how much there is."""


def find_triton_models(config: ServerConfig, processes: Mapping[str, TritonProcess]) -> Discovery:
    """Ask the configured Triton servers for their models; blocks until each has answered or timed out."""
    sizes = config.batch_sizes()
    found = discover(config.triton, lambda name: sizes.get(name, config.max_batch_size), processes)
    for server, reason in found.unreachable.items():
        log(logger, logging.ERROR, "triton could not be asked for its models", partition=server, reason=reason)
    return found


def read_models(
    directories: Sequence[Path], files: Sequence[Path], config: ServerConfig, triton: Discovery = NOTHING
) -> Repository:
    """Read repositories, or model files by themselves, and add the models that Triton servers hold.

    Of repositories that clients load from, only the models that the server begins with are read. Raises ConfigError for
    a bad directory.
    """
    sizes = config.batch_sizes()
    source = model_source(directories, config, triton)
    remote = dict(source.remote)
    if directories:
        selection, missing = _selection(source, config)
        repository = Repository.scan(directories, config.max_batch_size, sizes, remote, selection, source.kinds)
        log_notes(repository.models.values())
        unknown = triton.unknown(config.triton, {entry.spec.name for entry in repository.models.values()})
        return replace(repository, broken=(*repository.broken, *missing, *unknown))
    models = remote.copy()
    broken = list(
        triton.unknown(config.triton, {*map(name_of_file, files), *(spec.name for spec in triton.specs.values())})
    )
    for file in files:
        name = name_of_file(file)
        try:
            entry = entry_of_file(file, sizes.get(name, config.max_batch_size))
            if entry.spec.key in models.keys() - remote.keys():
                raise ConfigError(
                    f"{file}: {models[entry.spec.key].path} has the same name; expected names that differ"
                )
            models[entry.spec.key] = entry
        except ConfigError as error:
            broken.append(BrokenEntry(name, None, str(error)))
    return Repository(models, {}, tuple(broken))


def model_source(directories: Sequence[Path], config: ServerConfig, triton: Discovery) -> RevisionSource:
    """The source that later revisions of models are read from."""
    remote = {key: ModelEntry(spec, Path(spec.name), REMOTE) for key, spec in triton.specs.items()}
    kinds = {CPU if isinstance(each, CpuPartition) else GPU for each in configured_partitions(config)}
    kinds |= {CPU if each.is_cpu else GPU for each in config.remote_classes}
    kinds = kinds or {CPU}
    sizes = config.batch_sizes()

    def wrong(directory: Path, loaded: Collection[str]) -> dict[str, str]:
        found = Repository.scan(directory, config.max_batch_size, sizes, remote, EVERYTHING, kinds)
        reasons = {each.name: each.reason for each in found.broken}
        for entry in found.models.values():
            if entry.spec.name in loaded and entry.backend != REMOTE and (reason := why_not_loadable(entry)):
                reasons.setdefault(entry.spec.name, reason)
        return reasons

    mirrors = tuple(
        Mirror(FsspecSource(url), source_directory(url, config.source_cache), wrong) for url in config.sources
    )
    return RevisionSource(tuple(directories), config.max_batch_size, sizes, remote, kinds, mirrors)


def _unwatched(state: Callable[[], tuple[int, int]]) -> AbstractContextManager[object]:
    return nullcontext()


def fetch_sources(config: ServerConfig, triton: Discovery = NOTHING, watch: Watch = _unwatched) -> None:
    """Bring the copies of sources up to date before models are read; blocks.

    `watch` makes the context in which files are copied; what it gets gives the bytes that are copied, and how many are
    to be, and may be called from any thread.

    A source that cannot be read is logged if there is a copy of it from before. Raises SourceError if there is none.
    """
    source = model_source(config.repositories, config, triton)
    try:
        for mirror in source.mirrors:
            mirror.verify()
        with watch(lambda: _copied(source.mirrors)):
            source.refresh()
    except SourceError as error:
        if any(mirror.is_empty for mirror in source.mirrors):
            raise
        log(logger, logging.ERROR, "a source cannot be read; its copy is served", reason=str(error))


def _copied(mirrors: Sequence[Mirror]) -> tuple[int, int]:
    """The bytes that mirrors have copied, and those of all that they are to copy."""
    return sum(mirror.copied_bytes for mirror in mirrors), sum(mirror.bytes_to_copy for mirror in mirrors)


def _selection(source: RevisionSource, config: ServerConfig) -> tuple[Selection, list[BrokenEntry]]:
    """The entries that a server begins with, and those of them that are missing."""
    if config.control is not ModelControlMode.EXPLICIT or "*" in config.load_models:
        return EVERYTHING, []
    names = source.needed(config.load_models, {}, {})
    missing = [name for name in config.load_models if name not in names]
    return Selection(names), [BrokenEntry(name, None, "there is no such entry in the repository") for name in missing]
