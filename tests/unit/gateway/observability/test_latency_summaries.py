"""Summaries of latencies: quantiles over the last minute, and the requests that are counted."""

import math
import random

import pytest

from sluice.gateway.config.metrics_settings import MetricsSettings
from sluice.gateway.observability.exposition import exposition
from sluice.gateway.observability.latency_summaries import AGE_NS, PARTS, LatencySummaries, RecentQuantiles
from tests.support.gateway.runtime_bench import Bench
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual

QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)


@pytest.mark.parametrize("most", [100, 5_000, 3_000_000])
def test_quantiles_are_right_within_a_hundredth(most: int) -> None:
    generator = random.Random(3)
    values = [generator.randrange(most) for _ in range(2000)]
    summary = RecentQuantiles()
    for value in values:
        summary.observe(value, 0)
    assert (summary.count, summary.total) == (len(values), sum(values))
    values.sort()
    exact = [values[max(math.ceil(quantile * len(values)), 1) - 1] for quantile in QUANTILES]
    assert summary.quantiles(QUANTILES, 0) == pytest.approx(exact, rel=0.01, abs=0.5)


def test_values_are_forgotten_after_a_minute_but_count() -> None:
    summary = RecentQuantiles()
    summary.observe(5, 0)
    assert summary.quantiles((0.5,), AGE_NS - AGE_NS // PARTS) == [5]
    summary.observe(9, AGE_NS - 1)
    assert summary.quantiles((0.0, 1.0), AGE_NS) == [9, 9]
    assert math.isnan(summary.quantiles((0.5,), 3 * AGE_NS)[0])
    assert (summary.count, summary.total) == (2, 14)


def test_a_request_counts_for_its_pipeline_and_for_the_models_of_its_batches() -> None:
    async def main(loop: VirtualLoop) -> None:
        summaries = LatencySummaries(("0.5",), loop.clock)
        bench = Bench(loop, on_ended=summaries.ended)
        await bench.submit(2, pipeline="ensemble:1")[1]
        await bench.submit(1)[1]
        lines = exposition(summaries.groups()).decode().splitlines()
        entry = bench.metrics.meters.statistics.of("mlp:1").report("mlp", "1", 0)
        sums = entry["inference_stats"]
        success, infer_us = sums["success"], sums["compute_infer"]["ns"] // 1000
        mlp = 'model="mlp",version="1"'
        assert f"nv_inference_request_summary_us_count{{{mlp}}} {success['count']}" in lines
        assert f"nv_inference_request_summary_us_sum{{{mlp}}} {success['ns'] // 1000}" in lines
        assert f"nv_inference_compute_infer_summary_us_sum{{{mlp}}} {infer_us}" in lines
        assert 'nv_inference_request_summary_us_count{model="ensemble",version="1"} 1' in lines
        assert 'nv_inference_queue_summary_us{model="ensemble",version="1",quantile="0.5"} 0' in lines

    run_virtual(main)


@pytest.mark.parametrize("wrong", ["", "0.5", "0.5:0.05,", "1.5:0.1", "0.5:nan", "a:b", ",".join(["0.5:0.1"] * 21)])
def test_quantiles_that_mean_nothing_are_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="summary_quantiles: expected"):
        MetricsSettings(summary_quantiles=wrong)


def test_tritons_quantiles_are_the_default() -> None:
    assert MetricsSettings().quantiles == ("0.5", "0.9", "0.95", "0.99", "0.999")
