import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from sluice.loadgen.cli.main import main
from sluice.loadgen.comparison.contrast import ComparisonVerdict, compare
from sluice.loadgen.comparison.interleaved import run_interleaved
from sluice.loadgen.run.runner import run
from sluice.loadgen.scenarios.config import RunConfig
from tests.unit.loadgen.simulated_server import write_simulation

QUANTILES_MS = (8.0, 9.0, 9.5, 10.0, 10.5, 12.0, 20.0)
RUN = ["--model", "small", "--rate", "70", "--slo-ms", "100", "--duration", "6"]


def noisy(folder: Path, factor: float) -> str:
    """A simulated server with random service times, multiplied by a factor."""
    folder.mkdir()
    return write_simulation(
        folder,
        service_ms={"small": {"4": [time * factor for time in QUANTILES_MS]}},
        latency_ms={"small": {"4": 10.0 * factor}, "large": {"4": 20.0}},
    )


def test_a_faster_target_is_better_and_a_slower_one_a_regression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual, slow = noisy(tmp_path / "a", 1.0), noisy(tmp_path / "b", 1.1)
    report = tmp_path / "report.json"
    assert main(["compare", slow, usual, *RUN, "--fail-on-regression", "--json", str(report)]) == 0
    assert capsys.readouterr().out.endswith("Result: B is BETTER than A\n")
    content = json.loads(report.read_text())
    assert content["comparisons"]["B"]["figures"]["p50"]["ratio"] < 0.95
    assert len(content["comparisons"]["B"]["pairs"]) == 5
    assert main(["compare", usual, slow, *RUN, "--fail-on-regression"]) == 3
    assert capsys.readouterr().out.endswith("Result: B is WORSE than A\n")


def test_a_target_is_the_same_as_itself_although_its_service_times_differ(tmp_path: Path) -> None:
    target = noisy(tmp_path / "a", 1.0)
    verdicts: Counter[ComparisonVerdict] = Counter()
    for number in range(5):
        config = RunConfig(
            target="", model="small", rate=70, duration_s=5, slo_ms=100, warmup_s=0.5, seed=1000 * number
        )
        one, other = run_interleaved(config, [target, target], 3, run, lambda each: None, own_service_times=True)
        assert [each.metrics for each in one] != [each.metrics for each in other]
        verdicts[compare(one, other, 0.05).verdict] += 1
    assert verdicts[ComparisonVerdict.SAME] >= 4


def test_three_targets_are_compared_with_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, c = (noisy(tmp_path / name, factor) for name, factor in (("a", 1.0), ("b", 1.0), ("c", 1.3)))
    assert main(["compare", a, b, c, *RUN, "--seeds", "3", "--threshold", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["Result: B is the same as A", "Result: C is WORSE than A"]
    assert [line.split("  ")[:2] for line in lines[:4]] == [
        ["A", "seed 0"],
        ["B", "seed 0"],
        ["C", "seed 0"],
        ["A", "seed 1"],
    ]


def write_reports(folder: Path, target: str, seeds: int, *options: str) -> None:
    folder.mkdir()
    for seed in range(seeds):
        main(["run", "--target", target, *RUN, "--seed", str(seed), "--json", str(folder / f"{seed}.json"), *options])


def test_folders_of_reports_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_reports(tmp_path / "old", noisy(tmp_path / "a", 1.0), 3)
    write_reports(tmp_path / "new", noisy(tmp_path / "b", 1.2), 3)
    assert main(["compare", str(tmp_path / "old"), str(tmp_path / "new"), "--fail-on-regression"]) == 3
    assert "3 pairs of runs with equal schedules" in capsys.readouterr().out


def test_reports_of_different_schedules_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = noisy(tmp_path / "a", 1.0)
    write_reports(tmp_path / "old", target, 3)
    write_reports(tmp_path / "new", target, 3, "--rate", "60")
    assert main(["compare", str(tmp_path / "old"), str(tmp_path / "new")]) == 1
    assert "played schedule" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sides", "options", "message"),
    [
        (["sim:x"], [], "expected two or three targets or reports, got 1"),
        (["sim:x", "missing"], ["--model", "m"], "missing is no target"),
        (["missing", "missing"], [], "missing: no such file or folder"),
        (["sim:x", "sim:x"], [], "--model"),
        (["sim:x", "sim:x"], ["--model", "m", "--seeds", "2"], "--seeds: expected at least 3, got 2"),
        (["sim:x", "sim:x"], ["--threshold", "0"], "--threshold: expected a percentage above 0, got 0"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    sides: list[str], options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *sides, *options]) == 1
    assert message in capsys.readouterr().err


def test_a_target_that_cannot_be_run_is_refused_before_the_others_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [write_simulation(tmp_path), "sim:missing.yaml"]
    assert main(["compare", *sides, "--model", "small", "--rate", "50", "--duration", "5"]) == 1
    output, errors = capsys.readouterr()
    assert (output, "missing.yaml: cannot be read" in errors) == ("", True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "expected the JSON report of a run"),
        ('{"kind": "run"}', "missing required field"),
        ("[]", "expected the JSON report of a run"),
    ],
)
def test_files_that_are_no_reports_are_refused_by_name(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.json"
    file.write_text(content)
    assert main(["compare", str(file), str(file)]) == 1
    error = capsys.readouterr().err
    assert str(file) in error
    assert message in error


def test_runs_that_were_limited_by_the_client_make_a_comparison_invalid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_reports(tmp_path / "old", noisy(tmp_path / "a", 1.0), 3)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    late = json.loads((tmp_path / "new" / "1.json").read_text())
    late["validity"]["limits"] = ["limited by the client"]
    (tmp_path / "new" / "1.json").write_text(json.dumps(late))
    assert main(["compare", str(tmp_path / "old"), str(tmp_path / "new")]) == 4
    result = capsys.readouterr().out.splitlines()[-1]
    assert result.startswith("Result: INVALID")
    assert result.endswith("1.json: limited by the client")
