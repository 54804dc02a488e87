"""Turns of the loop: from when the time of a request counts, and what the scheduler hears of a loop that is behind."""

import asyncio

import pytest

from sluice.batcher.interface.decisions import AnyDecision
from sluice.batcher.interface.events import AnyEvent, LoopDelayed, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.models.errors import RequestError
from sluice.models.units import NS_PER_MS
from tests.support.gateway.runtime_bench import Bench, Steps, outcomes
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual

MS = NS_PER_MS


class SlowSteps(Steps):
    """Every arrival takes `step_ns` of the loop."""

    loop: VirtualLoop
    step_ns = 0

    def record(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        super().record(now_ns, event, decisions)
        if isinstance(event, RequestArrived):
            self.loop.now_ns += self.step_ns

    def of(self, kind: type[AnyEvent]) -> list[tuple[int, AnyEvent]]:
        return [(now_ns, event) for now_ns, event, _ in self.steps if isinstance(event, kind)]


def slow_bench(loop: VirtualLoop, step_ns: int) -> tuple[Bench, SlowSteps]:
    bench = Bench(loop, steps=SlowSteps)
    steps = bench.steps
    assert isinstance(steps, SlowSteps)
    steps.loop, steps.step_ns = loop, step_ns
    return bench, steps


def test_the_time_of_what_is_read_in_one_turn_counts_from_its_begin() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench, steps = slow_bench(loop, 0)
        await asyncio.sleep(0.001)
        futures = [bench.submit(slo_ms=50)[1]]
        loop.now_ns += 2 * MS  # the second one is read later, but it had come before the first was read
        futures.append(bench.submit(slo_ms=50)[1])
        await asyncio.gather(*futures)
        futures = [bench.submit(slo_ms=50)[1]]
        await asyncio.gather(*futures)
        arrivals = [event for _, event in steps.of(RequestArrived) if isinstance(event, RequestArrived)]
        ended_ns = arrivals[2].received_ns
        assert [(event.received_ns, event.deadline_ns) for event in arrivals] == [
            (1 * MS, 51 * MS),
            (1 * MS, 51 * MS),
            (ended_ns, ended_ns + 50 * MS),
        ]
        assert ended_ns > 3 * MS
        assert steps.of(LoopDelayed)[-1:] in ([], [(ended_ns, LoopDelayed(0, 0))])

    run_virtual(main)


def test_the_time_of_a_request_does_not_count_from_one_that_was_not_taken() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench, steps = slow_bench(loop, 0)
        with pytest.raises(RequestError):
            bench.submit(8, memory_bytes=1 << 50)
        await asyncio.sleep(0.03)
        await bench.submit(slo_ms=50)[1]
        ((arrived_ns, arrival),) = steps.of(RequestArrived)
        assert arrived_ns >= 30 * MS
        assert isinstance(arrival, RequestArrived)
        assert arrival.received_ns == arrived_ns

    run_virtual(main)


def test_a_loop_that_is_quick_enough_reports_nothing() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench, steps = slow_bench(loop, MS // 4)
        for _ in range(5):
            await asyncio.gather(*(bench.submit()[1] for _ in range(4)))
        assert steps.of(LoopDelayed) == []
        assert outcomes(bench) == {Outcome.COMPLETED: 20}

    run_virtual(main)


def test_the_scheduler_hears_of_arrivals_that_a_turn_leaves_and_of_the_end_once() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench, steps = slow_bench(loop, 6 * MS)
        # With a second left, a turn takes arrivals for 10 ms.
        await asyncio.gather(*(bench.submit()[1] for _ in range(6)))
        assert [now_ns // MS for now_ns, _ in steps.of(RequestArrived)] == [0, 0, 0, 18, 18, 18]
        assert steps.of(LoopDelayed)[0] == (18 * MS, LoopDelayed(18 * MS, 3))
        steps.step_ns = 0
        for _ in range(3):
            await asyncio.gather(bench.submit()[1])
        assert steps.of(LoopDelayed)[-1][1] == LoopDelayed(0, 0)
        assert [event for _, event in steps.of(LoopDelayed)].count(LoopDelayed(0, 0)) == 1

    run_virtual(main)


def test_requests_that_wait_for_too_many_turns_are_refused_by_the_scheduler_and_counted() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench, steps = slow_bench(loop, 2 * MS)
        await asyncio.sleep(0.001)
        # A turn takes two of them; the loop is behind from the second turn on, and the 8th of their time is 6 ms.
        answers = await asyncio.gather(*(bench.submit(slo_ms=48)[1] for _ in range(12)))
        assert [number for number, answer in enumerate(answers) if not answer.outcome.answered] == [6, 7, 8, 9, 10, 11]
        assert answers[6].reason == "the server is overloaded: the request had already waited 12.0 of its 48.0 ms"
        assert outcomes(bench) == {Outcome.COMPLETED: 6, Outcome.REJECTED_DEADLINE: 6}
        assert len(steps.of(RequestArrived)) == 12

    run_virtual(main)


def test_no_more_requests_wait_for_their_turn_than_twice_what_may_be_under_way() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench, steps = slow_bench(loop, 0)
        futures = [bench.submit()[1] for _ in range(2 * 4096 + 1)]
        assert [number for number, future in enumerate(futures) if future.done()] == [8192]
        answer = futures[-1].result()
        assert answer.outcome is Outcome.REJECTED_QUEUE_FULL
        assert answer.reason == "the server is overloaded: 8192 requests wait for their turn"
        assert outcomes(bench) == {Outcome.REJECTED_QUEUE_FULL: 1}
        await asyncio.sleep(0)
        assert len(steps.of(RequestArrived)) == 8192

    run_virtual(main)
