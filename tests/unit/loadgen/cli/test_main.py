import json
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
        (["run", "--target", "ftp://x", *FAST, "--rate", "1"], "expected http://host:port, grpc://host:port or sim:"),
        (["run", "--target", "http://x:1/y", *FAST, "--rate", "1"], "expected http://host:port"),
        (["run", "--target", "sim:missing.yaml", *FAST, "--rate", "1"], "missing.yaml"),
        (["run", "--target", "http://x:1", *FAST, "--rate", "1", "--percentile", "100"], "--percentile"),
        (["run", "--target", "http://x:1", *FAST, "--rate", "1", "--cv", "2"], "--cv: requires --arrivals gamma"),
        (["run", "--target", "http://x:1", *FAST, "--rate", "1", "--trace", "x"], "--trace: requires --arrivals trace"),
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
    assert capsys.readouterr().err.startswith("usage: loadgen")


def test_find_max_lands_on_the_capacity_of_a_simulated_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "peak.json"
    arguments = ["--target", write_simulation(tmp_path), "--model", "small", "--slo-ms", "1000", "--start", "50"]
    arguments += ["--duration", "60", "--warmup", "5", "--precision", "5", "--json", str(report)]
    assert main(["find-max", *arguments]) == 0
    peak = json.loads(report.read_text())
    # Policy `none` runs rows one by one for 10 ms each: 100 a second and not one more.
    assert 85 < peak["rate"] < 101
    assert peak["rate"] < peak["failed_rate"] < 1.05 * peak["rate"]
    assert len(capsys.readouterr().out.splitlines()) == len(peak["probes"]) + 1
