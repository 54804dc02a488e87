"""Servers that are launched; any program will do to see how they are started and ended."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.gateway.config.triton_settings import TritonSettings
from sluice.gateway.executors.triton.errors import ServerLost
from sluice.gateway.executors.triton.process import TritonProcess, launched

FIRST = min(os.sched_getaffinity(0))
TELL = """
import os, signal, subprocess, sys
child = subprocess.Popen(["sleep", "60"])
with open(sys.argv[1] + ".new", "w") as file:
    print(sorted(os.sched_getaffinity(0)), os.environ["CUDA_VISIBLE_DEVICES"], child.pid, file=file)
os.rename(sys.argv[1] + ".new", sys.argv[1])
signal.pause()
"""
LEAVE = """
import subprocess
left = subprocess.Popen(["sleep", "60"], start_new_session=True)
print("it is", left.pid, "that holds the pipe", flush=True)
print("and this is no whole line", end="", flush=True)
"""
STUBBORN = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on'); signal.pause()"
PARENT = """
import os, sys
from sluice.gateway.executors.triton.process import launched
from sluice.gateway.config.triton_settings import TritonSettings
with launched([TritonSettings("t", "127.0.0.1:1", command=("sleep", "60"))]) as processes:
    print(processes["t"].pid, flush=True)
    sys.stdin.read()
"""


def server(*command: str, cores: tuple[int, ...] = (), environment: dict[str, str] | None = None) -> TritonSettings:
    return TritonSettings("t", "127.0.0.1:1", command=command, cores=cores, environment=environment or {})


def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        os.sched_yield()


def gone(pid: int) -> bool:
    """True if a process has ended, even if its parent has not noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_command_runs_in_its_partition_and_ends_with_all_that_it_started(tmp_path: Path) -> None:
    printed = tmp_path / "printed"
    settings = server(
        sys.executable, "-c", TELL, str(printed), cores=(FIRST,), environment={"CUDA_VISIBLE_DEVICES": "MIG-1"}
    )
    with launched([settings, TritonSettings("attached", "127.0.0.1:1")]) as processes:
        assert list(processes) == ["t"]
        until(printed.exists)
        cores, device, child = printed.read_text().split()
        assert (cores, device) == (f"[{FIRST}]", "MIG-1")
        assert processes["t"].ended() is None
        assert not gone(int(child))
    until(lambda: gone(int(child)))  # a signal takes its time


def how_it_ended(process: TritonProcess) -> str:
    reasons: list[str | None] = []
    until(lambda: reasons.append(process.ended()) or reasons[-1] is not None)  # type: ignore[func-returns-value]
    return str(reasons[-1])


def test_what_cannot_be_started_says_why() -> None:
    with launched([server("/no/such/tritonserver")]) as processes:
        reason = how_it_ended(processes["t"])
    assert reason == (
        "the process exited with status 127; its output: cannot start /no/such/tritonserver: "
        "[Errno 2] No such file or directory"
    )


def test_the_first_and_the_last_lines_of_the_output_are_kept() -> None:
    program = "for number in range(1000): print('line', number)"
    with launched([server(sys.executable, "-c", program)]) as processes:
        reason = how_it_ended(processes["t"])
    kept = " / ".join(f"line {number}" for number in (0, 1, 994, 995, 996, 997, 998, 999))
    assert reason == f"the process exited with status 0; its output: {kept}"


def test_all_that_was_said_is_reported_though_something_holds_the_pipe_open() -> None:
    with launched([server(sys.executable, "-c", LEAVE)]) as processes:
        reason = how_it_ended(processes["t"])
    printed = re.fullmatch(
        r"the process exited with status 0; its output: it is (\d+) that holds the pipe / and this is no whole line",
        reason,
    )
    assert printed, reason
    assert not gone(int(printed[1]))
    os.kill(int(printed[1]), signal.SIGKILL)


def test_a_core_that_is_not_there_is_an_error() -> None:
    with launched([server("true", cores=(9999,))]) as processes:
        assert "cannot pin to cores [9999]" in how_it_ended(processes["t"])


def test_it_can_be_started_again() -> None:
    with launched([server("sleep", "60")]) as processes:
        process = processes["t"]
        before = process.pid
        os.kill(before, signal.SIGKILL)
        assert how_it_ended(process) == "the process was killed by SIGKILL"
        process.start()
        assert process.pid not in (0, before)
        assert process.ended() is None


def test_the_end_of_a_server_is_noticed_after_one_that_did_not_get_ready() -> None:
    async def not_ready() -> None:
        raise ServerLost("the server is not ready")

    async def main(process: TritonProcess) -> None:
        await process.wait_ready(ready)
        process.watch(lambda: None)
        with pytest.raises(ServerLost, match=r"^not ready within 0\.01 s: the server is not ready$"):
            await process.wait_ready(not_ready)
        assert process.pid == 0
        await process.wait_ready(ready)
        noticed = asyncio.Event()
        process.watch(noticed.set)
        os.kill(process.pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            await noticed.wait()
        process.unwatch()
        assert process.ended() == "the process was killed by SIGKILL"

    settings = TritonSettings("t", "127.0.0.1:1", command=("sleep", "60"), start_timeout_s=0.01)
    with launched([settings]) as processes:
        asyncio.run(main(processes["t"]))


async def ready() -> None:
    pass


def test_one_that_does_not_end_when_it_is_asked_to_is_killed() -> None:
    process = TritonProcess(server(sys.executable, "-uc", STUBBORN))
    process.start()
    pid = process.pid
    process.end(timeout_s=0.2)
    assert gone(pid)


def test_it_does_not_outlive_a_gateway_that_is_killed() -> None:
    root = str(Path(__file__).parents[5])
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as gateway:
        assert gateway.stdout is not None
        pid = int(gateway.stdout.readline())
        # It is our launcher until it knows the process whose end is its own.
        until(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep"))
        gateway.kill()
    until(lambda: gone(pid))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"cores": (0,)}, "triton t: cores and environment require a command"),
        ({"command": ("tritonserver", "")}, "triton t: expected a command without empty arguments"),
        ({"command": ("a",), "cores": (1, 1)}, r"triton t: expected cores of at least 0, each once, got \[1, 1\]"),
        ({"command": ("a",), "start_timeout_s": 0}, "triton t: expected a finite start_timeout_s above 0, got 0"),
        ({"http_url": "here"}, "triton t: expected an http_url such as 127.0.0.1:8000, for a server on this machine"),
        ({"url": "10.0.0.7:1", "http_url": "10.0.0.7:2"}, "for a server on this machine, got '10.0.0.7:2'"),
        ({"url": "unix:"}, "expected a name and a url such as 127.0.0.1:8001, got 't' and 'unix:'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        TritonSettings(**{"name": "t", "url": "127.0.0.1:1", **settings})


@pytest.mark.parametrize(
    ("url", "command", "local"),
    [
        ("127.0.0.1:8001", (), True),
        ("localhost:8001", (), True),
        ("[::1]:8001", (), True),
        ("unix:/run/triton", (), True),
        ("10.0.0.7:8001", (), False),
        ("10.0.0.7:8001", ("tritonserver",), True),
    ],
)
def test_a_server_is_local_by_its_address_or_since_we_run_it(url: str, command: tuple[str, ...], local: bool) -> None:
    assert TritonSettings("t", url, command=command).local is local
