"""Server processes for tests: `sluice serve` on free ports, stopped at the end of the test."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from sluice.gateway.config.front_door import GrpcServerKind

READY_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 80.0
GRPC_SERVER = "GRPC_SERVER"


class GatewayServer(NamedTuple):
    """A running server; `log` is the file of its output."""

    process: subprocess.Popen[bytes]
    http_port: int
    grpc_port: int
    log: Path

    @property
    def http_url(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    def has_come(self, id: str) -> bool:
        """True once the scheduler knows the request of that id."""
        return self.request("GET", f"/v2/sluice/requests/{id}")[0] == 200

    def is_sent(self, id: str, model: str) -> bool:
        """True once the request of that id is with a worker, or done, if no other request for the model waits."""
        waiting = f'\nsluice_queue_requests{{model="{model}:1"}} 0.0\n'
        return self.has_come(id) and waiting.encode() in self.request("GET", "/metrics")[2]

    @property
    def grpc_url(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (names in lower case) and body of one HTTP exchange on a new connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()


@contextmanager
def gateway_server(
    repository: Path | None,
    directory: Path,
    config: dict[str, object] | None = None,
    arguments: Sequence[str] = (),
    launcher: Sequence[str] = (),
) -> Iterator[GatewayServer]:
    """Serve `repository` (a folder or one model file) until the block ends; files are kept in `directory`.

    `config` is the server's configuration without its ports, and `arguments` are further command-line arguments. The
    command `launcher` runs the command of the server, which comes behind it. There is no spare worker unless it asks
    for one, so that the children of the server are its workers. The environment variable GRPC_SERVER chooses the gRPC
    server, and SLUICE_TEST_FRONT_ENDS the number of front ends. Raises RuntimeError with the server's log when it does
    not become ready.
    """
    settings, ready, log = directory / "sluice.yaml", directory / "ready.json", directory / "server.log"
    base = {
        "spare_worker": False,
        "grpc_server": os.environ.get(GRPC_SERVER, GrpcServerKind.SLUICE),
        "front_ends": int(os.environ.get("SLUICE_TEST_FRONT_ENDS", "0")),
    }
    settings.write_text(json.dumps({**base, **(config or {}), "http_port": 0, "grpc_port": 0}))
    ready.unlink(missing_ok=True)  # left by an earlier server
    source: list[str] = []
    if repository is not None:
        source = ["--repository", str(repository)] if repository.is_dir() else [str(repository)]
    with log.open("wb") as output:
        process = _start([*source, *arguments, "--config", str(settings), "--ready-file", str(ready)], output, launcher)
    try:
        ports = _wait_ready(process, ready, log)
        server = GatewayServer(process, ports["http_port"], ports["grpc_port"], log)
        yield server
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> int:
    """Terminate a server as an operator would; returns its exit status, also when it has already ended."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def _start(arguments: list[str], output: IO[bytes], launcher: Sequence[str]) -> subprocess.Popen[bytes]:
    root = Path(__file__).parents[3]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [*launcher, sys.executable, "-m", "sluice.gateway.cli.main", "serve", *arguments]
    return subprocess.Popen(command, cwd=root, env=environment, stdout=output, stderr=subprocess.STDOUT)


def _wait_ready(process: subprocess.Popen[bytes], ready: Path, log: Path) -> dict[str, int]:
    """Wait until a server is ready; returns its ports."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if ready.exists():
            ports: dict[str, int] = json.loads(ready.read_text())
            return ports
        time.sleep(0.02)
    raise RuntimeError(f"server: did not become ready:\n{log.read_text(errors='replace')}")
