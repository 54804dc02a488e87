"""Reads a model repository in Triton's layout, `<name>/<version>/model.onnx`, with pipelines and families."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from sluice.models.backends.python_models.auto_complete import auto_complete, completes_config
from sluice.models.errors import ConfigError, UnsupportedModel
from sluice.models.pipelines.check import check_pipeline, single_family
from sluice.models.pipelines.family import Family, read_family
from sluice.models.pipelines.file import decode_pipeline
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.repository.names import check_name
from sluice.models.spec import ModelSpec
from sluice.models.triton_config import onnx_file, timed_file
from sluice.models.triton_config.check import PLATFORMS, check_config
from sluice.models.triton_config.ensemble_nesting import nesting_order
from sluice.models.triton_config.file_tensors import FileTensors
from sluice.models.triton_config.instance_groups import CPU
from sluice.models.triton_config.model_config import TritonModelConfig, VersionPolicy

DEFAULT_MAX_BATCH_SIZE = 64
PIPELINE_FILE = "pipeline.yaml"
FAMILY_FILE = "family.yaml"
CONFIG_FILE = "config.pbtxt"

REMOTE = "remote"
"""The backend of a model that has no file here."""

_VERSION = re.compile(r"[1-9][0-9]{0,17}")


class _Format(NamedTuple):
    """A kind of model file; `read_tensors` is None if only a configuration says what its tensors are."""

    suffix: str
    backend: str
    read_tensors: Callable[[Path], FileTensors] | None


_FORMATS = (
    _Format(".onnx", "onnxruntime", onnx_file.read_tensors),
    _Format(".timed.json", "timed", timed_file.read_tensors),
    _Format(".py", "python", None),
)
MODEL_SUFFIXES = tuple(form.suffix for form in _FORMATS)
"""The endings of model files' names."""


class ModelEntry(NamedTuple):
    """A model version that can be loaded: `backend` names the module of `sluice.models.backends` that runs `path`.

    A `REMOTE` model runs on another server only, whose address takes the place of `path`.
    """

    spec: ModelSpec
    path: Path
    backend: str


class BrokenEntry(NamedTuple):
    """An entry that cannot be served; `version` is None for a pipeline, a family or a whole model.

    With `unsupported`, nothing but its kind is wrong.
    """

    name: str
    version: int | None
    reason: str
    unsupported: bool = False

    @classmethod
    def of(cls, name: str, error: ConfigError, version: int | None = None) -> "BrokenEntry":
        """Make it from an error."""
        return cls(name, version, str(error), isinstance(error, UnsupportedModel))


class Selection(NamedTuple):
    """The part of a repository to read, by name, and its revision; everything by default.

    `configs` are configurations in JSON, and `directories` whole entries, that replace those in the repository; the
    versions of `kept`, by `name:version`, are not read again.
    """

    names: Collection[str] | None = None
    revision: int = 0
    configs: Mapping[str, str] = {}
    directories: Mapping[str, Path] = {}
    kept: Mapping[str, ModelEntry] = {}


EVERYTHING = Selection()


@dataclass(frozen=True, slots=True)
class Repository:
    """The contents of directories: model versions by key (`mlp:1`), pipelines by name, and broken entries with reasons.

    A family is a pipeline as well: of one stage, which any of its models may run.
    """

    models: dict[str, ModelEntry]
    pipelines: dict[str, Pipeline]
    broken: tuple[BrokenEntry, ...]

    @classmethod
    def scan(
        cls,
        directories: Path | Sequence[Path],
        max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
        max_batch_sizes: Mapping[str, int] | None = None,
        remote: Mapping[str, ModelEntry] | None = None,
        selection: Selection = EVERYTHING,
        kinds: Collection[str] = (CPU,),
    ) -> "Repository":
        """Read every selected entry; a broken entry does not stop the rest, nor does a name that is used twice.

        `max_batch_sizes` overrides `max_batch_size` for the models it names. Files directly in a directory, hidden
        directories and version directories that are not plain positive numbers are ignored, as Triton does. `remote`
        are models by key without a file here, which pipelines may use as well. `kinds` are the kinds of the partitions,
        as instance groups call them. Raises ConfigError if a directory does not exist.
        """
        reading = _Reading(BatchLimits(max_batch_size, max_batch_sizes or {}), selection, kinds)
        models = dict(remote or {})
        families: dict[str, Family] = {}
        pipelines: dict[str, Pipeline] = {}
        ensembles: dict[str, tuple[Path, TritonModelConfig]] = {}
        entries, broken = reading.entries([directories] if isinstance(directories, Path) else directories)
        # Families are checked against the models, and pipelines against both.
        for entry in sorted(entries, key=_order):
            try:
                check_name(entry, entry.name)
                if (entry / PIPELINE_FILE).exists():
                    pipelines[entry.name] = _read_pipeline(entry, models, families)
                elif (entry / FAMILY_FILE).exists():
                    families[entry.name] = _read_family(entry, models)
                elif (config := reading.config(entry)) is not None and config.is_ensemble:
                    ensembles[entry.name] = (entry, config)
                else:
                    reading.model(entry, config, models, broken)
            except ConfigError as error:
                broken.append(BrokenEntry.of(entry.name, error))
        inner: dict[str, Pipeline | None] = {}
        for name, problem in nesting_order({name: config for name, (_, config) in ensembles.items()}).items():
            entry, config = ensembles[name]
            inner[name] = None
            try:
                if problem:
                    raise ConfigError(f"{entry / CONFIG_FILE}: ensemble_scheduling: {problem}")
                pipelines[name] = inner[name] = _read_ensemble(entry, config, models, inner)
            except ConfigError as error:
                broken.append(BrokenEntry.of(name, error))
        specs = _specs(models)
        alone = {name: single_family(family, specs) for name, family in families.items()}
        found = {
            name: msgspec.structs.replace(pipeline, revision=selection.revision)
            for name, pipeline in (alone | pipelines).items()
        }
        return cls(models, found, tuple(broken))


