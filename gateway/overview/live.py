"""Runs the overview on the event loop: one sampler for all viewers, only while somebody looks and for a while after."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from time import perf_counter_ns
from typing import TypeVar

import orjson

from sluice.gateway.overview.document import Overview, Question
from sluice.gateway.overview.plans import PlanForecast
from sluice.gateway.overview.plans_in_force import report
from sluice.gateway.overview.sources import Sources
from sluice.models.errors import BackendUnavailable, ServingError
from sluice.models.units import NS_PER_S, NS_PER_US

T = TypeVar("T")

logger = logging.getLogger(__name__)

MAX_VIEWERS = 32
"""Streams of documents at a time."""
LINGER_S = 300
"""Sampling goes on for so long after the last look, so that a page that is opened again has its history."""
SLICE_NS = 50 * NS_PER_US
"""A tick lets the loop do other work after this time."""
FORECAST_PAUSE = 100
"""The pause after a forecast, in multiples of the time that it took."""
FAILED_PAUSE_S = 60.0
_SOON_NS = NS_PER_S // 2
"""A first step that would be shorter is longer by a second."""


class LiveOverview:
    """The overview of a running server. Nothing is sampled, and no memory is held for it, until somebody looks."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._started_ns = sources.time_of_day()
        self._overview: Overview | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._published = asyncio.Event()
        self._hurry = asyncio.Event()
        self._looked_ns = 0
        self._forecasting: asyncio.Task[None] | None = None
        self._plans = asyncio.Lock()
        self._plans_known: tuple[object, bytes] | None = None
        self.viewers = 0
        sources.registry.subscribe(self._served_changed)

    @property
    def is_sampling(self) -> bool:
        """True while counters are sampled."""
        return self._sampling is not None

    async def document(self, question: Question) -> bytes:
        """The document as of the last tick. Raises ServingError if it cannot be written."""
        overview = await self._look()
        return (await _in_slices(overview.reply(question))).body

    async def stream(self, question: Question) -> AsyncGenerator[bytes]:
        """The document at once and after every tick, each with what is new; ends after that of a stopping server.

        Raises BackendUnavailable if there are too many viewers, and ServingError as `document`.
        """
        self.check_room()
        self.viewers += 1
        try:
            while True:
                overview = await self._look()
                published = self._published
                reply = await _in_slices(overview.reply(question))
                yield reply.body
                if reply.is_last:
                    return
                question = reply.following
                await published.wait()
        finally:
            self.viewers -= 1
            self._looked_ns = self._sources.clock()

    async def plan(self, pipeline: str) -> bytes:
        """The plans of all pipelines, or of one, in the words of `sluice plan`; they are put together in a thread.

        Raises ServingError as `ModelRegistry.pipeline`.
        """
        sources = self._sources
        scheduler, registry = sources.scheduler, sources.registry
        offset_ns = sources.time_of_day() - sources.clock()
        if pipeline:
            name, _, version = pipeline.rpartition(":") if ":" in pipeline else (pipeline, "", "")
            names = [registry.pipeline(name, version).key]
        else:
            names = sorted({each.key for each in registry.serving.values()})
            names = [name for name in names if name in scheduler.pipelines and scheduler.pipelines[name].config.slo_ns]
        async with self._plans:  # one at a time; who asks the same gets the same
            spec, in_force = scheduler.spec, scheduler.served.replanner.in_force
            asked = (pipeline, tuple(names), spec, in_force)
            if self._plans_known is None or self._plans_known[0] != asked:
                found = await asyncio.to_thread(report, spec, in_force, names, offset_ns, with_limits=bool(pipeline))
                self._plans_known = asked, orjson.dumps(found)
            return self._plans_known[1]

    def check_room(self) -> None:
        """Raise BackendUnavailable if no more viewers may have a stream."""
        if self.viewers >= MAX_VIEWERS:
            raise BackendUnavailable(f"{MAX_VIEWERS} viewers have this stream open, which is the most that may")

    async def _look(self) -> Overview:
        """The overview after its first tick; begins to sample unless it does already."""
        self._looked_ns = self._sources.clock()
        while self._overview is None:
            published = self._published
            if self._sampling is None:
                self._sampling = asyncio.ensure_future(self._sample())
                self._sampling.add_done_callback(self._ended)
            sampling = self._sampling
            waiting = asyncio.ensure_future(published.wait())
            await asyncio.wait({waiting, sampling}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if sampling.done() and not sampling.cancelled() and sampling.exception() is not None:
                raise ServingError("the overview cannot be written; the server's log says why")
        return self._overview

    def _ended(self, sampling: asyncio.Task[None]) -> None:
        self._sampling = self._overview = None
        self._sources.watch_batches(None)
        self._publish()
        if not sampling.cancelled() and (error := sampling.exception()) is not None:
            logger.error("the overview cannot be written", exc_info=error)

    def _publish(self) -> None:
        self._published.set()
        self._published = asyncio.Event()

    def _served_changed(self) -> None:
        if self._sources.registry.draining:
            self._hurry.set()

    async def _sample(self) -> None:
        """Tick at each full second of the time of day, until nobody has looked for a while."""
        clock, time_of_day = self._sources.clock, self._sources.time_of_day
        self._hurry = asyncio.Event()
        while True:
            overview = Overview(self._sources, self._started_ns)
            self._sources.watch_batches(overview.timeline.batch_ended)
            await _in_slices(overview.begin(clock(), time_of_day()))
            self._overview = overview
            self._publish()
            due_ns = (time_of_day() + _SOON_NS) // NS_PER_S * NS_PER_S + NS_PER_S
            while not overview.drifted(now_ns := clock(), day_ns := time_of_day()):
                if self.viewers:
                    self._looked_ns = now_ns
                elif now_ns - self._looked_ns > LINGER_S * NS_PER_S:
                    return
                if day_ns < due_ns and not self._hurry.is_set():
                    await self._wait((due_ns - day_ns) / NS_PER_S)
                    continue
                self._hurry.clear()
                await _in_slices(overview.tick(now_ns, day_ns))
                self._publish()
                if self._forecasting is None and (task := overview.plans.next_forecast()) is not None:
                    self._forecasting = asyncio.ensure_future(self._forecast(overview, task))
                due_ns = day_ns // NS_PER_S * NS_PER_S + NS_PER_S

    async def _forecast(self, overview: Overview, task: Callable[[], PlanForecast]) -> None:
        """Compute a forecast in a thread, and then pause, so that all of them take a small part of a core."""
        try:
            began_ns = perf_counter_ns()
            overview.plans.take(await asyncio.to_thread(task))
            await asyncio.sleep(FORECAST_PAUSE * (perf_counter_ns() - began_ns) / NS_PER_S)
        except Exception:
            logger.exception("a forecast could not be computed")
            await asyncio.sleep(FAILED_PAUSE_S)
        finally:
            self._forecasting = None

    async def _wait(self, seconds: float) -> None:
        """Wait, but not while the server begins to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            pass


async def _in_slices(work: Generator[None, None, T]) -> T:
    """Do some work, and let the loop do other work after each slice of time; returns its result."""
    began_ns = perf_counter_ns()
    while True:
        try:
            next(work)
        except StopIteration as ended:
            result: T = ended.value
            return result
        if perf_counter_ns() - began_ns > SLICE_NS:
            await asyncio.sleep(0)
            began_ns = perf_counter_ns()
