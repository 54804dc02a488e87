"""MLPerf's SingleStream and MultiStream scenarios: the next query leaves when the one before is answered."""

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.early_stopping import misses_allowed, queries_needed
from sluice.loadgen.records.record import Record
from sluice.loadgen.scenarios.base import Figure, Score
from sluice.loadgen.scenarios.bounds import unmet_minima
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.scenarios.queries import MeasuredQueries, mean_ms, milliseconds, percentile_ms


def stream_score(record: Record, config: RunConfig, group: int) -> Score:
    """The score of queries that follow each other: MLPerf's metric is the estimate of a percentile of the latency.

    The estimate is the largest latency that early stopping confirms: with t misses allowed among n queries, that of
    place n - t in ascending order. It needs one query more than the test without a miss.
    """
    queries = MeasuredQueries(record, config.warmup_s, group)
    percentile = config.percentile
    needed = queries_needed(1, percentile)
    unmet = unmet_minima(record, config, group, int(record.due_ns[-1]) if len(record) else 0)
    # With fewer queries than a claim needs, the run is too short anyway.
    if queries_needed(0, percentile) <= len(queries) < needed and not config.each_once:
        unmet += (
            f"too short: {len(queries)} queries after the warm-up; an estimate of p{percentile:g} needs {needed}",
        )
    return Score(
        figures=(
            Figure(f"latency p{percentile:g} by early stopping", estimate_ms(queries.latency_ns, percentile), "ms"),
            Figure(f"latency p{percentile:g}", percentile_ms(queries.latency_ns, percentile), "ms"),
            Figure("mean latency", mean_ms(queries.latency_ns), "ms"),
            Figure("completed queries", queries.completed_per_s, "/s"),
        ),
        queries=len(queries),
        good=int(queries.good.sum()),
        is_sample=not config.each_once,
        unmet=unmet,
    )


def estimate_ms(latency_ns: npt.NDArray[np.int64], percentile: float) -> float | None:
    """The early-stopping estimate of a percentile; None with too few queries, or where that one was not answered."""
    n = len(latency_ns)
    misses = misses_allowed(n, percentile)
    if misses < 1:
        return None
    return milliseconds(np.partition(latency_ns, n - misses)[n - misses])