class BatchLimits(NamedTuple):
    """The maximum batch size of models that set none, and by name the limit of others."""

    default: int
    by_name: Mapping[str, int]


def name_of_file(path: Path) -> str:
    """The name of a model that is served without a repository: its file's name without the format's ending."""
    name = path.name
    for form in _FORMATS:
        name = name.removesuffix(form.suffix)
    return name


def entry_of_file(path: Path, max_batch_size: int = DEFAULT_MAX_BATCH_SIZE) -> ModelEntry:
    """A model file served by itself, without a repository: version 1 of a model named like the file."""
    for form in _FORMATS:
        if form.read_tensors is not None and path.name.endswith(form.suffix):
            name = name_of_file(path)
            check_name(path, name)
            return ModelEntry(form.read_tensors(path).spec(name, 1, max_batch_size), path, form.backend)
    endings = " or ".join(form.suffix for form in _FORMATS if form.read_tensors is not None)
    raise ConfigError(f"{path}: expected a file ending in {endings}")


class _Reading(NamedTuple):
    """The options of a scan."""

    limits: BatchLimits
    selection: Selection
    kinds: Collection[str]

    def entries(self, directories: Sequence[Path]) -> tuple[list[Path], list[BrokenEntry]]:
        """The selected entries, and the names that several directories have."""
        replaced, names = self.selection.directories, self.selection.names
        found = {name: [path] for name, path in replaced.items()}
        for directory in directories:
            if not directory.is_dir():
                raise ConfigError(f"{directory}: expected a directory, the model repository")
            for entry in directory.iterdir() if names is None else [directory / name for name in names]:
                if entry.is_dir() and entry.name[0] != "." and entry.name not in replaced:
                    found.setdefault(entry.name, []).append(entry)
        twice = [
            BrokenEntry(name, None, f"{paths[0]} and {paths[1]}: expected one model or pipeline of that name")
            for name, paths in sorted(found.items())
            if len(paths) > 1
        ]
        return [paths[0] for _, paths in sorted(found.items()) if len(paths) == 1], twice

    def config(self, entry: Path) -> TritonModelConfig | None:
        """The configuration of a model or an ensemble, if there is one."""
        path = entry / CONFIG_FILE
        override = self.selection.configs.get(entry.name)
        if override is None and not path.exists():
            return None
        # The decoder is slow to import, and many repositories have no configurations.
        from sluice.models.triton_config.pbtxt import decode_config, decode_config_json

        try:
            if override is not None:
                config = decode_config_json(override, str(path))
            else:
                config = decode_config(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from error
        check_config(config, entry.name, str(path), self.kinds)
        return config

    def model(
        self, entry: Path, config: TritonModelConfig | None, models: dict[str, ModelEntry], broken: list[BrokenEntry]
    ) -> None:
        """Add the versions of one model to `models`, or to `broken`."""
        versions = _versions(entry)
        if not versions:
            raise ConfigError(
                f"{entry}: expected a version directory such as {entry.name}/1, a {PIPELINE_FILE} or a {FAMILY_FILE}"
            )
        for version in versions if config is None else _served(versions, config.version_policy):
            try:
                if version not in versions:
                    raise ConfigError(
                        f"{entry / CONFIG_FILE}: version_policy: there is no directory {entry / str(version)}"
                    )
                model = self.selection.kept.get(f"{entry.name}:{version}")
                if model is None:
                    model = _read_version(entry, version, config, self.limits, self.kinds)
                    spec = msgspec.structs.replace(model.spec, revision=self.selection.revision)
                    model = model._replace(spec=spec)
                models[model.spec.key] = model
            except ConfigError as error:
                broken.append(BrokenEntry.of(entry.name, error, version))


def _versions(entry: Path) -> list[int]:
    return sorted(int(child.name) for child in entry.iterdir() if child.is_dir() and _VERSION.fullmatch(child.name))


def _served(versions: list[int], policy: VersionPolicy | None) -> list[int]:
    """The versions that a policy selects: the latest one by default."""
    if policy is None or (policy.all is None and policy.specific is None):
        return versions[-(policy.latest.num_versions if policy is not None and policy.latest is not None else 1) :]
    return versions if policy.specific is None else sorted(set(policy.specific.versions))


def _read_version(
    entry: Path, version: int, config: TritonModelConfig | None, limits: BatchLimits, kinds: Collection[str]
) -> ModelEntry:
    form, path = _find_file(entry / str(version), config)
    most_rows = limits.by_name.get(entry.name)
    if form.backend == "python" and completes_config(path):
        config = _auto_completed(entry, path, config, kinds)
    if config is not None:
        from sluice.models.triton_config.complete import configured_spec

        spec = configured_spec(
            msgspec.structs.replace(config, backend=form.backend, default_model_filename=path.name),
            None if form.read_tensors is None else form.read_tensors(path),
            entry.name,
            version,
            entry / CONFIG_FILE,
            default_rows=limits.default,
            most_rows=most_rows,
            kinds=kinds,
        )
    elif form.read_tensors is None:
        raise ConfigError(f"{path}: expected a {entry / CONFIG_FILE} with its inputs and outputs")
    else:
        spec = form.read_tensors(path).spec(entry.name, version, most_rows or limits.default)
    return ModelEntry(spec, path, form.backend)


def _auto_completed(
    entry: Path, path: Path, config: TritonModelConfig | None, kinds: Collection[str]
) -> TritonModelConfig:
    """The configuration as the model's own function completes it."""
    from sluice.models.triton_config.pbtxt import decode_config_json, encode_config

    given = msgspec.structs.replace(config or TritonModelConfig(), name=entry.name, backend="python")
    completed = decode_config_json(auto_complete(path, encode_config(given)), str(path))
    check_config(completed, entry.name, str(path), kinds)
    return completed


def _find_file(directory: Path, config: TritonModelConfig | None) -> tuple[_Format, Path]:
    """The model file of a version; one with external data may be a directory that holds it."""
    backend = "" if config is None else config.backend or PLATFORMS.get(config.platform, "")
    named = "" if config is None else config.default_model_filename
    for form in _FORMATS:
        if backend not in {"", form.backend} or (named and not backend and not named.endswith(form.suffix)):
            continue
        path = directory / (named or f"model{form.suffix}")
        if path.is_dir():
            path /= path.name
        if path.exists():
            return form, path
    raise ConfigError(f"{directory}: expected a file {named or _default_files(backend)}")


def _read_ensemble(
    entry: Path, config: TritonModelConfig, models: Mapping[str, ModelEntry], inner: Mapping[str, Pipeline | None]
) -> Pipeline:
    """Its versions, of which there may be none, hold no files: it is served as the latest that the policy selects."""
    from sluice.models.triton_config.complete import complete_ensemble

    versions = _served(_versions(entry), config.version_policy)
    version = versions[-1] if versions else 1
    return complete_ensemble(config, _specs(models), inner, entry.name, version, entry / CONFIG_FILE)


def _read_family(entry: Path, models: Mapping[str, ModelEntry]) -> Family:
    path = entry / FAMILY_FILE
    return read_family(_read_text(path), _specs(models), name=entry.name, path=str(path))


def _read_pipeline(entry: Path, models: Mapping[str, ModelEntry], families: Mapping[str, Family]) -> Pipeline:
    path = entry / PIPELINE_FILE
    if (entry / FAMILY_FILE).exists():
        raise ConfigError(f"{path}: the directory also holds a {FAMILY_FILE}, which would have the same name")
    file = decode_pipeline(_read_text(path), str(path))
    return check_pipeline(file, _specs(models), families, name=entry.name, path=str(path))


def _read_text(path: Path) -> str:
    """The text of a file that must be alone in its directory."""
    if any(child.is_dir() and _VERSION.fullmatch(child.name) for child in path.parent.iterdir()):
        raise ConfigError(f"{path}: the directory also holds versions of a model, which would have the same name")
    if (path.parent / CONFIG_FILE).exists():
        raise ConfigError(f"{path}: the directory also holds a {CONFIG_FILE}; expected one of the two")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _specs(models: Mapping[str, ModelEntry]) -> dict[str, ModelSpec]:
    return {key: model.spec for key, model in models.items()}


def _order(entry: Path) -> tuple[bool, bool]:
    return (entry / PIPELINE_FILE).exists(), (entry / FAMILY_FILE).exists()


def _default_files(backend: str) -> str:
    return " or ".join(f"model{form.suffix}" for form in _FORMATS if backend in {"", form.backend})
