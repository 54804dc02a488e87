"""A real server of this product, in a process of its own, for experiments that measure."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sluice.models.errors import ConfigError

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 30.0
_LOOK_S = 0.05


@contextmanager
def live_server(folder: Path, config: Mapping[str, object]) -> Iterator[str]:
    """Serve the repository `folder/repository` on a free port until the block ends; gives the URL.

    Raises `ConfigError` with the last line of the server's log when it does not become ready.
    """
    settings, ready, log = folder / "server.json", folder / "ready.json", folder / "server.log"
    here = {"repository": str(folder / "repository"), "http_port": 0, "grpc_port": 0}
    settings.write_text(json.dumps({**config, **here}))
    command = [sys.executable, "-m", "sluice.gateway.cli.main", "serve"]
    command += ["--config", str(settings), "--ready-file", str(ready)]
    # A session of its own: an interrupt at the terminal is for this process, at whose end the server ends.
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True) as process,
    ):
        try:
            _wait(process, ready, log)
            yield f"http://127.0.0.1:{json.loads(ready.read_bytes())['http_port']}"
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
