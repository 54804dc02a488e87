import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sluice.loadgen.cli.main import main
from sluice.loadgen.mlperf.compliance import (
    TEST05_SEEDS,
    Compliance,
    ComplianceTest,
    changed_config,
    check_answers,
    check_performance,
)
from sluice.loadgen.mlperf.logs import ACCURACY, DETAIL
from sluice.loadgen.mlperf.scored_log import ScoredLog, read_scored_log
from sluice.loadgen.scenarios.config import RunConfig
from sluice.models.errors import ConfigError
from tests.support.loadgen.v2_server import answer_of, server
from tests.unit.loadgen.mlperf.loadgen_runs import run_loadgen
from tests.unit.loadgen.mlperf.published_rules import accuracy_verdict, performance_verdict, summary_score
from tests.unit.loadgen.mlperf.test_logs import RUNS
from tests.unit.loadgen.simulated_server import write_simulation


def log(scenario: str, score: float, **changes: object) -> ScoredLog:
    return replace(ScoredLog(Path("x"), scenario, score, 1000, 10_000_000, ""), **changes)  # type: ignore[arg-type]


MS = 1_000_000.0


@pytest.mark.parametrize(
    ("test", "scenario", "reference", "score", "passed"),
    [
        # Not faster than by 10 %, or 20 % in closed loops; slower as it likes.
        ("TEST04", "Server", 100.0, 109.9, True),
        ("TEST04", "Server", 100.0, 110.1, False),
        ("TEST04", "Offline", 100.0, 50.0, True),
        ("TEST04", "Offline", 100.0, 111.0, False),
        ("TEST04", "SingleStream", 12 * MS, 10.1 * MS, True),
        ("TEST04", "SingleStream", 12 * MS, 9.9 * MS, False),
        ("TEST04", "MultiStream", 12 * MS, 9.9 * MS, False),
        # Not slower than by 5 %, or 20 % where the latency is up to 0.2 and 1.6 ms.
        ("TEST05", "Server", 100.0, 95.1, True),
        ("TEST05", "Server", 100.0, 94.9, False),
        ("TEST05", "SingleStream", 10 * MS, 10.4 * MS, True),
        ("TEST05", "SingleStream", 10 * MS, 10.6 * MS, False),
        ("TEST05", "SingleStream", 0.2 * MS, 0.239 * MS, True),
        ("TEST05", "SingleStream", 0.201 * MS, 0.239 * MS, False),
        ("TEST05", "MultiStream", 1.6 * MS, 1.91 * MS, True),
        # Within 10 % both ways.
        ("TEST01", "Offline", 100.0, 90.1, True),
        ("TEST01", "Offline", 100.0, 89.9, False),
        ("TEST01", "Offline", 100.0, 110.1, False),
        ("TEST01", "SingleStream", 10 * MS, 10.9 * MS, True),
        ("TEST01", "SingleStream", 10 * MS, 9.1 * MS, True),
        ("TEST01", "SingleStream", 10 * MS, 11.1 * MS, False),
        ("TEST01", "SingleStream", 10 * MS, 8.9 * MS, False),
    ],
)
def test_the_limits_of_the_tests(test: str, scenario: str, reference: float, score: float, passed: bool) -> None:
    found = check_performance(ComplianceTest(test), log(scenario, reference), log(scenario, score))
    assert found.passed is passed, found.sentence


def test_an_invalid_run_gives_no_verdict() -> None:
    invalid = log("Server", 100.0, invalid_reason="interrupted")
    for pair in ((invalid, log("Server", 100.0)), (log("Server", 100.0), invalid)):
        found = check_performance(ComplianceTest.TEST04, *pair)
        assert found.passed is None
        assert found.sentence.endswith("run is INVALID: interrupted")


def test_runs_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(ConfigError, match="runs of one scenario, got Server and Offline"):
        check_performance(ComplianceTest.TEST04, log("Server", 1.0), log("Offline", 1.0))
    with pytest.raises(ConfigError, match="one latency objective, got 10000000 ns and 5 ns"):
        check_performance(ComplianceTest.TEST04, log("Server", 1.0), log("Server", 1.0, target_latency_ns=5))


