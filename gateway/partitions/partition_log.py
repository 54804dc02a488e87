"""Log lines about partitions and the models on them."""

import logging

from sluice.batcher.interface.events import ModelLoaded, ModelUnloaded, PartitionLost, PartitionReady, PartitionResized
from sluice.gateway.observability.logs import log
from sluice.gateway.partitions.inventory import InventoryChange

logger = logging.getLogger(__name__)


def log_change(change: InventoryChange) -> None:
    """Log a change of the inventory."""
    event, details, status = change.event, change.details, change.status
    partition = event.partition
    where = {"node": details.node, "url": details.url} if details.node else {}
    for reason in change.shortfalls:
        log(logger, logging.ERROR, "partition unenforced", partition=partition, worker=_worker(change), reason=reason)
    for model, reason in change.failed.items():
        log(logger, logging.ERROR, "model failed to load", model=model, partition=partition, reason=reason)
    match event:
        case PartitionReady() if status is not None:
            log(
                logger,
                logging.INFO,
                "worker ready",
                partition=partition,
                worker=details.worker,
                cores=list(details.cores),
                isolation=status.enforcement.value,
                models=list(change.loaded),
                **where,
            )
        case PartitionReady():
            models = list(change.loaded)
            log(logger, logging.INFO, "triton ready", partition=partition, url=details.url, models=models)
        case PartitionLost() if status is None:
            log(logger, logging.ERROR, "triton lost", partition=partition, url=details.url, reason=event.reason)
        case PartitionLost() if not details.was_up:
            where = {"url": details.url} if details.url else {}
            level = logging.WARNING if details.url else logging.INFO  # a vacant slot is no fault
            log(logger, level, "no worker", partition=partition, reason=event.reason, **where)
        case PartitionLost() if details.planned:
            log(logger, logging.INFO, "worker retired", partition=partition, reason=event.reason, **where)
        case PartitionLost():
            log(logger, logging.ERROR, "worker lost", partition=partition, reason=event.reason, **where)
        case PartitionResized() if status is not None:
            log(
                logger,
                logging.INFO,
                "partition resized",
                partition=partition,
                kind=status.profile_kind,
                worker=details.worker,
                cores=list(details.cores),
                isolation=status.enforcement.value,
            )
        case ModelLoaded():
            log(logger, logging.INFO, "model loaded", model=event.model, partition=partition)
        case ModelUnloaded():
            log(logger, logging.INFO, "model unloaded", model=event.model, partition=partition)


def _worker(change: InventoryChange) -> int | None:
    return None if change.status is None else change.status.worker
