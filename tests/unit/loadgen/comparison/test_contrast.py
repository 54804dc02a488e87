from dataclasses import replace

import pytest

from sluice.loadgen.comparison.contrast import ComparisonVerdict, Contrast, compare
from sluice.models.errors import ConfigError
from tests.unit.loadgen.comparison.runs import compared


def contrast(name: str, first: list[float], second: list[float]) -> Contrast:
    """The contrast of p50s, or of attainments."""
    sides = [
        [compared(seed, value) if name == "p50" else compared(seed, 10.0, attainment=value)
         for seed, value in enumerate(values)]
        for values in (first, second)
    ]  # fmt: skip
    found = compare(sides[0], sides[1], 0.05)
    return next(each for each in found.contrasts if each.figure.name == name)


def test_equal_runs_are_the_same() -> None:
    found = contrast("p50", [10.0, 12.0, 9.0], [10.0, 12.0, 9.0])
    assert (found.ratio, found.interval.low, found.interval.high) == (1.0, 1.0, 1.0)
    assert found.verdict is ComparisonVerdict.SAME
    assert not found.undecided


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [
        (1.10, ComparisonVerdict.WORSE),
        (1.04, ComparisonVerdict.SAME),
        (0.96, ComparisonVerdict.SAME),
        (0.90, ComparisonVerdict.BETTER),
    ],
)
def test_a_difference_counts_from_the_threshold_on(factor: float, verdict: ComparisonVerdict) -> None:
    base = [10.0, 15.0, 8.0, 11.0]
    found = contrast("p50", base, [value * factor for value in base])
    assert found.verdict is verdict
    assert found.ratio == pytest.approx(factor)


def test_what_the_arrivals_do_cancels_in_pairs_although_it_is_larger_than_the_difference() -> None:
    # The runs of a side differ fourfold, the sides by 10 % in every pair.
    base = [10.0, 20.0, 40.0, 15.0, 30.0]
    assert contrast("p50", base, [value * 1.1 for value in base]).verdict is ComparisonVerdict.WORSE


def test_a_large_difference_of_the_mean_with_too_much_chance_is_no_proof() -> None:
    found = contrast("p50", [10.0, 10.0, 10.0], [9.0, 20.0, 10.0])
    assert found.ratio > 1.2
    assert found.verdict is ComparisonVerdict.SAME
    assert found.undecided


def test_more_good_queries_are_better() -> None:
    assert contrast("attainment", [0.8, 0.8, 0.8], [0.95, 0.96, 0.97]).verdict is ComparisonVerdict.BETTER
    assert contrast("attainment", [0.95, 0.96, 0.97], [0.8, 0.8, 0.8]).verdict is ComparisonVerdict.WORSE


def test_a_target_without_answers_is_worse_and_one_against_another_is_the_same() -> None:
    alive = [compared(seed, 10.0) for seed in range(3)]
    dead = [compared(seed, 0.0, None, 0.0) for seed in range(3)]
    assert compare(alive, dead, 0.05).verdict is ComparisonVerdict.WORSE
    assert compare(dead, alive, 0.05).verdict is ComparisonVerdict.BETTER
    assert compare(dead, dead, 0.05).verdict is ComparisonVerdict.SAME


def test_one_worse_figure_makes_a_target_worse() -> None:
    first = [compared(seed, 10.0, 50.0) for seed in range(3)]
    second = [compared(seed, 5.0, 80.0) for seed in range(3)]
    assert compare(first, second, 0.05).verdict is ComparisonVerdict.WORSE


def test_runs_are_paired_by_their_schedules_and_not_by_their_order() -> None:
    first = [compared(seed, 10.0 * (seed + 1)) for seed in range(3)]
    assert compare(first, list(reversed(first)), 0.05).verdict is ComparisonVerdict.SAME


@pytest.mark.parametrize(
    ("seeds", "others", "message"),
    [
        ([0, 1], [0, 1], "2 pairs of runs; expected at least 3"),
        ([0, 1, 2], [0, 1, 3], "run 2 played schedule 0000000000000000"),
        ([0, 1, 2], [0, 1, 2, 3], "run 3 played schedule"),
        ([0, 1, 2, 2], [0, 1, 2], "run 2 played schedule"),
    ],
)
def test_runs_that_make_no_pairs_are_refused(seeds: list[int], others: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compare([compared(seed, 1.0) for seed in seeds], [compared(seed, 1.0) for seed in others], 0.05)


def test_runs_with_different_objectives_are_refused() -> None:
    first = [compared(seed, 1.0) for seed in range(3)]
    second = [replace(run, slo_ms=50.0) for run in first]
    with pytest.raises(ConfigError, match=r"run 0 has --slo-ms 100\.0, run 0 has 50\.0"):
        compare(first, second, 0.05)


def test_the_limits_of_all_runs_are_listed() -> None:
    first = [compared(seed, 1.0) for seed in range(3)]
    second = [replace(first[0], limits=("late",)), *first[1:]]
    assert compare(first, second, 0.05).limits == ["run 0: late"]