PASSED = Compliance(ComplianceTest.TEST01, True, "as fast", "Offline", 1.0, 1.0)


def answers(folder: Path, data: dict[int, bytes]) -> Path:
    folder.mkdir()
    rows = [
        {"seq_id": number, "qsl_idx": sample, "data": each.hex()} for number, (sample, each) in enumerate(data.items())
    ]
    (folder / ACCURACY).write_text(json.dumps(rows))
    return folder


def test_answers_are_compared_with_those_of_the_accuracy_run(tmp_path: Path) -> None:
    accuracy = answers(tmp_path / "accuracy", {0: b"\1\2", 1: b"\3\4"})
    for name, data, passed, different in (
        ("equal", {1: b"\3\4"}, True, 0),
        ("other", {1: b"\3\4", 0: b"\1\3"}, False, 1),
        ("short", {1: b"\3"}, False, 1),
        ("none", {}, False, 0),
        ("unknown", {7: b"\1\2"}, False, 0),
    ):
        found = check_answers(PASSED, accuracy, answers(tmp_path / name, data))
        assert (found.passed, found.different) == (passed, different), found.sentence


def test_floating_point_answers_may_differ_by_the_tolerance(tmp_path: Path) -> None:
    accuracy = answers(tmp_path / "accuracy", {0: np.array([1.0, 2.0], np.float32).tobytes()})
    tested = answers(tmp_path / "test", {0: np.array([1.0, 2.001], np.float32).tobytes()})
    assert check_answers(PASSED, accuracy, tested, "float32", 1e-3).passed
    assert not check_answers(PASSED, accuracy, tested, "float32", 1e-4).passed
    odd = answers(tmp_path / "odd", {0: b"\1\2\3"})
    with pytest.raises(ConfigError, match="expected data of float32"):
        check_answers(PASSED, accuracy, odd, "float32", 1e-4)


def test_the_settings_of_the_tests() -> None:
    config = RunConfig(target="http://t", model="m")
    reference = log("Offline", 1.0, samples=640)
    changed = {test: changed_config(test, config, reference, 64) for test in ComplianceTest}
    assert changed[ComplianceTest.TEST05].mlperf.seeds == TEST05_SEEDS
    assert (changed[ComplianceTest.TEST04].mlperf.choice, changed[ComplianceTest.TEST04].mlperf.place) == ("same", 3)
    kept = changed[ComplianceTest.TEST01].kept_outputs
    assert kept is not None
    assert (kept.share, kept.seed) == (0.1, 720381539243781796)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "effective_scenario"),
        ("hello\n", ":1: expected a line that starts with :::MLLOG"),
        (":::MLLOG {\n", ":1: expected a JSON object with key and value"),
        (':::MLLOG {"key": "effective_scenario", "value": "Server"}\n', "it has no result_completed_samples_per_sec"),
        (':::MLLOG {"key": "effective_scenario", "value": "Best"}\n', "one of Server, Offline"),
    ],
)
def test_a_file_that_is_no_detail_log_is_refused_by_its_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / DETAIL).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_scored_log(tmp_path)


def test_logs_of_loadgen_are_read_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mlperf_loadgen")
    logs = [tmp_path / "first", tmp_path / "second"]
    for folder in logs:
        run_loadgen("Server", "PerformanceOnly", folder, RUNS["Server"])
    found = {folder: read_scored_log(folder) for folder in logs}
    assert {(each.scenario, each.target_latency_ns) for each in found.values()} == {("Server", 100_000_000)}
    for folder, scored in found.items():
        assert scored.score == pytest.approx(summary_score(folder / "mlperf_log_summary.txt")[1], abs=0.01)
    # A machine that pauses makes one of them slower, and only the test may be that.
    test, reference = sorted(logs, key=lambda folder: found[folder].score)
    code = main(["compliance", "TEST04", "--reference", str(reference), "--test-logs", str(test)])
    assert code == 0
    assert capsys.readouterr().out.startswith("TEST04 PASSED: ")


