"""The process of a measured gateway: its CPU time, its core, and its end."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.loadgen.validation.server_process import GatewayProcess
from sluice.mps.partitions.cpu import available_cores


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield running
        running.communicate(b"\n")


def test_a_thread_that_has_just_ended_does_no_harm(
    process: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, thread = tmp_path / str(1 << 22), tmp_path / str(process.pid)
    thread.mkdir()
    (thread / "schedstat").write_text("7000 20 3\n")
    monkeypatch.setattr(GatewayProcess, "_threads", lambda server: iter([ended, thread]))
    server = GatewayProcess(process, 0, tmp_path / "journal.jsonl")
    assert server.cpu_ns() == 7000
    core = available_cores()[-1]
    server.pin(core)
    assert os.sched_getaffinity(process.pid) == {core}
