import csv
import json
from pathlib import Path

import pytest

from sluice.loadgen.cli.main import main
from tests.unit.loadgen.simulated_server import write_simulation


def sweep(target: str, *options: str) -> int:
    common = ["--model", "small", "--slo-ms", "50", "--warmup", "0"]
    return main(["sweep", "--target", target, *common, *options])


def test_rates_and_scales_of_the_objective_make_a_table_and_curves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, curves = tmp_path / "sweep.json", tmp_path / "sweep.csv"
    options = ["--rates", "10:60:50", "--slo-scales", "0.8,1.2", "--seeds", "2", "--duration", "50"]
    assert sweep(write_simulation(tmp_path), *options, "--json", str(report), "--csv", str(curves)) == 0
    output, errors = capsys.readouterr()
    lines = output.splitlines()
    assert " ".join(lines[0].split()) == "objective load runs met invalid good/s within p50 ms p99 ms"
    assert [line.split()[:5] for line in lines[1:]] == [
        ["40", "ms", "10/s", "2", "2"],
        ["40", "ms", "60/s", "2", "0"],
        ["60", "ms", "10/s", "2", "2"],
        ["60", "ms", "60/s", "2", "2"],
    ]
    content = json.loads(report.read_text())
    assert content["kind"] == "sweep"
    assert [point["slo_ms"] for point in content["points"]] == [40, 40, 60, 60]
    assert [run["config"]["seed"] for run in content["runs"]] == [0, 1] * 4
    # The same seed is the same traffic at each objective.
    digests = [run["schedule_sha256"] for run in content["runs"]]
    assert digests[:4] == digests[4:]
    assert len(set(digests)) == 4
    rows = list(csv.DictReader(curves.read_text().splitlines()))
    assert [(row["rate"], row["slo_ms"], row["concurrency"]) for row in rows] == [
        ("10.0", "40.0", ""),
        ("60.0", "40.0", ""),
        ("10.0", "60.0", ""),
        ("60.0", "60.0", ""),
    ]
    assert float(rows[0]["p99_ms_min"]) <= float(rows[0]["p99_ms"]) <= float(rows[0]["p99_ms_max"])
    assert "60/s x 0.8, seed 1: " in errors


def test_policy_files_replace_settings_of_the_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone, batches = tmp_path / "alone.yaml", tmp_path / "batches.yaml"
    alone.write_text("policy: {name: none}\n")
    batches.write_text("policy: {name: deadline}\n")
    report = tmp_path / "sweep.json"
    options = ["--rates", "200", "--policies", f"{alone},{batches}", "--seeds", "1", "--duration", "10"]
    sweep(write_simulation(tmp_path), *options, "--json", str(report))
    one_by_one, in_batches = json.loads(report.read_text())["points"]
    # Row by row the worker answers 100/s; four rows in a batch take as long as one.
    assert one_by_one["policy"] == str(alone)
    assert one_by_one["attainment"] < 0.6
    assert in_batches["attainment"] > 0.9
    assert str(alone) in capsys.readouterr().out


def test_concurrencies_are_closed_loops(tmp_path: Path) -> None:
    report = tmp_path / "sweep.json"
    options = ["--concurrencies", "1,4", "--seeds", "1", "--duration", "10"]
    assert sweep(write_simulation(tmp_path), *options, "--json", str(report)) == 0
    points = json.loads(report.read_text())["points"]
    assert [(point["concurrency"], point["rate"]) for point in points] == [(1, None), (4, None)]
    # One worker of 10 ms: more open queries wait, and no more are answered.
    assert [round(point["completed_per_s"]) for point in points] == [100, 100]
    assert [point["p50_ms"] for point in points] == [pytest.approx(10), pytest.approx(40)]


def test_a_quick_sweep_has_one_seed_and_ends_runs_with_their_verdict(tmp_path: Path) -> None:
    report = tmp_path / "sweep.json"
    target = write_simulation(tmp_path)
    assert sweep(target, "--rates", "20,300", "--quick", "--duration", "60", "--json", str(report)) == 0
    content = json.loads(report.read_text())
    assert [(run["decision"], run["verdict"]) for run in content["runs"]] == [
        ("confirmed", "met"),
        ("excluded", "missed"),
    ]
    assert [run["metrics"]["queries"] < 700 for run in content["runs"]] == [True, True]


def test_a_sweep_with_invalid_runs_exits_with_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(write_simulation(tmp_path), "--rates", "20", "--seeds", "1", "--duration", "5") == 4
    assert "invalid: too short" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "sweep: expected one of --rates and --concurrencies"),
        (["--rates", "1", "--concurrencies", "1"], "sweep: expected one of --rates and --concurrencies"),
        (["--rates", "10", "--slo-scales", "1", "--seeds", "0"], "--seeds: expected at least 1, got 0"),
        (["--rates", "10", "--schedule", "x"], "--schedule: has queries at one rate; expected --arrivals"),
    ],
)
def test_a_sweep_that_cannot_run_exits_with_1(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(write_simulation(tmp_path), *options) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rates", "1,x"], "argument --rates: expected numbers with commas, or FIRST:LAST:STEP, got '1,x'"),
        (["--rates", "1:5"], "argument --rates: expected numbers with commas, or FIRST:LAST:STEP, got '1:5'"),
        (["--csv", "/dev/null/x"], "argument --csv: /dev/null/x: cannot be written: /dev/null is not a folder"),
        (["--rates", "10:5:1"], "argument --rates: expected FIRST:LAST:STEP upwards, got '10:5:1'"),
        (["--rates", "0,1"], "argument --rates: expected numbers above 0, got '0,1'"),
        (["--concurrencies", "1.5"], "argument --concurrencies: expected whole numbers, got '1.5'"),
        (["--policies", "absent.yaml"], "argument --policies: absent.yaml: no such file"),
    ],
)
def test_values_that_are_none_exit_with_1(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        sweep("sim:x", *options)
    assert stopped.value.code == 1
    assert message in capsys.readouterr().err


def test_a_setting_that_no_server_has_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("policy: {name: none}\npolices: 1\n")
    assert sweep(write_simulation(tmp_path), "--rates", "20", "--policies", str(wrong)) == 1
    assert f"{wrong}:2" in capsys.readouterr().err


def test_policies_need_a_simulated_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policy: {name: none}\n")
    assert sweep("http://127.0.0.1:1", "--rates", "20", "--policies", str(policy)) == 1
    assert "--policies: requires a target sim:FILE" in capsys.readouterr().err
