"""The memory of a process and of those that it has started."""

import os
import subprocess
import sys

import pytest

from sluice.models import processes
from sluice.models.measuring.memory_meter import HostMemoryMeter

MIB = 1 << 20
TAKES = "taken = bytearray(50 << 20); print('taken', flush=True); input()"
STARTS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {TAKES!r}])"


def test_what_a_process_of_a_process_takes_counts() -> None:
    meter = HostMemoryMeter()
    with subprocess.Popen([sys.executable, "-c", STARTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"taken\n"
        peak = meter.peak_bytes()
        process.communicate(b"\n")
    assert peak is not None
    assert peak > 50 * MIB


def test_a_thread_that_has_just_ended_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = 1 << 22
    monkeypatch.setattr(processes, "threads_of", lambda pid: [ended, pid])
    monkeypatch.setattr(processes, "_has_children", lambda: True)
    assert os.getpid() in processes.process_tree(os.getpid())
    assert HostMemoryMeter().peak_bytes() is not None
