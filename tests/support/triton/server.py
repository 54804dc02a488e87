"""A real Triton server for tests: started on free ports, stopped at the end of the test."""

import os
import random
import select
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

from tests.support.triton.setup import command

READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
REGION = "sluice-test-"
"""Prefix of the shared memory between a server and the processes of its models."""


class TritonServer(NamedTuple):
    """A running Triton; `log` is the file of its output."""

    process: subprocess.Popen[bytes]
    http_port: int
    grpc_port: int
    log: Path

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def kill_stubs(self, model: str) -> int:
        """`kill -9` the processes that run a model and wait for their end; returns their number."""
        stubs = [pid for pid, line in children(self.process.pid) if f"/{model}/" in line]
        for pid in stubs:
            descriptor = os.pidfd_open(pid)
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            assert select.select([descriptor], [], [], STOP_TIMEOUT_S)[0]
            os.close(descriptor)
        return len(stubs)


def children(parent: int) -> list[tuple[int, str]]:
    """The child processes of a process, with their command lines."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if int((process / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append((int(process.name), line))
    return found


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
    """Serve `repository` with the Triton in `directory`, in explicit mode, until the block ends.

    `load` are the initial models. The log is kept in `scratch`. Raises RuntimeError with the log when the server does
    not become ready.
    """
    log = scratch / "triton.log"
    # On a busy machine a start fails now and then: Triton's wait for its models' locks is bounded, and another process
    # may take a free port first.
    for _ in range(3):
        port = grpc_port or free_ports(1)[0]
        line, environment = command_line(directory, repository, port, load, arguments)
        http_port = next(int(each.partition("=")[2]) for each in line if each.startswith("--http-port="))
        with log.open("ab") as output:
            process = subprocess.Popen(line, env=environment, stdout=output, stderr=subprocess.STDOUT)
        server = TritonServer(process, http_port, port, log)
        try:
            if _is_ready(server):
                yield server
                return
        finally:
            _end(process)
            remove_memory(port)
    raise RuntimeError(f"Triton: did not become ready:\n{log.read_text(errors='replace')}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def command_line(
    directory: Path, repository: Path, grpc_port: int, load: Sequence[str] = ("*",), arguments: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """Command line and environment of the Triton in `directory`, as `triton_server` starts it."""
    start, environment = command(directory)
    http_port, metrics_port = free_ports(2)
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
        f"--backend-config=python,shm-region-prefix-name={_memory(grpc_port)}",
        *arguments,
    ]
    return line, environment


def remove_memory(grpc_port: int) -> None:
    """Remove shared memory that a killed server's models have left behind."""
    for left in Path("/dev/shm").glob(f"{_memory(grpc_port)}*"):
        left.unlink(missing_ok=True)


def _memory(grpc_port: int) -> str:
    return f"{REGION}{os.getpid()}-{grpc_port}-"


def _is_ready(server: TritonServer) -> bool:
    """Wait for a server; true when it becomes ready in time."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    with tritongrpc.InferenceServerClient(server.url) as client:
        while time.monotonic() < deadline and server.process.poll() is None:
            with suppress(InferenceServerException):
                if client.is_server_ready(client_timeout=10):
                    return True
            time.sleep(0.05)
    return False


def free_ports(count: int) -> list[int]:
    """Ports without a listener, below the kernel's range of ephemeral ports."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found += [port] if port not in found else []
    return found
