"""`find-max` on a queue whose highest rate is known."""

import json
import math
from pathlib import Path

import pytest

from sluice.loadgen.cli.main import main
from tests.unit.loadgen.simulated_server import write_simulation

SERVICE_S = 0.01
OBJECTIVE_S = 0.1
PERCENTILE = 90


def share_that_waits_at_most(wait_s: float, rate: float) -> float:
    """P[wait <= x] in the queue M/D/1 (Erlang 1909): (1 - rho) times the sum of (-z)^k e^z / k!, z = rate (x - kD)."""
    terms = (
        (-z) ** k / math.factorial(k) * math.exp(z)
        for k in range(math.floor(wait_s / SERVICE_S + 1e-9) + 1)
        for z in [rate * (wait_s - k * SERVICE_S)]
    )
    return (1 - rate * SERVICE_S) * sum(terms)


def highest_rate() -> float:
    """The rate at which just `PERCENTILE` % of the queries wait so short that their service ends in time."""
    low, high = 0.0, 1 / SERVICE_S
    while high - low > 1e-9:
        middle = (low + high) / 2
        met = share_that_waits_at_most(OBJECTIVE_S - SERVICE_S, middle) >= PERCENTILE / 100
        low, high = (middle, high) if met else (low, middle)
    return low


def test_find_max_is_within_3_percent_of_the_theory_of_the_queue_m_d_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert highest_rate() == pytest.approx(88.171, abs=0.001)
    # One worker takes 10 ms a query. The way to the server takes 900 ms of an objective of 1 s that only the client
    # knows of, so that 100 ms are left, and the server sees no query that is late.
    target = write_simulation(tmp_path, host={"send_us": 900_000})
    report = tmp_path / "peak.json"
    objective = ["--slo-ms", "1000", "--percentile", f"{PERCENTILE}"]
    bounds = ["--start", "80", "--precision", "1.5", "--duration", "60", "--min-duration", "20", "--warmup", "5"]
    code = main(["find-max", "--target", target, "--model", "small", *objective, *bounds, "--json", str(report)])
    output = capsys.readouterr().out
    assert code == 0, output
    found = json.loads(report.read_text())
    assert found["rate"] == pytest.approx(88.171, rel=0.03)
    assert found["rate"] < found["failed_rate"] <= 1.0151 * found["rate"]
    assert found["confirmed"] is True
    last = [(probe["config"]["rate"], probe["verdict"], probe["confirms"]) for probe in found["probes"][-2:]]
    assert last == [(found["rate"], "met", True)] * 2
    assert len(output.splitlines()) == len(found["probes"]) + 1
