"""Commands whose output nobody reads any more."""

import os
import subprocess
import sys

from sluice.loadgen.cli.main import OUTPUT_CLOSED


def test_a_command_ends_silently_when_its_reader_has_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-m", "sluice.loadgen.cli.main", "paper", "list"]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (OUTPUT_CLOSED, b"")
