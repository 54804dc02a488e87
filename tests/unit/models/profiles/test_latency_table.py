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


def test_a_written_table_rises_with_the_batch_size() -> None:
    assert LatencyTable.from_ms({1: 2.0, 2: 2.0}).cells == ((1, 2_000_000), (2, 2_000_000))
    message = (
        "^latency table: expected larger batches to take no less time than smaller ones, "
        r"got 1\.5 ms for 8 rows and 2 ms for 4$"
    )
    with pytest.raises(ConfigError, match=message):
        LatencyTable.from_ms({8: 1.5, 1: 1, 4: 2})


def test_a_measured_table_can_be_written() -> None:
    measured = LatencyTable(((1, 1_000_001), (2, 3_000_000), (4, 2_500_000), (8, 4_000_000)))
    assert measured.in_ms() == {1: 1.000001, 2: 3.0, 4: 3.0, 8: 4.0}
    assert LatencyTable.from_ms(measured.in_ms()).cells == (
        (1, 1_000_001),
        (2, 3_000_000),
        (4, 3_000_000),
        (8, 4_000_000),
    )


@pytest.mark.parametrize("cells", [(), ((2, 5), (1, 5)), ((1, 5), (1, 6)), ((0, 5),), ((1, 0),), ((1, -5),)])
def test_a_table_must_make_sense(cells: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ConfigError, match=r"^latency table: "):
        LatencyTable(cells)
