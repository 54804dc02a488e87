"""A private MPS daemon in a directory of its own; the card's compute mode is left as it is."""

import contextlib
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from record import Skipped, run

PROGRAM = "nvidia-cuda-mps-control"
_DIRECTORIES = ("/usr/bin", "/usr/local/bin", "/usr/local/nvidia/bin", "/opt/nvidia/bin", "/usr/local/cuda/bin")
_SERVER_S = 30.0
_LOG_LINES = 25
"""Lines at each end of a log that are kept."""


def find_program(given: str | None) -> str:
    """Path of the control program; raises Skipped where there is none."""
    path = os.pathsep.join((os.environ.get("PATH", ""), *_DIRECTORIES))
    found = given or shutil.which(PROGRAM, path=path)
    if found is None:
        raise Skipped(f"{PROGRAM} not found")
    return found


def plain_environment() -> dict[str, str]:
    """This process's environment without the settings of MPS."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS")}
    return kept | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


class Daemon:
    """The daemon of one device; `variables` are the environment variables of its clients."""

    def __init__(self, program: str, device: str, flags: Sequence[str] = ()) -> None:
        self.program = program
        self._directory = Path(tempfile.mkdtemp(prefix="m", dir="/tmp"))
        self._pipes, self._logs = self._directory / "p", self._directory / "l"
        self._pipes.mkdir()
        self._logs.mkdir()
        self.variables = {"CUDA_MPS_PIPE_DIRECTORY": str(self._pipes), "CUDA_VISIBLE_DEVICES": device}
        self.environment = plain_environment() | self.variables | {"CUDA_MPS_LOG_DIRECTORY": str(self._logs)}
        path = str(Path(program).parent)
        self.environment["PATH"] = f"{path}{os.pathsep}{self.environment.get('PATH', '')}"
        self._flags = tuple(flags)
        self._pids: set[int] = set()

    def start(self) -> dict[str, Any]:
        """Start the daemon and wait until it answers; raises RuntimeError with the transcript when it does not."""
        begun = run([self.program, "-d", *self._flags], env=self.environment)
        give_up = time.monotonic() + 8
        while (ping := self.say("get_default_active_thread_percentage", 5))["rc"] != 0 or not ping["out"].strip():
            if time.monotonic() > give_up:
                raise RuntimeError(f"MPS daemon: no answer: {begun}, then {ping}")
            time.sleep(0.1)
        self._note_pids()
        return begun

    def say(self, command: str, timeout_s: float = 10) -> dict[str, Any]:
        """Send a command; returns its transcript."""
        return run([self.program], f"{command}\n", timeout_s, self.environment)

    def servers(self) -> list[int]:
        """Process ids of the servers."""
        found = [int(line) for line in re.findall(r"^\s*(\d+)\s*$", self.say("get_server_list")["out"], re.MULTILINE)]
        self._pids.update(found)
        return found

    def server(self) -> int:
        """Process id of this user's server, which is started when there is none."""
        if not self.servers():
            self.say(f"start_server -uid {os.getuid()}", 20)
        give_up = time.monotonic() + _SERVER_S
        while time.monotonic() < give_up:
            for pid in self.servers():
                if "ACTIVE" in self.say(f"get_server_status {pid}")["out"]:
                    return pid
            time.sleep(0.1)
        raise RuntimeError(f"MPS daemon: no server became active; its logs end with {self.logs()}")

    def logs(self) -> dict[str, str]:
        """The two ends of each log."""
        return logs_in(self._logs)

    def stop(self) -> dict[str, Any]:
        """Quit, then signal the remaining processes that the daemon has listed; `left` in the result are survivors."""
        self._note_pids()
        self.servers()
        found: dict[str, Any] = {"quit": self.say("quit -t 5", 15)}
        for number, patience_s in ((None, 6), (signal.SIGTERM, 4), (signal.SIGKILL, 3)):
            give_up = time.monotonic() + patience_s
            left = self._left()
            if number is not None and left:
                found[number.name] = left
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):  # the process has just ended
                        os.kill(pid, number)
            while self._left() and time.monotonic() < give_up:
                time.sleep(0.05)
        found |= {"logs": self.logs(), "after": self.say("get_server_list", 5), "left": self._left()}
        shutil.rmtree(self._directory, ignore_errors=True)
        return found

    def _note_pids(self) -> None:
        try:
            self._pids.add(int((self._pipes / f"{PROGRAM}.pid").read_text().split()[0]))
        except (OSError, ValueError, IndexError):
            return

    def _left(self) -> list[int]:
        return [pid for pid in sorted(self._pids) if _is_mps(pid)]


def logs_in(directory: Path) -> dict[str, str]:
    """The two ends of each log of a daemon."""
    found = {path.name: path.read_text(errors="replace").splitlines() for path in sorted(directory.glob("*.log"))}
    return {
        name: "\n".join(lines if len(lines) <= 2 * _LOG_LINES else [*lines[:_LOG_LINES], "…", *lines[-_LOG_LINES:]])
        for name, lines in found.items()
    }


def mps_pids() -> list[int]:
    """All MPS processes of this machine."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdecimal() and _is_mps(int(name)))


def _is_mps(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state != "Z" and b"nvidia-cuda-mps" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
