"""Where a driver is seen to be behind, places are longer, so that no more is admitted than it can do."""

import pytest

from sluice.batcher.interface.decisions import CompleteRequest, DispatchBatch, RejectRequest
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from tests.support.scheduling.builders import MS, ONE, US, S, arrival, completed, model, serving, single, spec_of, step


def hard() -> Scheduler:
    """A model that takes 1 ms, 1.15 ms with the hand-off, and gains nothing from batching."""
    return serving(spec_of([model("m:1", 1)], [single("m:1", Late.EVICT)]), ONE)


def run(scheduler: Scheduler, request: int, way_ns: int) -> None:
    """One request at a time, whose batch is on its way for so long, there and back."""
    now_ns = request * S
    assert len(step(scheduler, now_ns, arrival(request, now_ns + 500 * MS))) == 1
    ended_ns = now_ns + 1 * MS
    step(scheduler, ended_ns + way_ns, completed(request, now_ns, ended_ns))


def refused(scheduler: Scheduler, request: int, now_ns: int, within_ns: int) -> str:
    """Why a request is refused, "" if it is not."""
    decisions = step(scheduler, now_ns, arrival(request, now_ns + within_ns))
    return next((each.reason for each in decisions if isinstance(each, RejectRequest)), "")


def test_what_would_be_late_by_the_hand_offs_that_were_seen_is_refused() -> None:
    """Each of 60 requests was answered after 2 ms; 0.96 ms of hand-off are believed by then."""
    scheduler = hard()
    for request in range(1, 61):
        run(scheduler, request, 1000 * US)
    assert refused(scheduler, 61, 61 * S, 1300 * US) != ""


def test_one_halt_of_the_machine_does_not_count_for_much() -> None:
    """It counts as 8 usual ones, 1.2 ms, of which a twentieth is believed: 52.5 us, halved by the first refusal."""
    scheduler = hard()
    run(scheduler, 1, 400 * MS)
    assert refused(scheduler, 2, 2 * S, 1176 * US) != ""
    assert refused(scheduler, 3, 2 * S, 1177 * US) == ""


def test_what_was_seen_is_forgotten_where_nothing_is_admitted_for_it() -> None:
    """Of the 0.81 ms that are believed beyond the usual ones, every refusal halves what is left: 3 us after eight."""
    scheduler = hard()
    for request in range(1, 61):
        run(scheduler, request, 1000 * US)
    assert any(not refused(scheduler, request, request * S, 1155 * US) for request in range(61, 69))


def test_hand_offs_are_forgotten_only_where_no_batch_is_about_to_show_one() -> None:
    scheduler = hard()
    for request in range(1, 61):
        run(scheduler, request, 1000 * US)
    partition = scheduler.dispatcher.fleet.partitions["cpu0"]
    believed_ns = partition.hand_off_ns
    assert believed_ns == pytest.approx(960 * US, rel=0.01)
    step(scheduler, 61 * S, arrival(61, 62 * S))
    assert refused(scheduler, 62, 61 * S, 1300 * US) != ""
    assert partition.hand_off_ns == believed_ns
    step(scheduler, 61 * S + 2 * MS, completed(61, 61 * S, 61 * S + MS))
    believed_ns = partition.hand_off_ns
    assert refused(scheduler, 63, 63 * S, 1100 * US) != ""
    assert partition.hand_off_ns == (believed_ns + 150 * US) // 2


def second_of_two(scheduler: Scheduler, now_ns: int, within_ns: int) -> Outcome:
    """The outcome of a request that waits for another one to end, and whose own end is known 0.5 ms late."""
    (running,) = step(scheduler, now_ns, arrival(now_ns, now_ns + S))
    assert isinstance(running, DispatchBatch)
    decisions = step(scheduler, now_ns, arrival(now_ns + 1, now_ns + within_ns))
    decisions += step(scheduler, now_ns + 850 * US)
    step(scheduler, now_ns + 1 * MS, completed(running.batch, now_ns, now_ns + 1 * MS))
    (decision,) = decisions
    if isinstance(decision, DispatchBatch):
        ended_ns = now_ns + 2 * MS
        (decision,) = step(scheduler, ended_ns + 500 * US, completed(decision.batch, now_ns + 1 * MS, ended_ns))
    assert isinstance(decision, CompleteRequest | RejectRequest)
    return decision.outcome


def test_where_what_waits_is_answered_late_more_time_is_kept_until_that_is_forgiven() -> None:
    """Planned to end after 2 ms, 2.15 ms with the hand-off, it has 2.2 ms: 0.05 ms more.

    Each late one has 2 % of the 2 ms kept, so 0.08 ms are too much after two. Less is kept once 199 that are in time
    have followed each. A refusal halves it if nothing is under way that could teach more.
    """
    scheduler = hard()
    late, refusal = Outcome.COMPLETED_LATE, Outcome.REJECTED_DEADLINE
    outcomes = [second_of_two(scheduler, number * 100 * MS, 2_200 * US) for number in range(10)]
    assert outcomes == [late] * 2 + [refusal] * 8
    assert second_of_two(scheduler, 1_000 * MS, 2_600 * US) is Outcome.COMPLETED
    assert second_of_two(scheduler, 1_400 * MS, 2_200 * US) is refusal, "another one is under way"
    assert refused(scheduler, 1, 2_500 * MS, 1_000 * US) != ""
    assert second_of_two(scheduler, 2_600 * MS, 2_200 * US) is late
