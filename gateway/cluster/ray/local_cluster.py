"""A Ray cluster of one node on this machine, with a gateway, both of which go on when the command has ended."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import yaml

from sluice.gateway.cluster.ray.ask import cluster_nodes, report
from sluice.models.errors import ConfigError
from sluice.models.processes import module_environment

RAY_TIMEOUT_S, GATEWAY_TIMEOUT_S = 90.0, 180.0
"""The times for the cluster to answer, and for the gateway to be ready."""
GATEWAY_END_S, RAY_END_S = 90.0, 60.0
"""The times for both to end when they are asked to; then they are killed."""
OBJECT_STORE_BYTES = 80 << 20
"""Ray's memory for objects, of which Sluice has none, is as small as it may be."""
PAUSE_S = 0.2

_WORKER_KEY, _RAY_TOKEN = "worker.key", "ray.token"
_RAY_LOG, _GATEWAY_LOG = "ray.log", "gateway.log"


class Running(msgspec.Struct, frozen=True):
    """A process that was started: its pid, and the time of its start, which differs from that of a later one."""

    pid: int
    started: str


class LocalState(msgspec.Struct, frozen=True):
    """The processes that run, with their addresses; `namespace` is that of the gateway's workers in Ray."""

    address: str
    namespace: str
    ray: Running
    gateway: Running | None = None
    dashboard: str = ""
    http: str = ""
    grpc: str = ""


