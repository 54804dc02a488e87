import numpy as np
import pytest

from sluice.loadgen.traffic.mersenne import Mersenne


def test_the_ten_thousandth_word_is_the_one_in_the_standard_of_cpp() -> None:
    # [rand.predef]: the 10000th invocation of a default-constructed mt19937 (seed 5489) gives 4123659995. A number
    # below 2**32 - 1 is the word itself, less one where the word is not 0.
    drawn = Mersenne(5489).below(np.full(10_000, 2**32 - 1))
    assert drawn[-1] == 4123659995 - 1


def test_only_the_lower_half_of_a_seed_counts() -> None:
    bounds = np.full(100, 1000)
    assert Mersenne(2**40 + 5489).below(bounds).tolist() == Mersenne(5489).below(bounds).tolist()


def test_gaps_are_those_of_libstdcxx() -> None:
    # Printed by a C++ program: g++ 12, std::exponential_distribution<>(1000), seed 16159082839903944936.
    gaps = Mersenne(16159082839903944936).exponential_ns(4, 1000.0)
    assert gaps.tolist() == [1_843_654, 457_923, 1_285_862, 712_994]


def test_draws_do_not_depend_on_how_they_are_asked_for() -> None:
    bounds = np.arange(1, 20_000) * 200_000
    whole = Mersenne(3).below(bounds)
    engine = Mersenne(3)
    assert np.concatenate([engine.below(part) for part in np.array_split(bounds, 7)]).tolist() == whole.tolist()
    assert (whole < bounds).all()
    assert whole.min() >= 0


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, [0]),
        (2, [0, 1]),
        (7, [3, 2, 4, 6, 1, 5, 0]),
        (8, [2, 3, 0, 5, 4, 6, 7, 1]),
        (1000, [206, 21, 488, 311, 554, 455, 909, 113]),
        (70_000, [49860, 33005, 32937, 42750, 57907, 23392, 68122, 62928]),
    ],
)
def test_a_shuffle_is_that_of_libstdcxx(size: int, expected: list[int]) -> None:
    # Printed by a C++ program: g++ 12, std::shuffle of 0, 1, 2 …, seed 5489; the first eight places.
    assert Mersenne(5489).shuffle(np.arange(size))[:8].tolist() == expected


def test_a_shuffle_keeps_all_values() -> None:
    shuffled = Mersenne(1).shuffle(np.arange(70_000))
    assert sorted(shuffled.tolist()) == list(range(70_000))
