"""Sluice itself on partitions of the card: serves a cascade and checks that every request gets an answer."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from daemon import logs_in, mps_pids, plain_environment
from parts import LIMIT_MIB, Bench, Findings
from record import Skipped, run

ROOT = Path(__file__).resolve().parents[2]
NEEDED = (
    *("msgspec", "numpy", "onnx", "onnxruntime", "fastapi", "uvicorn", "httptools", "uvloop", "orjson", "yaml"),
    *("prometheus_client", "grpc", "grpc_health", "grpc_reflection", "tritonclient"),
)
READY_S = 60
STOP_S = 40
LOG_LINES = 60
"""Lines at the end of a server's log that are kept: none is cut, so that no part of a UUID remains."""
MEMORY_MB = 8192
SHARES = (("part40", 40), ("part60", 60))
SMALLER = 30
"""The percentage to which the first share is resized."""
PROFILED = "rf2048x2048x2048"
PROFILED_SHARES = (10, 25, 50, 100)
PROFILED_BATCHES = (1, 64, 1024, 4096)
TOO_MANY_ROWS = 400_000
"""One layer of the profiled model then needs 3.3 GB, more than `LIMIT_MIB`."""

_SLUICE = (sys.executable, "-m", "sluice.gateway.cli.main")
_PROVIDERS = "import onnxruntime as o; print(o.__version__, o.get_available_providers())"
_BUILD = "import pathlib, sys; from examples.digits.build import build_repository as build; build(pathlib.Path({!r}))"
_SESSION = (
    "from sluice.models.backends.base import GpuOptions; from sluice.models.backends.onnxruntime import load; "
    "print(load({!r}, 1, gpu=GpuOptions(0)).provider)"
)
_REPLAY = """
import json, pathlib, sys
from examples.digits.demo import Server, replay
done = replay(Server({http}, {grpc}), "digits-cascade", {protocol!r}, pathlib.Path({file!r}))
print(json.dumps({{"sent": done.sent, "unanswered": done.unanswered, "correct": done.correct,
                   "escalated": done.escalated, "summary": str(done.run.metrics)}}))
"""
_OUT_OF_MEMORY = """
import json, numpy
from sluice.models.backends.base import GpuOptions
from sluice.models.backends.device_errors import is_context_lost, is_out_of_memory
from sluice.models.backends.onnxruntime import load
model = load({model!r}, 1, gpu=GpuOptions({limit}))
def run(rows):
    try:
        model.run({{"x": numpy.zeros((rows, 1, 8, 8), numpy.float32)}})
    except Exception as error:
        return {{"text": str(error)[:600], "memory": is_out_of_memory(error), "lost": is_context_lost(error)}}
    return "ok"
print(json.dumps([run(rows) for rows in (1, {rows}, 1)]))
"""


