"""Logs what has no effect in the configurations of models."""

import logging
from collections.abc import Iterable

from sluice.gateway.observability.logs import log
from sluice.models.repository.scan import ModelEntry

logger = logging.getLogger(__name__)


def log_notes(models: Iterable[ModelEntry]) -> None:
    """Log the notes of models that were just read."""
    for entry in models:
        for note in entry.spec.notes:
            log(logger, logging.INFO, "part of a configuration is not used", model=entry.spec.key, note=note)
