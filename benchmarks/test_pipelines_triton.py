"""A cascade and an ensemble beside Triton: the highest rate within the objective, and the goodput above it.

Each server has one core with all of its processes, and the load generator another; in one of the tests a process that
never waits shares the server's core. Triton runs the same ONNX files in
its Python backend, its ensembles for the ensemble, and a script that calls the models (BLS) for the cascade.
"""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

from benchmarks.conftest import Report
from benchmarks.support.processes import ROOT, alternate, gateway, pinned
from tests.support.triton.digits import add_digits
from tests.support.triton.server import triton_server
from tests.support.triton.setup import TritonUnavailable, set_up

SERVER_CORE, CLIENT_CORE = 0, 1
SLO_MS = 50
LARGE = "rf2048x2048x2048"
MOST_ROWS = 64
ROUNDS = 3
GOALS = {"digits-cascade": 1.5, "digits-ensemble": 5.0}
OVERLOADS = 1.2, 2.0
BUSY_RATES = 800, 1200
"""Requests a second beside a process that keeps the server's core busy."""
KEEPS = 0.9
"""The goal for the goodput under overload, as a part of the highest rate within the objective."""
CLIENT_LIMITED = 4
"""Exit status of the load generator when the client was the limit."""


class Servers(NamedTuple):
    """The HTTP ports."""

    sluice: int
    triton: int


@pytest.fixture(scope="module")
def servers(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    try:
        installed = set_up()
    except TritonUnavailable as reason:
        pytest.skip(str(reason))
    scratch = tmp_path_factory.mktemp("pipelines")
    for file in repository.glob("*/pipeline.yaml"):
        served = scratch / "sluice" / file.parent.name / "pipeline.yaml"
        served.parent.mkdir(parents=True)
        served.write_text(file.read_text().replace("rf1024", LARGE))
    files = {name: repository / name / "1" / "model.onnx" for name in ("prep", "logreg", "rf256", "rbf", LARGE)}
    for name, file in files.items():
        (scratch / "sluice" / name / "1").mkdir(parents=True)
        (scratch / "sluice" / name / "1" / "model.onnx").write_bytes(file.read_bytes())
    add_digits(scratch / "triton", files, LARGE, MOST_ROWS)
    config = f"partitions: [{{name: cpu0, cores: [{SERVER_CORE}]}}]\nmax_batch_size: {MOST_ROWS}\n"
    options = "--repository", str(scratch / "sluice")
    with (
        pinned(SERVER_CORE),  # started processes inherit the core
        triton_server(installed, scratch / "triton", scratch) as triton,
        gateway(scratch, config, SERVER_CORE, *options) as sluice,
        pinned(CLIENT_CORE),
    ):
        yield Servers(sluice.http_port, triton.http_port)


def _loadgen(port: int, model: str, directory: Path, *options: str) -> dict[str, Any]:
    """The report of the load generator's command."""
    report = directory / "report.json"
    report.unlink(missing_ok=True)
    target = f"http://127.0.0.1:{port}"
    samples = str(ROOT / "examples" / "digits" / "digits.npz")
    command = [sys.executable, "-m", "sluice.loadgen.cli.main", *options, "--target", target, "--model", model]
    command += ["--slo-ms", str(SLO_MS), "--samples", samples, "--subset", "test", "--connections", "2048"]
    subprocess.run([*command, "--json", str(report)], cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    parsed: dict[str, Any] = orjson.loads(report.read_bytes())
    return parsed


def _peak(port: int, model: str, directory: Path) -> float:
    options = ["find-max", "--start", "800", "--duration", "5", "--precision", "5", "--warmup", "1"]
    return float(_loadgen(port, model, directory, *options)["rate"] or 0.0)


def _goodput(port: int, model: str, directory: Path, rate: float) -> float:
    """Requests a second that are answered in time, with `rate` offered."""
    return float(_measured(port, model, directory, rate)["goodput_per_s"])


def _measured(port: int, model: str, directory: Path, rate: float) -> dict[str, Any]:
    """The metrics of eight seconds at a rate."""
    metrics: dict[str, Any] = _loadgen(
        port, model, directory, "run", "--rate", f"{rate:.0f}", "--duration", "8", "--warmup", "2"
    )["metrics"]
    return metrics


@pytest.fixture
def spinning(servers: Servers) -> Iterator[None]:
    """A process of the usual priority that keeps the core of the servers busy."""
    with pinned(SERVER_CORE):
        process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield
    process.kill()
    process.wait()


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


@pytest.mark.parametrize("pipeline", GOALS)
def test_pipeline(benchmark: Any, servers: Servers, report: Report, tmp_path: Path, pipeline: str) -> None:
    """The highest rates of both servers, in turns, and what is kept of it under overload."""

    def peaks() -> tuple[list[float], list[float]]:
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(_peak(servers.sluice, pipeline, tmp_path))
            theirs.append(_peak(servers.triton, pipeline, tmp_path))
        return ours, theirs

    ours, theirs = map(_median, benchmark.pedantic(peaks, rounds=1))
    report(f"{pipeline}, highest rate within {SLO_MS} ms, requests/s", f"{ours:,.0f}", "")
    report(f"{pipeline}, the same of Triton", f"{theirs:,.0f}", "")
    report(f"{pipeline}, against Triton", f"{ours / theirs:.2f}x", f">= {GOALS[pipeline]}x")
    for overload in OVERLOADS:
        kept = _goodput(servers.sluice, pipeline, tmp_path, overload * ours) / ours
        other = _goodput(servers.triton, pipeline, tmp_path, overload * ours) / ours
        report(f"{pipeline}, goodput at {overload} x that rate", f"{kept:.0%} (Triton {other:.0%})", f">= {KEEPS:.0%}")


@pytest.mark.usefixtures("spinning")
@pytest.mark.parametrize("pipeline", GOALS)
def test_beside_a_busy_process(benchmark: Any, servers: Servers, report: Report, tmp_path: Path, pipeline: str) -> None:
    """The share of the requests in time, of both servers in turns, while another process wants half of their core."""

    def share(port: int, rate: float) -> float:
        return float(_measured(port, pipeline, tmp_path, rate)["attainment"])

    def shares() -> list[list[float]]:
        return [
            alternate(ROUNDS, partial(share, servers.sluice, rate), partial(share, servers.triton, rate))
            for rate in BUSY_RATES
        ]

    for rate, (ours, theirs) in zip(BUSY_RATES, benchmark.pedantic(shares, rounds=1), strict=True):
        what = f"{pipeline}, {rate}/s beside a busy process, in time within {SLO_MS} ms"
        report(what, f"{ours:.1%}", f">= {theirs:.1%} (Triton)")
