"""Entries for models without a running partition: selects the entries that fail, with the reasons."""

from collections.abc import Iterator

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.queues.fair_queue import Queue
from sluice.batcher.residency.on_demand import NoOnDemandLoading, OnDemandLoader
from sluice.batcher.state import UNAVAILABLE_NS, Entry


def hopeless_entries(
    fleet: Fleet, loader: OnDemandLoader | NoOnDemandLoading, now_ns: int
) -> tuple[list[tuple[Entry, str]], int | None]:
    """The entries that fail, with the reasons, and when to check the others again; None for no time.

    With a loader, entries fail if their model cannot be loaded; if that may change, only late entries fail. Without a
    loader, entries fail if the partitions of their model have been lost for too long.
    """
    found: list[tuple[Entry, str]] = []
    again: list[int] = []
    for model in list(fleet.stranded):
        if model.served or not fleet.queues.has_work(model):
            fleet.rescue(model)
            continue
        queues = fleet.queues.of(model)
        if isinstance(loader, OnDemandLoader):
            if (refusal := loader.refusal(model, now_ns)) is not None:
                reason = f"model {model.config.key} is not loaded: {refusal.reason}"
                waiting = (entry for queue in queues for entry in _waiting(queue))
                late = (each for each in waiting if not refusal.passing or each.request.deadline_ns <= now_ns)
                found += ((entry, reason) for entry in late)
            continue
        gone_ns = max(
            (now_ns if host.lost_ns is None else host.lost_ns for host in model.partitions),
            default=now_ns - UNAVAILABLE_NS,
        )
        for queue in filter(None, queues):
            if now_ns - gone_ns < UNAVAILABLE_NS:
                again.append(gone_ns + UNAVAILABLE_NS)
                break
            reason = f"no partition holds model {model.config.key} any more"
            found += ((entry, reason) for entry in _waiting(queue))
    return found, min(again, default=None)


def _waiting(queue: Queue) -> Iterator[Entry]:
    """All waiting entries of a queue, retried ones included."""
    yield from queue.entries()
    yield from (entry for group in queue.retries for entry in group)
