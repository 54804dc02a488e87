import json
import re
from pathlib import Path

import pytest

from sluice.loadgen.cli.main import main
from tests.unit.loadgen.simulated_server import write_simulation

FAST = ["--model", "small", "--warmup", "0", "--queries", "1000"]


def test_a_met_objective_exits_with_0_and_writes_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    target = write_simulation(tmp_path)
    code = main(["run", "--target", target, *FAST, "--rate", "10", "--slo-ms", "100", "--json", str(report)])
    assert code == 0
    assert capsys.readouterr().out.endswith("Result: VALID, objective met\n")
    assert json.loads(report.read_text())["metrics"]["queries"] == 1000


def test_bursts_and_traces_are_played_at_the_rate_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    trace = tmp_path / "trace.csv"
    trace.write_text("time\n" + "".join(f"{number**1.5}\n" for number in range(500)))
    shared = ["run", "--target", write_simulation(tmp_path), *FAST, "--rate", "10", "--json", str(report)]
    offered = []
    for arrivals in (["poisson"], ["gamma", "--cv", "2"], ["trace", "--trace", str(trace)]):
        main([*shared, "--arrivals", *arrivals])
        content = json.loads(report.read_text())
        assert content["config"]["arrivals"]["process"] == arrivals[0]
        offered.append(content["metrics"]["offered_per_s"])
    assert offered == pytest.approx([10, 10, 10], rel=0.15)
    assert len(set(offered)) == 3
    described = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  arrivals")]
    assert described == ["  arrivals   gamma, coefficient of variation 2", f"  arrivals   trace {trace}"]


def test_an_objective_that_is_not_confirmed_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    # The first arrivals find an idle server, and few of the later ones wait: some miss, but less than 1 %.
    arguments = ["run", "--target", write_simulation(tmp_path), *FAST, "--rate", "10", "--json", str(report)]
    assert main([*arguments, "--slo-ms", "20"]) == 2
    content = json.loads(report.read_text())
    assert content["metrics"]["attainment"] >= 0.99
    assert (content["verdict"], content["slo_met"]) == ("not confirmed", False)
    output = capsys.readouterr().out
    assert "objective NOT CONFIRMED" in output
    assert "objective met" not in output


def test_find_max_without_enough_queries_for_a_verdict_exits_with_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "peak.json"
    arguments = ["--target", write_simulation(tmp_path), "--model", "small", "--slo-ms", "1000", "--start", "5"]
    arguments += ["--duration", "60"]
    assert main(["find-max", *arguments, "--json", str(report)]) == 4
    # 459 queries at 5/s take 92 s, and a second of warm-up.
    assert re.search(r"needs 459; try --duration 9\d or more", capsys.readouterr().out.splitlines()[-1])
    content = json.loads(report.read_text())
    assert (content["rate"], content["too_short"]) == (None, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--warmup", "5", "--duration", "5"],
            "--warmup: leaves no query to measure; expected less than --duration (5 s), got 5 s",
        ),
        (["--warmup", "9", "--queries", "50"], "expected less than the time of the last query ("),
    ],
)
@pytest.mark.parametrize("command", [["run", "--rate", "10"]])
def test_a_warmup_that_leaves_nothing_to_measure_is_refused(
    command: list[str], arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--target", write_simulation(tmp_path), "--model", "small", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_find_max_refuses_a_schedule_which_has_one_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--target", write_simulation(tmp_path), "--model", "small", "--schedule", "x.npz"]
    assert main(["find-max", *arguments]) == 1
    assert "--schedule: has queries at one rate; expected --arrivals" in capsys.readouterr().err


def test_find_max_refuses_a_warmup_of_the_whole_duration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "find-max",
        "--target",
        write_simulation(tmp_path),
        "--model",
        "small",
        "--warmup",
        "10",
        "--duration",
        "10",
    ]
    assert main(arguments) == 1
    assert "--warmup: leaves no query to measure" in capsys.readouterr().err


