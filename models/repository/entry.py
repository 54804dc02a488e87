"""A repository entry from outside: the entries that it needs."""

from pathlib import Path
from typing import Any

from sluice.models.errors import ConfigError
from sluice.models.pipelines.file import decode_pipeline
from sluice.models.regular_file import is_there, read_text
from sluice.models.repository.scan import CONFIG_FILE, FAMILY_FILE, PIPELINE_FILE
from sluice.models.yaml_file import load_yaml


def needed_names(entry: Path, config: str = "") -> frozenset[str]:
    """The names of the models and families that a pipeline, a family or an ensemble refers to; none for a model.

    `config` is a configuration in JSON that replaces that of the entry. An unreadable entry needs nothing.
    """
    try:
        if is_there(path := entry / PIPELINE_FILE):
            stages = decode_pipeline(read_text(path), str(path)).stages.values()
            return frozenset(name for stage in stages for name in (stage.model, stage.family) if name is not None)
        if is_there(path := entry / FAMILY_FILE):
            return _models_of_family(load_yaml(read_text(path), str(path)).value)
        if config or is_there(entry / CONFIG_FILE):
            return _models_of_ensemble(config, entry / CONFIG_FILE)
    except (ConfigError, OSError):
        pass  # reading the entry reports the error
    return frozenset()


def _models_of_family(document: Any) -> frozenset[str]:
    variants = document.get("variants", []) if isinstance(document, dict) else []
    return frozenset(str(each["model"]) for each in variants if isinstance(each, dict) and "model" in each)


def _models_of_ensemble(config: str, path: Path) -> frozenset[str]:
    from sluice.models.triton_config.pbtxt import decode_config, decode_config_json

    decoded = decode_config_json(config, str(path)) if config else decode_config(read_text(path), str(path))
    ensemble = decoded.ensemble_scheduling
    return frozenset() if ensemble is None else frozenset(step.model_name for step in ensemble.step)
