"""Names of models and pipelines."""

import re

from sluice.models.errors import ConfigError
from sluice.models.pipelines.pipeline import REQUEST

_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def check_name(place: object, name: str) -> None:
    """Raise ConfigError, whose message starts with `place`, for an invalid name of a model or a pipeline."""
    if not _NAME.fullmatch(name) or name == REQUEST:
        raise ConfigError(
            f"{place}: '{name}' cannot name a model or a pipeline; expected letters, digits, '_', '.' and '-', "
            f"and not '{REQUEST}'"
        )
