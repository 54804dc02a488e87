"""Detects a hung worker: its running batch does not end."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_S

LATENCY_FACTOR = 20
"""A batch of a slow model may take this many times its measured latency, more than any correction of estimates."""
CHECK_S = 1.0
"""The longest time between two checks; a late check shows that the loop stood still."""
STILL_S = 0.5
"""A check that is at least this late shows that the loop stood still: timers are never that late otherwise."""


class RunningBatch(Protocol):
    """A batch that a worker has."""

    @property
    def batch(self) -> int:
        """Its number."""
        ...

    @property
    def model(self) -> str:
        """The key of its model."""
        ...

    @property
    def run_rows(self) -> int:
        """The rows that it runs."""
        ...


class HangDetector:
    """Watches the first of `batches`, which a worker runs in this order.

    `overdue` is called, with a sentence, once a batch has run for `timeout_s` and for 20 times the latency in `tables`.
    Batches wait for the runs that warm models which are `loading`; the supervisor bounds that time, so no batch is
    overdue meanwhile; nor is one that is `held`, since it waits for its client. The only timer is not reset for each
    batch.

    `take_in` first handles messages that arrived while the loop was busy, since loops run timers before they read
    sockets. The time while the loop stood still does not count: a paused machine also pauses the worker.
    """

    def __init__(
        self,
        batches: Mapping[int, RunningBatch],
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
        self.held = self._is_stopped = False
        self._loop = asyncio.get_running_loop()
        self._since_s = 0.0
        self._look_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def restart(self) -> None:
        """Record that the first batch starts to run now, or goes on."""
        self._since_s = self._loop.time()
        if self._timer is None and not self._is_stopped:
            self._check_at(self._since_s + min(CHECK_S, self._timeout_s))

    def stop(self) -> None:
        """Stop watching for good."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_at(self, due_s: float) -> None:
        self._look_s = due_s
        self._timer = self._loop.call_at(due_s, self._look)

    def _look(self) -> None:
        self._take_in()
        if self._timer is None:  # `take_in` stopped it
            return
        self._timer = None
        if not self._batches:
            return
        now_s = max(self._loop.time(), self._look_s)  # loops may fire timers a little early
        if now_s - self._look_s >= STILL_S:
            self._since_s = min(self._since_s + now_s - self._look_s, now_s)
        batch = next(iter(self._batches.values()))
        latency_s = self._tables[batch.model].latency_ns(batch.run_rows) / NS_PER_S
        limit_s = max(self._timeout_s, LATENCY_FACTOR * latency_s)
        due_s = self._since_s + limit_s
        if self._loading or self.held or now_s < due_s:
            self._check_at(now_s + CHECK_S if self._loading or self.held else min(due_s, now_s + CHECK_S))
        else:
            self._overdue(f"batch {batch.batch} did not end within {limit_s:g} s")
