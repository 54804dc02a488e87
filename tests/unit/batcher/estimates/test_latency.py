import pytest

from sluice.batcher.estimates.latency import LatencyEstimate
from sluice.batcher.interface.config import Limits
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import GAINING, MS, ONE, US, S, arrival, completed, model, serving, spec_of, step

HAND_OFF_NS = Limits().hand_off_ns
MLP = LatencyTable.from_ms({1: 0.67, 2: 0.8, 4: 1.03, 8: 1.66, 16: 2.46, 32: 3.81, 64: 6.01})


@pytest.mark.parametrize(
    ("rows", "expected_us"), [(1, 670), (2, 800), (3, 1030), (4, 1030), (5, 1660), (33, 6010), (64, 6010)]
)
def test_a_size_that_was_not_measured_takes_the_next_larger_cell(rows: int, expected_us: int) -> None:
    assert LatencyEstimate(MLP, 64, HAND_OFF_NS).service_ns(rows) == expected_us * US


def test_beyond_the_table_the_largest_cell_counts() -> None:
    assert LatencyEstimate(GAINING, 16, HAND_OFF_NS).service_ns(16) == 1400 * US


@pytest.mark.parametrize(
    ("table", "max_rows", "expected"),
    [
        pytest.param({1: 10, 2: 20, 4: 40, 8: 80}, 8, 1, id="no gain"),
        pytest.param({1: 1, 2: 1.1, 4: 1.2, 8: 1.4}, 8, 8, id="gains to the end"),
        pytest.param({1: 10, 2: 11, 4: 22, 8: 44}, 8, 2, id="gains up to two"),
        pytest.param({1: 10, 2: 19.9, 4: 39.8}, 4, 1, id="a gain of less than 3 percent is none"),
        pytest.param({1: 1, 2: 1.1, 4: 1.2, 8: 1.4}, 3, 3, id="not beyond the maximum"),
        pytest.param({1: 10, 2: 40, 4: 80, 8: 160}, 8, 1, id="a loss"),
        pytest.param({1: 1}, 1, 1, id="no batches at all"),
    ],
)
def test_the_efficient_size_is_the_smallest_of_nearly_the_best_rate(
    table: dict[int, float], max_rows: int, expected: int
) -> None:
    assert LatencyEstimate(LatencyTable.from_ms(table), max_rows, HAND_OFF_NS).efficient_rows == expected


def test_the_time_of_a_row_includes_its_share_of_the_hand_off() -> None:
    assert LatencyEstimate(GAINING, 8, HAND_OFF_NS).row_ns(8) == (1400 * US + 150 * US) // 8


@pytest.mark.parametrize(
    ("budget_ns", "limit", "expected"),
    [
        (1400 * US, 8, 8),
        (1400 * US - 1, 8, 4),
        (1400 * US, 7, 7),
        (1400 * US, 5, 5),
        (1399 * US, 5, 4),
        (1200 * US, 3, 3),
        (1199 * US, 3, 2),
        (1000 * US, 8, 1),
        (999 * US, 8, 0),
    ],
)
def test_the_largest_batch_within_a_budget(budget_ns: int, limit: int, expected: int) -> None:
    assert LatencyEstimate(GAINING, 8, HAND_OFF_NS).rows_within(budget_ns, limit) == expected


def test_a_batch_that_took_longer_raises_its_cell_only() -> None:
    estimate = LatencyEstimate(GAINING, 8, HAND_OFF_NS)
    estimate.observe(3, 2 * MS)
    assert estimate.service_ns(4) == pytest.approx(1_254_000, abs=1)
    assert estimate.service_ns(3) == estimate.service_ns(4)
    assert [estimate.service_ns(rows) for rows in (1, 2, 8)] == [1000 * US, 1100 * US, 1400 * US]


def test_a_batch_that_took_no_longer_lowers_the_estimate_nine_times_less() -> None:
    estimate = LatencyEstimate(ONE, 1, HAND_OFF_NS)
    estimate.observe(1, 1 * MS)
    assert estimate.service_ns(1) == 995_000


def test_the_estimate_settles_where_nine_of_ten_batches_are_quicker() -> None:
    estimate = LatencyEstimate(ONE, 1, HAND_OFF_NS)
    for number in range(5_000):
        estimate.observe(1, 1 * MS + number * 7919 % 1000 * US)
    assert estimate.service_ns(1) == pytest.approx(1_900_000, rel=0.06)


def test_corrections_are_bounded() -> None:
    estimate = LatencyEstimate(ONE, 1, HAND_OFF_NS)
    for _ in range(1_000):
        estimate.observe(1, 3600 * S)
    assert estimate.service_ns(1) == 16 * MS
    for _ in range(2_000):
        estimate.observe(1, 1)
    assert estimate.service_ns(1) == 125 * US


def test_decay_lets_a_correction_fall_back_half_way() -> None:
    estimate = LatencyEstimate(ONE, 1, HAND_OFF_NS)
    for _ in range(1_000):
        estimate.observe(1, 3600 * S)
    estimate.decay()
    assert estimate.service_ns(1) == 8_500 * US
    for _ in range(60):
        estimate.decay()
    assert estimate.service_ns(1) == estimate.profile_ns(1) == MS


def test_corrections_can_change_the_efficient_size() -> None:
    estimate = LatencyEstimate(GAINING, 8, HAND_OFF_NS)
    for _ in range(100):
        estimate.observe(8, 14 * MS)
    assert estimate.efficient_rows == 4


def test_the_scheduler_learns_from_what_batches_took() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    step(scheduler, 0, arrival(1, S))
    step(scheduler, 2 * MS, completed(1, 0, 2 * MS))
    step(scheduler, 10 * MS, arrival(2, S), arrival(3, S))
    # The second batch is expected to take 1.025 ms, and the third is closed 150 us before that.
    assert scheduler.next_wakeup_ns() == pytest.approx(10 * MS + 875 * US, abs=1)


def test_waiting_behind_another_batch_is_not_taken_for_service() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    step(scheduler, 0, arrival(1, S), arrival(2, S))
    step(scheduler, 850 * US)
    step(scheduler, MS, completed(1, 0, MS))
    step(scheduler, 2 * MS, completed(2, MS, 2 * MS))
    step(scheduler, 10 * MS, arrival(3, S), arrival(4, S))
    # 2.5 % down, then 2.5 % up: either batch took 1 ms.
    assert scheduler.next_wakeup_ns() == 10 * MS + 999_374 - 150 * US


def test_the_next_batch_is_closed_earlier_when_hand_offs_take_longer_than_configured() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    step(scheduler, 0, arrival(1, S))
    # 200 us to the worker and 350 us back: 400 us more than configured, of which a twentieth is believed.
    step(scheduler, 1_550 * US, completed(1, 200 * US, 1_200 * US))
    step(scheduler, 10 * MS, arrival(2, S), arrival(3, S))
    assert scheduler.next_wakeup_ns() == 10 * MS + 975 * US - 170 * US


def test_the_correction_is_the_middle_one_of_the_sizes_that_ran() -> None:
    estimate = LatencyEstimate(MLP, 64, HAND_OFF_NS)
    assert estimate.correction == 1
    for rows, factor in ((1, 3), (4, 2), (64, 0.5)):
        for _ in range(200):
            estimate.observe(rows, int(estimate.profile_ns(rows) * factor))
    assert estimate.correction == pytest.approx(2, rel=0.05)
