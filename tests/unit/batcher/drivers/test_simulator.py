"""The simulator on a host that takes time: when the event loop gets to what comes, and when clients have answers."""

from collections.abc import Iterable
from functools import partial
from itertools import repeat

from sluice.batcher.drivers.simulated_machine import Host
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.decisions import AnyDecision, DispatchBatch
from sluice.batcher.interface.events import (
    AnyEvent,
    BatchCompleted,
    LoopDelayed,
    PartitionReady,
    RequestArrived,
    RequestCancelled,
)
from sluice.batcher.policies.no_batching import NoBatchingSettings
from sluice.batcher.scheduler.scheduler import Scheduler
from tests.support.scheduling.builders import MS, ONE, US, S, arrival, model, spec_of
from tests.support.scheduling.services import WithoutConfidences

HOST = Host(
    send_ns=1 * US,
    receive_ns=2 * US,
    handle_ns=4 * US,
    dispatch_ns=8 * US,
    dispatch_row_ns=16 * US,
    hand_off_ns=32 * US,
    between_ns=64 * US,
    return_ns=128 * US,
    complete_ns=256 * US,
    answers_ns=512 * US,
    answer_ns=1024 * US,
    deliver_ns=2048 * US,
)


class OneMillisecond(WithoutConfidences):
    """Every batch takes 1 ms."""

    def batch_ns(self, batch: DispatchBatch) -> int:
        return MS


class Run:
    """A run without batching, and what became of its requests."""

    def __init__(self, host: Host | None, arrived_ns: list[int], strays_ns: Iterable[int] = repeat(0)) -> None:
        self.answered_ns: dict[int, int] = {}
        self.handled_ns: list[tuple[str, int]] = []
        self.batches: list[BatchCompleted] = []
        self.delays: list[tuple[int, LoopDelayed]] = []
        self.received_ns: list[int] = []
        spec = spec_of([model("m:1", policy=NoBatchingSettings())])
        answered, stray_ns = self.answered_ns.__setitem__, partial(next, iter(strays_ns))
        simulator = Simulator(Scheduler(spec), OneMillisecond(), self.observe, host, answered, stray_ns=stray_ns)
        simulator.at(0, PartitionReady("cpu0", {"m:1": ONE}))
        simulator.run((time_ns, arrival(request, 10**12)) for request, time_ns in enumerate(arrived_ns))

    def observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        if isinstance(event, RequestArrived | BatchCompleted):
            self.handled_ns.append((type(event).__name__, now_ns))
        if isinstance(event, BatchCompleted):
            self.batches.append(event)
        elif isinstance(event, LoopDelayed):
            self.delays.append((now_ns, event))
        elif isinstance(event, RequestArrived):
            self.received_ns.append(event.received_ns)


def test_an_ideal_host_takes_no_time() -> None:
    run = Run(None, [5 * MS])
    assert run.handled_ns == [("RequestArrived", 5 * MS), ("BatchCompleted", 6 * MS)]
    assert run.answered_ns == {0: 6 * MS}


def test_every_step_of_a_lone_request_takes_its_time() -> None:
    run = Run(HOST, [5 * MS])
    handled_ns = 5 * MS + (1 + 2) * US
    started_ns = handled_ns + (4 + 8 + 16 + 32) * US
    noticed_ns = started_ns + MS + (128 + 256) * US
    assert run.handled_ns == [("RequestArrived", handled_ns), ("BatchCompleted", noticed_ns)]
    assert [(batch.started_ns, batch.ended_ns) for batch in run.batches] == [(started_ns, started_ns + MS)]
    assert run.answered_ns == {0: noticed_ns + (4 + 512 + 1024 + 2048) * US}


def test_what_comes_while_the_loop_is_busy_is_handled_together_when_it_is_free() -> None:
    # The first is handled at 4 us, and the loop is busy with its batch until 30 us.
    run = Run(Host(receive_ns=4 * US, handle_ns=2 * US, dispatch_ns=24 * US), [5 * MS, 5 * MS + US, 5 * MS + 20 * US])
    arrivals = [now_ns - 5 * MS for name, now_ns in run.handled_ns if name == "RequestArrived"]
    assert arrivals == [4 * US, 38 * US, 38 * US]


