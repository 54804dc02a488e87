"""Promised work: the expected work of admitted requests on each group, without dispatched batches."""

from collections.abc import Iterable

from sluice.batcher.state import Entry, Request, Shares


def promise(shares: Shares, rows: int) -> None:
    """Add the expected work of an admitted request."""
    for group, row_ns in shares:
        group.backlog_ns += row_ns * rows


def release(request: Request, stage: int) -> None:
    """Remove the expected work of a stage that starts or is skipped."""
    bit = 1 << stage
    if request.committed & bit:
        request.committed &= ~bit
        for group, row_ns in request.work.stages[stage]:
            group.backlog_ns -= row_ns * request.rows


def settle_rows(request: Request, stage: int, rows: int) -> None:
    """Replace the expected work of a stage by that of its known rows."""
    release(request, stage)
    request.work = request.work.known(stage, rows / request.rows)
    request.committed |= 1 << stage
    promise(request.work.stages[stage], request.rows)


def release_batch(entries: Iterable[Entry]) -> None:
    """As `release`, for all entries of a batch that starts."""
    promised = 0
    shares: Shares = ()
    for entry in entries:
        request = entry.request
        bit = 1 << entry.stage
        if request.committed & bit:
            request.committed ^= bit
            ahead = request.work.stages[entry.stage]
            if ahead is not shares:
                _release_rows(shares, promised)
                shares, promised = ahead, 0
            promised += request.rows
    _release_rows(shares, promised)


def _release_rows(shares: Shares, rows: int) -> None:
    for group, row_ns in shares:
        group.backlog_ns -= row_ns * rows
