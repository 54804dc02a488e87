import json

import pytest

from sluice.loadgen.cli import validate_sim
from sluice.loadgen.cli.main import main
from sluice.loadgen.cli.options import INVALID, MET, MISSED
from sluice.loadgen.records.server_metrics import BatchStatistics, ServerReport
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.validation.comparison import LoadComparison, comparison_json, comparison_table
from tests.unit.loadgen.results import result_of


def run(latency_ms: int, mean_rows: float, seed: int = 0, late_ms: int = 0) -> RunResult:
    config = RunConfig(target="http://x", model="m", rate=1000, seed=seed, slo_ms=50, warmup_s=0)
    server = ServerReport((BatchStatistics("m:1", "cpu0", 10, mean_rows),))
    result = result_of(config, latency_ms, 1000, late_ms=late_ms)
    return RunResult(config, result.schedule_digest, result.record, result.metrics, result.score, [], server=server)


def test_a_figure_is_the_median_over_the_seeds_of_pairs() -> None:
    pairs = [(run(10, 4.0), run(11, 4.2)), (run(20, 4.0), run(20, 4.2)), (run(12, 4.0), run(15, 4.2))]
    figures = LoadComparison(0.2, 200.0, pairs).figures
    p50, batch = figures[1], figures[3]
    assert (p50.figure, p50.live, p50.simulated, p50.bound) == ("p50", 12.0, 15.0, 0.1)
    assert p50.difference == pytest.approx(0.1)
    assert (batch.live, batch.simulated, batch.difference) == pytest.approx((4.0, 4.2, 0.05))


def test_bounds_are_points_of_attainment_and_shares_of_the_rest() -> None:
    figures = LoadComparison(1.2, 1200.0, [(run(40, 4.0), run(60, 4.5))]).figures
    assert [(each.figure, each.live, each.simulated, each.within) for each in figures] == [
        ("attainment", 1.0, 0.0, False),
        ("p50", 40.0, 60.0, False),
        ("p99", 40.0, 60.0, False),
        ("mean batch", 4.0, 4.5, False),
    ]
    assert all(each.within for each in LoadComparison(0.2, 200.0, [(run(20, 4.0), run(21, 4.3))]).figures)


@pytest.mark.parametrize(
    ("pair", "code"),
    [
        ((run(20, 4.0), run(21, 4.1)), MET),
        ((run(20, 4.0), run(21, 5.0)), MISSED),
        ((run(20, 4.0, late_ms=10), run(21, 4.1)), INVALID),
    ],
)
def test_the_exit_code_says_whether_all_is_within_bounds(
    pair: tuple[RunResult, RunResult], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = [LoadComparison(0.2, 200.0, [(run(20, 4.0), run(20, 4.0))]), LoadComparison(0.4, 400.0, [pair])]
    monkeypatch.setattr(validate_sim, "validate", lambda validation, write, report: (1000.0, loads))
    assert main(["validate-sim", "--target", "sim:any.yaml", "--model", "m"]) == code


def test_the_table_is_markdown() -> None:
    lines = comparison_table([LoadComparison(0.2, 200.0, [(run(20, 4.0), run(21, 5.0))])]).splitlines()
    assert lines[2:] == [
        "| 20%, 200/s | attainment | 100.0% | 100.0% | +0.0 points | yes (2 points) |",
        "| 20%, 200/s | p50 | 20.00 ms | 21.00 ms | +5.0 % | yes (10 %) |",
        "| 20%, 200/s | p99 | 20.00 ms | 21.00 ms | +5.0 % | yes (20 %) |",
        "| 20%, 200/s | mean batch | 4.00 | 5.00 | +25.0 % | **no** (10 %) |",
    ]


def test_the_report_names_every_pair_and_what_the_client_could_not_do() -> None:
    comparison = LoadComparison(0.2, 200.0, [(run(20, 4.0, seed=7, late_ms=9), run(21, 4.0, seed=7))])
    report = json.loads(comparison_json(1000.0, [comparison]))
    (load,) = report["loads"]
    assert (report["capacity"], load["rate"], load["runs"][0]["seed"]) == (1000.0, 200.0, 7)
    assert load["cells"][1]["within"] is True
    assert load["runs"][0]["simulated"]["metrics"]["latency_ms"]["p50"] == 21.0
    assert "9.00 ms late" in load["client_limits"][0]
