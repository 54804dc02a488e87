import json
from pathlib import Path

import pytest

from sluice.loadgen.cli.main import main

FUNCTIONS = "HashOwner,HashApp,HashFunction,Trigger,1,2\no,a,f1,http,30,90\no,a,f2,timer,60,0\n"


@pytest.fixture
def functions(tmp_path: Path) -> str:
    path = tmp_path / "functions.csv"
    path.write_text(FUNCTIONS)
    return str(path)


def test_a_trace_is_imported_converted_cut_and_described(
    functions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, fast, part = (str(tmp_path / name) for name in ("whole.csv", "fast.csv", "part.csv"))
    assert main(["trace", "import", functions, "--out", whole]) == 0
    assert main(["trace", "convert", whole, "--time-scale", "0.5", "--models", "a,b", "--out", fast]) == 0
    assert main(["trace", "slice", fast, "--to", "30s", "--out", part]) == 0
    capsys.readouterr()
    report = tmp_path / "figures.json"
    assert main(["trace", "describe", part, "--json", str(report)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == part
    assert lines[1].startswith("  arrivals   90 in 28.9 s: 3.07/s")
    figures = json.loads(report.read_text())
    assert figures["arrivals"] == 90
    assert sorted(figures["models"].values()) == [30, 60]
    assert set(figures["models"]) == {"a", "b"}
    assert figures["idc"].keys() == {"1", "60"}


def test_days_are_joined_a_day_apart(functions: str, tmp_path: Path) -> None:
    out = tmp_path / "days.csv"
    assert main(["trace", "import", functions, functions, "--out", str(out)]) == 0
    times = [float(line.partition(",")[0]) for line in out.read_text().splitlines()[1:]]
    assert len(times) == 360
    assert max(times[:180]) < 120
    assert min(times[180:]) >= 86_400
    assert times[180:] != [time + 86_400 for time in times[:180]]


def test_a_trace_is_stretched_to_a_rate_and_refitted(
    functions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out.csv")
    assert main(["trace", "convert", functions, "--rate", "90", "--window", "60", "--cv", "0.5", "--out", out]) == 0
    assert "  arrivals   180 in 2.0 s: 90/s\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "FILE", "--cv", "2"], "--cv and --cv-scale: require --window"),
        (["convert", "FILE", "--window", "9", "--cv", "2", "--cv-scale", "2"], "expected one of the two"),
        (["convert", "FILE", "--rate", "9", "--time-scale", "2"], "expected one of the two"),
        (["convert", "FILE", "--rate", "-9"], "--rate: expected a number above 0, got -9"),
        (["slice", "FILE", "--from", "500", "--to", "600"], "--from and --to: no arrival from 500 to 600 s"),
        (["import", "FILE", "--format", "azure-llm"], "functions.csv: line 1: expected a heading with timestamp"),
        (["import", "FILE", "--keep", "0%"], "--keep: expected a share above 0 and at most 1, got 0"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    functions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    given = [functions if each == "FILE" else each for each in arguments]
    assert main(["trace", *given, "--out", str(tmp_path / "out.csv")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("loadgen: ")
    assert message in error
    assert error.count("\n") == 1
