"""`find-max` on a queue whose highest rate is known."""

import json
from pathlib import Path

import pytest

from sluice.loadgen.cli.main import main
from tests.support.loadgen.constant_service import highest_rate
from tests.unit.loadgen.simulated_server import write_simulation

SERVICE_S = 0.01
OBJECTIVE_S = 0.1
PERCENTILE = 90


def test_find_max_is_within_3_percent_of_the_theory_of_the_queue_m_d_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert highest_rate(OBJECTIVE_S, PERCENTILE, SERVICE_S) == pytest.approx(88.171, abs=0.001)
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
    # At this precision a run would have to be longer than its bound, which the report says.
    *probes, note, result = output.splitlines()
    assert len(probes) == len(found["probes"])
    assert note.endswith("tell rates apart that differ by 3 %; a longer --duration has more")
    assert result.startswith(f"Result: {found['rate']:.1f}/s")
