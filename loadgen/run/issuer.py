"""The issuer: sends the queries of a run on time, and records what becomes of each."""

import asyncio
import gc
import math
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Container, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.interim import InterimTest, PartialLooks
from sluice.loadgen.records.progress import QueryCounts
from sluice.loadgen.records.record import Record, Status
from sluice.loadgen.records.statistics import distribution
from sluice.loadgen.target.base import Target
from sluice.loadgen.traffic.pacing import OPEN_LOOP, Pacing
from sluice.models.units import NS_PER_MS, NS_PER_S
from sluice.mps.alarm import Alarm

_LEAD_NS = 10 * NS_PER_MS
_BURST = 64
"""Most overdue queries issued in one turn, before the loop reads answers again."""
_IDLE_ALARMS = 50
_IDLE_GAP_NS = NS_PER_MS
_SHORTEST_SHARE_NS = 100 * NS_PER_MS

Start = Callable[[], Awaitable[int]]
"""Called when everything is ready; gives the start of the schedule on the monotonic clock, in nanoseconds."""


async def start_at_once() -> int:
    """Start now, apart from the time that the first query takes to leave on time."""
    return time.monotonic_ns() + _LEAD_NS


class Issuer:
    """Issues the queries of one record to one target by the rule of a pacing, and records the target's reports.

    `start_ns` is the start of the run on the monotonic clock; 0 before. `baseline_lateness_ms` is how late the client's
    alarms were before the run, when it had nothing else to do: their 99th percentile. `cpu_ns` is the CPU time of the
    run, and `cpu_share` the share of one core that the process used while it issued, or None for a run too short to
    tell. `interim` is the test that may end the run before its schedule does; so does `over`, once it is set.
    `cancel_ns` is as in `Schedule`, and is repeated with it.
    """

    def __init__(
        self,
        record: Record,
        pacing: Pacing = OPEN_LOOP,
        cancel_ns: npt.NDArray[np.int64] | None = None,
        interim: InterimTest | PartialLooks | None = None,
        kept: Container[int] | None = None,
        over: asyncio.Event | None = None,
    ) -> None:
        if pacing.from_issue:
            record.due_ns = record.due_ns.copy()
        self.interrupted = False
        self.start_ns = 0
        self.baseline_lateness_ms = 0.0
        self.cpu_ns = 0
        self.cpu_share: float | None = None
        self._pacing = pacing
        self._paced = pacing != OPEN_LOOP
        self._interim = interim
        self._over = over
        self._kept = kept
        self._next_look: asyncio.TimerHandle | None = None
        self._cancel_ns = None if cancel_ns is None else np.ascontiguousarray(cancel_ns).data
        self._to_give_up: list[tuple[int, int]] = []
        self._take(record)
        self._issued = 0
        self._settled = 0
        self._last_ns = 0
        self._oldest = 0
        self._issuing = False
        self._ended = False
        self._finished = asyncio.Event()
        self._all_issued = asyncio.Event()

    def counts(self) -> QueryCounts:
        """The numbers of queries so far; may be called from any thread."""
        return QueryCounts(self._issued, self._settled)

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
        if answer is not None and (self._kept is None or query in self._kept):
            self._record.answers[query] = answer
        if stages:
            self._record.stages[query] = stages
        self._settled += 1
        if self._ended:
            if self._settled == self._issued:
                self._finished.set()
        elif self._paced and not self._issuing:
            self._issue_due()

    async def run(self, target: Target, drain_timeout_s: float, start: Start = start_at_once) -> Record:
        """Issue the queries, wait at most `drain_timeout_s` for outstanding answers, and close the target.

        Where queries wait for answers, one without an answer for that long is given up. Returns the record of the
        issued queries: the whole record unless the run was over or `stop` was called before.
        """
        loop = asyncio.get_running_loop()
        self._target, self._alarm = target, Alarm()
        try:
            with _no_collections(), on_interrupt(loop, self.stop):
                self.baseline_lateness_ms = await _idle_lateness_ms(self._alarm)
                # The collection at the entry takes tens of milliseconds, so the schedule starts after it.
                self.start_ns = await start()
                self._alarm.start(self._issue_due)
                self._alarm.arm(self.start_ns + self._due[0])
                timers = self._set_timers(loop, drain_timeout_s)
                self._plan_look()
                ending = None if self._over is None else loop.create_task(self._end_when(self._over))
                since_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
                await self._all_issued.wait()
                if (took_ns := time.monotonic_ns() - since_ns) >= _SHORTEST_SHARE_NS:
                    self.cpu_share = (time.process_time_ns() - cpu_ns) / took_ns
                for timer in timers:
                    timer.cancel()
                if ending is not None:
                    ending.cancel()
                if self._settled < self._issued:
                    await self._drain(drain_timeout_s)
                self.cpu_ns = time.process_time_ns() - cpu_ns
        finally:
            self._alarm.close()
            if self._next_look is not None:
                self._next_look.cancel()
            await target.close()
        self._time_out_stragglers()
        return self._record.head(self._issued)

    def stop(self) -> None:
        """Stop issuing; a second call also stops waiting for answers."""
        if self.interrupted:
            self._finished.set()
        self.interrupted = True
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._all_issued.set()
        if self._settled == self._issued:
            self._finished.set()

    async def _end_when(self, over: asyncio.Event) -> None:
        await over.wait()
        self._end()

    def _plan_look(self) -> None:
        if self._interim is not None and math.isfinite(look_ns := self._interim.next_look_ns):
            wait_ns = self.start_ns + look_ns - time.monotonic_ns()
            self._next_look = asyncio.get_running_loop().call_later(
                max(wait_ns, 0) / NS_PER_S, self._look, self._interim
            )

    def _look(self, interim: InterimTest | PartialLooks) -> None:
        interim.look(self._record, time.monotonic_ns() - self.start_ns)
        if interim.decided is not None:
            self._end()
        self._plan_look()

    def _take(self, record: Record) -> None:
        self._record = record
        # Memory views of the columns take plain integers, ten times as fast as numpy.
        self._due = record.due_ns.data
        self._samples = record.sample.data
        self._queued_ns = record.queued_ns.data
        self._sent_ns = record.sent_ns.data
        self._done_ns = record.done_ns.data
        self._status = record.status.data

    def _issue_due(self) -> None:
        pacing, paced, k = self._pacing, self._paced, self._issued
        due, samples = self._due, self._samples
        waits = False
        self._issuing = True
        end = k + _BURST
        now_ns = time.monotonic_ns() - self.start_ns
        if self._to_give_up:
            self._give_up(now_ns)
            now_ns = time.monotonic_ns() - self.start_ns
        while k < end and not self._ended and due[k] <= now_ns:
            if paced and k % pacing.group == 0:
                if pacing.is_over(k, self._last_ns, now_ns):
                    self._end()
                    break
                if self._settled < pacing.ends_needed(k):
                    waits = True
                    break
                self._last_ns = now_ns
            if pacing.from_issue:
                due[k] = self._last_ns
            self._issued = k + 1
            try:
                self._target.issue(k, samples[k])
            except Exception as error:  # no failure may delay the queries after this one
                self.done(k, Status.ERROR, reason=f"cannot be sent: {error!r}")
            if self._cancel_ns is not None and (after_ns := self._cancel_ns[k % len(self._cancel_ns)]) >= 0:
                heappush(self._to_give_up, (due[k] + after_ns, k))
            k += 1
            if k == len(due):
                if not pacing.repeats:
                    self._end()
                    break
                self._take(self._record.doubled())
                due, samples = self._due, self._samples
            now_ns = time.monotonic_ns() - self.start_ns
        self._issuing = False
        # A query that waits for an answer leaves with it.
        wake_ns = None if self._ended or waits else due[k]
        if self._to_give_up and (wake_ns is None or self._to_give_up[0][0] < wake_ns):
            wake_ns = self._to_give_up[0][0]
        if wake_ns is not None:
            self._alarm.arm(self.start_ns + wake_ns)

    def _give_up(self, now_ns: int) -> None:
        """Cancel the queries that are still open at the time at which their client gives them up."""
        while self._to_give_up and self._to_give_up[0][0] <= now_ns:
            query = heappop(self._to_give_up)[1]
            if self._status[query] == Status.PENDING:
                self._target.cancel(query)

    def _set_timers(self, loop: asyncio.AbstractEventLoop, drain_timeout_s: float) -> list[asyncio.TimerHandle]:
        """Set timers for what no answer brings about: the end of the run, and the end of queries without an answer."""
        timers: list[asyncio.TimerHandle] = []
        if math.isfinite(self._pacing.max_ns):
            ends_ns = self.start_ns + self._pacing.max_ns
            timers.append(loop.call_later((ends_ns - time.monotonic_ns()) / NS_PER_S, self._end))
        if self._pacing.outstanding is not None and math.isfinite(drain_timeout_s):
            timers.append(loop.call_later(drain_timeout_s, self._watch, timers, drain_timeout_s))
        return timers

    def _watch(self, timers: list[asyncio.TimerHandle], timeout_s: float) -> None:
        """Give up the queries that have had no answer for `timeout_s`, so that others may leave."""
        sent_by_ns = time.monotonic_ns() - self.start_ns - timeout_s * NS_PER_S
        while self._oldest < self._issued:
            query = self._oldest
            if self._status[query] == Status.PENDING:
                if not 0 <= self._sent_ns[query] <= sent_by_ns:
                    break
                self._target.cancel(query)
                assert self._status[query] == Status.CANCELLED, f"query {query} was not given up"
                self._status[query] = Status.TIMEOUT
            self._oldest += 1
        timers[-1] = asyncio.get_running_loop().call_later(timeout_s, self._watch, timers, timeout_s)

    async def _drain(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self._finished.wait(), timeout_s)
        except TimeoutError:
            return

    def _time_out_stragglers(self) -> None:
        for query in (self._record.status[: self._issued] == Status.PENDING).nonzero()[0].tolist():
            self.done(query, Status.TIMEOUT)


async def _idle_lateness_ms(alarm: Alarm) -> float:
    """The lateness of an alarm on an idle loop, 99th percentile."""
    late_ns: list[int] = []
    measured = asyncio.Event()
    due_ns = time.monotonic_ns() + _IDLE_GAP_NS

    def fired() -> None:
        nonlocal due_ns
        late_ns.append(time.monotonic_ns() - due_ns)
        if len(late_ns) == _IDLE_ALARMS:
            measured.set()
        else:
            due_ns = time.monotonic_ns() + _IDLE_GAP_NS
            alarm.arm(due_ns)

    alarm.start(fired)
    alarm.arm(due_ns)
    await measured.wait()
    late = distribution(np.array(late_ns))
    assert late is not None
    return late.p99


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
def on_interrupt(loop: asyncio.AbstractEventLoop, stop: Callable[[], object]) -> Iterator[None]:
    """Have an interrupt call `stop`, where this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
