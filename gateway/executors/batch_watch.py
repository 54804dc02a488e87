"""Notices that a worker hangs: the batch that it runs does not end."""

import asyncio
from collections.abc import Callable, Collection, Mapping

from batcher.decisions import DispatchBatch
from models.profile import LatencyTable
from models.units import NS_PER_S

BATCH_TIMEOUT_S = 10.0
"""Time that every batch has, however short its latency should be."""
LATENCY_FACTOR = 20
"""A batch of a slow model has this many times its measured latency, above what estimates are ever corrected to."""


class BatchWatch:
    """Watches the first of `batches`, which a worker runs in this order.

    `overdue` is told, in a sentence, of a batch that has run for `timeout_s` and for 20 times the latency in `tables`.
    While models are `loading`, batches wait for the runs that warm those, which the supervisor bounds: nothing is
    overdue then. There is one timer, which is left alone while batches come and go.
    """

    def __init__(
        self,
        batches: Mapping[int, DispatchBatch],
        tables: Mapping[str, LatencyTable],
        loading: Collection[str],
        timeout_s: float,
        overdue: Callable[[str], None],
    ) -> None:
        self._batches = batches
        self._tables = tables
        self._loading = loading
        self._timeout_s = timeout_s
        self._overdue = overdue
        self._loop = asyncio.get_running_loop()
        self._since_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def restart(self) -> None:
        """Note that from now on the batch which is first now is running."""
        self._since_s = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._check)

    def stop(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        if not self._batches:
            return
        if self._loading:
            self._timer = self._loop.call_later(self._timeout_s, self._check)
            return
        batch = next(iter(self._batches.values()))
        latency_s = self._tables[batch.model].latency_ns(batch.rows) / NS_PER_S
        limit_s = max(self._timeout_s, LATENCY_FACTOR * latency_s)
        now_s, due_s = self._loop.time(), self._since_s + limit_s
        if now_s >= due_s:
            self._overdue(f"batch {batch.batch} did not end within {limit_s:g} s")
        else:
            # Not later than that: the next batch may have less time than this one.
            self._timer = self._loop.call_at(min(due_s, now_s + self._timeout_s), self._check)
