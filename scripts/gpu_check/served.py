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
from pathlib import Path
from typing import Any

from daemon import plain_environment
from parts import Bench, Findings
from record import Skipped, run

ROOT = Path(__file__).resolve().parents[2]
NEEDED = (
    *("msgspec", "numpy", "onnx", "onnxruntime", "fastapi", "uvicorn", "httptools", "uvloop", "orjson", "yaml"),
    *("prometheus_client", "grpc", "grpc_health", "grpc_reflection", "tritonclient"),
)
READY_S = 90
STOP_S = 30
_BUILD = "import pathlib, sys; from examples.digits.build import build_repository as build; build(pathlib.Path({!r}))"
_REPLAY = """
import json, pathlib, sys
from examples.digits.demo import Server, replay
done = replay(Server({http}, {grpc}), "digits-cascade", "http", pathlib.Path({file!r}))
print(json.dumps({{"sent": done.sent, "unanswered": done.unanswered, "correct": done.correct,
                   "escalated": done.escalated, "summary": str(done.run.metrics)}}))
"""


def serve(bench: Bench, found: Findings, site: Path | None) -> None:
    """Serve on two shares under MPS (one core set in a dry run); `site` is a folder of Python packages."""
    sys.path[:0] = [str(site)] if site is not None else []
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise Skipped(f"packages missing: {', '.join(missing)}")
    variables = plain_environment() | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(site or ""), str(ROOT), os.environ.get("PYTHONPATH")))),
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, _cuda_libraries())),
        "PATH": os.pathsep.join(([] if bench.fake else [str(Path(bench.program).parent)]) + [os.environ["PATH"]]),
    }
    found["providers"] = python("import onnxruntime as o; print(o.__version__, o.get_available_providers())", variables)
    if not bench.fake and "CUDAExecutionProvider" not in found["providers"]["out"]:
        raise Skipped("this ONNX Runtime has no CUDA provider")
    bench.stop()  # Sluice starts its own daemon
    with tempfile.TemporaryDirectory(prefix="check", dir="/tmp") as name:
        directory = Path(name)
        found["build"] = python(_BUILD.format(str(directory / "repository")), variables, 60)
        config = directory / "sluice.yaml"
        config.write_text(json.dumps(_config(bench)))
        found["doctor"] = run(
            [sys.executable, "-m", "sluice.gateway.cli.main", "doctor", "--config", str(config)],
            env=variables,
            timeout_s=90,
        )
        bench.save()
        _serve(directory, config, variables, found)


def python(text: str, variables: dict[str, str], timeout_s: float = 30) -> Findings:
    """Run a Python program; returns its transcript."""
    return run([sys.executable, "-c", text], timeout_s=timeout_s, env=variables)


def _config(bench: Bench) -> dict[str, Any]:
    if bench.fake:
        return {"partitions": 1}
    shares = (("part40", 40), ("part60", 60))
    return {
        "partitions": [
            {"kind": "mps", "name": name, "uuid": bench.device, "share_percent": share, "memory_mb": 8192}
            for name, share in shares
        ]
    }


def _serve(directory: Path, config: Path, variables: dict[str, str], found: Findings) -> None:
    ready, log = directory / "ready.json", directory / "server.log"
    command = [sys.executable, "-m", "sluice.gateway.cli.main", "serve", "--repository", str(directory / "repository")]
    command += ["--config", str(config), "--http-port", "0", "--grpc-port", "0", "--ready-file", str(ready)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=variables)
    begun = time.monotonic()
    try:
        while not ready.exists():
            if process.poll() is not None or time.monotonic() - begun > READY_S:
                raise RuntimeError(f"server: did not become ready: {log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)
        found["ready_s"] = round(time.monotonic() - begun, 2)
        ports = json.loads(ready.read_text())
        with urllib.request.urlopen(
            f"http://127.0.0.1:{ports['http_port']}/v2/sluice/partitions", timeout=10
        ) as answer:
            found["partitions"] = json.load(answer)
        found["listed"] = run([sys.executable, "-m", "sluice.gateway.cli.main", "partitions", "list"], env=variables)
        program = _REPLAY.format(http=ports["http_port"], grpc=ports["grpc_port"], file=str(directory / "rows.npz"))
        replayed = python(program, variables, 90)
        if replayed["rc"] != 0:
            raise RuntimeError(f"replay of requests failed: {replayed}")
        found["replay"] = json.loads(replayed["out"])
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            found["exit"] = process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            found["exit"] = "killed"
        found["log"] = log.read_text(errors="replace")[-4000:]
    if found["exit"] != 0:
        raise RuntimeError(f"server: expected exit status 0, got {found['exit']}")


def _cuda_libraries() -> list[Path]:
    """Folders of the CUDA libraries in PyTorch's packages, for ONNX Runtime."""
    found = [Path(path) / "nvidia" for path in sys.path]
    return [library for each in found if each.is_dir() for library in sorted(each.glob("*/lib"))]
