import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.gateway.observability import logs
from sluice.gateway.observability.logs import LogFormat, configure, log, log_lines, reconfigure, reopen

logger = logging.getLogger("gateway.test")


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_carry_the_fields_of_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogFormat.JSON, "info")
    log(logger, logging.INFO, "worker ready", partition="cpu0", cores=[0, 1])
    log(logger, logging.DEBUG, "not shown")
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert record.pop("time").endswith("+00:00")
    assert record == {
        "level": "info",
        "logger": "gateway.test",
        "event": "worker ready",
        "partition": "cpu0",
        "cores": [0, 1],
    }


def test_text_lines_end_with_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogFormat.TEXT, "warning")
    log(logger, logging.ERROR, "worker lost", partition="cpu0", reason="killed by SIGKILL")
    assert capsys.readouterr().err.endswith("error gateway.test: worker lost partition=cpu0 reason=killed by SIGKILL\n")


@pytest.mark.parametrize(
    ("format", "terminal", "expected"),
    [
        (LogFormat.TEXT, True, ["ready", "  HTTP  http://box", "  gRPC  box"]),
        (LogFormat.TEXT, False, ["ready http=http://box"]),
        (LogFormat.JSON, True, ['"event": "ready", "http": "http://box"}']),
    ],
)
def test_an_event_with_lines_of_its_own_has_them_as_text_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    format: LogFormat,
    terminal: bool,
    expected: list[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    configure(format, "info")
    reconfigure(format, [logging.INFO])
    log_lines(logger, logging.INFO, "ready", ["HTTP  http://box", "gRPC  box"], http="http://box")
    log(logger, logging.INFO, "later", partition="cpu0")
    *lines, later = capsys.readouterr().err.splitlines()
    assert [line.endswith(end) for line, end in zip(lines, expected, strict=True)] == [True] * len(expected)
    assert "later" in later


def test_an_exception_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogFormat.JSON, "info")
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("a batch could not be started")
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: no" in json.loads(line)["traceback"]


@pytest.fixture
def log_file(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "sluice.log"
    configure(LogFormat.TEXT, "info", file)
    (handler,) = logging.getLogger().handlers
    yield file
    handler.close()


def test_a_log_file_takes_names_that_are_not_text(log_file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log(logger, logging.INFO, "cannot be served", name=os.fsdecode(b"m\xff"))
    assert log_file.read_text().endswith("cannot be served name=m\\udcff\n")
    assert capfd.readouterr().err == ""


def test_lines_for_a_full_disk_are_lost_with_one_sentence_until_the_file_is_opened_again(
    log_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log_file.unlink()
    log_file.symlink_to("/dev/full")
    reopen()
    for _ in range(100):
        log(logger, logging.INFO, "a line" * 100)
    (line,) = capfd.readouterr().err.splitlines()
    assert line == f"sluice: {log_file}: log lines are lost: [Errno 28] No space left on device"
    log_file.unlink()
    reopen()
    log(logger, logging.INFO, "there is room again")
    assert "there is room again" in log_file.read_text()
    assert capfd.readouterr().err == ""


def test_log_files_have_a_bound_in_bytes_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES", 1000)
    monkeypatch.setattr(logs, "MOST_FILES", 3)
    configure(LogFormat.JSON, "info", tmp_path / "sluice.log")
    for number in range(100):
        log(logger, logging.INFO, "an event", number=number)
    (handler,) = logging.getLogger().handlers
    handler.close()
    files = [tmp_path / name for name in ("sluice.log.2", "sluice.log.1", "sluice.log")]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert all(file.stat().st_size <= 1000 for file in files)
    numbers = [json.loads(line)["number"] for file in files for line in file.read_text().splitlines()]
    assert numbers == list(range(numbers[0], 100))
