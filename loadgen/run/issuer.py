"""Open-loop pacing: every query is sent when it is due, regardless of earlier queries."""

import asyncio
import gc
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from sluice.loadgen.records.record import Record, Status
from sluice.loadgen.target.base import Target
from sluice.loadgen.traffic.schedule import Schedule
from sluice.models.units import NS_PER_MS
from sluice.mps.alarm import Alarm

_LEAD_NS = 10 * NS_PER_MS
_BURST = 64
"""Most overdue queries issued in one turn, before the loop reads answers again."""

Start = Callable[[], Awaitable[int]]
"""Called when everything is ready; gives the start of the schedule on the monotonic clock, in nanoseconds."""


async def start_at_once() -> int:
    """Start now, but for the time that the first query takes to leave on time."""
    return time.monotonic_ns() + _LEAD_NS


class Issuer:
    """Issues one schedule to one target, and records the target's reports.

    `start_ns` is the start of the schedule on the monotonic clock; 0 before.
    """

    def __init__(self, schedule: Schedule, record: Record) -> None:
        self.interrupted = False
        self._record = record
        # Memory views of the columns take plain integers, ten times as fast as numpy.
        self._queued_ns = record.queued_ns.data
        self._sent_ns = record.sent_ns.data
        self._done_ns = record.done_ns.data
        self._status = record.status.data
        self._due = schedule.due_ns.tolist()
        self._samples = schedule.sample.tolist()
        self._issued = 0
        self._settled = 0
        self.start_ns = 0
        self._finished = asyncio.Event()
        self._all_issued = asyncio.Event()

    def queued(self, query: int) -> None:
        """Record the time from which a query waits for a connection."""
        self._queued_ns[query] = time.monotonic_ns() - self.start_ns

    def sent(self, query: int) -> None:
        """Record the time at which a query was sent."""
        self._sent_ns[query] = time.monotonic_ns() - self.start_ns

    def done(self, query: int, status: Status, answer: object = None, reason: str = "", stages: str = "") -> None:
        """Record the end of a query."""
        assert self._status[query] == 0, f"query {query} was settled twice"
        self._done_ns[query] = time.monotonic_ns() - self.start_ns
        self._status[query] = status
        if reason:
            self._record.count_reason(reason)
        if answer is not None:
            self._record.answers[query] = answer
        if stages:
            self._record.stages[query] = stages
        self._settled += 1
        if self._settled == self._issued and self._all_issued.is_set():
            self._finished.set()

    async def run(self, target: Target, drain_timeout_s: float, start: Start = start_at_once) -> Record:
        """Issue the schedule, wait at most `drain_timeout_s` for outstanding answers, and close the target.

        Returns the record of the issued queries: the whole schedule unless `stop` was called.
        """
        alarm = Alarm()
        try:
            with _no_collections(), _on_interrupt(asyncio.get_running_loop(), self.stop):
                # The collection at the entry takes tens of milliseconds, so the schedule starts after it.
                self.start_ns = await start()
                alarm.start(lambda: self._issue_due(target, alarm))
                alarm.arm(self.start_ns + self._due[0])
                await self._all_issued.wait()
                if self._settled < self._issued:
                    await self._drain(drain_timeout_s)
        finally:
            alarm.close()
            await target.close()
        self._time_out_stragglers()
        return self._record.head(self._issued)

    def stop(self) -> None:
        """Stop issuing; a second call also stops waiting for answers."""
        if self.interrupted:
            self._finished.set()
        self.interrupted = True
        self._all_issued.set()

    def _issue_due(self, target: Target, alarm: Alarm) -> None:
        due, samples, k = self._due, self._samples, self._issued
        end = min(k + _BURST, len(due))
        elapsed_ns = time.monotonic_ns() - self.start_ns
        while k < end and due[k] <= elapsed_ns and not self.interrupted:
            self._issued = k + 1
            try:
                target.issue(k, samples[k])
            except Exception as error:  # no failure may delay the queries after this one
                self.done(k, Status.ERROR, reason=f"cannot be sent: {error!r}")
            k += 1
            elapsed_ns = time.monotonic_ns() - self.start_ns
        if k == len(due):
            self._all_issued.set()
        elif not self.interrupted:
            alarm.arm(self.start_ns + due[k])

    async def _drain(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self._finished.wait(), timeout_s)
        except TimeoutError:
            return

    def _time_out_stragglers(self) -> None:
        for query in (self._record.status[: self._issued] == Status.PENDING).nonzero()[0].tolist():
            self.done(query, Status.TIMEOUT)


@contextmanager
def _no_collections() -> Iterator[None]:
    # A full garbage collection takes tens of milliseconds, which would count as the target's latency.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@contextmanager
def _on_interrupt(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
