"""Counting the work of a request."""

from sluice.loadgen.papers.growth import Instructions, play


def loop(rounds: int) -> int:
    total = 0
    for number in range(rounds):
        total += number
    return total


def counted(rounds: int) -> int:
    with Instructions() as instructions:
        loop(rounds)
    return instructions.count


def test_each_round_of_a_loop_counts_the_same() -> None:
    once, twice, thrice = counted(100), counted(200), counted(300)
    assert thrice - twice == twice - once >= 100 * 4


def test_the_same_run_has_the_same_count() -> None:
    assert play(10, 10, 20) == play(10, 10, 20)
