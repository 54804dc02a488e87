"""A gateway whose own event loop is overloaded, in virtual time that advances with its work."""

import asyncio
from collections import Counter
from functools import partial

import pytest

from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, ScheduledModel, SchedulerSpec, StageConfig
from sluice.batcher.interface.decisions import AnyDecision, RejectRequest
from sluice.batcher.interface.events import AnyEvent, BatchCompleted, OutputsCombined, PartitionReady, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.protocol.answer import Answer
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.runtime.driver import Runtime
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS, NS_PER_S, NS_PER_US
from tests.support.gateway.inventory import PlayedInventory
from tests.support.gateway.runtime_bench import TableService
from tests.support.gateway.timed_executor import TimedExecutor
from tests.support.scheduling.virtual_time import VirtualAlarm, VirtualLoop, run_virtual

SLO_NS = 50 * NS_PER_MS
TABLE = LatencyTable.from_ms({1: 0.03, 8: 0.05, 64: 0.2})
MODELS = ("prep:1", "narrow:1", "broad:1", "kernel:1")
STAGES = (
    StageConfig("prep", MODELS[0]),
    *(StageConfig(model, model, (0,)) for model in MODELS[1:]),
    StageConfig("vote", None, (1, 2, 3)),
)
READ_NS, ANSWER_NS = 120 * NS_PER_US, 60 * NS_PER_US
STEP_NS = {RequestArrived: 280 * NS_PER_US, BatchCompleted: 150 * NS_PER_US, OutputsCombined: 60 * NS_PER_US}
WAKE_NS, OVERDUE_NS = 200 * NS_PER_US, 20 * NS_PER_US
"""The gateway's time for a request, and for a step of the scheduler, about as measured on one core.

An arrival that has waited too long takes a 14th of the time of one that gets places.
"""


class Busy:
    """A runtime whose work advances the virtual clock; `good` counts the requests that are answered in time."""

    def __init__(self, loop: VirtualLoop, requests: int, late: Late = Late.EVICT) -> None:
        self.loop = loop
        self.outcomes: Counter[Outcome] = Counter()
        self.good = 0
        self.over = asyncio.Event()
        self._left = requests
        spec = SchedulerSpec(
            tuple(ScheduledModel(model, 64, DeadlineSettings()) for model in MODELS),
            (PipelineConfig("ensemble:1", STAGES, late=late),),
            (PartitionConfig("cpu0", "cpu1"),),
        )
        tables = dict.fromkeys(MODELS, TABLE)
        metrics = ServerMetrics(
            {"ensemble:1": [stage.name for stage in STAGES]}, ["cpu0"], queues=tuple, arena_bytes=int
        )
        self.runtime = Runtime(
            Scheduler(spec),
            TimedExecutor(TableService(TABLE), loop.clock, [PartitionReady("cpu0", tables)]),
            clock=loop.clock,
            timer=VirtualAlarm(loop),
            metrics=metrics,
            inventory=PlayedInventory("cpu0"),
            observe=self._work,
        )
        self.runtime.start()

    def ask(self) -> int:
        """Read a request, which has come at some time before; returns its number."""
        self.loop.now_ns += READ_NS
        deadline_ns = self.loop.now_ns + SLO_NS
        options = RequestOptions((), 1, "", 0, SLO_NS)
        submission = self.runtime.submit("ensemble:1", {}, options)
        submission.then(partial(self._answered, deadline_ns))
        return submission.request

    def _answered(self, deadline_ns: int, answer: Answer) -> None:
        self.loop.now_ns += ANSWER_NS
        outcome = answer.outcome
        self.outcomes[outcome] += 1
        self.good += outcome.answered and self.loop.now_ns <= deadline_ns
        self._left -= 1
        if not self._left:
            self.over.set()

    def _work(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        is_overdue = any(
            isinstance(each, RejectRequest) and each.reason.startswith("the server is overloaded") for each in decisions
        )
        self.loop.now_ns += WAKE_NS if event is None else OVERDUE_NS if is_overdue else STEP_NS.get(type(event), 0)


@pytest.mark.parametrize("late", list(Late))
@pytest.mark.parametrize(("rate", "least"), [(1000, 495), (2000, 740), (3000, 390)])
def test_an_overloaded_gateway_goes_on_answering_in_time(rate: int, least: int, late: Late) -> None:
    requests = rate // 2  # half a second under full load; the capacity is 1400 a second

    async def main(loop: VirtualLoop) -> Busy:
        busy = Busy(loop, requests, late)
        for number in range(requests):
            loop.at((number + 1) * NS_PER_S // rate, busy.ask)
        await busy.over.wait()
        busy.runtime.close()
        return busy

    busy = run_virtual(main)
    assert busy.outcomes.total() == requests
    assert busy.good >= least
    assert busy.outcomes[Outcome.EVICTED_DEADLINE] + busy.outcomes[Outcome.COMPLETED_LATE] <= requests // 100


def test_requests_that_wait_for_their_turn_when_the_server_stops_are_refused() -> None:
    async def main(loop: VirtualLoop) -> None:
        busy = Busy(loop, 200)
        for _ in range(200):
            busy.ask()
        await busy.runtime.drain(0)
        assert busy.runtime.close() == 0
        await busy.over.wait()
        assert busy.outcomes == {Outcome.REJECTED_DRAINING: 200}

    run_virtual(main)


def test_a_request_that_is_cancelled_before_its_turn_takes_no_time_of_a_worker() -> None:
    async def main(loop: VirtualLoop) -> None:
        busy = Busy(loop, 20)
        await asyncio.sleep(0)
        requests = [busy.ask() for _ in range(20)]
        await asyncio.sleep(0)
        assert busy.runtime.in_flight == 20
        busy.runtime.cancel(requests[-1])
        await busy.over.wait()
        busy.runtime.close()
        assert busy.outcomes == {Outcome.COMPLETED: 19, Outcome.CANCELLED_CLIENT: 1}
        assert busy.runtime.traces.find("sluice-20").runs == ()

    run_virtual(main)
