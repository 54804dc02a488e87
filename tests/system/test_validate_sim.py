"""`loadgen validate-sim` against a `sluice serve` of its own, whose model takes a given time."""

import json
import os
from pathlib import Path

import pytest
import yaml

from sluice.loadgen.cli.main import main
from sluice.loadgen.simulation.simulation_file import read_simulation
from tests.unit.loadgen.simulated_server import write_simulation

MODEL = ["--model", "cascade", "--slo-ms", "100"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="gateway and partition take a core each")
def test_a_server_is_measured_and_its_simulation_written_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, report, written = write_simulation(tmp_path), tmp_path / "report.json", tmp_path / "out" / "measured.yaml"
    written.parent.mkdir()
    options = ["--loads", "50", "--capacity", "60", "--seeds", "1", "--duration", "1.5", "--warmup", "0.2"]
    code = main(["validate-sim", "--target", target, *MODEL, *options, "--json", str(report), "--write", str(written)])
    assert code in (0, 2, 4)
    assert capsys.readouterr().out.startswith("| load | figure | live | simulated | difference | within |")
    (load,) = json.loads(report.read_text())["loads"]
    (run,) = load["runs"]
    assert (load["rate"], [cell["figure"] for cell in load["cells"]]) == (
        30.0,
        ["attainment", "p50", "p99", "mean batch"],
    )
    assert run["live"]["metrics"]["ok"] + run["live"]["metrics"]["shed"] == run["live"]["metrics"]["queries"] > 20
    file, _ = read_simulation(written)
    assert 10 <= file.service_ms["small"][1][10] < 100
    assert file.host is not None
    assert file.host.hand_off_us + file.host.dispatch_us > 0
    assert yaml.safe_load(written.read_text())["policy"]["name"] == "none"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "http://x:1", *MODEL], "expected sim:FILE.yaml"),
        (["--target", "sim:missing.yaml", *MODEL, "--seeds", "0"], "--seeds: expected at least 1, got 0"),
        (["--target", "sim:missing.yaml", *MODEL], "missing.yaml"),
    ],
)
def test_what_cannot_be_validated_exits_with_1(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate-sim", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_gateway_without_a_core_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate-sim", "--target", write_simulation(tmp_path), *MODEL, "--cores", "0"]) == 1
    assert "--cores: too few; expected 1 for the partitions and 1 for the gateway, got [0]" in capsys.readouterr().err
