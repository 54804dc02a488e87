from random import Random
from statistics import fmean

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
        pytest.param({1: 100, 2: 200, 4: 400, 8: 800}, 8, 1, id="no gain"),
        pytest.param({1: 1, 2: 1.1, 4: 1.2, 8: 1.4}, 8, 8, id="gains to the end"),
        pytest.param({1: 100, 2: 110, 4: 220, 8: 440}, 8, 2, id="gains up to two"),
        pytest.param({1: 100, 2: 199, 4: 398}, 4, 1, id="a gain of less than 1 percent is none"),
        pytest.param({1: 100, 2: 197, 4: 394}, 4, 2, id="a gain of more than 1 percent is one"),
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


def test_a_batch_that_took_longer_raises_its_median_only_and_the_tail_of_all_sizes() -> None:
    estimate = LatencyEstimate(GAINING, 8, HAND_OFF_NS)
    estimate.observe(3, 2 * MS)
    # The median rises by half of 0.4 %, the tail by 0.99 of 5 %.
    assert [estimate.expected_ns(rows) for rows in (1, 2, 3, 4, 8)] == [
        1_000_000,
        1_100_000,
        1_202_400,
        1_202_400,
        1_400_000,
    ]
    # The tail is 59.4 us or 4.95 %, whichever is less.
    assert [estimate.service_ns(rows) for rows in (1, 4, 8)] == pytest.approx([1_049_500, 1_261_800, 1_459_400], abs=1)


def test_a_batch_that_took_as_long_as_expected_changes_nothing() -> None:
    estimate = LatencyEstimate(ONE, 1, HAND_OFF_NS)
    estimate.observe(1, 1 * MS)
    assert (estimate.expected_ns(1), estimate.service_ns(1)) == (MS, MS)


@pytest.mark.parametrize("took_us", [1_001, 999])
def test_no_step_goes_beyond_what_was_seen(took_us: int) -> None:
    """A first step of the median is 0.2 % at most."""
    estimate = LatencyEstimate(ONE, 1, HAND_OFF_NS)
    estimate.observe(1, took_us * US)
    assert estimate.expected_ns(1) == pytest.approx(took_us * US, abs=1)


def test_a_median_moves_faster_from_the_sixth_batch_on_the_same_side_on() -> None:
    """Five steps of 0.2 %, which may be accidents, then 0.4 % to 1.6 % and no more; one on the other side ends that.

    The batches take little longer than expected, so that the mean says nothing.
    """
    estimate = LatencyEstimate(GAINING, 8, HAND_OFF_NS)
    medians = []
    for rows in (1, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1):
        estimate.observe(rows, 1_099 * US if rows == 1 else 1_199 * US)
        medians.append(estimate.expected_ns(1))
    grown = [after / before for before, after in zip([MS, *medians], medians, strict=False)]
    steps = [1.002] * 5 + [1.004, 1.006, 1, 1.01, 1.012, 1.014, 1.016, 1.016]
    assert grown == pytest.approx(steps, abs=1e-5)
    assert estimate.expected_ns(2) == pytest.approx(1_108_800, abs=1), "the eighth had another size"
    estimate.observe(1, 1 * MS)
    assert estimate.expected_ns(1) == pytest.approx(medians[-1] * 0.998, abs=1)
    estimate.observe(1, 1_099 * US)
    assert estimate.expected_ns(1) == pytest.approx(medians[-1] * 0.998 * 1.002, abs=2)


def test_a_tail_falls_99_times_less_than_it_rises_and_never_below_the_median() -> None:
    estimate = LatencyEstimate(ONE, 1, HAND_OFF_NS)
    estimate.observe(1, 2 * MS)
    assert estimate.expected_ns(1) == pytest.approx(1_002_000, abs=1)
    assert estimate.service_ns(1) - estimate.expected_ns(1) == pytest.approx(49_500, abs=1)
    estimate.observe(1, 1 * MS)
    assert estimate.expected_ns(1) == MS
    assert estimate.service_ns(1) / estimate.expected_ns(1) == pytest.approx(1.0495 * 0.9995, abs=1e-5)
    for _ in range(200):
        estimate.observe(1, 1 * MS)
    assert estimate.service_ns(1) == estimate.expected_ns(1) == MS


def test_the_estimate_settles_where_99_of_100_batches_are_quicker_and_the_median_where_half_are() -> None:
    """Steps of 0.2 to 5 % keep both on the move, so their averages count."""
    estimate, draw = LatencyEstimate(ONE, 1, HAND_OFF_NS), Random(0)
    medians, tails = [], []
    for _ in range(10_000):
        estimate.observe(1, int((1 + draw.random()) * MS))
        medians.append(estimate.expected_ns(1))
        tails.append(estimate.service_ns(1))
    assert fmean(medians[1_000:]) == pytest.approx(1_500_000, rel=0.02)
    assert fmean(tails[1_000:]) == pytest.approx(1_990_000, rel=0.08)


