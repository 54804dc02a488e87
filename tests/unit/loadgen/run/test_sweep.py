from dataclasses import replace

import pytest

from sluice.loadgen.run.result import RunResult
from sluice.loadgen.run.sweep import SweepGrid, SweepPoint, sweep
from sluice.loadgen.scenarios.config import RunConfig, ScenarioName
from sluice.models.errors import ConfigError
from tests.unit.loadgen.results import result_of

BASE = RunConfig(target="sim:x", model="m", slo_ms=10, warmup_s=0)


def run(point: SweepPoint, number: int) -> RunResult:
    """Latencies of 10 ms and one more with each seed; above 100/s all queries are late by more than the objective."""
    latency_ms = 10 + number + (10 if point.load > 100 else 0)
    config = point.config(BASE)
    return result_of(config, latency_ms, queries=500)


def test_a_grid_is_walked_curve_by_curve() -> None:
    grid = SweepGrid(rates=(100, 200), slo_scales=(0.8, 1.2), policies=("a", "b"))
    assert [point[:3] for point in grid.points()] == [
        ("a", 0.8, 100),
        ("a", 0.8, 200),
        ("a", 1.2, 100),
        ("a", 1.2, 200),
        ("b", 0.8, 100),
        ("b", 0.8, 200),
        ("b", 1.2, 100),
        ("b", 1.2, 200),
    ]


def test_a_point_is_a_run_of_its_scenario() -> None:
    rate = SweepPoint("p.yaml", 1.0, 300.0, is_rate=True).config(BASE)
    assert (rate.scenario, rate.rate, rate.policy_file) == (ScenarioName.SERVER, 300.0, "p.yaml")
    closed = SweepPoint("", 1.0, 8, is_rate=False).config(BASE)
    assert (closed.scenario, closed.concurrency, closed.policy_file) == (ScenarioName.CONCURRENCY, 8, "")


def test_each_point_has_the_median_and_the_extremes_of_its_seeds() -> None:
    runs: list[tuple[float, int]] = []

    def noted(point: SweepPoint, number: int) -> RunResult:
        runs.append((point.load, number))
        return run(point, number)

    reported: list[RunResult] = []
    low, high = sweep(noted, SweepGrid(rates=(100, 200)), 3, lambda point, result: reported.append(result))
    assert runs == [(100, 0), (100, 1), (100, 2), (200, 0), (200, 1), (200, 2)]
    assert len(reported) == 6
    assert len(reported[0].record) == 500
    assert (low.rate, low.concurrency, low.runs, low.met, low.invalid) == (100, None, 3, 1, 0)
    assert (low.p99_ms, low.p99_ms_range) == (11, (10, 12))
    assert (low.attainment, low.goodput_per_s) == (0, 0)
    assert low.goodput_per_s_range == pytest.approx((0, 1000))
    assert (high.met, high.p99_ms, high.slo_ms) == (0, 21, 10)


def test_an_interrupt_ends_a_sweep_with_the_points_so_far() -> None:
    def interrupted(point: SweepPoint, number: int) -> RunResult:
        return replace(run(point, number), interrupted=point.load == 200)

    summaries = sweep(interrupted, SweepGrid(rates=(100, 200, 300)), 2, lambda point, result: None)
    assert [(each.rate, each.runs) for each in summaries] == [(100, 2), (200, 1)]


def test_a_grid_has_one_kind_of_load() -> None:
    for loads in ({}, {"rates": (1.0,), "concurrencies": (1,)}):
        with pytest.raises(ConfigError, match="sweep: expected one of --rates and --concurrencies"):
            SweepGrid(**loads)  # type: ignore[arg-type]


def test_sweeps_without_end_are_refused() -> None:
    with pytest.raises(ConfigError, match="--seeds: expected at least 1, got 0"):
        sweep(run, SweepGrid(rates=(1.0,)), 0, lambda point, result: None)
    with pytest.raises(ConfigError, match="at most 10000 runs, got 2 points with 6000 seeds each"):
        sweep(run, SweepGrid(rates=(1.0, 2.0)), 6000, lambda point, result: None)
