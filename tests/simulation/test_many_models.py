"""Thousands of models on a few partitions with memory for some of them: requested models are loaded in time."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.decisions import AnyDecision
from sluice.batcher.interface.events import AnyEvent, PartitionReady
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.scheduler import Scheduler
from tests.support.scheduling.many_models import MODEL_BYTES, ON_DEMAND, WITHOUT_EVICTION, Crowd, run_crowd

CROWD = Crowd(requests=3000)


def test_with_4000_models_on_8_partitions_far_more_requests_are_in_time_than_there_is_memory_for() -> None:
    run = run_crowd(CROWD, ON_DEMAND)
    assert run.outcomes.total() == CROWD.requests
    assert set(run.outcomes) <= {Outcome.COMPLETED, Outcome.REJECTED_DEADLINE, Outcome.REJECTED_UNAVAILABLE}
    assert run.most_bytes <= CROWD.held * MODEL_BYTES
    kept = run_crowd(CROWD, WITHOUT_EVICTION)
    assert kept.loads == CROWD.partitions * CROWD.held
    print(f"in time: {run.attainment:.1%} on demand, {kept.attainment:.1%} without eviction; {run.loads} loads")
    assert run.attainment > 0.95
    assert run.attainment > 1.7 * kept.attainment


def test_loads_that_would_be_late_are_refused_and_admitted_requests_are_in_time() -> None:
    run = run_crowd(Crowd(skew=0.2, rate=2000, requests=2000), ON_DEMAND)
    assert run.outcomes[Outcome.REJECTED_DEADLINE] + run.outcomes[Outcome.REJECTED_UNAVAILABLE] > 300
    assert run.outcomes[Outcome.COMPLETED_LATE] <= 0.02 * run.outcomes[Outcome.COMPLETED]
    assert run.most_bytes <= CROWD.held * MODEL_BYTES


class Counted(Scheduler):
    """Counts the interpreter's instructions in its decisions, except those on a worker that becomes ready."""

    def __init__(self, spec: SchedulerSpec) -> None:
        super().__init__(spec, LivePlanner())
        self.instructions = 0

    def handle(self, event: AnyEvent, now_ns: int) -> list[AnyDecision]:
        if isinstance(event, PartitionReady):
            return super().handle(event, now_ns)
        with self._counting():
            return super().handle(event, now_ns)

    def handle_wakeup(self, now_ns: int) -> list[AnyDecision]:
        with self._counting():
            return super().handle_wakeup(now_ns)

    @contextmanager
    def _counting(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.instructions += event == "opcode"
        return self._trace


def instructions(idle: int) -> tuple[int, int]:
    """Instructions of all decisions on a trace, and loads, with a number of further models without requests."""
    schedulers: list[Counted] = []

    def build(spec: SchedulerSpec) -> Scheduler:
        schedulers.append(Counted(spec))
        return schedulers[0]

    run = run_crowd(Crowd(models=200, idle=idle, partitions=4, held=10, requests=200), ON_DEMAND, build)
    return schedulers[0].instructions, run.loads


def test_the_cost_of_a_decision_does_not_grow_with_the_number_of_models() -> None:
    few, loads_of_few = instructions(0)
    many, loads_of_many = instructions(3800)
    assert loads_of_few == loads_of_many > 50
    assert many == pytest.approx(few, rel=0.02)
