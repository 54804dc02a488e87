"""Runs with literal figures, for tests of comparisons."""

import msgspec

from sluice.loadgen.comparison.compared_run import ComparedRun
from sluice.loadgen.records.statistics import Distribution, QueryStatistics


def statistics(p50: float, p99: float | None, attainment: float = 1.0) -> QueryStatistics:
    """100 queries a second with these latencies; no answers where `p99` is None."""
    zeros = {field.name: 0 for field in msgspec.structs.fields(QueryStatistics) if field.required}
    latency = None if p99 is None else Distribution(p50, p50, p99, p99, p99, p99, p99, p99)
    return QueryStatistics(**zeros | {  # type: ignore[arg-type]
        "latency_ms": latency, "service_ms": None, "lateness_ms": None, "waiting_ms": None,
        "attainment": attainment, "goodput_per_s": 100.0 * attainment,
    })  # fmt: skip


def compared(seed: int, p50: float, p99: float | None = 50.0, attainment: float = 1.0) -> ComparedRun:
    """A run whose schedule depends on the seed."""
    return ComparedRun(
        source=f"run {seed}",
        target="http://t",
        model="m",
        seed=seed,
        schedule_digest=f"{seed:064}",
        slo_ms=100.0,
        warmup_s=1.0,
        metrics=statistics(p50, p99, attainment),
        limits=(),
    )
