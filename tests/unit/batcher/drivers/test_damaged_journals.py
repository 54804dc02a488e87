"""Journals that are damaged, as by a full disk, an editor or another version."""

import random
from pathlib import Path

import pytest

from sluice.gateway.cli import replay
from tests.support.scheduling.damaged_journals import LINES, damaged, replayed
from tests.support.scheduling.recorded_machine import recorded

JOURNAL = recorded(0)[:LINES]
STATUSES = {0: "the same decisions in ", 1: "the decisions differ\n", 2: "journal line "}


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_damaged_is_reported_in_a_sentence(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "journal"
    for number in range(40):
        status, said = replayed(damaged(JOURNAL, random.Random(1000 * seed + number)), path)
        assert STATUSES[status] in said
        assert said.startswith(f"sluice: {path}: " if status == 2 else f"{path}: ")
        assert "Traceback" not in said


def test_a_journal_that_ends_within_a_line_is_replayed_up_to_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    text = b"".join(JOURNAL[:20])
    end = "line 20 is cut off, as by a full disk or a killed server"
    assert replayed(text[:-9], path) == (0, f"{path}: the same decisions in 18 steps; {end}\n")
    status, said = replayed(text[:30], path)
    assert (status, said) == (
        2,
        f"sluice: {path}: journal line 1: expected the scheduler's spec, the line is cut off\n",
    )
    assert replayed(b"", path) == (
        2,
        f"sluice: {path}: journal line 1: expected the scheduler's spec, the journal is empty\n",
    )


def test_a_file_without_lines_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "MAX_LINE_BYTES", 1000)
    status, said = replayed(bytes(5000), tmp_path / "journal")
    assert (status, said.partition(": ")[2]) == (
        2,
        f"{tmp_path / 'journal'}: journal line 1: expected at most 1000 bytes\n",
    )


def test_steps_that_do_not_belong_together_are_named_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    completed = next(number for number, line in enumerate(JOURNAL) if b'"BatchCompleted"' in line)
    status, said = replayed(JOURNAL[0] + JOURNAL[completed], path)
    assert status == 2
    assert "journal line 2: the lines before it do not lead to what it says (KeyError: " in said
    status, said = replayed(b"".join((JOURNAL[0], JOURNAL[1], JOURNAL[1].replace(b":1000000000,", b":5,"))), path)
    assert (status, "journal line 3: expected a time of at least 1000000000 ns, got 5\n" in said) == (2, True)
