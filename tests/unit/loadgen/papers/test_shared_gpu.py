import pytest

from sluice.loadgen.papers.engines.live_loads import LoadTimes
from sluice.loadgen.papers.engines.live_shares import SharedTimes
from sluice.loadgen.papers.engines.shared_device import ShareCap
from sluice.loadgen.papers.shared_gpu import ISOLATED_GB, TABLE_2, fits_card, others_s, times_s


def test_a_job_takes_as_long_as_its_share_is_small() -> None:
    assert times_s() == pytest.approx({1: 1.0, 2: 2.0, 4: 4.0, 6: 1 / 0.15, 8: 8.0}, rel=0.01)


def test_the_overheads_follow_from_the_printed_times_by_the_printed_formula() -> None:
    assert [round(row.overhead, 2) for row in TABLE_2] == [0.60, 17.56, 17.37]


@pytest.mark.parametrize("cap", [ShareCap.HARD, ShareCap.ELASTIC])
@pytest.mark.parametrize("count", [2, 8])
def test_a_job_with_more_work_than_the_others_does_not_slow_them_down(cap: ShareCap, count: int) -> None:
    assert others_s(cap, count, work_s=2.0) == pytest.approx(count, rel=0.01)


def test_the_card_has_the_shares_of_table_4_and_none_more() -> None:
    assert [fits_card(count) for count in ISOLATED_GB] == [True] * 3
    assert [fits_card(count, more=1) for count in ISOLATED_GB] == [False] * 3


def test_the_overhead_is_the_median_of_the_rounds() -> None:
    assert SharedTimes((2.0, 1.0, 1.0), (3.0, 1.1, 1.2)).overhead == pytest.approx(0.2)


def test_loads_are_compared_by_their_medians_with_those_of_a_second_worker() -> None:
    times = LoadTimes(shared_s=(0.1, 0.1, 9.0), same_s=(0.8, 0.8, 0.1), other_s=(1.0, 1.0, 5.0))
    assert (times.shared, times.same) == pytest.approx((-0.9, -0.2))
