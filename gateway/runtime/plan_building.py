"""Builds plans and judges steps beside the loop, as the scheduler orders them."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor

from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.decisions import BuildPlan, JudgeSteps
from sluice.batcher.interface.events import PlanBuilt, StepsJudged
from sluice.batcher.interface.plan_data import Plan
from sluice.batcher.interface.planner_protocol import BuildPlans
from sluice.batcher.interface.resize_data import Ask
from sluice.batcher.planner.headroom import headrooms
from sluice.batcher.planner.splits import best_step

logger = logging.getLogger(__name__)


class PlanBuilding:
    """Builds plans with `build`, in a thread unless there is a `pool`, and reports each to `report`.

    A plan that could not be built, as each one without `build`, is reported as None. The pool is shut down with this.
    `headrooms` are those of the pipelines at the rates of the latest plan.
    """

    def __init__(
        self, build: BuildPlans | None, pool: Executor | None, report: Callable[[PlanBuilt | StepsJudged], None]
    ) -> None:
        self._build = build
        self._pool = pool or ThreadPoolExecutor(1, "planning")
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self.headrooms: Mapping[str, float] = {}

    def begin(self, order: BuildPlan, spec: SchedulerSpec) -> None:
        """Build a plan; it takes milliseconds, for which the loop must not stand still."""
        if self._build is None:
            self._report(PlanBuilt(order.build, None))
            return
        built = self._loop.run_in_executor(self._pool, self._build, spec, order.observed)
        built.add_done_callback(lambda future: self._built(order, spec, future))

    def judge(self, order: JudgeSteps, spec: SchedulerSpec) -> None:
        """Judge steps; each of them takes a plan."""
        judged = self._loop.run_in_executor(self._pool, best_step, spec, order.observed, order.later, order.splits)
        judged.add_done_callback(lambda future: self._judged(order.judgement, future))

    def close(self) -> None:
        """Build no more, and report nothing more."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _built(self, order: BuildPlan, spec: SchedulerSpec, future: asyncio.Future[Plan]) -> None:
        if self._closed or future.cancelled():
            return
        build = order.build
        plan = None if (error := future.exception()) else future.result()
        if plan is None:
            logger.error("plan %d could not be built; the one before stays", build, exc_info=error)
        for pipeline, reason in plan.failed.items() if plan else ():
            logger.error("plan %d: pipeline %s keeps the one before: %s", build, pipeline, reason)
        self._report(PlanBuilt(build, plan))
        if plan is not None:
            found = self._loop.run_in_executor(self._pool, headrooms, spec, order.observed)
            found.add_done_callback(self._found_headrooms)

    def _found_headrooms(self, future: asyncio.Future[dict[str, float]]) -> None:
        if self._closed or future.cancelled():
            return
        if error := future.exception():
            logger.error("the headroom of pipelines could not be computed", exc_info=error)
        self.headrooms = {} if error else future.result()

    def _judged(self, judgement: int, future: asyncio.Future[Ask | None]) -> None:
        if self._closed or future.cancelled():
            return
        if error := future.exception():
            logger.error("steps to other sizes could not be judged", exc_info=error)
        self._report(StepsJudged(judgement, None if error else future.result()))
