"""Entries that enter a batch: what was promised of them begins."""

from sluice.batcher.interface.decisions import Member
from sluice.batcher.state.pipeline import Shares
from sluice.batcher.state.request import Batch


def enter(batch: Batch) -> tuple[Member, ...]:
    """Have all entries of a batch be in it; returns them as its worker is told of them."""
    members = []
    promised = 0
    shares: Shares = ()
    for entry in batch.entries:
        entry.batch = batch
        request = entry.request
        bit = 1 << entry.stage
        if request.committed & bit:
            request.committed ^= bit
            ahead = request.work.stages[entry.stage]
            if ahead is not shares:
                _begin_promised(shares, promised)
                shares, promised = ahead, 0
            promised += request.rows
        members.append(Member(request.identity, entry.stage, entry.rows, entry.row_index))
    _begin_promised(shares, promised)
    return tuple(members)


def _begin_promised(shares: Shares, rows: int) -> None:
    """Work that was promised starts: it is no longer ahead of anybody."""
    for group, row_ns in shares:
        group.backlog_ns -= row_ns * rows
