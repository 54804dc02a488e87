import dataclasses
import json

import msgspec
import numpy as np
import pytest

from sluice.loadgen.records.server_metrics import BatchStatistics, ServerReport, StageShare
from sluice.loadgen.records.statistics import query_statistics
from sluice.loadgen.reports.document import run_json
from sluice.loadgen.reports.text import run_text
from sluice.loadgen.run.result import Verdict
from sluice.loadgen.scenarios.config import RunConfig
from tests.unit.loadgen.results import MS, result_of

CONFIG = RunConfig(target="http://host:1", model="m", rate=1000, slo_ms=10, warmup_s=0, seed=3)


def test_the_whole_text_of_a_run() -> None:
    result = result_of(CONFIG, latency_ms=10, queries=1001)
    result = dataclasses.replace(
        result,
        schedule_digest="0123456789abcdef" * 4,
        client_cpu_us_per_query=12.345,
        server=ServerReport(
            (BatchStatistics("m:1", "cpu0", 500, 2.0), BatchStatistics("m:1", "cpu1", 100, 1.0)),
            (StageShare("m:1", "m", 1001, 1.0),),
        ),
        predictions=np.array([[1], [2], [-1]]),
        expected=np.array([[1], [3], [3]]),
    )
    result.record.count_reason("HTTP 503: busy")
    assert run_text(result) == (
        "Server scenario: m at http://host:1\n"
        "  seed 3, schedule 0123456789abcdef, 0 s of warm-up excluded\n"
        "  queries    1001: 1001 ok, 0 shed, 0 error, 0 timeout, 0 dropped\n"
        "  rate       1000.0/s offered, 990.1/s completed, 1000.0/s good\n"
        "  score      completed queries 990.099/s, latency p99 10.000 ms\n"
        "  objective  10 ms for 99 %: met by 100.000 %, confirmed by early stopping\n"
        "  ms            mean     p50     p90     p95     p97     p99   p99.9     max\n"
        "  from due    10.000  10.000  10.000  10.000  10.000  10.000  10.000  10.000\n"
        "  from sent   10.000  10.000  10.000  10.000  10.000  10.000  10.000  10.000\n"
        "  waited       0.000   0.000   0.000   0.000   0.000   0.000   0.000   0.000\n"
        "  client lag   0.000   0.000   0.000   0.000   0.000   0.000   0.000   0.000\n"
        "  intervals  none; they take 200 s after the warm-up\n"
        "  client     12.3 us of CPU a query\n"
        "  accuracy   0.5000 of 2 answered rows\n"
        "  batches    600, mean 1.83 rows\n"
        "  batches    m:1 on cpu0: 500, mean 2.00 rows\n"
        "  batches    m:1 on cpu1: 100, mean 1.00 rows\n"
        "  stage      m:1 m: 1001 rows (100.0 %)\n"
        "  failures   1 x HTTP 503: busy\n"
        "Result: VALID, objective met\n"
    )


def test_rates_below_one_a_second_have_three_decimals() -> None:
    slow = result_of(CONFIG, latency_ms=10, queries=1001)
    metrics = msgspec.structs.replace(slow.metrics, offered_per_s=0.1476, completed_per_s=0.0, goodput_per_s=12.34)
    slow = dataclasses.replace(slow, metrics=metrics)
    assert "  rate       0.148/s offered, 0.0/s completed, 12.3/s good" in run_text(slow).splitlines()


def test_a_missed_objective_has_no_number_of_queries_that_would_confirm_it() -> None:
    missed = result_of(CONFIG, latency_ms=11, queries=1001)
    assert "  objective  10 ms for 99 %: met by 0.000 %" in run_text(missed).splitlines()


def test_the_verdicts() -> None:
    missed = result_of(CONFIG, latency_ms=11, queries=1001)
    invalid = result_of(CONFIG, latency_ms=10, queries=10, invalid=("interrupted",))
    simulated = dataclasses.replace(missed, simulated=True)
    assert run_text(missed).endswith("Result: VALID, objective MISSED\n")
    assert run_text(invalid).endswith(
        "Result: INVALID: too short: 10 queries after the warm-up; a claim about 99 % needs 459; "
        "try --duration 1 or more; interrupted\n"
    )
    assert run_text(simulated).startswith("Server scenario: m at http://host:1 (SIMULATED)\n")
    assert (missed.slo_met, invalid.slo_met) == (False, False)
    assert (missed.verdict, invalid.verdict) == (Verdict.MISSED, Verdict.INVALID)


def test_an_objective_is_met_only_if_early_stopping_confirms_it() -> None:
    # 2010 queries confirm 99 % with 10 misses among them (MLPerf's table).
    met, not_confirmed = (result_of(CONFIG, latency_ms=10, queries=queries, errors=10) for queries in (2010, 2009))
    assert (met.verdict, met.slo_met) == (Verdict.MET, True)
    assert (not_confirmed.verdict, not_confirmed.slo_met) == (Verdict.NOT_CONFIRMED, False)
    assert run_text(not_confirmed).endswith(
        "Result: VALID, objective NOT CONFIRMED: 10 misses among 2009 queries; "
        "early stopping needs 2010 for that number of misses; "
        "with this share of misses it takes about 2144: try --duration 3\n"
    )
    report = json.loads(run_json(not_confirmed))
    assert (report["slo_met"], report["verdict"]) == (False, "not confirmed")
    assert report["metrics"]["confirmed"] is False


@pytest.mark.parametrize(("target", "place"), [("http://t", "one of 256"), ("grpc://t", "room on")])
def test_waits_for_connections_are_counted_in_the_text(target: str, place: str) -> None:
    result = result_of(msgspec.structs.replace(CONFIG, target=target), latency_ms=10, queries=1001)
    result.record.queued_ns[:500] = result.record.due_ns[:500]
    result.record.sent_ns[:500] = result.record.due_ns[:500] + 4 * MS
    metrics = query_statistics(result.record, CONFIG.percentile, CONFIG.warmup_s)
    lines = run_text(dataclasses.replace(result, metrics=metrics)).splitlines()
    assert f"  waited     500 queries for {place} connections, part of 'from due'" in lines
    assert any(line.split()[:4] == ["waited", "1.998", "0.000", "4.000"] for line in lines)
    assert lines[-1] == "Result: VALID, objective met"


def test_notes_stand_before_the_result() -> None:
    result = dataclasses.replace(result_of(CONFIG, latency_ms=10, queries=1001), notes=("no host",))
    assert run_text(result).endswith("  note       no host\nResult: VALID, objective met\n")
    assert json.loads(run_json(result))["notes"] == ["no host"]


def test_the_json_of_a_run() -> None:
    report = json.loads(run_json(result_of(CONFIG, latency_ms=10, queries=1001)))
    assert report["schema_version"] == 1
    assert report["kind"] == "run"
    assert report["config"]["rate"] == 1000
    streams = {"arrivals", "samples", "data", "verdicts", "service", "ways", "strays", "pace", "trace"}
    streams |= {"mix", "mix samples", "cancellations", "deadlines"}
    assert report["seeds"].keys() == {"master"} | streams
    assert report["metrics"]["latency_ms"]["p99"] == 10
    assert report["validity"] == {"valid": True, "reasons": [], "limits": []}
    assert report["slo_met"] is True
    assert report["verdict"] == "met"
    assert report["notes"] == []
