"""Notices that a worker hangs, because the batch that it runs does not end."""

import asyncio
from collections.abc import Callable, Collection, Mapping

from sluice.batcher.interface.decisions import DispatchBatch
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_S

LATENCY_FACTOR = 20
"""A batch of a slow model has this many times its measured latency, above what estimates are ever corrected to."""
LOOK_S = 1.0
"""The longest time between two looks, by which it shows that the loop stood still."""
STILL_S = 0.5
"""A look that is as late as this, or later, says that the loop stood still: no timer is that late otherwise."""


class HangDetector:
    """Watches the first of `batches`, which a worker runs in this order.

    `overdue` is called, with a sentence, once a batch has run for `timeout_s` and for 20 times the latency in `tables`.
    Batches wait for the runs that warm models which are `loading`; the supervisor bounds that time, so no batch is
    overdue meanwhile. There is one timer, which is left alone while batches come and go.

    Messages that arrived while the loop was busy are taken in first by `take_in`, since loops look at timers before
    they look at sockets. The time while the loop stood still does not count: a machine that halts, halts the worker as
    well.
    """

    def __init__(
        self,
        batches: Mapping[int, DispatchBatch],
        tables: Mapping[str, LatencyTable],
        loading: Collection[str],
        timeout_s: float,
        take_in: Callable[[], None],
        overdue: Callable[[str], None],
    ) -> None:
        self._batches = batches
        self._tables = tables
        self._loading = loading
        self._timeout_s = timeout_s
        self._take_in = take_in
        self._overdue = overdue
        self._loop = asyncio.get_running_loop()
        self._since_s = 0.0
        self._look_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def restart(self) -> None:
        """Note that the batch which is first now is running from now on."""
        self._since_s = self._loop.time()
        if self._timer is None:
            self._look_at(self._since_s + min(LOOK_S, self._timeout_s))

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, due_s: float) -> None:
        self._look_s = due_s
        self._timer = self._loop.call_at(due_s, self._look)

    def _look(self) -> None:
        self._take_in()
        if self._timer is None:  # `take_in` stopped it
            return
        self._timer = None
        if not self._batches:
            return
        now_s = self._loop.time()
        if now_s - self._look_s >= STILL_S:
            self._since_s = min(self._since_s + now_s - self._look_s, now_s)
        batch = next(iter(self._batches.values()))
        latency_s = self._tables[batch.model].latency_ns(batch.rows) / NS_PER_S
        limit_s = max(self._timeout_s, LATENCY_FACTOR * latency_s)
        due_s = self._since_s + limit_s
        if self._loading or now_s < due_s:
            self._look_at(now_s + LOOK_S if self._loading else min(due_s, now_s + LOOK_S))
        else:
            self._overdue(f"batch {batch.batch} did not end within {limit_s:g} s")