@pytest.mark.parametrize(("settings", "said"), [({}, 1), ({"host": {"receive_us": 10}}, 0), ({"host": {}}, 0)])
@pytest.mark.parametrize("command", [["run", "--rate", "20"], ["find-max", "--start", "20", "--max-rate", "20"]])
def test_a_simulation_without_a_host_says_so_once(
    command: list[str], settings: dict[str, object], said: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note = "no `host` section; gateway and transport count as nothing"
    arguments = ["--target", write_simulation(tmp_path, **settings), "--model", "small", "--slo-ms", "1000"]
    main([*command, *arguments, "--duration", "30"])
    output, errors = capsys.readouterr()
    assert (output.count(note), errors.count(note)) == (said, said)


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (["single-stream", "--queries", "70", "--warmup", "0"], ("latency p90 by early stopping", "ms")),
        (["multi-stream", "--min-queries", "700", "--warmup", "0"], ("latency p99 by early stopping", "ms")),
        (["offline", "--max-queries", "500"], ("samples", "/s")),
        (["concurrency", "--concurrency", "3", "--max-duration", "3"], ("completed queries", "/s")),
        (["jobs", "--rate", "5", "--queries", "10", "--warmup", "0"], ("time of a job p99", "ms")),
        (["server", "--rate", "50", "--mode", "accuracy", "--warmup", "0"], ("completed queries", "/s")),
    ],
)
def test_each_scenario_has_its_score(
    arguments: list[str], first: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    target = write_simulation(tmp_path)
    shared = ["run", "--target", target, "--model", "small", "--json", str(report), "--scenario"]
    assert main([*shared, *arguments]) == 0
    output, errors = capsys.readouterr()
    assert output.startswith(f"{arguments[0].capitalize()} scenario: small at {target} (SIMULATED)\n")
    assert f"  score      {first[0]} " in output
    assert "queries sent" not in errors  # no progress in a pipe
    figure = json.loads(report.read_text())["score"]["figures"][0]
    assert (figure["name"], figure["unit"]) == first


def test_a_missed_objective_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["run", "--target", write_simulation(tmp_path), *FAST, "--rate", "10", "--slo-ms", "5"])
    assert code == 2
    assert "objective MISSED" in capsys.readouterr().out


def test_an_invalid_run_exits_with_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = write_simulation(tmp_path)
    code = main(["run", "--target", target, "--model", "small", "--warmup", "0", "--queries", "3", "--rate", "10"])
    assert code == 4
    assert "too short: 3 queries" in capsys.readouterr().out


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_an_unreachable_target_exits_with_5(scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--target", f"{scheme}://127.0.0.1:1", *FAST, "--rate", "10"]) == 5
    assert "127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run", "--target", "ftp://x", *FAST, "--rate", "1"],
            "expected http://host:port, https://…, grpc://…, grpcs://…, unix:///path (HTTP), ",
        ),
        (["run", "--target", "http://x:1/y", *FAST, "--rate", "1"], "expected http://host:port"),
        (["run", "--target", "sim:missing.yaml", *FAST, "--rate", "1"], "missing.yaml"),
        (
            ["run", "--target", "http://x:1", *FAST, "--rate", "1", "--percentile", "99.99995"],
            "--percentile: expected a percentage from 1 to 99.9999, such as 99, got 99.99995",
        ),
        (["run", "--target", "http://x:1", *FAST, "--rate", "1", "--percentile", "0.99"], "such as 99, got 0.99"),
        (["run", "--target", "http://x:1", *FAST, "--rate", "1", "--out", "/dev/null/x"], "/dev/null is not a folder"),
        (["run", "--target", "http://x:1", *FAST, "--rate", "1", "--cv", "2"], "--cv: requires --arrivals gamma"),
        (
            ["run", "--target", "http://x:1", *FAST, "--rate", "1", "--arrivals", "poisson", "--trace", "x"],
            "--trace: requires --arrivals trace",
        ),
        (
            ["run", "--target", "http://x:1", *FAST, "--rate", "1", "--arrivals", "trace"],
            "--arrivals trace: requires --trace FILE",
        ),
    ],
)
def test_what_cannot_be_run_exits_with_1(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["run"], ["run", "--rate", "x"], ["find-max", "--queries", "3"], ["walk"]])
def test_wrong_usage_exits_with_1(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"loadgen( \S+)?: error: .+; see `loadgen.* --help`", line)


def test_a_report_that_cannot_be_written_is_refused_before_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--target", "http://x:1", *FAST, "--rate", "1", "--json", "/dev/null/x.json"])
    assert stopped.value.code == 1
    assert "argument --json: /dev/null/x.json: cannot be written: /dev/null is not a folder" in capsys.readouterr().err


def test_keys_of_loadgen_are_defaults_of_options(tmp_path: Path) -> None:
    user = tmp_path / "user.conf"
    user.write_text("*.Server.target_qps = 40\n*.Server.max_query_count = 20\n*.Server.target_latency = 500\n")
    command = ["run", "--target", write_simulation(tmp_path), "--model", "small", "--user-conf", str(user)]
    reports = []
    for more in ([], ["--rate", "80"]):
        main([*command, *more, "--json", str(tmp_path / "report.json")])
        reports.append(json.loads((tmp_path / "report.json").read_text())["config"])
    assert [report["rate"] for report in reports] == [40, 80]
    assert reports[0]["queries"] == 20
    assert reports[0]["slo_ms"] == 500
    assert reports[0]["arrivals"]["process"] == "mlperf"


def test_a_bad_line_of_a_configuration_file_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    user = tmp_path / "user.conf"
    user.write_text("*.Server.target_qps = many\n")
    command = ["run", "--target", write_simulation(tmp_path), "--model", "small", "--user-conf", str(user)]
    assert main(command) == 1
    assert f"loadgen: {user}:1: target_qps: expected a number of at least 0, got 'many'" in capsys.readouterr().err
