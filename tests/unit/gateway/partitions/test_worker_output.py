"""Lines of ONNX Runtime become log lines of their level; all others are passed on."""

import logging
import queue

import pytest

from sluice.gateway.partitions import worker_output
from sluice.gateway.partitions.worker_output import MAX_LINE_BYTES, WorkerOutput
from sluice.mps.partitions.cpu import default_partitions

TIME = "2026-11-30 04:44:50.316382985"
Record = tuple[int, dict[str, object]]


def written(caplog: pytest.LogCaptureFixture, *parts: bytes) -> tuple[list[Record], list[bytes]]:
    """The level and fields of each log line, and what was passed on, for the parts in which a worker writes."""
    passed: list[bytes] = []
    output = WorkerOutput(7, passed.append)
    with caplog.at_level(logging.DEBUG):
        for part in (*parts, b""):
            output.feed(part)
    return [(each.levelno, each.__dict__["fields"]) for each in caplog.records], passed


@pytest.mark.parametrize(
    ("letter", "level"),
    [
        ("V", logging.DEBUG),
        ("I", logging.DEBUG),
        ("W", logging.WARNING),
        ("E", logging.ERROR),
        ("F", logging.CRITICAL),
    ],
)
@pytest.mark.parametrize(("before", "after"), [("\x1b[1;31m", "\n\x1b[m\n"), ("\x1b[0;93m", "\x1b[m\n"), ("", "\n")])
def test_a_line_has_its_level_and_place(
    caplog: pytest.LogCaptureFixture, letter: str, level: int, before: str, after: str
) -> None:
    line = f"{before}{TIME} [{letter}:onnxruntime:, executor.cc:677 ExecuteKernel] Reshape failed{after}".encode()
    fields = {"worker": 7, "place": "executor.cc:677 ExecuteKernel", "message": "Reshape failed"}
    assert written(caplog, line[:30], line[30:], b"hello\n") == ([(level, fields)], [b"hello\n"])


def test_a_message_of_several_lines_is_one(caplog: pytest.LogCaptureFixture) -> None:
    text = f"before\n\x1b[1;31m{TIME} [E:onnxruntime:x, a.cc:1 f] one\ntwo\n\x1b[m\nafter".encode()
    ((_, fields),), passed = written(caplog, text)
    assert fields["message"] == "one\ntwo"
    assert passed == [b"before\n", b"after\n"]


def test_a_message_without_an_end_is_logged_at_the_next_one_and_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    begin = f"\x1b[1;31m{TIME} [E:onnxruntime:, a.cc:1 f] ".encode()
    logged, passed = written(caplog, begin + b"one\n" + begin + b"two")
    assert [fields["message"] for _, fields in logged] == ["one", "two"]
    assert passed == []


def test_a_line_without_an_end_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    _, passed = written(caplog, b"x" * MAX_LINE_BYTES, b"y\n")
    assert [len(line) for line in passed] == [MAX_LINE_BYTES + 1, 2]


def test_what_is_no_line_of_onnx_runtime_is_passed_on_byte_for_byte(caplog: pytest.LogCaptureFixture) -> None:
    data = b"caf\xe9\r\n\x1b[1mbold\x1b[m\n50%\r60%\n"
    assert b"".join(written(caplog, data[:10], data[10:])[1]) == data


def test_what_a_worker_writes_before_it_ends_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: queue.Queue[bytes] = queue.Queue()
    monkeypatch.setattr(worker_output, "_pass_on", lines.put)
    child = worker_output.launch_logged_worker(default_partitions()[0])
    with child.socket:
        child.socket.send(b"no message")
        line = lines.get(timeout=60)
    child.wait()
    assert line.startswith(b"worker ")
