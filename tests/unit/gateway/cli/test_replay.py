from pathlib import Path

import pytest

from sluice.gateway.cli.main import main


def test_what_is_no_journal_is_reported_with_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes, absent = tmp_path / "notes.txt", tmp_path / "absent"
    notes.write_text("hello\n")
    for path in (notes, absent, tmp_path):
        assert main(["replay", str(path)]) == 2
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith(f"sluice: {notes}: journal line 1: expected the scheduler's spec in JSON: ")
    assert others == [
        f"sluice: {absent}: cannot be read: No such file or directory",
        f"sluice: {tmp_path}: cannot be read: Is a directory",
    ]
