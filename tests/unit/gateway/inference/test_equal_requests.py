"""Equal requests that are under way together: one runs, and the others get its answer or run after all."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sluice.batcher.interface.config import StageConfig
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.inference.equal_requests import CacheableRequest, EqualRequests
from sluice.gateway.observability.meters import PipelineMeter
from sluice.gateway.observability.statistics import Statistics
from sluice.gateway.observability.traces.context import NO_TRACE, TraceContext
from sluice.gateway.observability.traces.trace import Trace
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.runtime.submission import Submission
from sluice.gateway.tensors.response_cache import ResponseCache, request_key

MS = 1_000_000
X = {"x": np.array([[1.0]], np.float32)}
Y = {"y": np.array([[2.0]], np.float32)}


class HoldingRuntime:
    """Holds every request; `room` bounds those that wait for others."""

    def __init__(self, room: int = 9) -> None:
        self.room = room
        self.ran: list[Submission] = []
        self.held: list[Submission] = []
        self.answered: list[tuple[int, Any]] = []
        self.run_after_all: list[int] = []

    def submit(
        self,
        pipeline: str,
        inputs: Mapping[str, Tensor],
        options: RequestOptions,
        client: str = "",
        received_ns: int = 0,
        shared: object = None,
        trace: TraceContext = NO_TRACE,
    ) -> Submission:
        self.ran.append(self._opened(options, received_ns))
        return self.ran[-1]

    def hold(
        self, pipeline: str, options: RequestOptions, received_ns: int, trace: TraceContext = NO_TRACE
    ) -> Submission | None:
        if len(self.held) == self.room:
            return None
        self.held.append(self._opened(options, received_ns))
        return self.held[-1]

    def answer_held(self, submission: Submission, outputs: Mapping[str, Tensor]) -> None:
        y = outputs["y"]
        assert isinstance(y, np.ndarray)
        self.answered.append((submission.request, y.tolist()))

    def run_held(self, submission: Submission, *given: object) -> None:
        self.run_after_all.append(submission.request)

    def answer_from_cache(self, *given: object) -> Submission:
        raise AssertionError("nothing is looked up here")

    def cancel(self, request: int) -> None:
        raise AssertionError("nothing is cancelled here")

    def _opened(self, options: RequestOptions, received_ns: int) -> Submission:
        number = len(self.ran) + len(self.held) + 1
        arrival = RequestArrived(number, "m:1", 1, received_ns + options.budget_ns)
        trace = Trace("", arrival, received_ns, (StageConfig("m", "m:1"),))
        return Submission(number, asyncio.get_running_loop(), trace, PipelineMeter(["m"]))


def options(budget_ms: int) -> RequestOptions:
    return RequestOptions(["y"], 1, "", 4, budget_ms * MS, "")


def play(scenario: Callable[[EqualRequests, HoldingRuntime], None], capacity: int = 1 << 20, room: int = 9) -> Any:
    """The requests that got the answer of another one in a scenario, and those that ran after all."""

    async def run() -> Any:
        runtime = HoldingRuntime(room)
        cache = ResponseCache(capacity, Statistics(), lambda: 0)
        scenario(EqualRequests(cache, runtime), runtime)
        return runtime.answered, runtime.run_after_all

    return asyncio.run(run())


def ask(equal: EqualRequests, budget_ms: int = 100, received_ns: int = 1) -> Submission:
    request = CacheableRequest("m:1", X, options(budget_ms), "", received_ns, None, NO_TRACE)
    return equal.submit(request_key("m:1", X), request, 0)


def test_those_that_wait_get_the_answer_of_the_first() -> None:
    def scenario(equal: EqualRequests, runtime: HoldingRuntime) -> None:
        for _ in range(3):
            ask(equal)
        assert len(runtime.ran) == 1
        runtime.ran[0].settle(Answer(Outcome.COMPLETED, outputs=Y))

    assert play(scenario) == ([(2, [[2.0]]), (3, [[2.0]])], [])


def test_those_that_wait_run_after_all_where_the_first_fails_is_cancelled_or_is_too_large_to_keep() -> None:
    def ends_with(answer: Answer) -> Callable[[EqualRequests, HoldingRuntime], None]:
        def scenario(equal: EqualRequests, runtime: HoldingRuntime) -> None:
            for _ in range(3):
                ask(equal)
            runtime.ran[0].settle(answer)

        return scenario

    for outcome in (Outcome.FAILED_BACKEND, Outcome.CANCELLED_CLIENT, Outcome.REJECTED_DEADLINE):
        assert play(ends_with(Answer(outcome))) == ([], [2, 3])
    assert play(ends_with(Answer(Outcome.COMPLETED, outputs=Y)), capacity=100) == ([], [2, 3])


def test_a_request_with_less_time_does_not_wait() -> None:
    def scenario(equal: EqualRequests, runtime: HoldingRuntime) -> None:
        ask(equal, 100, received_ns=MS)
        ask(equal, 98, received_ns=2 * MS)
        ask(equal, 99, received_ns=2 * MS)
        assert (len(runtime.ran), len(runtime.held)) == (2, 1)
        runtime.ran[1].settle(Answer(Outcome.COMPLETED, outputs=Y))  # none waits for that one
        assert runtime.answered == []
        runtime.ran[0].settle(Answer(Outcome.COMPLETED, outputs=Y))

    assert play(scenario) == ([(3, [[2.0]])], [])


def test_one_that_is_cancelled_waits_no_longer() -> None:
    def scenario(equal: EqualRequests, runtime: HoldingRuntime) -> None:
        for _ in range(3):
            ask(equal)
        runtime.held[0].settle(Answer(Outcome.CANCELLED_CLIENT))
        runtime.ran[0].settle(Answer(Outcome.FAILED_BACKEND))

    assert play(scenario) == ([], [3])


def test_only_a_bounded_number_waits() -> None:
    def scenario(equal: EqualRequests, runtime: HoldingRuntime) -> None:
        for _ in range(4):
            ask(equal)
        assert (len(runtime.ran), len(runtime.held)) == (2, 2)

    assert play(scenario, room=2) == ([], [])


def test_a_request_after_the_answer_runs_by_itself() -> None:
    def scenario(equal: EqualRequests, runtime: HoldingRuntime) -> None:
        ask(equal)
        runtime.ran[0].settle(Answer(Outcome.FAILED_BACKEND))
        ask(equal)
        assert (len(runtime.ran), len(runtime.held)) == (2, 0)

    play(scenario)
