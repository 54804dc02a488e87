"""A run result from literal figures, for tests of reports and searches."""

import numpy as np

from sluice.loadgen.records.record import Record, Status, objective_ns
from sluice.loadgen.records.statistics import query_statistics
from sluice.loadgen.records.validity import invalid_reasons
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.scenarios.table import SCENARIOS
from sluice.loadgen.traffic.schedule import Schedule

MS = 1_000_000


def result_of(
    config: RunConfig,
    latency_ms: int,
    queries: int,
    invalid: tuple[str, ...] = (),
    late_ms: int = 0,
    errors: int = 0,
) -> RunResult:
    """Queries a millisecond apart that all took `latency_ms`, sent `late_ms` after they were due.

    The first `errors` of them fail.
    """
    schedule = Schedule(np.arange(queries, dtype=np.int64) * MS, np.zeros(queries, np.int64))
    record = Record.of(schedule, objective_ns(config.slo_ms))
    record.sent_ns[:] = record.due_ns + late_ms * MS
    record.done_ns[:] = record.due_ns + latency_ms * MS
    record.status[:] = Status.OK
    record.status[:errors] = Status.ERROR
    metrics = query_statistics(record, config.percentile, config.warmup_s)
    score = SCENARIOS[config.scenario].score(record, config)
    reasons = invalid_reasons(metrics, config.slo_ms, config.percentile, interrupted=False, sample=score.sample)
    return RunResult(config, schedule.digest, record, metrics, score, [*reasons, *invalid])
