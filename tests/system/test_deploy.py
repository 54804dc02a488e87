"""`sluice deploy` measures, plans, writes settings and serves."""

import http.client
import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from sluice.gateway.cli.main import main
from sluice.gateway.config.server_config import read_config
from tests.support.gateway.processes import until
from tests.support.gateway.server import stop
from tests.support.models.onnx_models import save_mlp
from tests.support.terminal import sluice_command


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A folder with a cascade and the file for it."""
    models = [str(save_mlp(tmp_path / name, sizes)) for name, sizes in (("a.onnx", [4, 3]), ("b.onnx", [4, 64, 3]))]
    assert main(["init", str(tmp_path / "models"), *models, "--below", "0.5"]) == 0
    write(tmp_path, rate=100)
    return tmp_path


def write(directory: Path, **changes: object) -> None:
    keys = {
        "repository": "models",
        "objective_ms": 200,
        "partitions": 1,
        "pipelines": {"cascade": {"escalation": {"large": 0.2}}},
        "settings": {"http_port": 0, "grpc_port": 0, "spare_worker": False},
    }
    (directory / "deploy.yaml").write_text(yaml.safe_dump({**keys, **changes}))


def deploy(directory: Path, *arguments: str) -> int:
    return main(["deploy", str(directory / "deploy.yaml"), *arguments])


def test_a_file_is_measured_planned_and_served(directory: Path) -> None:
    ready, log = directory / "ready.json", directory / "log"
    environment = {**os.environ, "SLUICE_READY_FILE": str(ready)}
    with log.open("wb") as output:
        command = sluice_command("deploy", directory / "deploy.yaml")
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        until(lambda: ready.exists() or process.poll() is not None, 120)
        assert ready.exists(), log.read_text()
        ports = json.loads(ready.read_text())
        connection = http.client.HTTPConnection("127.0.0.1", ports["http_port"], timeout=60)
        tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [0, 0, 0, 0]}
        connection.request("POST", "/v2/models/cascade/infer", json.dumps({"inputs": [tensor]}))
        assert connection.getresponse().status == 200
        connection.close()
    finally:
        status = stop(process)
    assert status == 0
    text = log.read_text()
    assert "a:1: measuring on cpu" in text
    assert "cascade:1: p99 within 200 ms at 100 requests/s on 1 x cpu" in text
    assert f"wrote {directory / 'deploy.settings.yaml'}; serving: sluice serve --config" in text


def test_a_dry_run_ends_with_settings_that_a_server_takes(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy(directory, "--dry-run") == 0
    first = capsys.readouterr().out
    settings = directory / "deploy.settings.yaml"
    config = read_config(settings)
    assert config.repositories == (directory / "models",)
    assert (config.partitions, config.default_slo_ms, config.spare_worker) == (1, 200, False)
    assert "# cascade:1 at 100 requests/s: p99 " in settings.read_text()
    assert first.count("measuring on") == 2
    assert deploy(directory, "--dry-run") == 0
    assert "measuring on" not in capsys.readouterr().out, "profiles are kept"


def test_without_partitions_the_cheapest_division_of_the_cores_is_chosen(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(directory, rate=100, partitions=None)
    assert deploy(directory, "--dry-run") == 0
    out = capsys.readouterr().out
    assert out.count("<- chosen") == 1
    assert isinstance(read_config(directory / "deploy.settings.yaml").partitions, int)


def test_what_no_plan_can_do_is_said_and_nothing_written(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(directory, rate=1e9)
    assert deploy(directory) == 1
    found = capsys.readouterr()
    assert "INFEASIBLE" in found.out
    assert "sluice: cascade:1: at 1000000000 requests/s all stages together take" in found.err
    assert "possible instead: " in found.err
    assert not (directory / "deploy.settings.yaml").exists()


def test_settings_of_somebody_else_are_not_replaced(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "deploy.settings.yaml").write_text("http_port: 1\n")
    assert deploy(directory, "--dry-run") == 2
    assert "not written by sluice deploy, so it is not replaced" in capsys.readouterr().err
    assert (directory / "deploy.settings.yaml").read_text() == "http_port: 1\n"


def test_an_unknown_pipeline_is_named(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(directory, rate=1, pipelines={"cascad": {}})
    assert deploy(directory) == 2
    assert "no pipeline or model 'cascad'; there are cascade, a:1, b:1" in capsys.readouterr().err
