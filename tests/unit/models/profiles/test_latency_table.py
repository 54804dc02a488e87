import pytest

from sluice.models.errors import ConfigError
from sluice.models.profiles.latency_table import LatencyTable


def test_a_size_that_was_not_measured_takes_the_next_larger() -> None:
    table = LatencyTable.from_ms({8: 3.0, 1: 1.0, 4: 2.5})
    assert table.cells == ((1, 1_000_000), (4, 2_500_000), (8, 3_000_000))
    assert [table.latency_ns(rows) for rows in (1, 2, 4, 5, 8, 9)] == [
        1_000_000,
        2_500_000,
        2_500_000,
        3_000_000,
        3_000_000,
        3_000_000,
    ]


@pytest.mark.parametrize("cells", [(), ((2, 5), (1, 5)), ((1, 5), (1, 6)), ((0, 5),), ((1, 0),), ((1, -5),)])
def test_a_table_must_make_sense(cells: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ConfigError, match=r"^latency table: "):
        LatencyTable(cells)
