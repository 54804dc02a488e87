import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sluice.loadgen.mlperf.logged_run import LoggedRun, LoggedSettings
from sluice.loadgen.mlperf.logs import ACCURACY, DETAIL, SUMMARY, write_logs
from sluice.loadgen.mlperf.marking import NOT_A_RESULT
from sluice.loadgen.records.outputs import KeptOutputs
from tests.unit.loadgen.mlperf.loadgen_runs import retold, run_loadgen
from tests.unit.loadgen.mlperf.published_rules import PublishedLog, summary_score

MS = 1_000_000

# What tells of LoadGen's own program, of features that Sluice's generator has not, and of the estimates that LoadGen
# needs beforehand.
ONLY_LOADGENS = re.compile(
    r"loadgen_(build|git|file).*|logger_.*|get_sut_name_duration_ns|generic_message|warning_generic_message|error_runtime"
    r"|requested_server_(coalesce|find_peak|num_issue).*|requested_(single|multi)_stream_expected_latency_ns"
    r"|requested_offline_expected_qps"
)
# The mark, the time of day, the words of recommendations, and what follows from LoadGen's estimates.
DIFFERENT = re.compile(
    r"loadgen_version|not_an_mlperf_result|test_datetime|power_.*|result_invalid_reason|.*_target_qps"
    r"|requested_.*_sample_count_override|generated_query_(count|duration)|num_errors"
)

RUNS: dict[str, dict[str, Any]] = {
    "Server": {"server_target_qps": 2000, "min_duration_ms": 300},
    "SingleStream": {"single_stream_expected_latency_ns": 1_000_000, "min_duration_ms": 2000, "max_query_count": 3000},
    "MultiStream": {"multi_stream_expected_latency_ns": 1_000_000, "multi_stream_samples_per_query": 3,
                    "min_duration_ms": 2000, "max_query_count": 1500},
    "Offline": {"offline_expected_qps": 5000, "min_duration_ms": 0},
}  # fmt: skip


def settings_of(log: PublishedLog) -> LoggedSettings:
    names = [name for name in LoggedSettings.__struct_fields__ if name != "target_qps"]
    return LoggedSettings(
        target_qps=2000 if log.values["effective_scenario"] == "Server" else 0,
        **{name: log.values[f"effective_{name}"] for name in names},
    )


@pytest.mark.parametrize("scenario", RUNS)
def test_every_figure_of_a_run_is_the_one_that_loadgen_logs(scenario: str, tmp_path: Path) -> None:
    pytest.importorskip("mlperf_loadgen")
    theirs, ours = tmp_path / "loadgen", tmp_path / "sluice"
    run_loadgen(scenario, "PerformanceOnly", theirs, RUNS[scenario])
    expected = PublishedLog(theirs / DETAIL)
    ours.mkdir()
    write_logs(retold(theirs, scenario, settings_of(expected), [expected.values["loaded_qsl_set"]]), ours)
    found = PublishedLog(ours / DETAIL)
    assert {key for key in expected.values if not ONLY_LOADGENS.fullmatch(key)} | {"not_an_mlperf_result"} == {
        key for key in found.values if not ONLY_LOADGENS.fullmatch(key)
    }
    for key, value in found.values.items():
        if not DIFFERENT.fullmatch(key):
            # LoadGen prints six digits of a fraction, and the last issue of a closed loop is not in its trace.
            digits = 1e-3 if key.endswith("with_loadgen_overhead") else 1e-5
            wanted = expected.values[key]
            assert value == (pytest.approx(wanted, rel=digits) if isinstance(value, float) else wanted), key
    assert found.score == pytest.approx(expected.score, rel=1e-5)
    wanted_score, found_score = (summary_score(folder / SUMMARY) for folder in (theirs, ours))
    assert found_score[0] == wanted_score[0] == scenario
    assert found_score[1] == pytest.approx(wanted_score[1], rel=1e-4)
    assert found_score[2] == wanted_score[2]
    assert shape(ours / SUMMARY) == shape(theirs / SUMMARY)
    assert (ours / ACCURACY).read_bytes() == (theirs / ACCURACY).read_bytes()


def shape(summary: Path) -> list[str]:
    """The lines of a summary without figures, the mark, recommendations, and the counts of errors and warnings."""
    lines = [re.sub(r"\d+", "#", line.split(": ")[0]) for line in summary.read_text().splitlines()]
    return [
        line
        for line in lines
        if not re.match(r"Note| \* (Decrease|Increase|Run longer)|.* (errors?|ERROR|warnings?) encountered", line)
    ]


