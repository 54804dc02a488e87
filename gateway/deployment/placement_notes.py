"""Logs where models were placed, and notes in the registry which of them wait for requests."""

import logging
from collections.abc import Collection, Iterable, Mapping

from sluice.batcher.interface.config import ScheduledModel, SchedulerSpec
from sluice.batcher.interface.residency_config import Loading
from sluice.batcher.settings.initial_residency import InitialResidency
from sluice.gateway.deployment.registry import ModelRegistry
from sluice.gateway.observability.logs import log

logger = logging.getLogger(__name__)

_MIB = 1 << 20


def note_initial(begin: InitialResidency, registry: ModelRegistry) -> None:
    """Note which models wait for demand at the start, and which no partition has room for."""
    spec, waiting = begin.spec, begin.waiting
    sizes = {model.key: model.memory_bytes for model in spec.models}
    demanded = spec.residency.loading is Loading.DEMAND
    if demanded:
        log(logger, logging.INFO, "models are loaded on demand", models=len(sizes), waiting=len(waiting))
        registry.mark_on_demand(key for key, size in sizes.items() if size <= begin.largest_bytes)
        if never := begin.kept_out:
            reason = "no partition has room for them beside the pinned ones"
            log(logger, logging.WARNING, "models can never be loaded", models=", ".join(never), reason=reason)
    for key in begin.unplaced:
        if key not in waiting:
            reason = f"no partition has room for the {sizes[key] / _MIB:.3g} MiB that it takes"
            log(logger, logging.ERROR, "model has no place", model=key, reason=reason)
            registry.mark_unplaced(key, reason)
        elif not demanded:
            log(logger, logging.WARNING, "model waits for demand, the others leave no room", model=key)
            registry.mark_waiting(key)
    hosts = {key: [name for name, held in begin.residency.items() if key in held] for key in sizes}
    _log_missing_instances(spec.models, hosts)


def started_on_demand(spec: SchedulerSpec) -> set[str]:
    """The models for which a request has a partition started where none is up."""
    zero = {scaled.slots[0] for scaled in spec.scaling.classes if scaled.to_zero}
    hosts = [each.models for each in spec.partitions if each.name in zero]
    return {model.key for model in spec.models if any(models is None or model.key in models for models in hosts)}


def note_added(models: Iterable[ScheduledModel], hosts: Mapping[str, Collection[str]], registry: ModelRegistry) -> None:
    """Note which models that came later have no partition; `hosts` has the partitions of each."""
    for key, partitions in hosts.items():
        if not partitions:
            registry.mark_waiting(key)
    _log_missing_instances(models, hosts)


def _log_missing_instances(models: Iterable[ScheduledModel], hosts: Mapping[str, Collection[str]]) -> None:
    """Warn of models that fewer partitions hold than configured."""
    for model in models:
        partitions = len(hosts[model.key])
        if 0 < partitions < model.replicas:
            what = "fewer partitions than instances are asked for"
            log(logger, logging.WARNING, what, model=model.key, instances=model.replicas, partitions=partitions)
