"""Revisions: the versions that are served under a name, and how the next ones are read from a repository."""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sluice.gateway.deployment.model_notes import log_notes
from sluice.gateway.deployment.override import Override
from sluice.gateway.observability.logs import log
from sluice.models.pipelines.check import single_model
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.regular_file import printable
from sluice.models.repository.entry import needed_names
from sluice.models.repository.names import entries_of, is_entry
from sluice.models.repository.scan import ModelEntry, Repository, Selection
from sluice.models.repository.stamps import FileStamps, file_stamps
from sluice.models.sources.mirror import Mirror
from sluice.models.sources.source import SourceError
from sluice.models.spec import public_key
from sluice.models.triton_config.instance_groups import CPU

logger = logging.getLogger(__name__)


class Deployed(NamedTuple):
    """Everything that is served under a name: versions of a model, or a pipeline, which `needs` others by name.

    `files` shows whether it has changed since; None for models that are not from a repository.
    """

    models: tuple[ModelEntry, ...]
    pipelines: tuple[Pipeline, ...]
    needs: frozenset[str] = frozenset()
    files: FileStamps | None = None
    override: Override | None = None


class RevisionSource(NamedTuple):
    """The place that revisions are read from.

    `remote` are models that have no files here, and `kinds` are the kinds of the partitions. `mirrors` keep those of
    the directories that are copies of sources.
    """

    directories: Sequence[Path]
    max_batch_size: int
    max_batch_sizes: Mapping[str, int]
    remote: Mapping[str, ModelEntry]
    kinds: Collection[str] = (CPU,)
    mirrors: Sequence[Mirror] = ()

    def refresh(self) -> None:
        """Bring the copies of sources up to date, and log what stays as it was; blocks.

        Raises SourceError, after all others have been tried, if a source cannot be read; its copy stays as it was.
        """
        errors: list[SourceError] = []
        for mirror in self.mirrors:
            try:
                for name, reason in mirror.refresh().items():
                    log(logger, logging.WARNING, "the copy stays as it was", name=printable(name), reason=reason)
            except SourceError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def find(self, name: str) -> Path | None:
        """The first entry of a name."""
        return next((path for each in self.directories if is_entry(path := each / name)), None)

    def is_doubled(self, name: str) -> bool:
        """True if several directories have an entry of a name, which is not served then."""
        return sum(is_entry(directory / name) for directory in self.directories) > 1

    def entry(self, name: str, overrides: Mapping[str, Override]) -> Path | None:
        """The directory that a name is read from."""
        override = overrides.get(name)
        return override.entry if override is not None and override.entry is not None else self.find(name)

    def names(self) -> set[str]:
        """The names of all entries; raises OSError if a directory cannot be read, or is not there."""
        return {entry.name for directory in self.directories for entry in entries_of(directory)}

    def needed(
        self, names: Collection[str], deployed: Mapping[str, Deployed], overrides: Mapping[str, Override]
    ) -> set[str]:
        """These names and those that must be read with them: missing dependencies, and families always."""
        selected: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in selected and (entry := self.entry(name, overrides)) is not None:
                selected.add(name)
                needs = needed_names(entry, overrides[name].config if name in overrides else "")
                waiting += [need for need in needs if need not in deployed or deployed[need].needs]
        return selected


class Revision(NamedTuple):
    """The result of reading: what may be served, by name, and why other names are broken.

    `unsupported` names are of a kind that is not served.
    """

    deployed: dict[str, Deployed]
    broken: dict[str, str]
    unsupported: frozenset[str] = frozenset()


def read_revision(
    source: RevisionSource,
    names: Collection[str],
    number: int,
    deployed: Mapping[str, Deployed],
    overrides: Mapping[str, Override],
    reread: Collection[str] = (),
) -> Revision:
    """Read names as revision `number`; versions with unchanged files stay, except those of `reread`.

    Blocks. Pipelines are checked against everything that is read or `deployed`. The result is in the order of names.
    """
    entries = {name: source.entry(name, overrides) for name in sorted(names)}
    configs = {name: override.config for name, override in overrides.items()}
    needs = {name: needed_names(path, configs.get(name, "")) for name, path in entries.items() if path is not None}
    # Before the files are read, so that what changes meanwhile is seen as a change later.
    files = {name: file_stamps(path) for name, path in entries.items() if path is not None and name not in overrides}
    kept = {
        public_key(entry.spec.key): entry
        for name in files.keys() - set(reread)
        if name in deployed
        for entry in _unchanged(deployed[name], files[name])
    }
    others = {entry.spec.key: entry for name, each in deployed.items() if name not in entries for entry in each.models}
    # Of these names only: another one that has an override is served already, and would be read again with them.
    directories = {name: each.entry for name, each in overrides.items() if name in entries and each.entry is not None}
    selection = Selection(tuple(entries), number, configs, directories, kept)
    known = {**source.remote, **others}
    found = Repository.scan(
        source.directories, source.max_batch_size, source.max_batch_sizes, known, selection, source.kinds
    )
    log_notes(entry for key, entry in found.models.items() if key not in known and key not in kept)
    broken: dict[str, str] = {}
    for each in found.broken:
        broken[each.name] = "; ".join(filter(None, (broken.get(each.name), each.reason)))
    revision: dict[str, Deployed] = {}
    for name in sorted(entries.keys() - broken.keys()):
        models = tuple(entry for key, entry in found.models.items() if entry.spec.name == name and key not in known)
        pipelines = tuple(single_model(entry.spec) for entry in models)
        if name in found.pipelines:
            pipelines = (found.pipelines[name],)
        if pipelines:
            revision[name] = Deployed(models, pipelines, needs[name], files.get(name), overrides.get(name))
    return Revision(revision, broken, frozenset(each.name for each in found.broken if each.unsupported))


def deployed_from(repository: Repository, source: RevisionSource) -> dict[str, Deployed]:
    """Everything that a server begins with, by name, in the order of names."""
    entries = [entry for key, entry in repository.models.items() if key not in source.remote]
    names = {entry.spec.name for entry in entries} | repository.pipelines.keys()
    deployed = {}
    for name in sorted(names):
        path = source.find(name)
        models = tuple(entry for entry in entries if entry.spec.name == name)
        pipelines = tuple(single_model(entry.spec) for entry in models) or (repository.pipelines[name],)
        needs = frozenset[str]() if path is None else needed_names(path)
        deployed[name] = Deployed(models, pipelines, needs, None if path is None else repository.files.get(name, {}))
    return deployed


def _unchanged(before: Deployed, files: FileStamps) -> list[ModelEntry]:
    """The unchanged versions of a model; there are none when anything but versions has changed."""
    known = before.files or {}
    changed = {name for name in known.keys() | files.keys() if known.get(name) != files.get(name)}
    if not all(name.isdigit() for name in changed):
        return []
    return [entry for entry in before.models if str(entry.spec.version) not in changed]
