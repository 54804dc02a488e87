import math

import pytest

from sluice.loadgen.records.early_stopping import confirmed, misses_allowed, queries_for_share, queries_needed

MISSES = (0, 1, 2, 3, 5, 10, 20, 50, 100, 1000)
# Computed with scipy.special.betainc; 64, 662 and 10215 are also what MLPerf's LoadGen prints.
NEEDED = {
    90.0: (44, 64, 81, 97, 127, 197, 325, 681, 1246, 10722),
    95.0: (90, 130, 165, 198, 259, 398, 656, 1372, 2504, 21483),
    97.0: (152, 219, 277, 332, 433, 667, 1097, 2293, 4182, 35831),
    99.0: (459, 662, 838, 1001, 1307, 2010, 3304, 6898, 12571, 107569),
    99.9: (4603, 6636, 8403, 10042, 13105, 20140, 33097, 69058, 125826, 1076032),
}


@pytest.mark.parametrize("percentile", NEEDED)
def test_queries_needed_agrees_with_the_published_rule(percentile: float) -> None:
    assert tuple(queries_needed(misses, percentile) for misses in MISSES) == NEEDED[percentile]


def test_a_loadgen_printout() -> None:
    assert queries_needed(79, 99.0) == 10_215


def test_confirmed_from_exactly_the_number_needed() -> None:
    assert not confirmed(458, 0, 99.0)
    assert confirmed(459, 0, 99.0)
    assert not confirmed(661, 1, 99.0)
    assert confirmed(662, 1, 99.0)


@pytest.mark.parametrize(("queries", "misses"), [(0, 0), (1, 1), (100, 100), (1_000_000, 10_000)])
def test_misses_at_or_above_the_share_allowed_are_never_confirmed(queries: int, misses: int) -> None:
    assert not confirmed(queries, misses, 99.0)


def test_misses_allowed_is_the_inverse_of_queries_needed() -> None:
    assert [misses_allowed(queries, 99.0) for queries in (458, 459, 661, 662, 2009, 2010)] == [-1, 0, 0, 1, 9, 10]
    # LoadGen discards 545 of 6001 queries at the 90th percentile, and 16 of 3001 at the 99th.
    assert (misses_allowed(6001, 90.0), misses_allowed(3001, 99.0)) == (546, 17)


def test_a_share_of_misses_below_the_allowed_one_takes_longer_the_closer_it_is() -> None:
    assert queries_for_share(0.0, 99.0) == 459
    for share in (0.002, 0.005, 0.009):
        queries = queries_for_share(share, 99.0)
        assert queries is not None
        assert confirmed(queries, math.ceil(queries * share), 99.0)
        assert not confirmed(queries * 9 // 10, math.ceil(queries * 9 // 10 * share), 99.0)
    assert queries_for_share(0.01, 99.0) is None
    assert queries_for_share(0.5, 99.0) is None