def serve(bench: Bench, found: Findings, site: Path | None) -> None:
    """Serve on two shares under MPS (one core set in a dry run); `site` is a folder of Python packages."""
    sys.path[:0] = [str(site)] if site is not None else []
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise Skipped(f"packages missing: {', '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="check", dir="/tmp") as directory:
        trial = Trial(bench, Path(directory), site)
        if (imported := trial.python("import sluice.gateway.server.wiring", 60))["rc"]:
            raise Skipped(f"Sluice cannot be imported: {imported['err'].strip().splitlines()[-1:]}")
        found["providers"] = trial.python(_PROVIDERS)
        if not bench.fake and "CUDAExecutionProvider" not in found["providers"]["out"]:
            raise Skipped("this ONNX Runtime has no CUDA provider")
        bench.stop()  # Sluice starts its own daemon
        found["build"] = trial.python(_BUILD.format(str(trial.repository)), 60)
        _try(trial, found)


def _try(trial: "Trial", found: Findings) -> None:
    bench = trial.bench
    if bench.fake:
        config = trial.write("sluice.yaml", {"partitions": 1})
    else:  # a failure says here what ONNX Runtime lacks
        found["session"] = trial.python(_SESSION.format(str(trial.model("rf256"))), 60)
        config = trial.config("sluice.yaml", dict(SHARES))
    found["doctor"] = trial.sluice("doctor", "--config", str(config))
    bench.save()
    with trial.serving(config, found) as server:
        found["partitions"] = server.partitions()
        found["listed"] = trial.sluice("partitions", "list")
        found["replay"] = server.replay("http")
        if not bench.fake:
            resize = ("partitions", "resize", SHARES[0][0], "--share", str(SMALLER), "--url", server.url)
            found["resize"] = trial.sluice(*resize)
            found["resized"] = server.partitions()
        found["replay_grpc"] = server.replay("grpc")
        if not bench.fake:
            found["terminate"] = trial.terminate(server.partitions()["partitions"][1]["worker"])
            found["replay_terminated"] = server.replay("http")
            found["replaced"] = server.partitions()
    bench.save()
    if not bench.fake:
        _kill(trial, config, found.setdefault("killed", {}))
        _profile(trial, found)
        _run_out_of_memory(trial, found)


def _kill(trial: "Trial", config: Path, found: Findings) -> None:
    """Kill a server: its workers and its daemon end by themselves, and the next server starts."""
    with trial.serving(config, found) as server:
        found["mps"] = mps_pids()
        server.process.kill()
        server.process.wait()
        begun = time.monotonic()
        while mps_pids() and time.monotonic() - begun < STOP_S:
            time.sleep(0.1)
        found["mps_ended_s"] = None if mps_pids() else round(time.monotonic() - begun, 1)
    again = found.setdefault("again", {})
    with trial.serving(config, again) as server:
        again["partitions"] = [each["enforcement"] for each in server.partitions()["partitions"]]


def _profile(trial: "Trial", found: Findings) -> None:
    """Measure a model on shares with Sluice itself."""
    (trial.model(PROFILED).parents[1] / "config.pbtxt").write_text(f"max_batch_size: {max(PROFILED_BATCHES)}\n")
    batches = ",".join(map(str, PROFILED_BATCHES))
    found["profiles"] = {}
    for share in PROFILED_SHARES:
        config = trial.config("profile.yaml", {"part": share})
        profiled = ("--repository", str(trial.repository), PROFILED, "--config", str(config), "--batches", batches)
        found["profiles"][share] = trial.sluice("profile", *profiled)
    for file in trial.model(PROFILED).parent.glob("profile.json"):
        found["profile_file"] = json.loads(file.read_text())


def _run_out_of_memory(trial: "Trial", found: Findings) -> None:
    """Run a batch that is too large, with a limit of MPS alone, and with one of ONNX Runtime below it."""
    limits = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={LIMIT_MIB}M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
    for name, limit in (("by_mps", 0), ("by_arena", LIMIT_MIB << 19)):
        program = _OUT_OF_MEMORY.format(model=str(trial.model(PROFILED)), limit=limit, rows=TOO_MANY_ROWS)
        found[f"out_of_memory_{name}"] = trial.python(program, 60, trial.bench.daemon.variables | limits)


class Trial:
    """Sluice's commands in the environment that its packages and the card's libraries need."""

    def __init__(self, bench: Bench, directory: Path, site: Path | None) -> None:
        self.bench = bench
        self.repository = directory / "repository"
        self._directory = directory
        program = [] if bench.fake else [str(Path(bench.program).parent)]
        libraries = [] if site is not None and (site / "nvidia").is_dir() else _cuda_libraries()
        self._variables = plain_environment() | {
            "PYTHONPATH": _path("PYTHONPATH", str(site or ""), str(ROOT), str(ROOT / "src")),
            "LD_LIBRARY_PATH": _path("LD_LIBRARY_PATH", *map(str, libraries)),
            "PATH": _path("PATH", *program),
        }

    def python(self, text: str, timeout_s: float = 30, more: Mapping[str, str] = {}) -> Findings:
        """Run a Python program; returns its transcript."""
        return run([sys.executable, "-c", text], timeout_s=timeout_s, env={**self._variables, **more})

    def sluice(self, *arguments: str) -> Findings:
        """Run a command; returns its transcript."""
        return run([*_SLUICE, *arguments], timeout_s=60, env=self._variables)

    def terminate(self, worker: int) -> Findings:
        """Have the MPS of Sluice destroy the contexts of a worker; returns the transcript."""
        environment = self._variables | {"CUDA_MPS_PIPE_DIRECTORY": str(self._mps / "pipe")}
        (server,) = run([self.bench.program], "get_server_list\n", env=environment)["out"].split()
        return run([self.bench.program], f"terminate_client {server} {worker}\n", env=environment)

    def model(self, name: str) -> Path:
        """The file of a model in the repository."""
        return self.repository / name / "1" / "model.onnx"

    def config(self, name: str, shares: Mapping[str, int]) -> Path:
        """Write a configuration with shares of the card."""
        common = {"kind": "mps", "uuid": self.bench.device, "memory_mb": MEMORY_MB}
        return self.write(name, {"partitions": [{**common, "name": n, "share_percent": s} for n, s in shares.items()]})

    def write(self, name: str, config: Mapping[str, Any]) -> Path:
        """Write a configuration."""
        file = self._directory / name
        file.write_text(json.dumps(config))
        return file

    @contextmanager
    def serving(self, config: Path, found: Findings) -> Iterator["Server"]:
        """Run a server; raises RuntimeError when it does not become ready or does not end with status 0."""
        ready, log = self._directory / "ready.json", self._directory / "server.log"
        ready.unlink(missing_ok=True)
        command = [*_SLUICE, "serve", "--repository", str(self.repository), "--config", str(config)]
        command += ["--http-port", "0", "--grpc-port", "0", "--ready-file", str(ready)]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=self._variables)
        begun = time.monotonic()
        try:
            while not ready.exists():
                if process.poll() is not None or time.monotonic() - begun > READY_S:
                    raise RuntimeError(f"server: did not become ready: {log.read_text(errors='replace')[-3000:]}")
                time.sleep(0.1)
            found["ready_s"] = round(time.monotonic() - begun, 2)
            yield Server(process, json.loads(ready.read_text()), self, self._directory / "rows.npz")
        finally:
            found["exit"] = _end(process)
            found["log"] = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
            found["mps_logs"] = logs_in(self._mps / "log")
            found["mps_left"] = mps_pids()
        if found["exit"] not in (0, -signal.SIGKILL):
            raise RuntimeError(f"server: expected exit status 0, got {found['exit']}")

    @property
    def _mps(self) -> Path:
        return Path(f"/tmp/sluice-mps-{os.getuid()}") / self.bench.device


