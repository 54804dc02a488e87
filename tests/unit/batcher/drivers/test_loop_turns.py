from sluice.batcher.drivers.loop_turns import LoopTurns, is_spent
from sluice.batcher.interface.events import LoopDelayed, RequestArrived
from tests.support.scheduling.builders import MS, S


def test_arrivals_are_taken_for_a_32nd_of_the_time_that_is_left_and_for_1_to_10_ms() -> None:
    assert not is_spent(RequestArrived(1, "hard:1", 1, 5 * S + 64 * MS), 5 * S, 5 * S + 2 * MS)
    assert is_spent(RequestArrived(1, "hard:1", 1, 5 * S + 64 * MS), 5 * S, 5 * S + 2 * MS + 1)
    assert not is_spent(RequestArrived(2, "hard:1", 1, 5 * S + 8 * MS), 5 * S, 5 * S + 1 * MS)
    assert is_spent(RequestArrived(2, "hard:1", 1, 4 * S), 5 * S, 5 * S + 1 * MS + 1)
    assert not is_spent(RequestArrived(3, "hard:1", 1, 65 * S), 5 * S, 5 * S + 10 * MS)
    assert is_spent(RequestArrived(3, "hard:1", 1, 65 * S), 5 * S, 5 * S + 10 * MS + 1)


def test_a_quick_loop_has_nothing_to_report() -> None:
    turns = LoopTurns()
    for number in range(3):
        assert turns.begin(S + number * MS) is None
        turns.end(S + (number + 1) * MS, 0)


def test_a_turn_of_more_than_1_ms_is_reported_before_the_next_one_and_its_end_once() -> None:
    turns = LoopTurns()
    assert turns.begin(S) is None
    turns.end(S + 3 * MS, 0)
    assert turns.begin(S + 3 * MS) == LoopDelayed(3 * MS, 0)
    turns.end(S + 4 * MS, 0)
    assert turns.begin(S + 4 * MS) == LoopDelayed(0, 0)
    turns.end(S + 5 * MS, 0)
    assert turns.begin(S + 5 * MS) is None


def test_arrivals_that_are_left_are_reported_however_long_the_turn_took() -> None:
    turns = LoopTurns()
    assert turns.begin(S) is None
    turns.end(S + MS, 7)
    assert turns.begin(S + 3 * MS) == LoopDelayed(MS, 7)


def test_a_long_turn_delays_nothing_once_the_loop_was_idle() -> None:
    turns = LoopTurns()
    assert turns.begin(S) is None
    turns.end(S + 3 * MS, 0)
    assert turns.begin(S + 4 * MS + 1) is None
