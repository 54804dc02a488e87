"""The load generator and targets in trouble: a sentence, the right exit code, and the results so far."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.loadgen.cli.main import main
from tests.support.loadgen.v2_server import ANSWER, BUSY, METADATA, Reply, answer, server

# The client may be late by a twentieth of the objective, which is a minute: it stands still where the machine does.
RUN = ["run", "--model", "m", "--rate", "250", "--queries", "500", "--warmup", "0", "--slo-ms", "1200000"]


class Outcome:
    """The end of a command: its exit code, its output, and its JSON report if it has written one."""

    def __init__(self, code: int, output: str, errors: str, report: Path) -> None:
        self.code = code
        self.last_line = (output or errors).strip().splitlines()[-1]
        self.errors = errors
        self.report: Any = json.loads(report.read_text()) if report.exists() else None

    def counts(self) -> dict[str, int]:
        metrics = self.report["metrics"]
        kinds = ("ok", "shed", "error", "timeout", "dropped")
        return {kind: metrics[kind] for kind in kinds if metrics[kind]}


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> "Run":
    return Run(tmp_path / "report.json", capsys)


class Run:
    def __init__(self, report: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._report = report
        self._capsys = capsys

    def __call__(self, target: str, *options: str) -> Outcome:
        code = main([*RUN, "--target", target, *options, "--json", str(self._report)])
        output, errors = self._capsys.readouterr()
        return Outcome(code, output, errors, self._report)


@contextmanager
def mute_listener() -> Iterator[int]:
    """A port that takes connections and never says anything."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield listener.getsockname()[1]


