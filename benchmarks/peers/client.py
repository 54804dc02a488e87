"""The client: this repository's load generator as a command, on a core of its own."""

import contextlib
import io
import json
import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.peers.running import RunningPeer
from benchmarks.peers.workload import SLO_MS, Model, Rows
from benchmarks.support.processes import pinned
from sluice.loadgen.cli.main import main
from sluice.loadgen.records.validity import CLIENT_LIMIT

CORE = 1
PRIORITY = 10
"""The client's real-time priority, where it may have one: a core has other work too, which must not make it late."""
CONNECTIONS = 1024
LOOSE_MS = 10_000
DRAIN_S = 2
"""Answers that come later are none: a server that has fallen behind would take the time of the others."""
CROWD = 32
"""Clients of the closed loop that keeps a server busy."""
LIMIT_S = 180.0


class Effort(NamedTuple):
    """The time of measurements: seconds of closed loops, seconds at a fixed rate, and the options of `find-max`."""

    loop_s: float
    fixed_s: float
    search: tuple[str, ...]


FULL = Effort(
    0.6, 1.2, ("--duration", "2", "--min-duration", "0.6", "--warmup", "0.2", "--precision", "10", "--max-probes", "10")
)
QUICK = Effort(
    0.4, 0.6, ("--duration", "1", "--min-duration", "0.4", "--warmup", "0.1", "--precision", "30", "--max-probes", "4")
)
PERCENTILE = 95
"""The share of requests, in %, that has to meet the objective; 99 takes five times as many requests to confirm."""


class LoadgenFailed(Exception):
    """The load generator gave no report; the message is its last line."""


def samples_of(server: RunningPeer, model: str, protocol: str, rows: Rows, folder: Path) -> list[str]:
    """The options of the load generator for a model's requests, whose samples are written to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    served, form = server.served(model), server.peer.form(model) if protocol == "http" else None
    if form is None:
        file = folder / f"{model}.npz"
        tensors: dict[str, Any] = {served.input: rows}
        np.savez(file, **tensors)
        headers = server.peer.grpc_headers(model) if protocol == "grpc" else {}
        return ["--samples", str(file), *(f"--header={name}: {value}" for name, value in headers.items())]
    bodies = folder / f"{server.peer.key}-{model}"
    bodies.mkdir(exist_ok=True)
    for number in range(len(rows)):
        body = form.body(served.input, served.datatype, rows[number : number + 1])
        (bodies / f"{number:04}").write_bytes(body)
    path = form.path.format(model=model)
    return ["--bodies", str(bodies), "--path", path, f"--header=content-type: {form.content_type}"]


class Loadgen:
    """The command `loadgen` in a process of its own, which is started once: a start takes longer than most runs."""

    def __init__(self, folder: Path) -> None:
        self._report = folder / "report.json"
        self._pool: ProcessPoolExecutor | None = None
        self.goes_first = False
        """True from the first report on where the process has a real-time priority."""

    def report(self, arguments: list[str]) -> dict[str, Any]:
        """The JSON report of a command; raises LoadgenFailed."""
        self._report.unlink(missing_ok=True)
        if self._pool is None:
            with pinned(CORE):  # the process starts with its first task and inherits the core
                self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_go_first)
                self.goes_first = self._pool.submit(os.sched_getscheduler, 0).result(LIMIT_S) == os.SCHED_FIFO
        try:
            errors = self._pool.submit(_loadgen, [*arguments, "--json", str(self._report)]).result(LIMIT_S)
        except (TimeoutError, BrokenProcessPool) as error:
            self.end()
            raise LoadgenFailed(f"loadgen {arguments[0]}: no report within {LIMIT_S:g} s") from error
        if not self._report.exists():
            raise LoadgenFailed(errors.strip() or f"loadgen {arguments[0]}: no report")
        report: dict[str, Any] = json.loads(self._report.read_bytes())
        return report

    def end(self) -> None:
        """End the process."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            for process in pool._processes.values():
                process.kill()
            pool.shutdown()


def _go_first() -> None:
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))


def _loadgen(arguments: list[str]) -> str:
    """Run the command; what it wrote to stderr."""
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        main(arguments)
    return errors.getvalue()


class Client:
    """Measures a model of a server over one protocol. `seed` is that of the round, equal for all servers."""

    def __init__(
        self, loadgen: "Loadgen", server: RunningPeer, model: Model, protocol: str, samples: list[str], seed: int
    ) -> None:
        self._loadgen = loadgen
        self._server = server
        target = ["--target", f"{protocol}://127.0.0.1:{server.port(protocol)}", "--model", model.name]
        objective = ["--slo-ms", str(SLO_MS), "--percentile", str(PERCENTILE), "--seed", str(seed)]
        self._options = [*target, *samples, *objective, "--connections", str(CONNECTIONS)]
        self._options += ["--drain-timeout", str(DRAIN_S)]

    def alone(self, seconds: float) -> dict[str, float | None]:
        """Latency of one client that waits for each answer."""
        report = self._measured("run", "--scenario", "single-stream", "--duration", f"{seconds}", "--warmup", "0.1")
        return _latency(report)

    def crowded(self, seconds: float) -> dict[str, Any]:
        """Requests a second of clients that each wait for the answer, and processor time a request."""
        # Without the objective, by which Sluice refuses what would be late.
        loop = ["--scenario", "concurrency", "--concurrency", str(CROWD), "--warmup", "0", "--slo-ms", str(LOOSE_MS)]
        before = self._server.cpu_ns()
        metrics = self._measured("run", *loop, "--duration", f"{seconds}")["metrics"]
        cpu_us = (self._server.cpu_ns() - before) / 1e3 / max(1, metrics["ok"])
        return {"rate": metrics["completed_per_s"], "cpu_us": cpu_us}

    def at_rate(self, rate: int, seconds: float) -> dict[str, Any]:
        """Latency, the share in time, and processor time a request, at a fixed rate."""
        queries = round(rate * seconds)
        before = self._server.cpu_ns()
        report = self._measured("run", "--rate", f"{rate}", "--queries", str(queries), "--warmup", "0.1")
        cpu_us = (self._server.cpu_ns() - before) / 1e3 / queries
        met = report["metrics"]["attainment"]
        late = any(reason.startswith(CLIENT_LIMIT) for reason in report["validity"]["reasons"])
        return {"rate": rate, **_latency(report), "in_time": met, "cpu_us": cpu_us, "client_late": late}

    def highest_rate(self, start: float, effort: Effort) -> dict[str, Any]:
        """The highest rate within the objective; None where no rate was confirmed."""
        report = self._measured("find-max", "--start", f"{start:.1f}", *effort.search)
        return {"rate": report["rate"], "client_limited": report["client_limited"], "probes": len(report["probes"])}

    def _measured(self, command: str, *options: str) -> dict[str, Any]:
        return self._loadgen.report([command, *self._options, *options])


def _latency(report: dict[str, Any]) -> dict[str, float | None]:
    found = report["metrics"]["latency_ms"] or {}
    return {"p50_ms": found.get("p50"), "p99_ms": found.get("p99")}
