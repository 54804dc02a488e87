"""The file of a journal: bounded, and of whole lines whatever happens."""

import errno
import os
from pathlib import Path

import pytest

from sluice.gateway.observability import journal_file
from sluice.gateway.observability.journal_file import JournalFile
from sluice.models.errors import ConfigError

LINE = b"x" * 999 + b"\n"


def write_lines(journal: JournalFile, count: int) -> None:
    for _ in range(count):
        journal.write(LINE)


def test_lines_are_written_at_the_latest_when_the_journal_is_closed(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "journal")
    write_lines(journal, 10)
    assert (tmp_path / "journal").read_bytes() == 9 * LINE
    journal.close()
    assert (tmp_path / "journal").read_bytes() == 10 * LINE


def test_a_journal_that_is_full_ends_with_a_whole_line(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "journal", 3500)
    write_lines(journal, 3)
    with pytest.raises(OSError, match="it has reached its limit of 3500 bytes"):
        journal.write(LINE)
    journal.close()
    assert (tmp_path / "journal").read_bytes() == 3 * LINE


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    journal = JournalFile(path)
    write = os.write

    def full_disk(file: int, text: bytes) -> int:
        free = 12_345 - path.stat().st_size
        if free <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, text[:free])

    monkeypatch.setattr(os, "write", full_disk)
    with pytest.raises(OSError, match="No space left on device"):
        write_lines(journal, 100)
    journal.close()
    assert path.read_bytes() == 12 * LINE


def test_a_pipe_that_nobody_reads_is_refused_and_a_slow_reader_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match=f"the journal {path} cannot be written: no process reads this pipe"):
        JournalFile(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    journal = JournalFile(path)
    write_lines(journal, 100)  # more than fits into a pipe
    received = b""
    while len(received) < 100 * len(LINE):
        received += os.read(reader, 1 << 16)
        journal.flush()
    assert received == 100 * LINE
    monkeypatch.setattr(journal_file, "WAITING_BYTES", 100_000)
    with pytest.raises(OSError, match="its reader does not keep up"):
        write_lines(journal, 200)
    os.close(reader)
    journal.close()


@pytest.mark.parametrize(
    ("place", "reason"), [("no/folder", "No such file"), (".", "exists|directory"), ("old", "exists already")]
)
def test_a_journal_that_cannot_be_opened_is_refused_in_a_sentence(tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "old").write_bytes(LINE)
    with pytest.raises(ConfigError, match=f"^the journal {tmp_path / place} .*({reason})"):
        JournalFile(tmp_path / place)
    assert (tmp_path / "old").read_bytes() == LINE


def test_a_journal_of_a_server_that_did_not_start_is_removed(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "journal")
    journal.write(LINE)
    journal.discard()
    assert not list(tmp_path.iterdir())
