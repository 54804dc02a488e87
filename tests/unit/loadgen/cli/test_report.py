import json
from pathlib import Path

import pytest

from sluice.loadgen.cli.main import main
from sluice.loadgen.results.folder import write_result
from sluice.loadgen.scenarios.config import RunConfig
from tests.unit.loadgen.results import result_of

CONFIG = RunConfig(target="http://host:1", model="m", rate=1000, slo_ms=10, warmup_s=0)


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    for name, latency_ms in (("slow", 12), ("fast", 5)):
        write_result(result_of(CONFIG, latency_ms=latency_ms, queries=1000), tmp_path / name)
    return [str(tmp_path / "slow"), str(tmp_path / "fast")]


def test_results_are_reported_as_text(folders: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *folders]) == 0
    verdicts = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Result: ")]
    assert verdicts == ["Result: VALID, objective MISSED", "Result: VALID, objective met"]


def test_reports_are_written_to_files_which_are_results_again(
    tmp_path: Path, folders: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    md, page, document = (str(tmp_path / name) for name in ("r.md", "r.html", "r.json"))
    assert main(["report", *folders, "--md", md, "--html", page, "--json", document]) == 0
    assert capsys.readouterr().out == ""
    assert Path(md).read_text().count("\n# Objective") == 1
    assert "1 of 2 runs met their objective." in Path(page).read_text()
    assert [run["verdict"] for run in json.loads(Path(document).read_text())["runs"]] == ["missed", "met"]
    assert main(["report", document]) == 0


def test_what_is_no_result_is_a_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"loadgen: {tmp_path}: expected the folder of a result: result.json: No such file or directory\n"
    )


def test_a_folder_with_other_files_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    options = ("--target", "http://127.0.0.1:1", "--model", "m", "--rate", "1", "--queries", "1")
    assert main(["run", *options, "--out", str(tmp_path)]) == 1
    assert "expected a new or empty folder" in capsys.readouterr().err
