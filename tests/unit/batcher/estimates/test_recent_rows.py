import pytest

from sluice.batcher.estimates.recent_rows import RecentRows
from tests.support.scheduling.builders import MS, S

MEMORY_NS = S // 4


def test_of_a_pipeline_that_had_nothing_admitted_nothing_is_expected() -> None:
    assert RecentRows(MEMORY_NS).within(S, 10 * S) == 0


@pytest.mark.parametrize("gap_ns", [MS, 10 * MS])
def test_a_steady_stream_is_expected_to_go_on(gap_ns: int) -> None:
    inflow = RecentRows(MEMORY_NS)
    for number in range(3_000):
        inflow.add(4, number * gap_ns)
    assert inflow.within(100 * MS, 2_999 * gap_ns) == pytest.approx(4 * 100 * MS / gap_ns, rel=0.01)


def test_what_was_admitted_is_forgotten() -> None:
    inflow = RecentRows(MEMORY_NS)
    inflow.add(10, 5 * S)
    assert inflow.within(MEMORY_NS, 5 * S) == 10
    assert inflow.within(MEMORY_NS, 5 * S + MEMORY_NS // 2) == 5
    assert inflow.within(MEMORY_NS, 5 * S + 2 * MEMORY_NS) == 0
