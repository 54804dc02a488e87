"""What becomes of the instances that configurations ask for."""

import logging
from collections.abc import Collection, Iterable, Mapping

from sluice.batcher.interface.config import ScheduledModel
from sluice.gateway.observability.logs import log

logger = logging.getLogger(__name__)


def log_missing_instances(models: Iterable[ScheduledModel], residency: Mapping[str, Collection[str]]) -> None:
    """Warn of models that fewer partitions hold than are asked for; `residency` has the models of each partition."""
    for model in models:
        partitions = sum(model.key in keys for keys in residency.values())
        if 0 < partitions < model.replicas:
            what = "fewer partitions than instances are asked for"
            log(logger, logging.WARNING, what, model=model.key, instances=model.replicas, partitions=partitions)
