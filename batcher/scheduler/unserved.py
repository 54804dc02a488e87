"""Entries for models without a running partition: selects the entries that fail, with the reasons."""

from collections.abc import Iterator

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.queues.queue import Queue
from sluice.batcher.residency.on_demand import NoOnDemandLoading, OnDemandLoader, Prospect
from sluice.batcher.scaling.scaler import NoScaler, Scaler
from sluice.batcher.state import Entry, ModelState
from sluice.models.units import NS_PER_S


def hopeless_entries(
    fleet: Fleet, loader: OnDemandLoader | NoOnDemandLoading, scaler: Scaler | NoScaler, now_ns: int
) -> tuple[list[tuple[Entry, str]], int | None]:
    """The entries that fail, with the reasons, and when to check the others again; None for no time."""
    found: list[tuple[Entry, str]] = []
    again: list[int] = []
    for model in list(fleet.stranded):
        if model.served or not fleet.queues.has_work(model):
            fleet.rescue(model)
            continue
        queues = fleet.queues.of(model)
        failure, late_only, again_ns = _start_prospect(scaler, model, now_ns) or loader.prospect(model, now_ns)
        if again_ns is not None:
            again.append(again_ns)
        if failure:
            waiting = (entry for queue in queues for entry in _waiting(queue))
            hopeless = (each for each in waiting if not late_only or each.request.deadline_ns <= now_ns)
            found += ((entry, failure) for entry in hopeless)
    return found, min(again, default=None)


def _start_prospect(scaler: Scaler | NoScaler, model: ModelState, now_ns: int) -> Prospect | None:
    """The prospect of entries whose model waits for a partition that is being started; None if none is."""
    name = scaler.expected(model)
    if not name:
        return None
    failure = f"model {model.config.key} waits for a partition of class {name}, which is being started"
    return Prospect(failure, late_only=True, again_ns=now_ns + NS_PER_S)


def _waiting(queue: Queue) -> Iterator[Entry]:
    """All waiting entries of a queue, retried ones included."""
    yield from queue.entries()
    yield from (entry for group in queue.retries for entry in group)