def run_of(scenario: str, latency_ms: list[int], **changes: Any) -> LoggedRun:
    """Samples a millisecond apart (one after the other in closed loops), all answered."""
    latency_ns = np.array(latency_ms, np.int64) * MS
    start_ns = np.arange(len(latency_ms), dtype=np.int64) * MS
    settings = LoggedSettings(
        target_latency_ns=10 * MS, target_latency_percentile=0.9 if scenario == "SingleStream" else 0.99
    )
    run = LoggedRun(
        system="http://localhost:8000 digits",
        data_set="digits.npz",
        scenario=scenario,
        accuracy_mode=False,
        settings=settings,
        loaded=[range(3)],
        samples=np.arange(len(latency_ms), dtype=np.int64) % 3,
        start_ns=start_ns,
        done_ns=start_ns + latency_ns,
        answered=np.ones(len(latency_ms), np.bool_),
    )
    return replace(run, **changes)


def written(run: LoggedRun, folder: Path) -> tuple[PublishedLog, list[str], list[dict[str, Any]]]:
    write_logs(run, folder)
    summary = (folder / SUMMARY).read_text().splitlines()
    return PublishedLog(folder / DETAIL), summary, json.loads((folder / ACCURACY).read_text())


def test_the_logs_say_that_they_are_no_result_of_mlperf(tmp_path: Path) -> None:
    detail, summary, _ = written(run_of("Server", [1] * 500), tmp_path)
    assert summary[3] == f"Note     : {NOT_A_RESULT}"
    assert detail.values["not_an_mlperf_result"] == NOT_A_RESULT
    assert detail.values["loadgen_version"] == "Sluice"
    assert (detail.errors, detail.warnings) == (0, 1)
    assert summary[-3:] == ["1 warning encountered. See detailed log.", "", "No errors encountered during test."]


def test_a_server_run_is_valid_by_the_early_stopping_test(tmp_path: Path) -> None:
    detail, summary, _ = written(run_of("Server", [1] * 458), tmp_path)
    assert detail.values["result_validity"] == "INVALID"
    assert detail.values["result_perf_constraints_met"] is True
    assert " * Would need to run at least 1 more queries," in summary
    detail, summary, _ = written(run_of("Server", [1] * 459), tmp_path)
    assert detail.values["result_validity"] == "VALID"
    assert "Result is : VALID" in summary
    # 459 queries from 0 to 458 ms, the last of which takes 1 ms.
    assert detail.values["result_completed_samples_per_sec"] == pytest.approx(458 / 0.459)
    assert detail.values["result_scheduled_samples_per_sec"] == pytest.approx(1000)


def test_what_has_no_answer_is_over_the_latency_and_an_error_of_the_log(tmp_path: Path) -> None:
    run = run_of("Server", [1] * 1000)
    run.answered[:2] = False
    detail, summary, _ = written(replace(run, failures={"queue full": 2}), tmp_path)
    assert detail.values["result_overlatency_query_count"] == 2
    # Both began in the first two milliseconds and may have lasted to the end of the run.
    assert detail.values["result_max_latency_ns"] == 1000 * MS
    assert detail.errors == 1
    assert detail.values["error_runtime"] == "2 of 1000 samples had no answer: 2 x queue full"
    assert summary[-1] == "1 ERROR encountered. See detailed log."
    assert detail.values["result_validity"] == "VALID"
    assert detail.values["result_completed_samples_per_sec"] == pytest.approx(997 / 1.0)


def test_what_has_no_answer_is_over_the_latency_however_late_in_the_run(tmp_path: Path) -> None:
    run = run_of("Server", [1] * 1000)
    run = replace(run, settings=msgspec.structs.replace(run.settings, target_latency_ns=5000 * MS))
    run.answered[100:] = False
    detail, summary, _ = written(run, tmp_path)
    assert detail.values["result_overlatency_query_count"] == 900
    assert detail.values["result_perf_constraints_met"] is False
    assert "Result is : INVALID" in summary
    run.answered[:] = False
    assert written(run, tmp_path)[0].values["result_completed_samples_per_sec"] == 0


def test_an_offline_run_counts_answered_samples_to_the_end(tmp_path: Path) -> None:
    run = run_of("Offline", list(range(1, 101)), start_ns=np.zeros(100, np.int64), group=100)
    done_ns = np.arange(1, 101, dtype=np.int64) * MS
    detail, summary, _ = written(replace(run, done_ns=done_ns), tmp_path)
    assert detail.score == pytest.approx(1000)
    assert detail.values["result_query_count"] == 1
    assert "Samples per second: 1000.00" in summary
    assert "Early Stopping Result:" not in summary


@pytest.mark.parametrize(
    ("scenario", "queries", "discarded", "estimate_ms"),
    [("SingleStream", 6001, 545, 5456), ("MultiStream", 3001, 16, 2985)],
)
def test_the_estimate_of_a_closed_loop_leaves_out_what_loadgen_leaves_out(
    scenario: str, queries: int, discarded: int, estimate_ms: int, tmp_path: Path
) -> None:
    detail, summary, _ = written(run_of(scenario, list(range(1, queries + 1))), tmp_path)
    assert f" * Would discard {discarded} highest latency queries." in summary
    assert detail.score == estimate_ms * MS