class Server:
    """A running server."""

    def __init__(self, process: "subprocess.Popen[bytes]", ports: Mapping[str, int], trial: Trial, rows: Path) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{ports['http_port']}"
        self._ports = ports
        self._trial = trial
        self._rows = rows

    def partitions(self) -> Any:
        """The partitions as the server reports them."""
        with urllib.request.urlopen(f"{self.url}/v2/sluice/partitions", timeout=10) as answer:
            return json.load(answer)

    def replay(self, protocol: str) -> Any:
        """Send labelled requests; returns the counts."""
        http, grpc = self._ports["http_port"], self._ports["grpc_port"]
        program = _REPLAY.format(http=http, grpc=grpc, protocol=protocol, file=str(self._rows))
        replayed = self._trial.python(program, 90)
        if replayed["rc"] != 0:
            raise RuntimeError(f"replay of requests failed: {replayed}")
        return json.loads(replayed["out"])


def _end(process: "subprocess.Popen[bytes]") -> int | str:
    """End a server, by force after a time; returns its exit status."""
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "killed after a time"


def _path(variable: str, *first: str) -> str:
    """The value of a variable with other directories before its own."""
    return os.pathsep.join(filter(None, (*first, os.environ.get(variable))))


def _cuda_libraries() -> list[Path]:
    """Folders of the CUDA libraries in PyTorch's packages, for an ONNX Runtime that is not installed beside them."""
    found = [Path(path) / "nvidia" for path in sys.path]
    return [library for each in found if each.is_dir() for library in sorted(each.glob("*/lib"))]
