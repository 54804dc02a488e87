"""A scrape of the metrics of many models: its time, and the longest pause of the event loop.

Times are processor times of the loop's thread, since other processes may have a part of the machine.
"""

import asyncio
import statistics
import time

from benchmarks.conftest import Report
from sluice.batcher.interface.decisions import DispatchBatch, Member, ReleaseReason
from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.models.units import NS_PER_MS

MODELS = 1000
PARTITIONS = ("cpu0", "cpu1")
ROUNDS = 9
MS = 1e3


def served_all() -> ServerMetrics:
    """The metrics of a server whose models have all run on both partitions."""
    names = [f"model-{number}:1" for number in range(MODELS)]
    metrics = ServerMetrics(
        {name: ["only"] for name in names},
        PARTITIONS,
        queues=lambda: ((name, 1, 2) for name in names),
        arena_bytes=int,
        corrections=lambda: ((name, "cpu1", 1.25) for name in names),
    )
    for name in names:
        meter = metrics.meters.pipeline(name)
        for duration_ms in (1, 8, 90):
            meter.request_ended(Outcome.COMPLETED, duration_ms * NS_PER_MS)
        meter.stage_ran(0, 3, 0.1)
        for partition in PARTITIONS:
            batch = DispatchBatch(1, partition, name, 3, (Member(1, 0, 3),), ReleaseReason.FULL)
            metrics.meters.batch_completed(batch, 2 * NS_PER_MS)
    return metrics


async def scraped(metrics: ServerMetrics) -> tuple[float, list[float], int]:
    """The time of a scrape in s, the pauses of the loop during it, ascending, and the size of the text."""
    pauses = []
    scrape = asyncio.ensure_future(metrics.scrape())
    began = last = time.thread_time()
    while not scrape.done():
        await asyncio.sleep(0)
        now = time.thread_time()
        pauses.append(now - last)
        last = now
    return last - began, sorted(pauses), sum(map(len, scrape.result()))


def test_a_scrape_of_many_models_leaves_the_loop_to_others(report: Report) -> None:
    metrics = served_all()
    asyncio.run(scraped(metrics))  # labels are put together by the first one
    times, longest, typical = [], [], []
    for _ in range(ROUNDS):
        took_s, pauses, size = asyncio.run(scraped(metrics))
        times.append(took_s)
        longest.append(pauses[-1])
        typical.append(statistics.median(pauses))
    report(f"scrape of {MODELS} models, {size / 1e6:.1f} MB", f"{statistics.median(times) * MS:.1f} ms", "50 ms")
    report("longest pause of the loop, median scrape", f"{statistics.median(longest) * MS:.2f} ms", "1 ms")
    report("usual pause of the loop", f"{statistics.median(typical) * MS:.2f} ms", "")
    assert statistics.median(longest) < 0.002
