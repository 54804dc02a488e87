"""The text of metrics, and the slices in which it is written."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from sluice.gateway.observability.exposition import (
    CHUNK_TEXTS,
    ExposedMetric,
    Group,
    HistogramText,
    exposition,
    exposition_in_slices,
    of_metrics,
    pairs,
)
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.models.units import NS_PER_MS

RUNS = ExposedMetric("runs_total", "counter", "Runs of a\nmodel.", ("model",))
DEPTH = ExposedMetric("depth", "gauge", "Depth.", ("model",))


def test_families_of_a_group_stand_one_after_the_other_and_empty_ones_are_left_out() -> None:
    texts = [(RUNS.sample((model,), runs), DEPTH.sample((model,), 0.5)) for model, runs in (("a", 1), ('"b"\\', 2))]
    groups = [Group((RUNS, DEPTH), texts), Group((ExposedMetric("none", "gauge", "Nothing."),), [()])]
    assert exposition(groups).decode().splitlines() == [
        "# HELP runs_total Runs of a\\nmodel.",
        "# TYPE runs_total counter",
        'runs_total{model="a"} 1.0',
        r'runs_total{model="\"b\"\\"} 2.0',
        "# HELP depth Depth.",
        "# TYPE depth gauge",
        'depth{model="a"} 0.5',
        r'depth{model="\"b\"\\"} 0.5',
    ]


def test_histograms_count_upwards_in_the_unit_of_the_family() -> None:
    text = HistogramText(
        ExposedMetric("took_seconds", "histogram", "Time.", ("model",)), (NS_PER_MS, 10 * NS_PER_MS), 10**9
    )
    assert text.text(pairs(("model",), ("50%",)), (2, 0, 1), 1_500_000_000).splitlines() == [
        'took_seconds_bucket{le="0.001",model="50%"} 2.0',
        'took_seconds_bucket{le="0.01",model="50%"} 2.0',
        'took_seconds_bucket{le="+Inf",model="50%"} 3.0',
        'took_seconds_count{model="50%"} 3.0',
        'took_seconds_sum{model="50%"} 1.5',
    ]


def test_families_made_for_prometheus_client_have_the_same_form() -> None:
    lost = CounterMetricFamily("lost", "Losses.", labels=["partition"])
    lost.add_metric(["cpu0"], 3)
    assert exposition(of_metrics([lost, GaugeMetricFamily("ends", "Ends.", 2)])).decode().splitlines() == [
        "# HELP lost_total Losses.",
        "# TYPE lost_total counter",
        'lost_total{partition="cpu0"} 3.0',
        "# HELP ends Ends.",
        "# TYPE ends gauge",
        "ends 2.0",
    ]


def test_others_have_their_turn_after_each_slice_and_the_text_is_the_same() -> None:
    now_ns = 0
    turns: list[int] = []

    def texts() -> Iterator[tuple[str, ...]]:
        nonlocal now_ns
        for number in range(2 * CHUNK_TEXTS):
            now_ns += 10
            yield (DEPTH.sample((str(number),), number),)

    async def scrape() -> bytes:
        task = asyncio.ensure_future(exposition_in_slices([Group((DEPTH,), texts())], lambda: now_ns, 100))
        while not task.done():
            turns.append(now_ns)
            await asyncio.sleep(0)
        return b"".join(task.result())

    assert asyncio.run(scrape()) == exposition([Group((DEPTH,), texts())])
    steps = [later - earlier for earlier, later in pairwise(turns)]
    assert len(steps) == 12  # 128 texts of 10 ns in slices of 100 ns
    assert max(steps) == 100


def test_scrapes_at_the_same_time_share_one() -> None:
    asked = 0

    def queues() -> tuple[tuple[str, int, int], ...]:
        nonlocal asked
        asked += 1
        return ()

    metrics = ServerMetrics({}, [], queues, arena_bytes=int)

    async def scrapes() -> None:
        first, second = await asyncio.gather(metrics.scrape(), metrics.scrape())
        assert first is second
        given_up = asyncio.ensure_future(metrics.scrape())
        still_wanted = asyncio.ensure_future(metrics.scrape())
        await asyncio.sleep(0)
        given_up.cancel()
        assert await still_wanted

    asyncio.run(scrapes())
    assert asked == 2
