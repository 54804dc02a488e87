import numpy as np
import pytest

from sluice.loadgen.records.bootstrap import (
    Floats,
    Integers,
    Interval,
    mean_interval,
    quantile_interval,
    ratio_interval,
)

S = 1_000_000_000


def queue(seed: int, load: float, seconds: int) -> tuple[Integers, Floats]:
    """Due times and sojourn times, in milliseconds, of a single server that takes 10 ms for each Poisson arrival."""
    rng = np.random.default_rng(seed)
    due_s = np.cumsum(rng.exponential(0.01 / load, int(seconds * load / 0.01)))
    # Lindley's recursion: a query ends its own 10 ms after the latest of its own start and all ends before.
    busy_s = 0.01 * np.arange(1, len(due_s) + 1)
    done_s = busy_s + np.maximum.accumulate(due_s - busy_s + 0.01)
    return (due_s * S).astype(np.int64), (done_s - due_s) * 1e3


def covers(interval: Interval | None, value: float) -> bool:
    assert interval is not None
    return interval.low <= value <= interval.high


def test_blocks_of_time_cover_the_p99_of_a_busy_queue_where_single_queries_do_not() -> None:
    truth = float(np.quantile(queue(0, 0.8, 20_000)[1], 0.99))
    blocks = singles = 0
    for seed in range(1, 21):
        due_ns, latency_ms = queue(seed, 0.8, 300)
        blocks += covers(quantile_interval(due_ns, latency_ms, 0.99, seed), truth)
        # The order statistics that would bound the p99 if queries were independent.
        rank, spread = len(due_ns) * 0.99, 1.96 * (len(due_ns) * 0.99 * 0.01) ** 0.5
        low, high = np.sort(latency_ms)[[int(rank - spread), int(rank + spread)]]
        singles += covers(Interval(low, high), truth)
    assert blocks >= 16
    assert singles <= 10


def test_the_quantile_of_a_resample_is_that_of_the_queries_it_draws() -> None:
    # Twenty-one blocks of one value each: a resample's median is the median of 21 draws from 0 to 20.
    due_ns = np.arange(0, 211 * S, S, dtype=np.int64)
    values = np.minimum(due_ns // (10 * S), 20)
    draws = np.sort(np.random.default_rng(1).integers(21, size=(100_000, 21)))[:, 10]
    low, high = np.quantile(draws, (0.025, 0.975))
    found = quantile_interval(due_ns, values, 0.5, seed=5)
    assert found is not None
    # Student's quantile for 20 degrees of freedom is 2.0860, the normal one 1.9600.
    wider = 2.0860 / 1.9600 * (21 / 20) ** 0.5
    assert found.low == pytest.approx(10 - (10 - low) * wider, abs=1.2)
    assert found.high == pytest.approx(10 + (high - 10) * wider, abs=1.2)


@pytest.mark.parametrize(("seconds", "enough"), [(199, False), (200, True)])
def test_a_run_needs_twenty_blocks_of_ten_seconds(seconds: int, enough: bool) -> None:
    due_ns = np.linspace(0, seconds * S, 5000).astype(np.int64)
    values = np.arange(5000) % 7
    assert (quantile_interval(due_ns, values, 0.5, seed=0) is not None) is enough
    assert (mean_interval(due_ns, values, seed=0) is not None) is enough


def test_no_queries_have_no_interval() -> None:
    none = np.empty(0, np.int64)
    assert quantile_interval(none, none, 0.5, seed=0) is None
    assert mean_interval(none, none, seed=0) is None


def test_stretches_without_queries_do_no_harm() -> None:
    due_ns = np.asarray([0, 0, 400 * S, 400 * S], np.int64)
    for interval in (quantile_interval(due_ns, due_ns, 0.5, 0), mean_interval(due_ns, due_ns, 0)):
        assert covers(interval, 200 * S)


def test_the_mean_of_independent_queries_has_the_textbook_interval() -> None:
    met = np.random.default_rng(3).random(200_000) < 0.9
    found = mean_interval(np.arange(200_000, dtype=np.int64) * S // 10, met, seed=1)
    assert found is not None
    half = 1.96 * (0.9 * 0.1 / 200_000) ** 0.5
    assert found.high - found.low == pytest.approx(2 * half, rel=0.25)


def test_equal_seeds_give_equal_intervals() -> None:
    due_ns, latency_ms = queue(1, 0.5, 300)
    assert quantile_interval(due_ns, latency_ms, 0.99, 7) == quantile_interval(due_ns, latency_ms, 0.99, 7)


@pytest.mark.parametrize("pairs", [3, 5, 10])
def test_the_interval_of_ratios_covers_the_true_ratio_with_few_pairs(pairs: int) -> None:
    rng = np.random.default_rng(pairs)
    covered = sum(covers(ratio_interval(1.1 * np.exp(rng.normal(0, 0.1, pairs)), seed), 1.1) for seed in range(400))
    assert 0.91 <= covered / 400 <= 0.99


def test_equal_ratios_have_an_interval_without_width() -> None:
    found = ratio_interval(np.full(5, 1.25), seed=0)
    assert [found.low, found.high] == pytest.approx([1.25, 1.25])
