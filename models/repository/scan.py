"""Reads a model repository in Triton's layout, `<name>/<version>/model.onnx`, with pipelines and families."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from sluice.models.backends.python_models.auto_complete import auto_complete, completes_config
from sluice.models.errors import ConfigError, UnsupportedModel
from sluice.models.pipelines.check import check_pipeline, single_family
from sluice.models.pipelines.family import Family, read_family
from sluice.models.pipelines.file import decode_pipeline
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.regular_file import check_regular, is_there, printable, read_text
from sluice.models.repository.names import check_name, entries_of, is_entry, is_foreign
from sluice.models.repository.stamps import FileStamps, file_stamps
from sluice.models.spec import ModelSpec
from sluice.models.triton_config import onnx_file, timed_file
from sluice.models.triton_config.check import PLATFORMS, check_config
from sluice.models.triton_config.ensemble_nesting import nesting_order
from sluice.models.triton_config.field_lines import with_line
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


_Read = Callable[[Path, Collection[str]], FileTensors]
"""Reads the tensors of a model file, of its outputs those that are named; all if none is."""


class _Format(NamedTuple):
    """A kind of model file; `read_tensors` is None if only a configuration says what its tensors are.

    With `only_text`, the strings of its models are UTF-8.
    """

    suffix: str
    backend: str
    read_tensors: _Read | None
    only_text: bool = False


_FORMATS = (
    _Format(".onnx", "onnxruntime", onnx_file.read_tensors, only_text=True),
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

    With `unsupported`, nothing but its kind is wrong. A `foreign` one is no model that somebody wants to be served, by
    its name or since it cannot be looked into.
    """

    name: str
    version: int | None
    reason: str
    unsupported: bool = False
    foreign: bool = False

    @classmethod
    def of(cls, name: str, error: ConfigError | OSError, version: int | None = None) -> "BrokenEntry":
        """Make it from an error; what cannot be printed of its name becomes escapes."""
        foreign = version is None and (is_foreign(name) or isinstance(error, PermissionError))
        reason = f"{error.filename}: cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        return cls(printable(name), version, printable(reason), isinstance(error, UnsupportedModel), foreign)

    def located(self) -> "BrokenEntry":
        """The same with the line of the field, for a reason that is about a field of a `config.pbtxt`."""
        path, found, _ = self.reason.partition(f"/{CONFIG_FILE}: ")
        if not found:
            return self
        try:
            text = read_text(Path(f"{path}/{CONFIG_FILE}"))
        except (ConfigError, OSError):
            return self
        return self._replace(reason=with_line(self.reason, f"{path}/{CONFIG_FILE}", text))


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

    A family is a pipeline as well: of one stage, which any of its models may run. `files` are the files of readable
    entries, by name, as they were before they were read.
    """

    models: dict[str, ModelEntry]
    pipelines: dict[str, Pipeline]
    broken: tuple[BrokenEntry, ...]
    files: Mapping[str, FileStamps] = field(default_factory=dict)

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
        files: dict[str, FileStamps] = {}
        for entry in entries:
            with suppress(OSError):  # reading it reports the error
                files[entry.name] = file_stamps(entry)
        # Families are checked against the models, and pipelines against both.
        for entry in sorted(entries, key=_order):
            try:
                check_name(entry, entry.name)
                if is_there(entry / PIPELINE_FILE):
                    pipelines[entry.name] = _read_pipeline(entry, models, families)
                elif is_there(entry / FAMILY_FILE):
                    families[entry.name] = _read_family(entry, models)
                elif (config := reading.config(entry)) is not None and config.is_ensemble:
                    ensembles[entry.name] = (entry, config)
                else:
                    reading.model(entry, config, models, broken)
            except (ConfigError, OSError) as error:
                broken.append(BrokenEntry.of(entry.name, error))
        inner: dict[str, Pipeline | None] = {}
        for name, problem in nesting_order({name: config for name, (_, config) in ensembles.items()}).items():
            entry, config = ensembles[name]
            inner[name] = None
            try:
                if problem:
                    raise ConfigError(f"{entry / CONFIG_FILE}: ensemble_scheduling: {problem}")
                pipelines[name] = inner[name] = _read_ensemble(entry, config, models, inner)
            except (ConfigError, OSError) as error:
                broken.append(BrokenEntry.of(name, error))
        specs = _specs(models)
        alone = {name: single_family(family, specs) for name, family in families.items()}
        found = {
            name: msgspec.structs.replace(pipeline, revision=selection.revision)
            for name, pipeline in (alone | pipelines).items()
        }
        # A configuration that replaces the one in the repository has no lines.
        reasons = (each if each.name in selection.configs else each.located() for each in broken)
        return cls(models, found, tuple(reasons), files)


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
            tensors = _ranked(path, _tensors(form.read_tensors, path))
            return _entry(tensors.spec(name, 1, max_batch_size), path, form)
    if not is_there(path):
        raise ConfigError(f"{path}: cannot be read: there is no such file or directory")
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
            if not str(directory).isprintable():  # messages to workers and clients could not name its files
                raise ConfigError(f"{printable(str(directory))}: expected a model repository with a path in UTF-8")
            try:
                there = entries_of(directory)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise ConfigError(f"{directory}: expected a directory, the model repository") from error
            except OSError as error:
                raise ConfigError(f"{directory}: cannot be read: {error.strerror}") from error
            for entry in there if names is None else [directory / name for name in names]:
                if entry.name not in replaced and is_entry(entry):
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
        if override is None and not is_there(path):
            return None
        # The decoder is slow to import, and many repositories have no configurations.
        from sluice.models.triton_config.pbtxt import decode_config, decode_config_json

        if override is not None:
            config = decode_config_json(override, str(path))
        else:
            config = decode_config(read_text(path), str(path))
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
                f"{_instead(entry)}"
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
            except (ConfigError, OSError) as error:
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
            None if form.read_tensors is None else _tensors(form.read_tensors, path, config),
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
        tensors = _ranked(path, _tensors(form.read_tensors, path))
        spec = tensors.spec(entry.name, version, most_rows or limits.default)
    return _entry(spec, path, form)


def _entry(spec: ModelSpec, path: Path, form: _Format) -> ModelEntry:
    return ModelEntry(msgspec.structs.replace(spec, only_text=form.only_text), path, form.backend)


def _tensors(read: _Read, path: Path, config: TritonModelConfig | None = None) -> FileTensors:
    """Read the tensors of a model file; where neither it nor the configuration decides about batches, runs do.

    Outputs that a configuration leaves out are not served.
    """
    tensors = read(path, () if config is None else config.computed)
    given = set() if config is None else {tensor.name for tensor in config.tensors if tensor.dims}
    decided = config is not None and config.max_batch_size is not None and given >= tensors.unranked
    if not tensors.needs_trial or decided:
        return tensors
    from sluice.models.backends.trial import tried

    warm_ups = () if config is None else config.model_warmup[:1]
    return tried(tensors, path, {name: each.dims for run in warm_ups for name, each in run.inputs.items()})


def _ranked(path: Path, tensors: FileTensors) -> FileTensors:
    """Return the tensors of a model without a configuration; raises ConfigError if the rank of one is not known."""
    for role, group in (("input", tensors.inputs), ("output", tensors.outputs)):
        for tensor in group:
            if tensor.name in tensors.unranked:
                raise ConfigError(
                    f"{path}: {role} '{tensor.name}': its rank is not declared; give its dims in {CONFIG_FILE}, or run "
                    "onnx.shape_inference on the model"
                )
    return tensors


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
        if is_there(path):
            check_regular(path)
            return form, path
    raise ConfigError(f"{directory}: expected a file {named or _default_files(backend)}{_other_files(directory)}")


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
    return read_family(_read_alone(path), _specs(models), name=entry.name, path=str(path))


def _read_pipeline(entry: Path, models: Mapping[str, ModelEntry], families: Mapping[str, Family]) -> Pipeline:
    path = entry / PIPELINE_FILE
    if is_there(entry / FAMILY_FILE):
        raise ConfigError(f"{path}: the directory also holds a {FAMILY_FILE}, which would have the same name")
    file = decode_pipeline(_read_alone(path), str(path))
    return check_pipeline(file, _specs(models), families, name=entry.name, path=str(path))


def _read_alone(path: Path) -> str:
    """The text of a file that must be alone in its directory."""
    if any(child.is_dir() and _VERSION.fullmatch(child.name) for child in path.parent.iterdir()):
        raise ConfigError(f"{path}: the directory also holds versions of a model, which would have the same name")
    if is_there(path.parent / CONFIG_FILE):
        raise ConfigError(f"{path}: the directory also holds a {CONFIG_FILE}; expected one of the two")
    return read_text(path)


def _specs(models: Mapping[str, ModelEntry]) -> dict[str, ModelSpec]:
    return {key: model.spec for key, model in models.items()}


def _order(entry: Path) -> tuple[bool, bool]:
    try:
        return is_there(entry / PIPELINE_FILE), is_there(entry / FAMILY_FILE)
    except OSError:  # reading the entry reports it
        return False, False


def _instead(entry: Path) -> str:
    """The directories that are there in place of versions, for an error."""
    others = sorted(child.name for child in entry.iterdir() if child.name[0] != "." and child.is_dir())[:3]
    return f"; got {', '.join(others)}" if others else ""


def _other_files(version: Path) -> str:
    """The files that are there in place of a model's, for an error."""
    others = sorted(child.name for child in version.iterdir() if child.name[0] != ".")[:3]
    hint = "; default_model_filename in config.pbtxt names another one"
    if not others:
        return ""
    is_model = any(each.endswith(MODEL_SUFFIXES) for each in others)
    return f", got {', '.join(others)}{hint if is_model else ''}"


def _default_files(backend: str) -> str:
    return " or ".join(f"model{form.suffix}" for form in _FORMATS if backend in {"", form.backend})
