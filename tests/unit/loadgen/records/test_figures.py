import numpy as np
import pytest

from sluice.loadgen.records.figures import Cost, CostSource, GroupBy, StreamLabel, figures
from sluice.loadgen.records.record import Record, Status, objective_ns
from sluice.loadgen.traffic.schedule import Schedule

MS = 1_000_000
STAGE = "a;batch=1;size=1;rows=1;partition=p;queue=1;batch-wait=0;hand-off=1;compute=1;return=0;cost="


def record_of(queries: int, gap_ms: float, slo_ms: float | None = 10) -> Record:
    """Queries at equal gaps that take 1 to 20 ms in turn; half of them are within 10 ms."""
    due_ns = (np.arange(queries) * gap_ms * MS).astype(np.int64)
    record = Record.of(Schedule(due_ns, np.zeros(queries, np.int64)), objective_ns(slo_ms))
    record.sent_ns[:] = due_ns
    record.done_ns[:] = due_ns + (np.arange(queries) % 20 + 1) * MS
    record.status[:] = Status.OK
    return record


def test_a_run_of_less_than_twenty_blocks_of_ten_seconds_has_no_intervals() -> None:
    assert figures(record_of(2000, 100), 99, 1.0).intervals is None


def test_the_intervals_of_a_steady_run_are_close_about_its_figures() -> None:
    record = record_of(21_000, 10)
    found = figures(record, 99, 1.0).intervals
    assert found is not None
    assert found.p50_ms is not None
    assert found.p99_ms is not None
    assert found.goodput_per_s is not None
    assert found.p50_ms.low <= 11 <= found.p50_ms.high < 12
    assert found.p99_ms.low <= 20 <= found.p99_ms.high
    assert 0.49 < found.attainment.low <= 0.5 <= found.attainment.high < 0.51
    assert 49 < found.goodput_per_s.low <= 50 <= found.goodput_per_s.high < 51


def test_queries_are_grouped_by_stream_by_model_and_by_objective() -> None:
    record = record_of(6, 10)
    record.stream = np.array([0, 1, 2, 0, 1, 2], np.uint16)
    record.slo_ns = np.array([10, 10, -1, 10, 10, 5]) * MS
    record.slo_ns[2] = -1
    streams = [StreamLabel("web", "m"), StreamLabel("batch", "m"), StreamLabel("other", "n")]
    groups = figures(record, 99, 0, streams=streams).groups
    assert [(group.by, group.name, group.metrics.queries) for group in groups] == [
        (GroupBy.STREAM, "web", 2),
        (GroupBy.STREAM, "batch", 2),
        (GroupBy.STREAM, "other", 2),
        (GroupBy.MODEL, "m", 4),
        (GroupBy.MODEL, "n", 2),
        (GroupBy.OBJECTIVE, "none", 1),
        (GroupBy.OBJECTIVE, "5 ms", 1),
        (GroupBy.OBJECTIVE, "10 ms", 4),
    ]


def test_stages_of_several_pipelines_stay_apart() -> None:
    record = record_of(4, 10)
    record.stream = np.array([0, 1, 2, 0], np.uint16)
    record.stages = {0: f"{STAGE}0", 1: f"{STAGE}0", 2: f"{STAGE}0", 3: f"{STAGE}0"}
    streams = [StreamLabel("web", "m"), StreamLabel("batch", "m"), StreamLabel("other", "n")]
    stages = figures(record, 99, 0, streams=streams).stages
    assert [(stage.title, stage.queries) for stage in stages] == [("m: a on p", 3), ("n: a on p", 1)]
    assert [stage.title for stage in figures(record, 99, 0).stages] == ["a on p"]


def test_a_run_of_one_stream_and_one_objective_has_no_groups() -> None:
    assert figures(record_of(6, 10), 99, 0, streams=[StreamLabel("web", "m")]).groups == ()


def test_the_cost_of_good_answers_comes_from_the_best_source_there_is() -> None:
    record = record_of(2000, 10)
    assert figures(record, 99, 0).cost is None
    record.stages = {0: f"{STAGE}0.01", 20: f"{STAGE}0.02, {STAGE}0.03"}
    # 0.03 a query on average, and half of the queries are good.
    sampled = figures(record, 99, 0).cost
    assert sampled is not None
    assert sampled.per_1000_good == pytest.approx(60)
    assert sampled.source is CostSource.SAMPLE
    assert figures(record, 99, 0, server_cost=5.0).cost == Cost(5.0, CostSource.METRICS)
    # The last answer comes 19.99 + 0.02 s after the first query was due.
    price = figures(record, 99, 0, server_cost=5.0, price_per_hour=3600).cost
    assert price is not None
    assert price.per_1000_good == pytest.approx(20.01)
    assert price.source is CostSource.PRICE


def test_without_good_answers_there_is_no_cost() -> None:
    assert figures(record_of(20, 10, slo_ms=0.5), 99, 0, server_cost=5.0).cost is None
