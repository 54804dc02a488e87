import json
import math
import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sluice.loadgen import papers
from sluice.loadgen.cli.main import main
from sluice.loadgen.papers.experiment import Effort, ExperimentReport, PaperExperiment, find_experiments
from sluice.loadgen.papers.side_by_side import play_side_by_side
from tests.support.gateway.processes import until

ANSWERS = """
from sluice.loadgen.papers.experiment import ExperimentFinding, ExperimentReport, PaperExperiment, Plot, gated

def run(effort):
    if effort.seeds == 99:
        raise KeyboardInterrupt
    answer = gated("answer", "42", published="41", gate="42", is_met=effort.seeds == 1, why="it was asked twice")
    plot = Plot("by-time", "Answers <right>", "years", "answers", (("ours", ((0, 0), (7.5e6, 42))),))
    return ExperimentReport((answer, ExperimentFinding("question", "unknown")), ("| 42 |\\n",), (plot,))

EXPERIMENT = PaperExperiment("answers", "it has one", "Adams 1979", given="the answer", assumed="nothing", run=run)
"""


@pytest.fixture(autouse=True)
def one_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An experiment in a file of its own, and an empty cache."""
    (tmp_path / "one_file.py").write_text(ANSWERS)
    monkeypatch.setattr(papers, "__path__", [*papers.__path__, str(tmp_path)])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    sys.modules.pop("sluice.loadgen.papers.one_file", None)


def test_every_experiment_is_found_once() -> None:
    names = [experiment.name for experiment in find_experiments()]
    assert {"answers", "packing", "xanadu"} <= set(names)
    assert len(names) == len(set(names))


def test_a_file_in_the_folder_is_an_experiment_whose_gates_are_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, document = tmp_path / "page.md", tmp_path / "page.json"
    assert main(["paper", "run", "answers", "--seeds", "1", "--out", str(page), "--json", str(document)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "answers: it has one (Adams 1979)"
    assert printed[2].split() == ["answer", "41", "42", "42", "met"]
    assert printed[4].startswith("  verdict: met (")
    assert "| answer | 41 | 42 | 42 | met |" in page.read_text()
    assert "| 42 |\n" in page.read_text(), "the table behind the findings"
    assert "\nloadgen paper run answers --seeds 1 --out FILE\n" in page.read_text()
    (experiment,) = json.loads(document.read_text())["experiments"]
    assert (experiment["name"], experiment["verdict"]) == ("answers", "met")


def test_plots_are_written_as_files_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "plots"
    arguments = ["answers", "shares", "--procs", "1", "--seeds", "1", "--plot", str(folder)]
    assert main(["paper", "run", *arguments]) == 0
    names = {file.name for file in folder.glob("*.svg")}
    assert names == {"answers-by-time.svg", "shares-times.svg"}
    drawn = ElementTree.parse(folder / "answers-by-time.svg").getroot()
    texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Answers <right>", "years", "answers", "ours"} <= set(texts)


def test_a_missed_gate_is_printed_with_its_cause(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "run", "answers", "--seeds", "2"]) == 2
    printed = capsys.readouterr().out
    assert "answer: it was asked twice" in printed
    assert "verdict: missed" in printed


def test_the_list_tells_the_last_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    main(["paper", "run", "answers"])
    main(["paper", "run", "shares", "--quick"])
    capsys.readouterr()
    assert main(["paper", "list"]) == 0
    lines = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "  missed  " in lines["answers"]
    assert "  met (quick)  " in lines["shares"]
    assert "not run" in lines["xanadu"]
    assert "Adams 1979" in lines["answers"]


def test_an_interrupted_run_writes_what_it_has_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    arguments = ["shares", "answers", "--procs", "1", "--seeds", "99", "--out", str(page)]
    assert main(["paper", "run", *arguments]) == 4
    assert "INTERRUPTED: 1 of 2 experiments have run" in capsys.readouterr().out
    assert "## shares" in page.read_text()
    assert "The run was interrupted" in page.read_text()


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_page_keeps_the_experiments_that_do_not_run_again(tmp_path: Path, *, is_interrupted: bool) -> None:
    page = tmp_path / "page.md"
    assert main(["paper", "run", "shares", "answers", "--procs", "1", "--seeds", "1", "--out", str(page)]) == 0
    head, shares, answers = page.read_text().split("\n## ")
    again = ["shares", "answers"] if is_interrupted else ["shares"]
    seeds, status, end = ("99", 4, ", which was interrupted") if is_interrupted else ("3", 0, "")
    assert main(["paper", "run", *again, "--procs", "1", "--seeds", seeds, "--out", str(page)]) == status
    note = f"Played again by `loadgen paper run {' '.join(again)} --seeds {seeds}`{end}.\n"
    after_head, after_shares, after_answers = page.read_text().split("\n## ")
    assert (after_head, after_answers) == (head, answers)
    assert after_shares.replace(f"{note}\n", "") == shares != after_shares


def test_a_file_that_is_no_page_of_experiments_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_bytes(b"## shares: \xff\n")
    assert main(["paper", "run", "answers", "--seeds", "1", "--out", str(page)]) == 0
    assert page.read_text().startswith("# Experiments of papers")
    assert "shares" not in page.read_text()


def test_experiments_side_by_side_print_and_write_what_they_do_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages, printed = [], []
    for procs in ("1", "2"):
        page = tmp_path / f"{procs}.md"
        assert main(["paper", "run", "packing", "shares", "--quick", "--procs", procs, "--out", str(page)]) == 0
        printed.append([line for line in capsys.readouterr().out.splitlines() if "verdict:" not in line])
        pages.append(page.read_bytes())
    assert printed[0] == printed[1]
    assert printed[0][0].startswith("packing: ")
    assert pages[0] == pages[1]


def test_an_experiment_that_measures_the_machine_runs_by_itself() -> None:
    running: list[str] = []

    def experiment(name: str, *, measures_machine: bool) -> PaperExperiment:
        def run(effort: Effort) -> ExperimentReport:
            running.append(name)
            return ExperimentReport(())

        return PaperExperiment(name, "", "", "", "", run, measures_machine)

    chosen = [experiment("timed", measures_machine=True), experiment("other", measures_machine=False)]
    ended = list(play_side_by_side(chosen, Effort(processes=2)))
    assert [(place, each.experiment.name) for place, each in ended] == [(1, "other"), (0, "timed")]
    assert running == ["other", "timed"]


def test_the_runs_of_an_experiment_have_their_order_whichever_process_has_run_them() -> None:
    assert Effort(processes=2).each(math.factorial, (5, 3, 4)) == [120, 6, 24]


def test_an_interrupt_ends_the_processes_of_experiments() -> None:
    chosen = [each for each in find_experiments() if each.name in ("clockwork", "shares")]
    playing = play_side_by_side(chosen, Effort(processes=2))
    _, first = next(playing)
    assert first.experiment.name == "shares", "the other one takes minutes"
    processes = multiprocessing.active_children()
    assert processes
    playing.close()
    # Not by `join`: the thread of the pool takes their exit codes.
    until(lambda: not any(Path(f"/proc/{process.pid}").exists() for process in processes), 60)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nothing"], "paper run: expected all or one of "),
        (["answers", "--seeds", "0"], "--seeds: expected at least 1, got 0"),
        (["answers", "--procs", "0"], "--procs: expected 1 to 64, got 0"),
        (["answers", "--plot", __file__], f"--plot: expected a folder, got {__file__}"),
        (["answers", "--plot", f"{__file__}/plots"], f"cannot be written: {__file__} is not a folder"),
        (["answers", "--plot", "/proc/plots"], "--plot: /proc/plots cannot be made: No such file or directory"),
        (["answers", "--plot", ""], "--plot: expected a folder, got nothing"),
        (["answers", "--json", "a", "--out", "./a"], "--out: expected another file than that of --json, got ./a"),
        (["all", "nothing"], "got 'nothing'"),
        (["kaas-trace"], "got 'kaas-trace'; did you mean 'kaas-traces'?"),
    ],
)
def test_what_cannot_be_run_is_named(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "run", *arguments]) == 1
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--out"])
def test_a_report_that_cannot_be_written_is_refused_before_the_run(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["paper", "run", "kaas-traces", option, str(tmp_path)])
    assert left.value.code == 1
    assert f"{tmp_path}: cannot be written: it is a folder; expected a file" in capsys.readouterr().err
