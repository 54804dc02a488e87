"""Copies of an entry: the same rows run in several batches, and the first answer counts.

Rows run again because their batch takes far too long (`stragglers`), or because their stage asks for it
(`competition`). Whatever the reason, each copy is an entry of its own, and all of them share the list of those that may
yet be answered.
"""

from __future__ import annotations

from sluice.batcher.state import Batch, Entry


def mark_copied(batch: Batch) -> None:
    """Record that some entries of a batch have copies, or are about to have some."""
    batch.copied = True


def live_copies(entry: Entry) -> tuple[Entry, ...]:
    """All copies of an entry that may yet be answered; the entry itself where it has none."""
    return (entry,) if entry.copies is None else tuple(entry.copies)


def is_superseded(entry: Entry) -> bool:
    """True if another copy of an entry was answered first, or is to be."""
    return entry.copies is not None and all(each is not entry for each in entry.copies)


def supersede(entry: Entry) -> list[Entry]:
    """Record that an entry has its answer; returns its other copies, which are not wanted any more."""
    copies = entry.copies
    if copies is None:
        return []
    others = [each for each in copies if each is not entry]
    copies[:] = [entry]
    return others


def give_up(entry: Entry) -> tuple[Entry, ...]:
    """Record that an entry's answer is not wanted any more; returns its copies, itself among them."""
    copies = live_copies(entry)
    if entry.copies is None:
        entry.copies = []
    entry.copies.clear()
    for copy in copies:
        if copy.batch is not None:
            mark_copied(copy.batch)
    return copies


def leaves_it_to_copies(entry: Entry) -> bool:
    """True if an entry whose batch failed need not be retried, since a copy of it waits or runs elsewhere."""
    if entry.copies is None or not goes_on(entry):
        return False
    entry.copies[:] = [each for each in entry.copies if each is not entry]
    return True


def goes_on(entry: Entry) -> bool:
    """True if another copy of an entry waits, or runs on a partition that is not overdue."""
    others = (each for each in live_copies(entry) if each is not entry)
    return any(each.batch is None or not each.batch.partition.overdue for each in others)


def copied(entry: Entry, now_ns: int) -> Entry:
    """A further copy of an entry."""
    if entry.copies is None:
        entry.copies = [entry]
    copy = entry.copy(now_ns)
    entry.copies.append(copy)
    return copy
