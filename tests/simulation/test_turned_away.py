"""Pipelines whose requests cannot wait for a load, in virtual time: the most requested models are loaded again."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.scheduling.builders import S
from tests.support.scheduling.contention import LOAD_NS, Contention, Traffic

LONG_NS = 10 * S


def test_an_evicted_model_comes_back_when_the_others_are_requested_less() -> None:
    run = Contention([Traffic("short", 100), Traffic("long", 50, 5, 8, objective_ns=LONG_NS)])
    assert run.served("short", 1, 5) == 1
    assert run.served("long") == 1
    assert run.served("short", 5, 8) < 0.5
    assert run.served("short", 9, 20) == 1


def test_a_model_comes_back_within_the_time_that_demand_is_remembered_when_the_others_fall_silent() -> None:
    run = Contention([Traffic("before", 100, 0, 10), Traffic("after", 100, 10, 20)])
    assert run.served("before", 1, 10) == 1
    assert run.served("after", 15, 20) == 1
    assert run.loads == 2


def test_a_less_requested_model_does_not_take_turns_with_a_more_requested_one() -> None:
    run = Contention(
        [Traffic("most", 60, until_s=10), Traffic("more", 30, until_s=10), Traffic("less", 10, until_s=10)], 2
    )
    assert run.served("most", 1) == run.served("more", 1) == 1
    assert run.loads == 2


def test_a_model_of_a_partition_that_stays_lost_comes_back_on_another() -> None:
    traffic = [Traffic("most", 60, until_s=16), Traffic("less", 10, until_s=16)]
    run = Contention(traffic, 2, lost_s={"p0": 4})
    assert run.served("most", 1, 3.9) == run.served("less", 1, 3.9) == 1
    assert run.served("most", 12) == 1
    run = Contention(traffic, 2, lost_s={"p1": 4})
    assert run.served("most", 12) == 1


def test_seldom_requested_models_take_turns_and_loads_take_less_than_half_of_the_time() -> None:
    run = Contention([Traffic(key, 1, until_s=200) for key in "ab"])
    assert min(run.served(key) for key in "ab") > 0.2
    assert run.loads * LOAD_NS < 0.05 * 200 * S


@settings(deadline=None, max_examples=6)
@given(st.lists(st.sampled_from((4, 16, 64)), min_size=2, max_size=5), st.integers(1, 3), st.integers(0, 10**6))
def test_no_model_starves_while_less_requested_models_are_served(rates: list[int], partitions: int, seed: int) -> None:
    run = Contention([Traffic(f"m{n}", rate, until_s=12) for n, rate in enumerate(rates)], partitions, seed)
    share = [run.served(f"m{n}", 6) for n in range(len(rates))]
    for mine, rate in zip(share, rates, strict=True):
        less = [other for other, other_rate in zip(share, rates, strict=True) if other_rate < rate]
        assert mine > 0.8 or max(less, default=0) < 0.5, "one is served that is asked for less"
        if sum(other >= rate for other in rates) <= partitions:
            assert mine > 0.5, "one is not served although there is room for it"
