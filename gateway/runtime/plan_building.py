"""Builds plans and judges steps beside the loop, as the scheduler orders them."""

import asyncio
import enum
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor

from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.decisions import BuildPlan, JudgeSteps
from sluice.batcher.interface.events import PlanBuilt, StepsJudged
from sluice.batcher.interface.plan_data import Observed, Plan
from sluice.batcher.interface.planner_protocol import BuildPlans
from sluice.batcher.interface.resize_data import Ask
from sluice.batcher.planner.headroom import headrooms
from sluice.batcher.planner.splits import best_step

logger = logging.getLogger(__name__)

HEADROOM_PAUSE = 100
"""The pause after headrooms were computed, in multiples of the time that it took."""
HEADROOM_WAIT_S = 0.5
"""The longest wait for headrooms, which may be computed behind a plan."""


class PlanFailure(enum.StrEnum):
    """Why a plan, or the part of it for one pipeline, was not built: the one before stands."""

    ERROR = "error"
    TIME = "time"


class PlanBuilding:
    """Builds plans with `build`, in a thread unless there is a `pool`, and reports each to `report`.

    A plan that could not be built, as each one without `build`, is reported as None; `failures` counts them. So is one
    that takes longer than its planner may for all pipelines together; it ends in its thread, since its work is bounded.
    The pool is shut down with this.
    """

    def __init__(
        self, build: BuildPlans | None, pool: Executor | None, report: Callable[[PlanBuilt | StepsJudged], None]
    ) -> None:
        self._build = build
        self._pool = pool or ThreadPoolExecutor(1, "planning")
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._under_way: int | None = None
        self._ending: asyncio.Future[Plan] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.failures: Counter[PlanFailure] = Counter()
        self._headrooms: Mapping[str, float] = {}
        self._latest: tuple[SchedulerSpec, Observed] | None = None
        self._finding: asyncio.Future[dict[str, float]] | None = None
        self._may_find_at = 0.0

    @property
    def headrooms(self) -> Mapping[str, float]:
        """Those of the pipelines at the rates of a recent plan; {} before the first.

        They are only computed when somebody asks, beside the loop and for a small part of its time: who asks again
        later gets them for the plan that is the latest now.
        """
        if self._closed or self._finding is not None:
            return self._headrooms
        if self._latest is not None and self._loop.time() >= self._may_find_at:
            (spec, observed), self._latest = self._latest, None
            began = self._loop.time()
            self._finding = self._loop.run_in_executor(self._pool, headrooms, spec, observed)
            self._finding.add_done_callback(lambda future: self._found_headrooms(began, future))
        return self._headrooms

    async def find_headrooms(self) -> Mapping[str, float]:
        """As `headrooms`, after those that are due now have been computed."""
        found = self.headrooms
        if self._finding is None:
            return found
        await asyncio.wait((self._finding,), timeout=HEADROOM_WAIT_S)
        return self._headrooms

    def begin(self, order: BuildPlan, spec: SchedulerSpec) -> None:
        """Build a plan; it takes milliseconds, for which the loop must not stand still."""
        if self._build is None:
            self._report(PlanBuilt(order.build, None))
            return
        self._under_way = order.build
        self._ending = self._loop.run_in_executor(self._pool, self._run, self._build, order, spec)
        self._ending.add_done_callback(lambda future: self._built(order, spec, future))

    def judge(self, order: JudgeSteps, spec: SchedulerSpec) -> None:
        """Judge steps; each of them takes a plan."""
        judged = self._loop.run_in_executor(self._pool, best_step, spec, order.observed, order.later, order.splits)
        judged.add_done_callback(lambda future: self._judged(order.judgement, future))

    def close(self) -> None:
        """Build no more, and report nothing more."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, build: BuildPlans, order: BuildPlan, spec: SchedulerSpec) -> Plan:
        """Build a plan in the pool, where it may have waited for others: its time begins now."""
        self._loop.call_soon_threadsafe(self._limit, order.build, spec)
        return build(spec, order.observed)

    def _limit(self, build: int, spec: SchedulerSpec) -> None:
        """Give a plan up after its time."""
        if not self._closed and self._under_way == build:
            pipelines = sum(pipeline.slo_ns > 0 for pipeline in spec.pipelines)
            seconds = spec.planner.limit_ms / 1000 * max(pipelines, 1)
            self._timer = self._loop.call_later(seconds, self._give_up, build)

    def _give_up(self, build: int) -> None:
        """Report that there is no plan, since it takes too long."""
        assert self._ending is not None
        if self._closed or self._under_way != build or self._ending.done():  # a machine that stood still makes both due
            return
        self._under_way = None
        self.failures[PlanFailure.TIME] += 1
        logger.error("plan %d took longer than planner.time_limit_ms; the one before stays", build)
        self._report(PlanBuilt(build, None))

    def _built(self, order: BuildPlan, spec: SchedulerSpec, future: asyncio.Future[Plan]) -> None:
        if self._closed or future.cancelled() or self._under_way != order.build:
            return
        self._under_way = None
        if self._timer is not None:
            self._timer.cancel()
        build = order.build
        plan = None if (error := future.exception()) else future.result()
        if plan is None:
            logger.error("plan %d could not be built; the one before stays", build, exc_info=error)
        if failed := 1 if plan is None else len(plan.failed):
            self.failures[PlanFailure.ERROR] += failed
        for pipeline, reason in plan.failed.items() if plan else ():
            logger.error("plan %d: pipeline %s keeps the one before: %s", build, pipeline, reason)
        self._report(PlanBuilt(build, plan))
        if plan is not None:
            self._latest = spec, order.observed

    def _found_headrooms(self, began: float, future: asyncio.Future[dict[str, float]]) -> None:
        self._finding = None
        if self._closed or future.cancelled():
            return
        if error := future.exception():
            logger.error("the headroom of pipelines could not be computed", exc_info=error)
        self._headrooms = {} if error else future.result()
        now = self._loop.time()
        self._may_find_at = now + HEADROOM_PAUSE * (now - began)

    def _judged(self, judgement: int, future: asyncio.Future[Ask | None]) -> None:
        if self._closed or future.cancelled():
            return
        if error := future.exception():
            logger.error("steps to other sizes could not be judged", exc_info=error)
        self._report(StepsJudged(judgement, None if error else future.result()))