@contextmanager
def babbling_listener() -> Iterator[int]:
    """A port that greets each connection in another language than HTTP."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def babble() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"220 mail ready\r\n")
                    connection.recv(1 << 16)

        thread = threading.Thread(target=babble, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=60)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_target_that_never_says_anything_is_unreachable(
    scheme: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"sluice.loadgen.target.{scheme}.CONNECT_TIMEOUT_S", 0.05)
    with mute_listener() as port:
        outcome = run(f"{scheme}://127.0.0.1:{port}")
    assert outcome.code == 5
    assert outcome.last_line.startswith(f"loadgen: --target 127.0.0.1:{port}: ")
    assert outcome.report is None


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_target_of_another_protocol_is_unreachable(scheme: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"sluice.loadgen.target.{scheme}.CONNECT_TIMEOUT_S", 5.0)
    with babbling_listener() as port:
        outcome = run(f"{scheme}://127.0.0.1:{port}")
    assert outcome.code == 5
    assert outcome.last_line.startswith(f"loadgen: --target 127.0.0.1:{port}: ")


def test_metadata_that_cannot_be_read_is_refused(run: Run) -> None:
    with server(answer, lambda: {"name": "m", "inputs": "many"}) as target:
        outcome = run(target)
    assert outcome.code == 1
    assert outcome.last_line.startswith("loadgen: --target: unreadable model metadata: ")


def test_a_target_that_refuses_all_queries_has_missed(run: Run) -> None:
    async def refuse(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(BUSY)

    with server(refuse) as target:
        outcome = run(target)
    assert (outcome.code, outcome.counts()) == (2, {"shed": 500})
    assert outcome.report["failures"] == {'HTTP 503: {"error":"busy"}': 500}


def half_close(number: int, writer: asyncio.StreamWriter) -> None:
    """End the way to the client without an answer; the other way stays open."""
    writer.write_eof()


def hang_up(number: int, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def babble(number: int, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\xff" * 40 + b"\r\n\r\n")


def answer_twice(number: int, writer: asyncio.StreamWriter) -> None:
    writer.write(ANSWER + ANSWER)


def only_a_head(number: int, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
    writer.write_eof()


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (half_close, "connection closed before the answer"),
        (hang_up, "connection closed before the answer"),
        (babble, "response"),
        (answer_twice, "response: bytes after its end"),
        (only_a_head, "connection closed before the answer"),
    ],
)
def test_a_target_that_breaks_some_connections_loses_their_queries_only(act: object, reason: str, run: Run) -> None:
    async def reply(number: int, writer: asyncio.StreamWriter) -> None:
        if number % 5 == 1:
            act(number, writer)  # type: ignore[operator]
        else:
            writer.write(ANSWER)

    with server(reply) as target:
        outcome = run(target, "--drain-timeout", "60")
    assert outcome.code == 2
    assert outcome.last_line == "Result: VALID, objective MISSED"
    assert outcome.counts() == {"ok": 400, "error": 100}
    assert [text.startswith(reason) for text in outcome.report["failures"]] == [True]


def silent() -> Reply:
    async def reply(number: int, writer: asyncio.StreamWriter) -> None:
        """Keep the query for good."""

    return reply


def test_a_target_that_never_answers_has_missed_after_the_drain_timeout(run: Run) -> None:
    with server(silent()) as target:
        outcome = run(target, "--drain-timeout", "0.2", "--connections", "8")
    assert (outcome.code, outcome.counts()) == (2, {"timeout": 500})
    assert outcome.last_line == "Result: VALID, objective MISSED"
    assert outcome.report["metrics"]["waited"] == 492


def test_a_target_that_reads_slowly_has_missed_and_does_not_hold_up_the_client(run: Run, tmp_path: Path) -> None:
    # A request of 8 MB is more than the buffers of a connection hold.
    np.savez(tmp_path / "large.npz", x=np.zeros((1 << 20, 2), np.float32))
    with server(silent(), reads_bodies=False) as target:
        samples = ["--samples", str(tmp_path / "large.npz"), "--rows", str(1 << 20)]
        outcome = run(target, *samples, "--drain-timeout", "0.2", "--connections", "4")
    assert outcome.counts() == {"timeout": 500}
    assert outcome.report["metrics"]["waited"] == 496


def test_samples_of_the_wrong_shape_are_refused_before_the_run(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "wide.npz", x=np.zeros((10, 3), np.float32))
    with server(answer) as target:
        outcome = run(target, "--samples", str(tmp_path / "wide.npz"))
    assert outcome.code == 1
    assert outcome.last_line == (
        f"loadgen: --samples {tmp_path / 'wide.npz'}: input x: expected rows of shape [2], got [3]"
    )


def test_a_schedule_larger_than_the_memory_is_refused_with_the_figure(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.loadgen.run.memory.memory_limit_bytes", lambda: 70_000)
    with server(answer) as target:
        outcome = run(target)
    assert outcome.code == 1
    assert outcome.last_line == (
        "loadgen: schedule: 500 queries take 0.1 MB of memory, and there are 0.1 MB; "
        "expected a shorter --duration or a lower --rate"
    )


def test_a_step_of_the_wall_clock_changes_no_figure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter(range(0, 10**9, 3600))
    monkeypatch.setattr(time, "time", lambda: float(next(steps)))
    monkeypatch.setattr(time, "time_ns", lambda: next(steps) * 10**9)
    with server(answer) as target:
        outcome = run(target)
    assert outcome.counts() == {"ok": 500}
    assert outcome.report["metrics"]["latency_ms"]["max"] < 60_000
    assert outcome.report["metrics"]["offered_per_s"] == pytest.approx(250, rel=0.2)


def test_a_target_that_changes_its_model_during_the_run_makes_it_invalid(run: Run) -> None:
    metadata = METADATA | {"versions": ["1"]}

    async def change_at_the_end(number: int, writer: asyncio.StreamWriter) -> None:
        if number == 400:
            metadata["versions"] = ["2"]
        writer.write(ANSWER)

    with server(change_at_the_end, lambda: metadata) as target:
        outcome = run(target)
    assert (outcome.code, outcome.counts()) == (4, {"ok": 500})
    assert outcome.last_line.startswith(
        "Result: INVALID: the target changed m during the run: it was version 1 with x FP32 [-1, 2], y FP32 [-1, 2], "
        "and is version 2 with x FP32 [-1, 2], y FP32 [-1, 2] now"
    )


def test_answers_without_the_output_are_errors_and_the_others_keep_their_labels(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=np.zeros((40, 2), np.float32), label=np.ones(40, np.int64))

    async def rename_the_output(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWER if number < 300 else ANSWER.replace(b'"y"', b'"z"'))

    with server(rename_the_output) as target:
        outcome = run(target, "--samples", str(tmp_path / "s.npz"), "--labels", "label")
    assert (outcome.code, outcome.counts()) == (2, {"ok": 300, "error": 200})
    assert outcome.report["failures"] == {"unreadable answer: --output y: not in the answers": 200}
    assert (outcome.report["answered_rows"], outcome.report["accuracy"]) == (300, 1.0)


def test_an_output_that_no_answer_has_is_named(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=np.zeros((40, 2), np.float32), label=np.ones(40, np.int64))

    async def another_output(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWER.replace(b'"y"', b'"z"'))

    with server(another_output) as target:
        outcome = run(target, "--samples", str(tmp_path / "s.npz"), "--labels", "label")
    assert outcome.code == 1
    assert outcome.last_line == "loadgen: no answer can be read: --output y: not in the answers"


def test_an_output_that_the_model_does_not_have_is_refused_before_the_run(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=np.zeros((40, 2), np.float32), label=np.ones(40, np.int64))
    with server(answer) as target:
        outcome = run(target, "--samples", str(tmp_path / "s.npz"), "--labels", "label", "--output", "scores")
    assert outcome.code == 1
    assert outcome.last_line == "loadgen: --output scores: the model has no such output; it has y"


def test_a_target_that_dies_in_a_search_ends_it_with_the_probes_so_far(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "peak.json"
    dead = False

    async def die(number: int, writer: asyncio.StreamWriter) -> None:
        nonlocal dead
        dead = dead or number >= 900
        if dead:
            writer.transport.abort()
        else:
            writer.write(ANSWER)

    with server(die, lambda: None if dead else METADATA) as target:
        search = ["find-max", "--target", target, "--model", "m", "--start", "300", "--slo-ms", "1200000"]
        code = main([*search, "--duration", "3", "--min-duration", "0", "--warmup", "0", "--json", str(report)])
    assert code == 1
    assert "unreadable model metadata" in capsys.readouterr().err
    content = json.loads(report.read_text())
    assert [probe["config"]["rate"] for probe in content["probes"]][:1] == [300]
    assert content["probes"][0]["verdict"] == "met"