def test_two_batches_in_a_row_that_are_four_times_off_set_the_medians_of_all_sizes_at_once() -> None:
    estimate = LatencyEstimate(GAINING, 8, HAND_OFF_NS)
    estimate.observe(1, 4 * MS)
    assert [estimate.expected_ns(rows) for rows in (1, 8)] == pytest.approx([1_002_000, 1_400_000], abs=1)
    estimate.observe(1, 4 * MS)
    # The median of a row was 0.2 % up already, so that it goes up by 2.998 ms, and so does that of eight.
    assert [estimate.expected_ns(rows) for rows in (1, 8)] == pytest.approx([4_000_000, 4_398_000], abs=1)
    assert estimate.service_ns(1) == pytest.approx(4_049_500, abs=2), "the tail is that of the first one"
    estimate.observe(8, 1_360 * US)
    estimate.observe(8, 1_360 * US)
    assert estimate.expected_ns(8) == pytest.approx(1_360_000, abs=1), "and back as soon"


@pytest.mark.parametrize("took_us", [(4_000, 1_000, 4_000), (4_000, 250, 4_000), (2_900, 2_900, 2_900)])
def test_what_is_not_twice_in_a_row_more_than_three_times_off_moves_the_median_by_single_steps(
    took_us: tuple[int, ...],
) -> None:
    estimate = LatencyEstimate(ONE, 1, HAND_OFF_NS)
    for took in took_us:
        estimate.observe(1, took * US)
    assert 1_000_000 < estimate.expected_ns(1) <= 1_020_000, "three steps of 0.2 %, and a little for the mean"


