"""A fake MPS as a user meets it: programs to put on the PATH, CUDA clients, faults."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.fake_mps_daemon import SERVER, ask, connected

CONTROL = "nvidia-cuda-mps-control"
SMS = 132
GPU = "GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65"
"""A device that there is none of."""
OWN_GPU = f"GPU-74d43ed3-cdf7-e667-3644-{os.getpid():012x}"
"""One for daemons in the directory of this user, of which each device has one: no other process of tests has it."""
TIMEOUT_S = 60.0
"""How long a client waits for its server."""
_ROOT = Path(__file__).resolve().parents[2]


def install(directory: Path) -> str:
    """Write the two programs there; returns the path of the control program."""
    directory.mkdir(parents=True, exist_ok=True)
    modules = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from tests.support.fake_mps_daemon import control"
    programs = {
        CONTROL: f"{modules}\nsys.exit(control(sys.argv[1:]))",
        SERVER: "import signal\nprint('ready', flush=True)\nsignal.pause()",
    }
    for name, text in programs.items():
        script = directory / name
        # Without site: they start often.
        script.write_text(f"#!{sys.executable} -S\n{text}\n")
        script.chmod(0o755)
    return str(directory / CONTROL)


def inject(pipes: Path, what: str, pid: int | None = None) -> None:
    """Have the daemon die, hang, refuse commands, fault, or have a client that cannot be terminated (`wedge`)."""
    connection = connected(pipes)
    assert connection is not None
    with connection:
        line = f"_inject {what}" if pid is None else f"_inject {what} {pid}"
        connection.sendall(json.dumps({"op": "command", "line": line}).encode() + b"\n")
        if what != "hang":
            connection.recv(4096)


class CudaError(Exception):
    """What a CUDA call returns instead of success."""

    def __init__(self, code: int) -> None:
        super().__init__(f"CUDA error {code}")
        self.code = code


class FakeCuda:
    """A process's CUDA: a client of the daemon that its environment names, or, without a word, of none."""

    def __init__(self, environment: Mapping[str, str], name: str = "python") -> None:
        self._lost = 0
        self._used = 0
        self._connection = connected(Path(environment.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")))
        self.multiprocessors, self.limit, self.server = SMS, 0, 0
        if self._connection is None:
            return
        self._connection.settimeout(TIMEOUT_S)
        limit = environment.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "").removeprefix("0=")
        wish = {
            "op": "connect",
            "pid": os.getpid(),
            "uid": os.getuid(),
            "name": name,
            "share": environment.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
            "limit": int(limit.removesuffix("M")) << 20 if limit else 0,
            "partition": environment.get("CUDA_MPS_SM_PARTITION", ""),
        }
        answer = ask(self._connection, wish)
        if answer.get("error"):
            self.close()
            raise CudaError(answer["error"])
        self._connection.settimeout(None)
        self.multiprocessors, self.limit, self.server = answer["sms"], answer["limit"], answer["server"]

    def allocate(self, size: int) -> None:
        """Take device memory; raises CudaError 2 when there is none, or what has become of the context."""
        self.check()
        if self._connection is not None and not ask(self._connection, {"op": "allocate", "bytes": size})["granted"]:
            raise CudaError(2)
        self._used += size

    def check(self) -> None:
        """Raise the error that the context has met: it stays for good."""
        if self._connection is not None and not self._lost:
            self._connection.setblocking(False)
            try:
                told = self._connection.recv(4096)
                self._lost = json.loads(told.splitlines()[0])["error"] if told else 806
            except BlockingIOError:
                pass
            finally:
                self._connection.setblocking(True)
        if self._lost:
            raise CudaError(self._lost)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
