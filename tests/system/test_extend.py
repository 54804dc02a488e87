"""The pages of docs/extend, as a reader follows them: save the files in a checkout, then run the commands."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTEND = ROOT / "docs" / "extend"
PACKAGES = ("models", "mps", "batcher", "gateway", "loadgen")
COMMANDS = {"sluice": "sluice.gateway.cli.main", "loadgen": "sluice.loadgen.cli.main"}
FILE = re.compile(r"[Ss]ave [\w ]*as `(?P<path>[^`]+)`:\n\n```\w+\n(?P<text>.*?)```", re.DOTALL)
COMMAND = re.compile(r"^\$ (?P<command>.*)$", re.MULTILINE)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The packages of this repository, which a page may add files to."""
    (tmp_path / "src" / "sluice").mkdir(parents=True)
    shutil.copy(ROOT / "src" / "sluice" / "__init__.py", tmp_path / "src" / "sluice")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
        (tmp_path / "src" / "sluice" / package).symlink_to(Path("..", "..", package))
    return tmp_path


def run(command: str, checkout: Path) -> str:
    """Run a command of a page; returns its output."""
    name, *arguments = shlex.split(command)
    done = subprocess.run(
        [sys.executable, "-m", COMMANDS[name], *arguments],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def follow(page: str, checkout: Path) -> list[str]:
    """Save the files of a page and run its commands; returns their outputs."""
    text = (EXTEND / page).read_text(encoding="utf-8")
    for file in FILE.finditer(text):
        path = checkout / file["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file["text"])
    return [run(command, checkout) for command in COMMAND.findall(text)]


def test_a_batch_policy_is_one_file(checkout: Path) -> None:
    (simulated,) = follow("batch-policy.md", checkout)
    assert "objective met" in simulated
    mean_rows = re.search(r"batches +\d+, mean ([\d.]+) rows", simulated)
    assert mean_rows is not None
    assert 3 < float(mean_rows[1]) <= 4
    assert "at_least" in run("sluice serve --help", checkout)


def test_a_planner_is_one_file(checkout: Path) -> None:
    (planned,) = follow("planner.md", checkout)
    assert re.search(r"greedy costs [\d.]+% more than the cheapest plan \(exact\)", planned)
    assert "greedy: a cheap path" in " ".join(run("sluice plan --help", checkout).split())


@pytest.mark.parametrize("command", ["serve --help", "validate .", "doctor"])
def test_a_broken_policy_is_one_sentence_with_its_place(checkout: Path, command: str) -> None:
    broken = checkout / "batcher" / "policies" / "broken.py"
    broken.write_text("x = 1\ndef broken(:\n")
    done = subprocess.run(
        [sys.executable, "-m", COMMANDS["sluice"], *command.split()],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("sluice: ")
    assert done.stderr.endswith("batcher/policies/broken.py:2: invalid syntax\n")
    assert done.stderr.count("\n") == 1


def test_the_index_lists_every_page() -> None:
    index = (EXTEND / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in EXTEND.glob("*.md")} - {"README.md"}
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", index)) == pages
