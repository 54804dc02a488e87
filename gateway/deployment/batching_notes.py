"""Logs why models are not batched."""

import logging
from collections.abc import Iterable

from sluice.gateway.observability.logs import log
from sluice.models.repository.scan import ModelEntry
from sluice.models.spec import describe_batching, public_key

logger = logging.getLogger(__name__)


def log_batching(models: Iterable[ModelEntry]) -> None:
    """Log the notes on batches of models that have one."""
    for spec in (entry.spec for entry in models):
        if spec.batching_note:
            batching = describe_batching(spec.max_batch_size, spec.batching_note)
            log(logger, logging.INFO, "batching", model=public_key(spec.key), batching=batching)
