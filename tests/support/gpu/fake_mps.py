"""A fake MPS from its user's side: programs for the PATH, CUDA clients, injected faults."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.gpu.fake_mps_daemon import SERVER, ask, connected

CONTROL = "nvidia-cuda-mps-control"
SMS = 132
GPU = "GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65"
"""UUID of a device that does not exist."""
OWN_GPU = f"GPU-74d43ed3-cdf7-e667-3644-{os.getpid():012x}"
"""UUID for daemons in the user's directory, which has one daemon for each device: unique to this test process."""
TIMEOUT_S = 60.0
"""Time limit of a client that waits for its server."""
_ROOT = Path(__file__).resolve().parents[3]


def install(directory: Path) -> str:
    """Write the two programs to `directory`; returns the path of the control program."""
    directory.mkdir(parents=True, exist_ok=True)
    modules = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from tests.support.gpu.fake_mps_daemon import control"
    programs = {
        CONTROL: f"{modules}\nsys.exit(control(sys.argv[1:]))",
        SERVER: "import signal\nprint('ready', flush=True)\nsignal.pause()",
    }
    for name, text in programs.items():
        script = directory / name
        # -S leaves out site, since the programs start often.
        script.write_text(f"#!{sys.executable} -S\n{text}\n")
        script.chmod(0o755)
    return str(directory / CONTROL)


def inject(pipes: Path, what: str, pid: int | None = None) -> None:
    """Make the daemon die, hang, refuse commands or fault, or make a client impossible to terminate (`wedge`)."""
    connection = connected(pipes)
    assert connection is not None
    with connection:
        line = f"_inject {what}" if pid is None else f"_inject {what} {pid}"
        connection.sendall(json.dumps({"op": "command", "line": line}).encode() + b"\n")
        if what != "hang":
            connection.recv(4096)


class CudaError(Exception):
    """The error code of a CUDA call."""

    def __init__(self, code: int) -> None:
        super().__init__(f"CUDA error {code}")
        self.code = code


class FakeCuda:
    """The CUDA of a process: a client of the daemon in its environment, or, as in the real one, silently of none."""

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
        """Allocate device memory; raises CudaError 2 when none is left, or the error of a lost context."""
        self.check()
        if self._connection is not None and not ask(self._connection, {"op": "allocate", "bytes": size})["granted"]:
            raise CudaError(2)
        self._used += size

    def check(self) -> None:
        """Raise the error of the context, if it has one; such an error is permanent."""
        if self._connection is not None and not self._lost:
            self._connection.setblocking(False)
            try:
                message = self._connection.recv(4096)
                self._lost = json.loads(message.splitlines()[0])["error"] if message else 806
            except BlockingIOError:
                pass
            finally:
                self._connection.setblocking(True)
        if self._lost:
            raise CudaError(self._lost)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
