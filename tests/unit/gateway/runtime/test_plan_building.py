"""Plans are built beside the event loop, steps to other sizes are judged there, and headrooms are found."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

import msgspec
import pytest

from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.decisions import BuildPlan, JudgeSteps
from sluice.batcher.interface.events import PlanBuilt, StepsJudged
from sluice.batcher.interface.plan_data import Observed, Plan
from sluice.batcher.interface.planner_config import PlannerConfig
from sluice.batcher.planner.build import build_plan
from sluice.gateway.runtime.plan_building import PlanBuilding, PlanFailure
from sluice.models.units import NS_PER_S
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual
from tests.unit.batcher.planner.test_headroom import observed, spec
from tests.unit.batcher.scheduler.test_resizer import Traffic


def judged(order: JudgeSteps, traffic: Traffic) -> StepsJudged:
    """The event that answers an order."""

    async def main() -> PlanBuilt | StepsJudged:
        answer: asyncio.Future[PlanBuilt | StepsJudged] = asyncio.get_running_loop().create_future()
        building = PlanBuilding(None, None, answer.set_result)
        building.judge(order, traffic.scheduler.spec)
        event = await answer
        building.close()
        return event

    event = asyncio.run(main())
    assert isinstance(event, StepsJudged)
    return event


def test_the_planner_asks_for_the_step_that_a_high_rate_needs() -> None:
    traffic = Traffic()
    traffic.come(475, 475)
    _, order = traffic.judged[-1]
    event = judged(order, traffic)
    assert event.judgement == order.judgement
    assert event.ask is not None
    assert event.ask.reason == "objective"


def test_where_steps_cannot_be_judged_none_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr("sluice.gateway.runtime.plan_building.best_step", broken)
    traffic = Traffic()
    traffic.come(475, 475)
    _, order = traffic.judged[-1]
    assert judged(order, traffic).ask is None
    assert "steps to other sizes could not be judged" in caplog.text


def test_a_plan_that_takes_too_long_is_given_up_and_counted() -> None:
    ended = threading.Event()

    def slow(asked: SchedulerSpec, seen: Observed) -> Plan:
        ended.wait(5)
        return build_plan(asked, seen)

    async def main() -> None:
        built: asyncio.Queue[PlanBuilt | StepsJudged] = asyncio.Queue()
        building = PlanBuilding(slow, None, built.put_nowait)
        hurried = msgspec.structs.replace(spec("m"), planner=PlannerConfig(limit_ms=1))
        building.begin(BuildPlan(1, observed(m=10.0)), hurried)
        assert await built.get() == PlanBuilt(1, None)
        ended.set()
        # What comes of it later is dropped, and the next plan is built as usual.
        building.begin(BuildPlan(2, observed(m=10.0)), spec("m"))
        event = await built.get()
        assert isinstance(event, PlanBuilt)
        assert (event.build, event.plan is None) == (2, False)
        assert building.failures == {PlanFailure.TIME: 1}
        building.close()

    asyncio.run(main())


class _Busy(Executor):
    """Begins what it gets only when the test calls it."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self.waiting.append(lambda: future.set_result(work(*given, **named)))
        return future


def test_the_time_of_a_plan_begins_when_it_is_its_turn() -> None:
    async def main(loop: VirtualLoop) -> None:
        built: asyncio.Queue[PlanBuilt | StepsJudged] = asyncio.Queue()
        busy = _Busy()
        building = PlanBuilding(build_plan, busy, built.put_nowait)
        building.begin(BuildPlan(1, observed(m=10.0)), spec("m"))
        await asyncio.sleep(60)  # headrooms, say, are found first
        busy.waiting.pop()()
        event = await built.get()
        assert isinstance(event, PlanBuilt)
        assert event.plan is not None
        assert building.failures == {}

    run_virtual(main)


class _Finished(Executor):
    """Does what it gets at once; the result is there when the test calls `say_so`."""

    say_so: Callable[[], None]

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self.say_so = partial(future.set_result, work(*given, **named))
        return future


def test_a_plan_that_is_there_is_taken_though_the_machine_stood_still() -> None:
    async def main(loop: VirtualLoop) -> None:
        built: asyncio.Queue[PlanBuilt | StepsJudged] = asyncio.Queue()
        finished = _Finished()
        building = PlanBuilding(build_plan, finished, built.put_nowait)
        building.begin(BuildPlan(1, observed(m=10.0)), spec("m"))
        await asyncio.sleep(0.5)
        finished.say_so()
        loop.now_ns += 3600 * NS_PER_S
        event = await built.get()
        assert isinstance(event, PlanBuilt)
        assert event.plan is not None
        assert building.failures == {}

    run_virtual(main)


def test_a_planner_that_throws_is_counted() -> None:
    def broken(asked: SchedulerSpec, seen: Observed) -> Plan:
        raise RuntimeError("out of order")

    async def main() -> None:
        built: asyncio.Queue[PlanBuilt | StepsJudged] = asyncio.Queue()
        building = PlanBuilding(broken, None, built.put_nowait)
        building.begin(BuildPlan(1, observed(m=10.0)), spec("m"))
        assert await built.get() == PlanBuilt(1, None)
        assert building.failures == {PlanFailure.ERROR: 1}
        building.close()

    asyncio.run(main())


def test_headrooms_are_found_for_the_latest_plan_once_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[float] = []

    def find(_: object, seen: Observed) -> dict[str, float]:
        found.append(seen.rates["m"])
        return {"m": 100 / seen.rates["m"]}

    monkeypatch.setattr("sluice.gateway.runtime.plan_building.headrooms", find)
    monkeypatch.setattr("sluice.gateway.runtime.plan_building.HEADROOM_PAUSE", 0)

    async def main() -> None:
        built: asyncio.Queue[object] = asyncio.Queue()
        building = PlanBuilding(build_plan, None, built.put_nowait)
        assert await building.find_headrooms() == {}
        for number, rate in enumerate((10.0, 20.0)):
            building.begin(BuildPlan(number, observed(m=rate)), spec("m"))
            await built.get()
        assert found == []
        assert await building.find_headrooms() == {"m": 5.0}
        assert building.headrooms == {"m": 5.0}
        assert found == [20.0]
        building.close()

    asyncio.run(main())


def test_headrooms_that_take_long_are_found_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.gateway.runtime.plan_building.HEADROOM_PAUSE", 10**9)

    async def main() -> None:
        built: asyncio.Queue[object] = asyncio.Queue()
        building = PlanBuilding(build_plan, None, built.put_nowait)
        shown = []
        for number, rate in enumerate((10.0, 20.0)):
            building.begin(BuildPlan(number, observed(m=rate)), spec("m"))
            await built.get()
            shown.append(await building.find_headrooms())
        assert shown[0] == shown[1] != {}
        building.close()

    asyncio.run(main())


def test_who_asks_for_headrooms_after_the_end_gets_the_last_ones() -> None:
    async def main() -> None:
        built: asyncio.Queue[object] = asyncio.Queue()
        building = PlanBuilding(build_plan, None, built.put_nowait)
        building.begin(BuildPlan(0, observed(m=10.0)), spec("m"))
        await built.get()
        await asyncio.sleep(0)  # the plan is noted after its report
        building.close()
        assert building.headrooms == await building.find_headrooms() == {}

    asyncio.run(main())
