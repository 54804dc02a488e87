"""The search for the highest rate, on a queue whose highest rate is known: by how much its answers miss that.

The queue is M/D/1. Its ends follow from one another, so a run of 50 000 queries takes a few milliseconds; they are
compared with those of `sim:` first. No figure depends on the machine.
"""

import statistics
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.conftest import Report
from sluice.loadgen.records.interim import InterimTest
from sluice.loadgen.records.record import Record, Status
from sluice.loadgen.records.statistics import query_statistics
from sluice.loadgen.run.find_max import (
    DURATION_S,
    Probe,
    ProbePlan,
    SearchSettings,
    find_max,
    queries_to_resolve,
    shortest_probe_s,
)
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.run.runner import run
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.scenarios.open_loop import arrival_times
from sluice.loadgen.scenarios.table import SCENARIOS
from sluice.loadgen.traffic.schedule import Schedule
from sluice.models.units import NS_PER_MS, NS_PER_S, ms_to_ns
from tests.support.loadgen.constant_service import ends_ns, highest_rate
from tests.unit.loadgen.simulated_server import write_simulation

SERVICE_NS = 10 * NS_PER_MS
SEEDS = 60
WARMUP_S = 1.0


def test_the_queue_is_that_of_the_simulator(tmp_path: Path) -> None:
    """The way to the server takes 1 s of an objective that is longer, so the server sees no query that is late."""
    target = write_simulation(tmp_path, host={"send_us": 1_000_000})
    result = run(RunConfig(target=target, model="small", rate=80.0, duration_s=20.0, slo_ms=5000.0, warmup_s=0.0))
    arrived_ns = result.record.due_ns + NS_PER_S
    assert np.array_equal(result.record.done_ns, ends_ns(arrived_ns, SERVICE_NS))


@pytest.mark.parametrize("precision", [0.01, 0.02], ids=["1 %", "2 %"])
@pytest.mark.parametrize(("objective_ms", "percentile"), [(60.0, 90.0), (100.0, 90.0), (100.0, 99.0)])
def test_the_error_of_a_search(report: Report, objective_ms: float, percentile: float, precision: float) -> None:
    """Searches on as many seeds, with the bounds that `find-max --target sim:FILE` has by default."""
    shortest_s = shortest_probe_s(WARMUP_S, objective_ms, precision)
    settings = SearchSettings(
        start=50.0,
        precision=precision,
        duration_s=max(DURATION_S, 2 * shortest_s),
        min_duration_s=shortest_s,
        queries=queries_to_resolve(precision),
    )
    known = highest_rate(objective_ms / 1e3, percentile, SERVICE_NS / NS_PER_S)
    errors = []
    for seed in range(SEEDS):
        config = RunConfig(
            target="M/D/1", model="m", seed=1000 * seed, slo_ms=objective_ms, percentile=percentile, warmup_s=WARMUP_S
        )
        found = find_max(partial(_probe, config=config, settings=settings), settings)
        assert found.confirmed
        assert found.rate is not None
        errors.append(found.rate / known - 1)
    title = f"find-max, M/D/1, p{percentile:g} within {objective_ms:g} ms, precision {precision:.0%}"
    report(f"{title}: known rate, queries/s", f"{known:.2f}", "")
    report(f"{title}: mean error", f"{statistics.mean(errors):+.1%}", "")
    report(f"{title}: errors of {SEEDS} seeds", f"{min(errors):+.1%} to {max(errors):+.1%}", "")
    report(f"{title}: seeds within 3 %", f"{sum(abs(error) <= 0.03 for error in errors)}", "")


def _probe(plan: ProbePlan, config: RunConfig, settings: SearchSettings) -> Probe:
    longest_s = settings.longest_s(plan.rate)
    config = msgspec.structs.replace(
        config,
        rate=plan.rate,
        seed=config.seed + plan.number,
        duration_s=longest_s,
        decide_from_s=longest_s if plan.confirms else settings.min_duration_s,
    )
    due_ns = arrival_times(config, None)
    record = Record.of(Schedule(due_ns, np.zeros_like(due_ns)), ms_to_ns(config.slo_ms or 0.0))
    record.sent_ns[:] = due_ns
    record.done_ns[:] = ends_ns(due_ns, SERVICE_NS)
    record.status[:] = Status.OK
    interim = InterimTest(
        due_ns,
        int(record.slo_ns[0]),
        percentile=config.percentile,
        warmup_s=config.warmup_s,
        decide_from_s=config.decide_from_s or 0.0,
    )
    while interim.next_look_ns < float("inf"):
        interim.look(record, int(interim.next_look_ns))
    decision, queries = (None, len(record)) if interim.decided is None else interim.decided
    record = record.head(queries)
    result = RunResult(
        config=config,
        schedule_digest="",
        record=record,
        metrics=query_statistics(record, config.percentile, config.warmup_s),
        score=SCENARIOS[config.scenario].score(record, config),
        invalid=[],
        decision=decision,
    )
    return Probe.of(result, plan.confirms)
