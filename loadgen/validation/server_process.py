"""The gateway under measurement: a `sluice serve` process on chosen cores that writes a journal."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from sluice.batcher.settings.scheduling import ServingSettings
from sluice.loadgen.simulation.simulation_file import SimulationFile
from sluice.loadgen.target.base import TargetUnreachable
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0


class GatewayProcess:
    """A running gateway; its `journal` file is complete once it has stopped."""

    def __init__(self, process: subprocess.Popen[bytes], http_port: int, journal: Path) -> None:
        self._process = process
        self.url = f"http://127.0.0.1:{http_port}"
        self.journal = journal

    def pin(self, core: int) -> None:
        """Pin the gateway to a core; its workers already have cores of their own."""
        for thread in self._threads():
            with suppress(ProcessLookupError):  # the thread has just ended
                os.sched_setaffinity(int(thread.name), {core})

    def cpu_ns(self) -> int:
        """CPU time that the gateway has used so far, without its workers."""
        used_ns = 0
        for thread in self._threads():
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
                used_ns += int((thread / "schedstat").read_text().split()[0])
        return used_ns

    def stop(self) -> None:
        """Stop the server as an operator would, which completes its journal.

        Raises ConfigError when it does not stop and has to be killed.
        """
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            self._process.wait()
            raise ConfigError(f"sluice serve: killed after it did not stop in {_STOP_TIMEOUT_S:g} s") from error

    def _threads(self) -> Iterator[Path]:
        return Path(f"/proc/{self._process.pid}/task").iterdir()


@contextmanager
def run_gateway(
    file: SimulationFile, repository: Path, partitions: dict[str, Sequence[int]]
) -> Iterator[GatewayProcess]:
    """Run the server that a simulation file describes until the block ends; `partitions` gives their cores by name.

    Raises ConfigError with the server's log when it does not become ready, or ends before the block does.
    """
    settings = {name: value for name, value in msgspec.to_builtins(file).items() if name in _SERVED}
    settings["partitions"] = [{"name": name, "cores": list(cores)} for name, cores in partitions.items()]
    settings |= {"http_port": 0, "grpc_port": 0}
    with tempfile.TemporaryDirectory(prefix="loadgen-") as name:
        directory = Path(name)
        config, ready, journal = directory / "sluice.yaml", directory / "ready.json", directory / "journal.jsonl"
        config.write_text(json.dumps(settings))
        command = [sys.executable, "-m", "sluice.gateway.cli.main", "serve", "--repository", str(repository)]
        command += ["--config", str(config), "--ready-file", str(ready), "--journal", str(journal)]
        with (directory / "server.log").open("w+b") as log:
            process = subprocess.Popen([*command, "--log-level", "warning"], stdout=log, stderr=subprocess.STDOUT)
            server = None
            try:
                server = GatewayProcess(process, _http_port(process, ready, log), journal)
                yield server
            except TargetUnreachable as error:
                if process.poll() is None:
                    raise
                raise ConfigError(f"sluice serve: ended during the measurement: {_text(log)}") from error
            finally:
                (server or GatewayProcess(process, 0, journal)).stop()


_SERVED = frozenset(ServingSettings.__struct_fields__)


def _http_port(process: subprocess.Popen[bytes], ready: Path, log: IO[bytes]) -> int:
    until_ns = time.monotonic_ns() + round(_START_TIMEOUT_S * NS_PER_S)
    while process.poll() is None and time.monotonic_ns() < until_ns:
        if ready.exists():
            return int(json.loads(ready.read_text())["http_port"])
        time.sleep(0.02)
    raise ConfigError(f"sluice serve: did not become ready: {_text(log)}")


def _text(log: IO[bytes]) -> str:
    """The server's log so far."""
    log.seek(0)
    return log.read().decode(errors="replace").strip()