async def by_input(body: bytes, writer: asyncio.StreamWriter) -> None:
    """Answer with the input, after a millisecond."""
    await asyncio.sleep(0.001)
    writer.write(answer_of(np.frombuffer(body[-8:], np.float32).reshape(1, 2)))


LIVE = ["--model", "m", "--scenario", "single-stream", "--queries", "200"]


def test_a_target_without_a_cache_passes_and_the_published_rules_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with server(by_body=by_input) as target:
        assert main(["compliance", "TEST01", "--target", target, *LIVE, "--out", str(tmp_path)]) in (0, 2)
    out = capsys.readouterr().out
    assert "TEST01 " in out
    assert accuracy_verdict(tmp_path / "accuracy" / ACCURACY, tmp_path / "TEST01" / ACCURACY)
    # Eight bytes for each of the 64 random samples.
    logged = json.loads((tmp_path / "accuracy" / ACCURACY).read_text())
    assert sorted(each["qsl_idx"] for each in logged) == list(range(64))
    assert {len(each["data"]) for each in logged} == {16}
    published = performance_verdict(tmp_path / "performance" / DETAIL, tmp_path / "TEST01" / DETAIL, 0.1)
    assert published == ("TEST01 PASSED" in out)


def test_a_target_that_remembers_answers_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known: set[bytes] = set()

    async def remembering(body: bytes, writer: asyncio.StreamWriter) -> None:
        # All samples together do not fit, one alone does.
        if body[-8:] not in known:
            await asyncio.sleep(0.004)
            known.clear()
            known.add(body[-8:])
        writer.write(answer_of(np.frombuffer(body[-8:], np.float32).reshape(1, 2)))

    with server(by_body=remembering) as target:
        assert main(["compliance", "TEST04", "--target", target, *LIVE, "--out", str(tmp_path)]) == 2
    assert "20 % are allowed" in capsys.readouterr().out
    scores = [summary_score(tmp_path / name / "mlperf_log_summary.txt")[1] for name in ("performance", "TEST04")]
    assert scores[1] > 1.2 * scores[0]


def test_other_seeds_are_no_slower_in_a_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = write_simulation(tmp_path)
    report = tmp_path / "report.json"
    options = ["--target", target, "--model", "small", "--rate", "20", "--slo-ms", "100", "--duration", "60"]
    assert main(["compliance", "TEST05", *options, "--out", str(tmp_path / "out"), "--json", str(report)]) == 0
    content = json.loads(report.read_text())
    assert (content["test"], content["passed"], content["scenario"]) == ("TEST05", True, "Server")
    summary = (tmp_path / "out" / "TEST05" / "mlperf_log_summary.txt").read_text()
    assert f"schedule_rng_seed : {TEST05_SEEDS.schedule}" in summary
    assert f"qsl_rng_seed : {TEST05_SEEDS.qsl}" in summary


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["TEST04"], "expected --target, --model and --out, or --test-logs and --reference"),
        (["TEST04", "--test-logs", "x"], "--test-logs goes with --reference and without --target"),
        (["TEST01", "--test-logs", "x", "--reference", "y"], "--test-logs goes with --reference, --accuracy-logs"),
        (["TEST04", "--test-logs", "x", "--reference", "missing"], "missing/mlperf_log_detail.txt: cannot be read"),
        (["TEST01", "--target", "sim:x", "--model", "m", "--out", "o"], "a simulated target gives no outputs"),
        (["TEST01", "--tolerance", "-1"], "--tolerance: expected at least 0, got -1"),
        (["TEST01", "--logged-answers", "0"], "--logged-answers: expected at least 1, got 0"),
        (
            ["TEST04", "--target", "http://x", "--model", "m", "--out", "o", "--seed", "1"],
            "--seed: compliance tests have",
        ),
        (
            ["TEST04", "--target", "http://x", "--model", "m", "--out", "o", "--scenario", "jobs"],
            "MLPerf has no scenario jobs",
        ),
    ],
)
def test_what_cannot_be_tested_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compliance", *arguments]) == 1
    assert message in capsys.readouterr().err
