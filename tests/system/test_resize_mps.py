"""Shares under MPS that are resized under load, on the fake: a share is an environment, which a new worker gets."""

import json
import os
from pathlib import Path

import pytest

from sluice.gateway.cli.main import main
from tests.support.gateway.http_load import HttpLoad
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.gpu import fake_mps
from tests.support.gpu.fake_mps import OWN_GPU as GPU
from tests.support.models.timed_models import save_timed

pytestmark = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there may well be an MPS of its own here")


def share(name: str, percent: int) -> dict[str, object]:
    return {"kind": "mps", "name": name, "uuid": GPU, "share_percent": percent, "memory_mb": 2048}


def percentages(server: GatewayServer) -> dict[str, str]:
    """The environment of each partition's worker."""
    states = json.loads(server.request("GET", "/v2/sluice/partitions")[2])["partitions"]
    found = {}
    for state in states:
        variables = Path(f"/proc/{state['worker']}/environ").read_bytes().decode().split("\0")
        found[state["partition"]["name"]] = dict(variable.partition("=")[::2] for variable in variables)[
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
        ]
    return found


def test_a_share_grows_while_it_serves_but_not_beyond_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_mps.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    save_timed(tmp_path / "models", "m", {1: 2, 8: 6})
    config: dict[str, object] = {"partitions": [share("a", 25), share("b", 40)]}
    with gateway_server(tmp_path / "models", tmp_path, config) as server:
        url = f"http://{server.http_url}"
        load = HttpLoad(server.http_port, "m", clients=4, rate=80)
        with load.running():
            assert percentages(server) == {"a": "25", "b": "40"}
            assert main(["partitions", "resize", "a", "--share", "60", "--url", url]) == 0
            assert main(["partitions", "resize", "a", "--share", "61", "--url", url]) == 2
            assert percentages(server) == {"a": "60", "b": "40"}
    assert load.failures == []
    reported = capsys.readouterr()
    assert reported.out == "a: serves on mps-60\n"
    assert reported.err.endswith(f"{GPU}: 101 % are requested (40 % for b, 61 % for a), 100 % are free\n")