class LocalCluster:
    """The cluster whose files are in `directory`: its state, the settings, the workers' key, and the logs.

    `say` gets what is done, in sentences.
    """

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._say = say

    @property
    def environment(self) -> dict[str, str]:
        """The variables of all programs that use the cluster: its token, which is its own, and no report to Ray."""
        token = str(self._directory / _RAY_TOKEN)
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token, "RAY_USAGE_STATS_ENABLED": "0"}

    def state(self) -> LocalState | None:
        """The state of what runs; None if nothing does."""
        try:
            state = msgspec.json.decode((self._directory / "state.json").read_bytes(), type=LocalState)
        except OSError:
            return None
        except msgspec.DecodeError as error:
            raise ConfigError(f"{self._directory / 'state.json'}: {error}") from error
        alive = is_running(state.ray) or (state.gateway is not None and is_running(state.gateway))
        return state if alive else None

    def up(
        self, settings: dict[str, Any], serve: Sequence[str], cores: int | None, gpus: int | None, dashboard_port: int
    ) -> LocalState:
        """Start Ray, then the gateway with these settings; `serve` are further arguments of `sluice serve`.

        What was started is ended again if the gateway does not get ready. Raises ConfigError.
        """
        if self.state() is not None:
            raise ConfigError(f"{self._directory}: a cluster is running already; end it with sluice ray down")
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        port = _free_port()
        address = f"127.0.0.1:{port}"
        ray = self._settings(settings, address)
        self._say("starting Ray")
        process = self._start(_RAY_LOG, _ray_command(port, cores, gpus, dashboard_port))
        dashboard = f"http://127.0.0.1:{dashboard_port}" if dashboard_port else ""
        state = LocalState(address, ray.get("namespace", "sluice"), running(process.pid), dashboard=dashboard)
        self._write(state)
        try:
            self._await(process, "Ray", _RAY_LOG, RAY_TIMEOUT_S, lambda: _answers(address, self.environment))
            self._say("starting the gateway, which has Ray start the workers")
            state = self._up_gateway(state, serve)
        except BaseException:
            self.down()
            raise
        return state

    def down(self) -> bool:
        """End the gateway, its workers and Ray; returns whether anything ran."""
        state = self.state()
        if state is None:
            return False
        if state.gateway is not None:
            self._say("ending the gateway")
            _end(state.gateway, GATEWAY_END_S)
        self._say("ending the workers and Ray")
        with suppress(ConfigError):  # else Ray ends the workers, only later
            report(state.address, state.namespace, "end", environment=self.environment, timeout_s=RAY_END_S)
        _end(state.ray, RAY_END_S)
        (self._directory / "state.json").unlink(missing_ok=True)
        return True

    def _up_gateway(self, state: LocalState, serve: Sequence[str]) -> LocalState:
        ready = self._directory / "ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-P", "-m", "sluice.gateway.cli.main", "serve"]
        command += ["--config", str(self._directory / "sluice.yaml"), "--ready-file", str(ready), *serve]
        process = self._start(_GATEWAY_LOG, command)
        state = msgspec.structs.replace(state, gateway=running(process.pid))
        self._write(state)
        self._await(process, "the gateway", _GATEWAY_LOG, GATEWAY_TIMEOUT_S, ready.exists)
        ports = json.loads(ready.read_text(encoding="utf-8"))
        state = msgspec.structs.replace(
            state, http=f"http://127.0.0.1:{ports['http_port']}", grpc=f"127.0.0.1:{ports['grpc_port']}"
        )
        self._write(state)
        return state

    def _settings(self, settings: dict[str, Any], address: str) -> dict[str, Any]:
        """Write the gateway's settings, and the secrets if there are none; returns the settings of Ray."""
        partitions = settings.get("partitions") or {}
        if not isinstance(partitions, dict) or "remote" in partitions:
            raise ConfigError("partitions: expected none, or a mapping with ray, local and key_file")
        ray = dict(partitions.get("ray") or {}) | {"address": address}
        for name in (_WORKER_KEY, _RAY_TOKEN):
            if not (path := self._directory / name).exists():
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with open(file, "w", encoding="ascii") as stream:
                    stream.write(secrets.token_urlsafe(32))
        key = str(self._directory / _WORKER_KEY)
        document = settings | {"partitions": {"key_file": key, **partitions, "ray": ray}}
        (self._directory / "sluice.yaml").write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        return ray

    def _start(self, log: str, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        with (self._directory / log).open("wb") as stream:
            return subprocess.Popen(
                command,
                env=module_environment() | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )

    def _await(
        self, process: "subprocess.Popen[bytes]", what: str, log: str, timeout_s: float, is_ready: Callable[[], bool]
    ) -> None:
        give_up_s = time.monotonic() + timeout_s
        while not is_ready():
            if (status := process.poll()) is not None:
                raise ConfigError(f"{what} exited with status {status}{self._last_line(log)}")
            if time.monotonic() > give_up_s:
                raise ConfigError(f"{what} was not ready within {timeout_s:g} s{self._last_line(log)}")
            time.sleep(PAUSE_S)

    def _last_line(self, log: str) -> str:
        """The last line of a log, which has the reason of an end, and where the others are."""
        path = self._directory / log
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"; its last line: {lines[-1]}; see {path}" if lines else f"; see {path}"

    def _write(self, state: LocalState) -> None:
        new = self._directory / "state.json.new"
        new.write_bytes(msgspec.json.encode(state))
        new.rename(self._directory / "state.json")


def running(pid: int) -> Running:
    """A process that runs now."""
    return Running(pid, _start_time(pid))


def is_running(process: Running) -> bool:
    """Return whether the same process still runs."""
    return bool(started := _start_time(process.pid)) and started == process.started


def _start_time(pid: int) -> str:
    """The time of a process's start in ticks of the kernel; "" if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _end(process: Running, timeout_s: float) -> None:
    """Have a process end; it is killed with its group after a time."""
    give_up_s = time.monotonic() + timeout_s
    number = signal.SIGTERM
    while is_running(process):
        try:
            if number == signal.SIGTERM:
                os.kill(process.pid, number)
            else:
                os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        while is_running(process) and time.monotonic() < give_up_s:
            time.sleep(PAUSE_S)
        number, give_up_s = signal.SIGKILL, time.monotonic() + PAUSE_S


def _ray_command(port: int, cores: int | None, gpus: int | None, dashboard_port: int) -> list[str]:
    command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port", str(port)]
    command += ["--node-ip-address", "127.0.0.1", "--disable-usage-stats"]
    command += ["--object-store-memory", str(OBJECT_STORE_BYTES)]
    # Any free ports for the processes of Ray, so that no other program is in the way.
    command += ["--min-worker-port", "0", "--max-worker-port", "0"]
    command += ["--include-dashboard", "true" if dashboard_port else "false"]
    if dashboard_port:
        command += ["--dashboard-port", str(dashboard_port)]
    for option, number in (("--num-cpus", cores), ("--num-gpus", gpus)):
        if number is not None:
            command += [option, str(number)]
    return command


def _answers(address: str, environment: Mapping[str, str]) -> bool:
    try:
        return bool(cluster_nodes(address, environment))
    except ConfigError:
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
