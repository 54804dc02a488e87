"""What may be the name of a model or a pipeline."""

import re

from sluice.models.errors import ConfigError
from sluice.models.pipelines.pipeline import REQUEST

_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def check_name(place: object, name: str) -> None:
    """Raise ConfigError, which begins with `place`, for what cannot name a model or a pipeline."""
    if not _NAME.fullmatch(name) or name == REQUEST:
        raise ConfigError(
            f"{place}: '{name}' cannot name a model or a pipeline; expected letters, digits, '_', '.' and '-', "
            f"and not '{REQUEST}'"
        )