@pytest.mark.parametrize(("scenario", "needed"), [("SingleStream", 64), ("MultiStream", 662)])
def test_a_closed_loop_needs_queries_for_an_estimate(scenario: str, needed: int, tmp_path: Path) -> None:
    detail, summary, _ = written(run_of(scenario, [1] * (needed - 1)), tmp_path)
    assert detail.score == 0
    assert detail.values["result_validity"] == "INVALID"
    assert f" * Need to process at least {needed} queries for early stopping." in summary
    detail, _, _ = written(run_of(scenario, [1] * needed), tmp_path)
    assert detail.score == MS


def test_a_query_of_a_multi_stream_run_lasts_as_long_as_its_slowest_sample(tmp_path: Path) -> None:
    run = run_of("MultiStream", [1, 7, 2] * 700, group=3)
    detail, _, _ = written(run, tmp_path)
    assert detail.values["result_query_count"] == 700
    assert detail.values["result_50.00_percentile_per_query_latency_ns"] == 7 * MS
    assert detail.values["result_50.00_percentile_latency_ns"] == 2 * MS


def test_a_fault_of_the_run_makes_it_invalid_in_its_own_words(tmp_path: Path) -> None:
    detail, summary, _ = written(run_of("Server", [1] * 500, faults=("interrupted before its end",)), tmp_path)
    assert detail.values["result_validity"] == "INVALID"
    assert detail.values["result_invalid_reason"] == "interrupted before its end"
    assert " * interrupted before its end" in summary
    assert detail.errors == 1


def test_accuracy_mode_logs_answers_and_no_figures(tmp_path: Path) -> None:
    run = run_of("Server", [1] * 3, accuracy_mode=True, answers={0: b"\x01\xab", 2: b""})
    detail, summary, answers = written(run, tmp_path)
    assert answers == [{"seq_id": 0, "qsl_idx": 0, "data": "01AB"}, {"seq_id": 2, "qsl_idx": 2, "data": ""}]
    assert detail.values["effective_test_mode"] == "AccuracyOnly"
    assert not [key for key in detail.values if key.startswith("result_")]
    assert summary[0] == f"Note     : {NOT_A_RESULT}"
    assert len(summary) == 5


@pytest.mark.parametrize("scenario", RUNS)
def test_accuracy_mode_logs_what_loadgen_logs(scenario: str, tmp_path: Path) -> None:
    pytest.importorskip("mlperf_loadgen")
    theirs, ours = tmp_path / "loadgen", tmp_path / "sluice"
    run_loadgen(scenario, "AccuracyOnly", theirs, RUNS[scenario])
    expected = PublishedLog(theirs / DETAIL)
    ours.mkdir()
    run = retold(theirs, scenario, settings_of(expected), [expected.values["loaded_qsl_set"]])
    # LoadGen's target answers with the number of the sample.
    answers = {number: int(sample).to_bytes(8, "little") for number, sample in enumerate(run.samples)}
    write_logs(replace(run, accuracy_mode=True, answers=answers), ours)
    order = json.loads((theirs / ACCURACY).read_text())
    assert json.loads((ours / ACCURACY).read_text()) == sorted(order, key=lambda each: int(each["seq_id"]))
    found = PublishedLog(ours / DETAIL)
    assert {key for key in found.values if key.startswith(("result_", "early_stopping", "num_"))} == set()
    assert found.values["requested_test_mode"] == expected.values["requested_test_mode"] == "AccuracyOnly"


def test_the_answers_logged_in_performance_mode_are_those_that_loadgen_logs(tmp_path: Path) -> None:
    pytest.importorskip("mlperf_loadgen")
    seed, target = 720381539243781796, 64
    settings = RUNS["Server"] | {"accuracy_log_rng_seed": seed, "accuracy_log_sampling_target": target}
    run_loadgen("Server", "PerformanceOnly", tmp_path / "loadgen", settings)
    logged = json.loads((tmp_path / "loadgen" / ACCURACY).read_text())
    queries = PublishedLog(tmp_path / "loadgen" / DETAIL).values["result_query_count"]
    # LoadGen expects 2000/s for 300 ms.
    assert KeptOutputs(target / 600, seed).queries(queries) == {each["seq_id"] for each in logged}
    assert len(logged) == 50


def test_no_answers_are_an_empty_list_as_loadgen_writes_it(tmp_path: Path) -> None:
    written(run_of("Server", [1] * 500), tmp_path)
    assert (tmp_path / ACCURACY).read_text() == "[\n]\n"