def test_what_is_read_in_one_turn_had_come_at_its_begin() -> None:
    run = Run(Host(receive_ns=4 * US, handle_ns=2 * US, dispatch_ns=24 * US), [5 * MS, 5 * MS + US, 5 * MS + 20 * US])
    assert run.received_ns == [5 * MS, 5 * MS + 30 * US, 5 * MS + 30 * US]
    assert run.delays == []


def test_arrivals_for_which_a_turn_has_no_time_wait_for_the_next_and_the_scheduler_hears_of_it() -> None:
    # With so much time left, a turn takes arrivals for 10 ms.
    run = Run(Host(handle_ns=6 * MS), [5 * MS] * 5)
    arrivals = [now_ns for name, now_ns in run.handled_ns if name == "RequestArrived"]
    assert arrivals == [5 * MS, 5 * MS, 5 * MS, 23 * MS, 23 * MS]
    assert run.received_ns == [5 * MS] * 5
    assert run.delays[0] == (23 * MS, LoopDelayed(18 * MS, 2))
    assert [delay.waiting for _, delay in run.delays[1:]] == [0] * (len(run.delays) - 1)
    assert run.answered_ns.keys() == set(range(5))


def test_answers_leave_one_after_the_other_and_after_the_next_batch() -> None:
    host = Host(dispatch_ns=10 * US, answer_ns=100 * US)
    run = Run(host, [5 * MS, 5 * MS])
    first, second = run.batches
    assert (first.started_ns, second.started_ns) == (5 * MS + 10 * US, 6 * MS + 10 * US)
    assert run.answered_ns == {0: 6 * MS + 110 * US, 1: 7 * MS + 110 * US}


def test_a_worker_takes_a_while_between_two_batches() -> None:
    run = Run(Host(between_ns=70 * US), [5 * MS, 5 * MS])
    assert [batch.started_ns for batch in run.batches] == [5 * MS, 6 * MS + 70 * US]


def test_a_host_changes_when_things_happen_not_what_becomes_of_requests() -> None:
    arrived_ns = [number * 700 * US for number in range(1, 200)]
    assert Run(HOST, arrived_ns).answered_ns.keys() == Run(None, arrived_ns).answered_ns.keys() == set(range(199))


def test_times_of_a_host_are_the_same_in_every_run() -> None:
    arrived_ns = [number * 700 * US for number in range(1, 200)]
    assert Run(HOST, arrived_ns).answered_ns == Run(HOST, arrived_ns).answered_ns


def test_ways_of_batches_stray() -> None:
    host = Host(hand_off_ns=30 * US, return_ns=40 * US)
    run = Run(host, [5 * MS, 15 * MS], [500 * US, 200 * US, -50 * US, -10 * US])
    assert [(batch.started_ns, batch.ended_ns) for batch in run.batches] == [
        (5 * MS + 530 * US, 6 * MS + 530 * US),
        (15 * MS, 16 * MS),  # no way takes less than no time
    ]
    assert [time_ns for event, time_ns in run.handled_ns if event == "BatchCompleted"] == [
        6 * MS + 770 * US,
        16 * MS + 30 * US,
    ]


def test_a_worker_tells_of_its_batches_in_order() -> None:
    run = Run(Host(), [5 * MS, 5 * MS], [0, 3 * MS, 0, 0])
    assert [time_ns for event, time_ns in run.handled_ns if event == "BatchCompleted"] == [9 * MS, 9 * MS]
    assert [batch.batch for batch in run.batches] == [1, 2]


def test_a_batch_that_is_taken_back_leaves_the_worker_free_when_the_one_before_it_ends() -> None:
    batches: list[BatchCompleted] = []

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        if isinstance(event, BatchCompleted):
            batches.append(event)

    spec = spec_of([model("m:1", 1)])
    simulator = Simulator(Scheduler(spec), OneMillisecond(), observe, Host(between_ns=70 * US))
    for at_ns, event in (
        (0, PartitionReady("cpu0", {"m:1": ONE})),
        (5 * MS, arrival(1, S)),
        (5 * MS, arrival(2, S)),
        (5 * MS + 900 * US, RequestCancelled(2)),
        (5 * MS + 950 * US, arrival(3, S)),
    ):
        simulator.at(at_ns, event)
    simulator.run()
    assert [(batch.batch, batch.started_ns) for batch in batches] == [(1, 5 * MS), (3, 6 * MS + 70 * US)]
