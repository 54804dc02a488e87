"""A repository entry from outside: the entries that it needs, and the stamps that show whether it has changed."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.models.errors import ConfigError
from sluice.models.pipelines.file import decode_pipeline
from sluice.models.repository.scan import CONFIG_FILE, FAMILY_FILE, PIPELINE_FILE
from sluice.models.yaml_file import load_yaml

FileStamps = Mapping[str, frozenset[tuple[str, int, int]]]
"""(path, time of last change in nanoseconds, bytes) of each file, by the version or file of the entry."""

_PASSED_OVER = ("__pycache__",)
_PROFILE = "profile.json"


def file_stamps(entry: Path) -> FileStamps:
    """Return stamps that change with the files of an entry; files that Sluice writes do not count.

    Raises OSError for an entry that cannot be read.
    """
    found: dict[str, frozenset[tuple[str, int, int]]] = {}
    for child in os.scandir(entry):
        paths = [Path(child.path)] if child.is_file() else _files(Path(child.path))
        found[child.name] = frozenset((str(path), *_stamp(path)) for path in paths)
    return found


def needed_names(entry: Path, config: str = "") -> frozenset[str]:
    """The names of the models and families that a pipeline, a family or an ensemble refers to; none for a model.

    `config` is a configuration in JSON that replaces that of the entry. An unreadable entry needs nothing.
    """
    try:
        if (path := entry / PIPELINE_FILE).exists():
            stages = decode_pipeline(path.read_text(encoding="utf-8"), str(path)).stages.values()
            return frozenset(name for stage in stages for name in (stage.model, stage.family) if name is not None)
        if (path := entry / FAMILY_FILE).exists():
            return _models_of_family(load_yaml(path.read_text(encoding="utf-8"), str(path)).value)
        if config or (path := entry / CONFIG_FILE).exists():
            return _models_of_ensemble(config, entry / CONFIG_FILE)
    except (ConfigError, OSError, UnicodeDecodeError):
        pass  # reading the entry reports the error
    return frozenset()


def _files(directory: Path) -> list[Path]:
    return [
        Path(place) / name
        for place, _, names in os.walk(directory)
        if not any(part in _PASSED_OVER for part in Path(place).parts)
        for name in names
        if not name.endswith(_PROFILE)
    ]


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except FileNotFoundError:  # it has just been deleted, or is a broken link
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _models_of_family(document: Any) -> frozenset[str]:
    variants = document.get("variants", []) if isinstance(document, dict) else []
    return frozenset(str(each["model"]) for each in variants if isinstance(each, dict) and "model" in each)


def _models_of_ensemble(config: str, path: Path) -> frozenset[str]:
    from sluice.models.triton_config.pbtxt import decode_config, decode_config_json

    decoded = decode_config_json(config, str(path)) if config else decode_config(path.read_text("utf-8"), str(path))
    ensemble = decoded.ensemble_scheduling
    return frozenset() if ensemble is None else frozenset(step.model_name for step in ensemble.step)
