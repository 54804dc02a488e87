"""The load generator itself: its client against null servers and against wrk, schedules, simulations, and memory.

Rates depend on what else runs; the processor time of a query does not, and neither do ratios of rates that take turns.
"""

import asyncio
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import uvloop

from benchmarks.conftest import Report
from sluice.loadgen.run.runner import run
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.selfcheck.probe import OUTSTANDING, closed_loop
from sluice.loadgen.selfcheck.selfcheck import THOROUGH, selfcheck
from sluice.loadgen.selfcheck.server import null_server
from sluice.loadgen.traffic.arrivals import Arrivals
from sluice.loadgen.traffic.mlperf_schedule import MlperfRules, performance_set, server_times
from sluice.loadgen.traffic.seeds import generator
from sluice.mps.partitions.cpu import available_cores
from tests.unit.loadgen.simulated_server import write_simulation

ROUNDS = 5
ARRIVALS = 6_000_000
SIMULATED = 200_000
QUERIES = 1_000_000
_BODY = "x" * 150
_RATE = re.compile(r"Requests/sec:\s+([\d.]+)")


def test_the_client_keeps_its_rates(report: Report) -> None:
    """Over each protocol: the highest rate whose queries leave on time, with the client on a core of its own."""
    check = selfcheck(("http", "grpc"), THOROUGH, len(available_cores()))
    for speed, goal in zip(check.speeds, (20_000, 4_000), strict=True):
        report(f"{speed.protocol}: highest rate kept, queries/s", f"{speed.kept.rate if speed.kept else 0:,.0f}", "")
        report(f"{speed.protocol}: safe rate, queries/s", f"{speed.safe_rate:,.0f}", f">= {goal:,}")
        if speed.kept is not None and (late := speed.kept.lateness_ms) is not None:
            report(f"{speed.protocol}: lateness at the highest rate, p50, us", f"{late.p50 * 1000:.0f}", "< 50")
            report(f"{speed.protocol}: lateness at the highest rate, p99, us", f"{late.p99 * 1000:.0f}", "< 1000")
            report(f"{speed.protocol}: CPU time a query there, us", f"{speed.kept.cpu_us_per_query:.1f}", "")
        report(f"{speed.protocol}: CPU time a query, closed loop, us", f"{speed.closed_loop.cpu_us_per_query:.1f}", "")


def test_a_closed_loop_against_wrk(report: Report, tmp_path: Path) -> None:
    """The same server, number of connections and core for both, in turn."""
    wrk = shutil.which("wrk")
    if wrk is None:
        pytest.skip("needs wrk (Debian package wrk)")
    script = tmp_path / "post.lua"
    script.write_text(f'wrk.method = "POST"\nwrk.body = "{_BODY}"\n')
    ours, theirs = [], []
    with null_server("http") as url, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for _ in range(ROUNDS):
            ours.append(runner.run(closed_loop(url, 1.0)).per_s)
            command = [wrk, "-t1", f"-c{OUTSTANDING}", "-d1s", "-s", str(script), f"{url}/v2/models/null/infer"]
            printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
            found = _RATE.search(printed)
            assert found is not None, printed
            theirs.append(float(found[1]))
    ratio = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
    report(f"closed loop of {OUTSTANDING}, queries/s", f"{statistics.median(ours):,.0f}", "")
    report("the same for wrk, requests/s", f"{statistics.median(theirs):,.0f}", "")
    report("closed loop against wrk", f"{ratio:.2f}x", ">= 0.5x")


def test_six_million_arrivals(report: Report) -> None:
    """As many as ten minutes of 10 000/s, against nothing but the random numbers for them."""
    began = time.perf_counter()
    generator(0, "arrivals").standard_exponential(ARRIVALS)
    numbers_s = time.perf_counter() - began
    began = time.perf_counter()
    drawn = Arrivals().draw(10_000.0, None, ARRIVALS, generator(0, "arrivals"))
    poisson_s = time.perf_counter() - began
    rules = MlperfRules()
    began = time.perf_counter()
    times = server_times(rules, performance_set(128, rules), 10_000.0, ARRIVALS / 10_000.0)
    mlperf_s = time.perf_counter() - began
    assert len(drawn) == ARRIVALS
    assert abs(len(times) / ARRIVALS - 1) < 0.01
    report("6 million Poisson arrivals, s", f"{poisson_s:.2f}", "< 4")
    report("6 million arrivals of MLPerf's generator, s", f"{mlperf_s:.2f}", "< 4")
    report("their random numbers alone, s", f"{numbers_s:.2f}", "")


def test_a_simulation(report: Report, tmp_path: Path) -> None:
    """A model with batches of 32 at four fifths of its capacity, a cascade with batches of 4, and batches of one row.

    A simulation costs what the scheduler does, most of it for each batch.
    """
    (tmp_path / "cascade").mkdir()
    (tmp_path / "single").mkdir()
    single = write_simulation(tmp_path / "single")
    cascade = write_simulation(tmp_path / "cascade", policy={"name": "deadline"})
    for name, target, model, rate, goal in (
        ("batches of 32", _large_batches(tmp_path), "large", 2560.0, ">= 60,000"),
        ("a cascade with batches of 4", cascade, "cascade", 120.0, ""),
        ("batches of one row", single, "small", 80.0, ""),
    ):
        config = RunConfig(target=target, model=model, rate=rate, queries=SIMULATED, slo_ms=1000.0, warmup_s=0.0)
        began = time.process_time()
        result = run(config)
        took_s = time.process_time() - began
        assert result.server is not None
        stages = sum(stage.rows for stage in result.server.stages)
        report(f"simulation, {name}: stage-requests a second of CPU", f"{stages / took_s:,.0f}", goal)
        report(f"simulation, {name}: mean batch, rows", f"{result.server.mean_batch:.1f}", "")


def _large_batches(directory: Path) -> str:
    model = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2]}],
        "max_batch_size": 32,
        "latency_ms": {"32": 10.0},
    }
    path = directory / "repository" / "large" / "1" / "model.timed.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(model))
    file = directory / "sim.yaml"
    file.write_text(
        "repository: repository\npartitions: [{name: cpu0, cores: 1}]\nlatency_ms: {large: {32: 10.0}}\n"
        "policy: {name: deadline}\n"
    )
    return f"sim:{file}"


def test_the_memory_of_a_million_queries(report: Report) -> None:
    """The largest resident memory of a run of a million queries beyond that of one of a thousand."""
    with null_server("http") as url:
        small, large = (_peak_bytes(url, queries) for queries in (1000, QUERIES))
    report("memory of a run of a million queries, MB", f"{(large - small) / 1e6:.0f}", "<= 150")


def _peak_bytes(url: str, queries: int) -> int:
    options = ["--target", url, "--model", "null", "--rate", "25000", "--queries", str(queries), "--warmup", "0"]
    # The kernel's figure of a process that ended has the memory of the one that started it.
    program = (
        "from pathlib import Path; from sluice.loadgen.cli.main import main; "
        f"main({['run', *options]!r}); print(Path('/proc/self/status').read_text())"
    )
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    found = re.search(r"VmHWM:\s+(\d+) kB", printed)
    assert found is not None, printed
    return int(found[1]) * 1024
