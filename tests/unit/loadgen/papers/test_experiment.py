import sys
from pathlib import Path

import pytest

from sluice.loadgen import papers
from sluice.loadgen.cli.main import main
from sluice.loadgen.papers.experiment import find_experiments

ONE_FILE = """
from sluice.loadgen.papers.experiment import PaperExperiment

EXPERIMENT = PaperExperiment("answers", "what the answer is", lambda: "| 42 |\\n")
"""


def test_every_experiment_is_found_once() -> None:
    names = [experiment.name for experiment in find_experiments()]
    assert sorted(names) == ["mixed-packing", "nodes", "packing", "shares"]


def test_a_file_in_the_folder_is_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one_file.py").write_text(ONE_FILE)
    monkeypatch.setattr(papers, "__path__", [*papers.__path__, str(tmp_path)])
    try:
        assert main(["paper", "answers"]) == 0
    finally:
        sys.modules.pop("sluice.loadgen.papers.one_file", None)
    assert capsys.readouterr().out == "| 42 |\n"
