"""A real Triton server for tests: started on free ports, stopped when the test is done."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tritonclient import grpc as tritongrpc
from tritonclient.utils import InferenceServerException

from tests.support.triton_setup import command

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0


class TritonServer(NamedTuple):
    """A running Triton; `log` is the file with all it has printed."""

    process: subprocess.Popen[bytes]
    grpc_port: int
    log: Path

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def kill_stubs(self, model: str) -> int:
        """`kill -9` the processes that run a model; returns how many there were."""
        killed = 0
        for process in Path("/proc").iterdir():
            with suppress(OSError):
                arguments = (process / "cmdline").read_bytes().split(b"\0")
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.process.pid and any(f"/{model}/".encode() in each for each in arguments):
                    os.kill(int(process.name), signal.SIGKILL)
                    killed += 1
        return killed


@contextmanager
def triton_server(
    directory: Path,
    repository: Path,
    scratch: Path,
    *,
    load: Sequence[str] = ("*",),
    arguments: Sequence[str] = (),
    grpc_port: int = 0,
) -> Iterator[TritonServer]:
    """Serve `repository` with the Triton in `directory`, in explicit mode, until the block is left.

    `load` are the models to begin with. The log is kept in `scratch`. Raises RuntimeError with the log when it does not
    get ready.
    """
    start, environment = command(directory)
    http_port, metrics_port, free_port = _free_ports(3)
    grpc_port = grpc_port or free_port
    memory = f"sluice-test-{os.getpid()}-{grpc_port}-"
    line = [
        *start,
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in load),
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        f"--http-port={http_port}",
        f"--grpc-port={grpc_port}",
        f"--metrics-port={metrics_port}",
        "--allow-gpu-metrics=false",
        "--exit-timeout-secs=3",
        f"--backend-config=python,shm-region-prefix-name={memory}",
        *arguments,
    ]
    log = scratch / f"triton-{grpc_port}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(line, env=environment, stdout=output, stderr=subprocess.STDOUT)
    server = TritonServer(process, grpc_port, log)
    try:
        _wait_ready(server)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for left in Path("/dev/shm").glob(f"{memory}*"):  # by a process that was killed
            left.unlink()


def _wait_ready(server: TritonServer) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    with tritongrpc.InferenceServerClient(server.url) as client:
        while time.monotonic() < deadline and server.process.poll() is None:
            with suppress(InferenceServerException):
                if client.is_server_ready():
                    return
            time.sleep(0.05)
    raise RuntimeError(f"Triton did not get ready:\n{server.log.read_text(errors='replace')}")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
