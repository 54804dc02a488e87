"""Logs what users should know of models that are served: what has no effect, and why they are not batched."""

import logging
from collections.abc import Iterable

from sluice.gateway.observability.logs import log
from sluice.models.repository.scan import ModelEntry
from sluice.models.spec import describe_batching, public_key

logger = logging.getLogger(__name__)


def log_notes(models: Iterable[ModelEntry]) -> None:
    """Log what has no effect in the configurations of models that were just read."""
    for spec in (entry.spec for entry in models):
        for note in spec.notes:
            log(logger, logging.INFO, "part of a configuration is not used", model=public_key(spec.key), note=note)


def log_batching(models: Iterable[ModelEntry]) -> None:
    """Log why models that were just loaded are not batched."""
    for spec in (entry.spec for entry in models):
        if spec.batching_note:
            batching = describe_batching(spec.max_batch_size, spec.batching_note)
            log(logger, logging.INFO, "batching", model=public_key(spec.key), batching=batching)
