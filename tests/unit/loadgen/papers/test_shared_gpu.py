import pytest

from sluice.loadgen.papers.shared_gpu import TABLE_2, times_s


def test_a_job_takes_as_long_as_its_share_is_small() -> None:
    assert times_s() == pytest.approx({1: 1.0, 2: 2.0, 4: 4.0, 6: 1 / 0.15, 8: 8.0}, rel=0.01)


def test_the_overheads_follow_from_the_printed_times_by_the_printed_formula() -> None:
    assert [round(row.overhead, 2) for row in TABLE_2] == [0.60, 17.56, 17.37]
