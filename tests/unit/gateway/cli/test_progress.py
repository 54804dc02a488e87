"""Progress is shown on terminals only, after a while, and leaves what is printed meanwhile alone."""

import os
import subprocess
import sys
from pathlib import Path

from sluice.gateway.cli.progress import progress
from tests.support.terminal import on_terminal

PROGRAM = """
import sys, time
from sluice.gateway.cli import progress as module
module.DELAY_S = {delay}
with module.progress(4) as shown:
    for step in range(3):
        shown.begin(f"model [{{step}}]")
        print(f"result {{step}}", flush=True)
        print(f"log {{step}}", file=sys.stderr, flush=True)
        shown.advance()
        time.sleep(0.3)
print("end")
"""
SAMPLED = """
import time
from sluice.gateway.cli import progress as module
module.DELAY_S = 0
states = iter([(1, 10), (5, 10), None])
with module.sampled("loading models", lambda: next(states)):
    time.sleep(1)
"""


def run(delay: float) -> list[str]:
    return [sys.executable, "-c", PROGRAM.format(delay=delay)]


def test_a_terminal_shows_the_steps_and_the_time_that_is_left() -> None:
    with on_terminal(run(0), environment={"NO_COLOR": "1"}) as terminal:
        text = terminal.read_to_end()
    assert "model [2]" in text
    assert "2/4" in text
    assert "left" in text
    lines = [line.rpartition("\x1b[2K")[2].strip() for line in text.replace("\r", "\n").split("\n")]
    for line in ("result 1", "log 1", "result 2", "end"):  # the bar has begun by then
        assert line in lines, "what is printed stands in lines of its own"


def test_what_is_done_soon_shows_nothing() -> None:
    with on_terminal(run(60)) as terminal:
        text = terminal.read_to_end()
    assert text.split() == ["result", "0", "log", "0", "result", "1", "log", "1", "result", "2", "log", "2", "end"]
    assert "\x1b" not in text


def test_pipes_get_nothing_of_it() -> None:
    done = subprocess.run(run(0), capture_output=True, text=True, check=True, env={**os.environ, "FORCE_COLOR": "1"})
    assert done.stdout == "result 0\nresult 1\nresult 2\nend\n"
    assert done.stderr == "log 0\nlog 1\nlog 2\n"


def test_output_into_a_file_stays_there(tmp_path: Path) -> None:
    path = f"{tmp_path}/out"
    command = ["sh", "-c", f"exec {sys.executable} -c '{PROGRAM.format(delay=0)}' > {path}"]
    with on_terminal(command) as terminal:
        text = terminal.read_to_end()
    assert "result" not in text
    with open(path, encoding="utf-8") as file:
        assert file.read() == "result 0\nresult 1\nresult 2\nend\n"


def test_work_elsewhere_is_looked_at_until_it_ends() -> None:
    with on_terminal([sys.executable, "-c", SAMPLED], environment={"NO_COLOR": "1"}) as terminal:
        text = terminal.read_to_end()
    assert "loading models" in text
    assert "5/10" in text


def test_without_a_terminal_steps_do_nothing() -> None:
    with progress(3) as shown:
        shown.begin("m", 5)
        shown.advance()
        shown.reach(2)
