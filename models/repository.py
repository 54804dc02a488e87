"""The model repository: `<name>/<version>/model.onnx` as Triton lays it out, pipelines and families beside them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from models import onnx_file, timed_file
from models.errors import ConfigError
from models.family_file import Family, read_family
from models.pipeline import REQUEST, Pipeline
from models.pipeline_check import check_pipeline, single_family
from models.pipeline_file import decode_pipeline
from models.spec import ModelSpec

DEFAULT_MAX_BATCH_SIZE = 64
PIPELINE_FILE = "pipeline.yaml"
FAMILY_FILE = "family.yaml"

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_VERSION = re.compile(r"[1-9][0-9]{0,17}")


class _Format(NamedTuple):
    suffix: str
    backend: str
    read_spec: Callable[[Path, str, int, int], ModelSpec]


_FORMATS = (
    _Format(".onnx", "onnxruntime", onnx_file.read_spec),
    _Format(".timed.json", "timed", timed_file.read_spec),
)


class ModelEntry(NamedTuple):
    """A model version that can be loaded: `backend` names the module of `models.backends` that runs `path`."""

    spec: ModelSpec
    path: Path
    backend: str


class Broken(NamedTuple):
    """Something in the repository that cannot be served; `version` is None for a pipeline, a family, a whole model."""

    name: str
    version: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Repository:
    """What a directory holds: model versions by key (`mlp:1`), pipelines by name, and what is broken, with reasons.

    A family is a pipeline, too: of one stage, which any of its models may run.
    """

    models: dict[str, ModelEntry]
    pipelines: dict[str, Pipeline]
    broken: tuple[Broken, ...]

    @classmethod
    def scan(
        cls,
        directory: Path,
        max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
        max_batch_sizes: Mapping[str, int] | None = None,
    ) -> "Repository":
        """Read every entry; one that is broken never stops the rest. Raises ConfigError if there is no directory.

        `max_batch_sizes` overrides `max_batch_size` for the models it names. Files in `directory` itself, hidden
        directories and version directories that are not plain positive numbers are ignored, as Triton does.
        """
        if not directory.is_dir():
            raise ConfigError(f"{directory}: expected a directory, the model repository")
        limits = max_batch_sizes or {}
        models: dict[str, ModelEntry] = {}
        families: dict[str, Family] = {}
        pipelines: dict[str, Pipeline] = {}
        broken: list[Broken] = []
        entries = [entry for entry in sorted(directory.iterdir()) if entry.is_dir() and entry.name[0] != "."]
        # Families are checked against the models, and pipelines against both.
        for entry in sorted(entries, key=_order):
            try:
                _check_name(entry, entry.name)
                if (entry / PIPELINE_FILE).exists():
                    pipelines[entry.name] = _read_pipeline(entry, models, families)
                elif (entry / FAMILY_FILE).exists():
                    families[entry.name] = _read_family(entry, models)
                else:
                    _read_model(entry, limits.get(entry.name, max_batch_size), models, broken)
            except ConfigError as error:
                broken.append(Broken(entry.name, None, str(error)))
        specs = _specs(models)
        alone = {name: single_family(family, specs) for name, family in families.items()}
        return cls(models, alone | pipelines, tuple(broken))


def name_of_file(path: Path) -> str:
    """The name of a model that is served without a repository: its file's, less the format's ending."""
    name = path.name
    for form in _FORMATS:
        name = name.removesuffix(form.suffix)
    return name


def entry_of_file(path: Path, max_batch_size: int = DEFAULT_MAX_BATCH_SIZE) -> ModelEntry:
    """A model file served by itself, without a repository: version 1 of a model named like the file."""
    for form in _FORMATS:
        if path.name.endswith(form.suffix):
            name = name_of_file(path)
            _check_name(path, name)
            return ModelEntry(form.read_spec(path, name, 1, max_batch_size), path, form.backend)
    raise ConfigError(f"{path}: expected a file ending in {_one_of_formats()}")


def _read_model(entry: Path, max_batch_size: int, models: dict[str, ModelEntry], broken: list[Broken]) -> None:
    """Add the versions of one model to `models`, or to `broken`."""
    if (entry / "config.pbtxt").exists():
        raise ConfigError(
            f"{entry}: config.pbtxt is not supported yet; remove it: the model is completed from its ONNX file"
        )
    versions = sorted(int(child.name) for child in entry.iterdir() if child.is_dir() and _VERSION.fullmatch(child.name))
    if not versions:
        raise ConfigError(
            f"{entry}: expected a version directory such as {entry.name}/1, a {PIPELINE_FILE} or a {FAMILY_FILE}"
        )
    for version in versions:
        try:
            model = _read_version(entry, version, max_batch_size)
            models[model.spec.key] = model
        except ConfigError as error:
            broken.append(Broken(entry.name, version, str(error)))


def _read_version(entry: Path, version: int, max_batch_size: int) -> ModelEntry:
    for form in _FORMATS:
        path = entry / str(version) / f"model{form.suffix}"
        if path.exists():
            return ModelEntry(form.read_spec(path, entry.name, version, max_batch_size), path, form.backend)
    raise ConfigError(f"{entry / str(version)}: expected a file model{_one_of_formats(' or model')}")


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
    """The text of a file that has its directory to itself."""
    if any(child.is_dir() and _VERSION.fullmatch(child.name) for child in path.parent.iterdir()):
        raise ConfigError(f"{path}: the directory also holds versions of a model, which would have the same name")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _specs(models: Mapping[str, ModelEntry]) -> dict[str, ModelSpec]:
    return {key: model.spec for key, model in models.items()}


def _order(entry: Path) -> tuple[bool, bool]:
    return (entry / PIPELINE_FILE).exists(), (entry / FAMILY_FILE).exists()


def _check_name(path: Path, name: str) -> None:
    if not _NAME.fullmatch(name) or name == REQUEST:
        raise ConfigError(
            f"{path}: '{name}' cannot name a model or a pipeline; expected letters, digits, '_', '.' and '-', "
            f"and not '{REQUEST}'"
        )


def _one_of_formats(separator: str = " or ") -> str:
    return separator.join(form.suffix for form in _FORMATS)
