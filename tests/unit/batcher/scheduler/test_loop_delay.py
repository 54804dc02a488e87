"""Requests while the driver's loop is behind: who is refused without a search for places, and what places keep."""

from sluice.batcher.interface.config import Limits
from sluice.batcher.interface.decisions import CompleteRequest, DispatchBatch, RejectRequest
from sluice.batcher.interface.events import BatchCompleted, DrainStarted, LoopDelayed, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.scheduler.scheduler import Scheduler
from tests.support.scheduling.builders import MS, ONE, US, S, chain, model, serving, spec_of, step


def read(request: int, received_ns: int, slo_ns: int, pipeline: str = "m:1", client: str = "") -> RequestArrived:
    """A request of one row that the machine had at `received_ns`."""
    return RequestArrived(request, pipeline, 1, received_ns + slo_ns, client=client, received_ns=received_ns)


def one_model(queue_requests: int = 4096) -> Scheduler:
    return serving(spec_of([model("m:1")], limits=Limits(queue_requests=queue_requests)), ONE)


def overdue(request: int, waited_ms: float, budget_ms: float) -> RejectRequest:
    return RejectRequest(
        request,
        Outcome.REJECTED_DEADLINE,
        f"the server is overloaded: the request had already waited {waited_ms:.1f} of its {budget_ms:.1f} ms",
        round(waited_ms * MS),
    )


def admitted(scheduler: Scheduler, now_ns: int, request: RequestArrived) -> bool:
    """Handle an arrival; it is admitted if there is no decision on it yet."""
    return scheduler.handle(request, now_ns) == []


def test_a_request_that_has_waited_for_an_8th_of_its_time_is_refused_while_the_loop_is_behind() -> None:
    scheduler = one_model()
    step(scheduler, S, LoopDelayed(2 * MS, 3))
    now_ns = S + 20 * MS
    assert admitted(scheduler, now_ns, read(1, now_ns - 5 * MS + 1, 40 * MS))
    assert scheduler.handle(read(2, now_ns - 5 * MS, 40 * MS), now_ns) == [overdue(2, 5, 40)]


def test_a_wait_counts_from_when_the_loop_fell_behind() -> None:
    scheduler = one_model()
    step(scheduler, S, LoopDelayed(2 * MS, 30))
    assert admitted(scheduler, S, read(1, S - 10 * MS, 40 * MS))
    step(scheduler, S + 2 * MS, LoopDelayed(2 * MS, 20))
    assert admitted(scheduler, S + 5 * MS - 1, read(2, S - 10 * MS, 40 * MS))
    assert scheduler.handle(read(3, S - 10 * MS, 40 * MS), S + 5 * MS) == [overdue(3, 15, 40)]


def test_no_wait_is_too_long_once_the_loop_has_caught_up() -> None:
    scheduler = one_model()
    step(scheduler, S, LoopDelayed(2 * MS, 3))
    step(scheduler, S + 50 * MS, LoopDelayed(0, 0))
    assert admitted(scheduler, S + 50 * MS, read(1, S + 20 * MS, 40 * MS))
    step(scheduler, S + 60 * MS, LoopDelayed(2 * MS, 0))  # it took long, but it left nothing
    assert admitted(scheduler, S + 60 * MS, read(2, S + 30 * MS, 40 * MS))


def test_an_arrival_of_unknown_age_has_not_waited() -> None:
    scheduler = one_model()
    step(scheduler, S, LoopDelayed(2 * MS, 3))
    assert admitted(scheduler, S + 20 * MS, RequestArrived(1, "m:1", 1, S + 40 * MS))


def test_as_many_of_the_oldest_are_refused_as_too_many_wait() -> None:
    scheduler = one_model(queue_requests=4)
    step(scheduler, S, LoopDelayed(2 * MS, 6))
    refusals = [scheduler.handle(read(request, S - 2 * MS, S), S) for request in (1, 2, 3)]
    full = Outcome.REJECTED_QUEUE_FULL
    reason = "the server is overloaded: 4 requests wait for admission"
    assert refusals == [[RejectRequest(1, full, reason, 2 * MS)], [RejectRequest(2, full, reason, 2 * MS)], []]


def test_places_keep_half_the_lag_of_the_loop_until_it_is_forgotten() -> None:
    # A batch takes 1.15 ms with its hand-off; the first request is there since an idle pipeline admits a probe.
    scheduler = one_model()
    step(scheduler, S, LoopDelayed(8 * MS, 0))
    assert admitted(scheduler, S, read(0, S, S))
    (refused,) = scheduler.handle(read(1, S, 5 * MS), S)
    assert refused == RejectRequest(
        1, Outcome.REJECTED_DEADLINE, "predicted to complete in 5.2 ms, 5.0 ms are left", 150 * US
    )
    assert admitted(scheduler, S + 10 * MS, read(2, S + 10 * MS, 5 * MS))  # 4 ms are left of the lag
    assert scheduler.handle(read(3, S + 10 * MS, 3 * MS), S + 10 * MS) != []
    assert admitted(scheduler, S + 30 * MS, read(4, S + 30 * MS, 5 * MS))


def test_a_request_of_several_stages_keeps_the_lag_once() -> None:
    # Two batches take 2.3 ms with their hand-offs. What a later stage waits for the loop is a part of those.
    pipeline = chain("m:1", "m:1")
    scheduler = serving(spec_of([model("m:1")], [pipeline]), ONE)
    step(scheduler, S, LoopDelayed(8 * MS, 0))
    assert admitted(scheduler, S, read(0, S, S, pipeline.name))
    assert scheduler.handle(read(1, S, 6 * MS, pipeline.name), S) != []
    assert admitted(scheduler, S, read(2, S, 7 * MS, pipeline.name))


def test_a_longer_lag_counts_at_once() -> None:
    scheduler = one_model()
    step(scheduler, S, LoopDelayed(2 * MS, 0))
    assert admitted(scheduler, S, read(1, S, 5 * MS))
    step(scheduler, S + MS, LoopDelayed(8 * MS, 0))
    assert scheduler.handle(read(2, S + MS, 5 * MS), S + MS) != []


def test_the_lag_does_not_count_against_the_answer() -> None:
    scheduler = one_model()
    step(scheduler, S, LoopDelayed(8 * MS, 0))
    (batch,) = step(scheduler, S, read(1, S, 6 * MS))
    assert isinstance(batch, DispatchBatch)
    decisions = step(scheduler, S + 6 * MS, BatchCompleted(batch.batch, S, S + MS))
    assert decisions == [CompleteRequest(1, Outcome.COMPLETED)]


def test_what_is_refused_counts_as_demand() -> None:
    scheduler = one_model()
    pipeline = scheduler.pipelines["m:1"]
    step(scheduler, S, LoopDelayed(2 * MS, 30))
    for request in range(1, 31):
        now_ns = S + request * MS
        decisions = scheduler.handle(read(request, now_ns - 20 * MS, 40 * MS, client="one"), now_ns)
        assert bool(decisions) == (request >= 5)
    assert pipeline.arrived_rows == 30
    assert pipeline.row_gap_ns == pipeline.clients["one"].row_gap_ns == MS
    assert pipeline.outstanding == 4


def test_a_server_that_stops_says_so_first() -> None:
    scheduler = one_model()
    step(scheduler, S, LoopDelayed(2 * MS, 5000), DrainStarted())
    (refused,) = scheduler.handle(read(1, S - 20 * MS, 40 * MS), S)
    assert isinstance(refused, RejectRequest)
    assert refused.outcome is Outcome.REJECTED_DRAINING
