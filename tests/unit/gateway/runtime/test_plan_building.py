"""Steps to other sizes of partitions are judged beside the event loop."""

import asyncio

import pytest

from sluice.batcher.interface.decisions import JudgeSteps
from sluice.batcher.interface.events import PlanBuilt, StepsJudged
from sluice.gateway.runtime.plan_building import PlanBuilding
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