def test_corrections_are_bounded() -> None:
    """The median, and the tail of it, is 16 times what the table says at most, and an eighth of it at least.

    Pauses add 10 ms at most.
    """
    estimate = LatencyEstimate(ONE, 1, HAND_OFF_NS)
    for _ in range(1_000):
        estimate.observe(1, 3600 * S)
    assert estimate.expected_ns(1) == estimate.service_ns(1) == pytest.approx(26 * MS - 1_600 * US, abs=MS // 10)
    for _ in range(20_000):
        estimate.observe(1, 1)
    assert (estimate.expected_ns(1), estimate.service_ns(1)) == (125 * US, 125 * US)


def test_a_tail_of_batches_that_take_very_long_is_bounded_as_well() -> None:
    estimate = LatencyEstimate(ONE, 1, HAND_OFF_NS)
    for _ in range(1_000):
        estimate.observe(1, 3600 * S)
        estimate.observe(1, 1 * MS)
    assert estimate.expected_ns(1) == pytest.approx(1 * MS + 5 * MS, rel=0.05), "half of them pause, for 10 ms at most"
    assert 15 * MS < estimate.service_ns(1) <= 16 * MS


def test_decay_lets_both_corrections_fall_back_half_way_once_no_batch_confirms_them() -> None:
    estimate = LatencyEstimate(ONE, 1, HAND_OFF_NS)
    estimate.observe(1, 2 * MS)
    estimate.decay()
    # The median is 0.2 % more, and the tail 4.95 % more than the median: a batch has just shown that.
    assert (estimate.expected_ns(1), estimate.service_ns(1)) == pytest.approx((1_002_000, 1_051_500), abs=1)
    estimate.decay()
    assert (estimate.expected_ns(1), estimate.service_ns(1)) == pytest.approx((1_001_000, 1_025_750), abs=1)
    for _ in range(60):
        estimate.decay()
    assert estimate.service_ns(1) == estimate.profile_ns(1) == MS


def test_only_sizes_that_no_batch_had_since_the_last_decay_fall_back_and_the_tail_only_without_any_batch() -> None:
    estimate = LatencyEstimate(GAINING, 8, HAND_OFF_NS)
    for rows in (1, 8):
        estimate.observe(rows, 2 * MS)  # each median rises by 0.2 %, the tail by 4.95 % twice
    estimate.decay()
    estimate.observe(8, 1_402_800)  # as long as expected: only the tail falls, by 0.05 %
    estimate.decay()
    assert [estimate.expected_ns(rows) for rows in (1, 8)] == pytest.approx([1_001_000, 1_402_800], abs=1)
    tail_ns = estimate.service_ns(8) - estimate.expected_ns(8)
    assert tail_ns == pytest.approx(((1_400_000 + 49_500) * 1.0495 - 1_400_000 + 1_402_800) * 0.9995 - 1_402_800, abs=2)
    estimate.decay()
    assert [estimate.expected_ns(rows) for rows in (1, 8)] == pytest.approx([1_000_500, 1_401_400], abs=1)
    assert estimate.service_ns(8) - estimate.expected_ns(8) == pytest.approx(tail_ns / 2, abs=2)


def test_a_pause_makes_large_batches_no_longer_than_small_ones_but_by_its_own_time() -> None:
    """One of twenty batches of one row takes 4 ms longer: of eight rows, too, 99 of 100 take 4 ms more at most."""
    estimate = LatencyEstimate(GAINING, 8, HAND_OFF_NS)
    for number in range(2_000):
        estimate.observe(1, 5 * MS if number % 20 == 0 else MS)
    assert 4 * MS < estimate.service_ns(1) < 5.2 * MS
    assert 4.4 * MS < estimate.service_ns(8) < 5.6 * MS


def test_the_tail_is_sixteen_times_the_median_at_most_also_where_that_is_far_below_the_table() -> None:
    """Batches take an eighth of what the table says, and one of five takes an hour."""
    estimate = LatencyEstimate(LatencyTable.from_ms({1: 800, 8: 1600}), 8, HAND_OFF_NS)
    for number in range(400):
        estimate.observe(8, 3600 * S if number % 5 == 4 else 200 * MS)
    assert estimate.expected_ns(8) == pytest.approx(200 * MS, rel=0.01)
    assert all(estimate.service_ns(rows) <= 16 * (estimate.expected_ns(rows) + 1) for rows in (1, 8))


def test_where_batches_pause_the_mean_is_expected_and_not_the_median() -> None:
    """A quarter of them for 4 ms: 1 ms on average, of which a tenth of a row's time may be chance."""
    estimate = LatencyEstimate(GAINING, 8, HAND_OFF_NS)
    expected = []
    for number in range(2_000):
        estimate.observe(8, 5_400 * US if number % 4 == 0 else 1_400 * US)
        expected.append(estimate.expected_ns(8))
    assert fmean(expected[1_000:]) == pytest.approx(1_400_000 + 900_000, rel=0.02)


def test_corrections_can_change_the_efficient_size() -> None:
    estimate = LatencyEstimate(GAINING, 8, HAND_OFF_NS)
    for _ in range(100):
        estimate.observe(8, 2_800 * US)
    assert estimate.efficient_rows == 4


def test_the_scheduler_learns_from_what_batches_took() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    step(scheduler, 0, arrival(1, S))
    step(scheduler, 2 * MS, completed(1, 0, 2 * MS))
    step(scheduler, 10 * MS, arrival(2, S), arrival(3, S))
    # The second batch is expected to take 1.002 ms, and the third is closed 150 us before that.
    assert scheduler.next_wakeup_ns() == pytest.approx(10 * MS + 852 * US, abs=1)


def test_waiting_behind_another_batch_is_not_taken_for_service() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    step(scheduler, 0, arrival(1, S), arrival(2, S))
    step(scheduler, 850 * US)
    step(scheduler, MS, completed(1, 0, MS))
    step(scheduler, 2 * MS, completed(2, MS, 2 * MS))
    step(scheduler, 10 * MS, arrival(3, S), arrival(4, S))
    # Either batch took 1 ms, as expected.
    assert scheduler.next_wakeup_ns() == 10 * MS + 850 * US


def test_the_next_batch_is_closed_earlier_when_hand_offs_take_longer_than_configured() -> None:
    scheduler = serving(spec_of([model("m:1", 1)]), ONE)
    step(scheduler, 0, arrival(1, S))
    # 200 us to the worker and 350 us back: 400 us more than configured, of which a twentieth is believed.
    step(scheduler, 1_550 * US, completed(1, 200 * US, 1_200 * US))
    step(scheduler, 10 * MS, arrival(2, S), arrival(3, S))
    assert scheduler.next_wakeup_ns() == 10 * MS + 1_000 * US - 170 * US


def test_the_correction_is_the_middle_one_of_the_sizes_that_ran() -> None:
    estimate = LatencyEstimate(MLP, 64, HAND_OFF_NS)
    assert estimate.correction == 1
    for rows, factor in ((1, 3), (4, 2), (64, 0.5)):
        for _ in range(200):
            estimate.observe(rows, int(estimate.profile_ns(rows) * factor))
    assert estimate.correction == pytest.approx(2, rel=0.05)


def test_the_table_is_made_again_only_when_something_has_changed_it() -> None:
    estimate = LatencyEstimate(GAINING, 8, HAND_OFF_NS)
    first = estimate.table
    assert estimate.table is first
    estimate.observe(8, 2 * estimate.expected_ns(8))
    second = estimate.table
    assert second.latency_ns(8) > first.latency_ns(8)
    assert estimate.table is second
    estimate.limit(2)
    assert [size for size, _ in estimate.table.cells] == [1, 2]
    limited = estimate.table
    estimate.decay()
    assert estimate.table is not limited
