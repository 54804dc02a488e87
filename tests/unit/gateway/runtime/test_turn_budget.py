from sluice.batcher.interface.decisions import RejectRequest
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.runtime.turn_budget import is_spent, refusal
from sluice.models.units import NS_PER_MS, NS_PER_S

MS, S = NS_PER_MS, NS_PER_S


def test_arrivals_are_taken_for_a_32nd_of_the_time_that_is_left_and_for_1_to_10_ms() -> None:
    assert not is_spent(RequestArrived(1, "hard:1", 1, 5 * S + 64 * MS), 5 * S, 5 * S + 2 * MS)
    assert is_spent(RequestArrived(1, "hard:1", 1, 5 * S + 64 * MS), 5 * S, 5 * S + 2 * MS + 1)
    assert not is_spent(RequestArrived(2, "hard:1", 1, 5 * S + 8 * MS), 5 * S, 5 * S + 1 * MS)
    assert is_spent(RequestArrived(2, "hard:1", 1, 4 * S), 5 * S, 5 * S + 1 * MS + 1)
    assert not is_spent(RequestArrived(3, "hard:1", 1, 65 * S), 5 * S, 5 * S + 10 * MS)
    assert is_spent(RequestArrived(3, "hard:1", 1, 65 * S), 5 * S, 5 * S + 10 * MS + 1)


def test_a_request_is_refused_that_was_not_looked_at_for_an_8th_of_its_time() -> None:
    arrival = RequestArrived(7, "hard:1", 1, 5 * S + 40 * MS)
    assert refusal(arrival, 5 * S, 5 * S + 5 * MS - 1, 100, 100) is None
    assert refusal(arrival, 5 * S, 5 * S + 5 * MS, 1, 100) == RejectRequest(
        7,
        Outcome.REJECTED_DEADLINE,
        "the server is overloaded: the request had already waited 5.0 of its 40.0 ms",
        retry_after_ns=5 * MS,
    )


def test_no_more_requests_wait_to_be_looked_at_than_there_may_be_under_way() -> None:
    arrival = RequestArrived(7, "hard:1", 1, 65 * S)
    assert refusal(arrival, 5 * S, 5 * S + 2 * MS, 4096, 4096) is None
    assert refusal(arrival, 5 * S, 5 * S + 2 * MS, 4097, 4096) == RejectRequest(
        7,
        Outcome.REJECTED_QUEUE_FULL,
        "the server is overloaded: 4096 requests wait for admission",
        retry_after_ns=2 * MS,
    )
