"""Real servers of this product, in processes of their own, for experiments that measure."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sluice.models.errors import ConfigError

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 30.0
_LOOK_S = 0.05


class LiveWorker(msgspec.Struct, frozen=True):
    """A worker server that is ready: its address, host:port, and the kind of its partition."""

    url: str
    kind: str


class _ServerPorts(msgspec.Struct, frozen=True):
    http_port: int


@contextmanager
def live_server(folder: Path, config: Mapping[str, object]) -> Iterator[str]:
    """Serve the repository `folder/repository` on a free port until the block ends; gives the URL.

    Raises `ConfigError` with the last line of the server's log when it does not become ready.
    """
    settings = folder / "server.json"
    here = {"repository": str(folder / "repository"), "http_port": 0, "grpc_port": 0}
    settings.write_bytes(msgspec.json.encode({**config, **here}))
    with _running(folder, "server", ["serve", "--config", str(settings)]) as said:
        yield f"http://127.0.0.1:{msgspec.json.decode(said, type=_ServerPorts).http_port}"


@contextmanager
def live_worker(folder: Path, node: str, core: int) -> Iterator[LiveWorker]:
    """Run a worker server on one core, as if on a machine of that name, until the block ends.

    Its cache of models is `folder/node`. Raises `ConfigError` as `live_server` does.
    """
    arguments = ["worker", "--cores", str(core), "--node", node, "--name", node, "--cache", str(folder / node)]
    with _running(folder, node, arguments) as said:
        yield msgspec.json.decode(said, type=LiveWorker)


@contextmanager
def _running(folder: Path, name: str, arguments: Sequence[str]) -> Iterator[bytes]:
    """Run a command of `sluice` until the block ends; gives the content of its ready file."""
    ready, log = folder / f"{name}.ready", folder / f"{name}.log"
    command = [sys.executable, "-m", "sluice.gateway.cli.main", *arguments, "--ready-file", str(ready)]
    # A session of its own: an interrupt at the terminal is for this process, at whose end the server ends.
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True) as process,
    ):
        try:
            _wait(process, ready, log)
            yield ready.read_bytes()
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(process: subprocess.Popen[bytes], ready: Path, log: Path) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline_s:
            last = (log.read_text(errors="replace").strip().splitlines() or ["it wrote nothing"])[-1]
            raise ConfigError(f"the server of the experiment did not start: {last}")
        time.sleep(_LOOK_S)
