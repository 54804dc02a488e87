"""The clairvoyant of the overload benchmark finds the same as a search that tries all batches in every order."""

import functools
import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.support.clairvoyant import most_in_time

Queues = tuple[tuple[int, ...], ...]
Times = tuple[int, ...]


def most_of_all_orders(queues: Queues, mean_ns: Times, most_ns: Times, objective_ns: int) -> int:
    """The most requests in time, of any requests of a queue in a batch, in any order of batches."""

    @functools.cache
    def most_from(waiting: Queues, free_ns: int) -> int:
        best = 0
        for each, queue in enumerate(waiting):
            for rows in range(1, min(len(mean_ns), len(queue)) + 1):
                for batch in itertools.combinations(range(len(queue)), rows):
                    start_ns = max(free_ns, queue[batch[-1]])
                    if start_ns + most_ns[rows - 1] <= queue[batch[0]] + objective_ns:
                        rest = tuple(at_ns for number, at_ns in enumerate(queue) if number not in batch)
                        left = (*waiting[:each], rest, *waiting[each + 1 :])
                        best = max(best, rows + most_from(left, start_ns + mean_ns[rows - 1]))
        return best

    return most_from(queues, 0)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Queues, Times, Times, int]:
    """Up to six requests in one queue or two, batches of up to three, and times that do not fall with the rows."""
    latest_ns = draw(st.sampled_from([5, 15, 30]))
    arrivals = draw(st.lists(st.tuples(st.integers(0, latest_ns), st.integers(0, 1)), max_size=6).map(sorted))
    queues = tuple(tuple(at_ns for at_ns, each in arrivals if each == queue) for queue in (0, 1))
    if draw(st.booleans()):
        queues = (tuple(at_ns for at_ns, _ in arrivals),)
    rows = draw(st.integers(1, 3))
    mean_ns = (draw(st.integers(1, 6)), *(draw(st.integers(0, 4)) for _ in range(rows - 1)))
    mean_ns = tuple(itertools.accumulate(mean_ns))
    over_ns = tuple(itertools.accumulate(draw(st.integers(0, 2)) for _ in range(rows)))
    # Within this the order of arrival is the best one.
    alone_ns = mean_ns[0] + over_ns[0]
    most_ns = tuple(mean + min(over, alone_ns) for mean, over in zip(mean_ns, over_ns, strict=True))
    return queues, mean_ns, most_ns, draw(st.integers(alone_ns - 1, 20))


# The order of two queues decides: by the noise, with a later one that is full first, and with one that is not full yet.
@example((((3, 9), (10, 12)), (7, 8, 14, 18), (9, 10, 18, 22), 12))
@example((((7, 8), (4, 14)), (9, 11, 11), (11, 15, 15), 17))
@example((((1, 4, 6), (3,)), (9, 11), (11, 14), 28))
@settings(max_examples=400, deadline=None)
@given(problems())
def test_nothing_is_better_in_any_order(problem: tuple[Queues, Times, Times, int]) -> None:
    assert most_in_time(*problem) == most_of_all_orders(*problem)


@pytest.mark.parametrize(
    ("queues", "mean_ns", "objective_ns", "expected"),
    [
        pytest.param(((),), (5,), 9, 0, id="no request"),
        pytest.param(((5,),), (5,), 5, 1, id="just in time"),
        pytest.param(((5,),), (5,), 4, 0, id="no time for a batch"),
        pytest.param(((0, 1),), (4, 5), 6, 2, id="a batch of two starts when the second one comes"),
        pytest.param(((0, 1),), (4, 5), 5, 1, id="the batch of two would be late for the first one"),
        pytest.param(((0, 2, 2, 2),), (4, 4, 4), 5, 3, id="one is refused for three that come soon"),
        pytest.param(((0, 0), (0, 0)), (3, 4), 8, 4, id="two queues take turns"),
        pytest.param(((0, 0), (0, 0)), (3, 4), 7, 3, id="the second batch has time for one"),
        pytest.param(((0,), (0,)), (3, 4), 4, 1, id="requests of two queues share no batch"),
        pytest.param(((0, 0),), (3, 4), 4, 2, id="requests of one queue share a batch"),
        pytest.param(((0, 9), (4,)), (5, 6), 9, 3, id="none waits for the second one of its queue"),
    ],
)
def test_without_noise(queues: Queues, mean_ns: Times, objective_ns: int, expected: int) -> None:
    assert most_in_time(queues, mean_ns, mean_ns, objective_ns) == expected


@pytest.mark.parametrize(("objective_ns", "expected"), [(8, 2), (7, 1), (4, 0)])
def test_a_batch_takes_the_mean_but_starts_early_enough_for_the_most(objective_ns: int, expected: int) -> None:
    assert most_in_time(((0, 0),), (3,), (5,), objective_ns) == expected
