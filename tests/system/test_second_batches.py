"""A batch that waits behind a slow one moves to the partition that becomes idle, on a real server."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sluice.batcher.drivers.journal import replay
from sluice.batcher.planner.live import LivePlanner
from tests.support.gateway.processes import until
from tests.support.gateway.server import GatewayServer, gateway_server

CONFIG = """
backend: "python"
max_batch_size: 1
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
"""
MODEL = """
import time

def infer(inputs):
    time.sleep(max(float(inputs["x"][0, 0]) - 100, 0))  # the inputs of a measurement are below
    return {"y": inputs["x"]}
"""
SLOW_S, QUICK_S = 3.0, 0.05


def ask(server: GatewayServer, id: str, seconds: float) -> int:
    values = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [100 + seconds]}
    body = json.dumps({"id": id, "inputs": [values]}).encode()
    return server.request("POST", "/v2/models/sleeps/infer", body)[0]


def explained(server: GatewayServer, id: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(server.request("GET", f"/v2/sluice/requests/{id}")[2])
    return found


def moved(server: GatewayServer) -> bool:
    return b'sluice_batches_revoked_total{reason="moved"} 1.0' in server.request("GET", "/metrics")[2]


def test_a_batch_behind_a_slow_one_moves_to_the_partition_that_is_idle(tmp_path: Path) -> None:
    directory = tmp_path / "models" / "sleeps"
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(CONFIG)
    (directory / "1" / "model.py").write_text(MODEL)
    config: dict[str, object] = {"partitions": 2, "default_slo_ms": 60_000}
    journal = tmp_path / "journal"
    with (
        gateway_server(tmp_path / "models", tmp_path, config, ["--journal", str(journal)]) as server,
        ThreadPoolExecutor(3) as clients,
    ):
        slow = clients.submit(ask, server, "slow", SLOW_S)
        until(lambda: server.request("GET", "/v2/sluice/requests/slow")[0] == 200)
        quick = [clients.submit(ask, server, f"quick{number}", QUICK_S) for number in (1, 2)]
        assert [each.result() for each in quick] == [200, 200]
        assert not slow.done()
        assert moved(server)
        stages = [explained(server, f"quick{number}")["stages"] for number in (1, 2)]
        (twice,) = [each for each in stages if isinstance(each, list) and len(each) == 2]
        revoked, ran = twice
        assert (revoked["failed"], ran["failed"]) == ("revoked", "")
        assert revoked["partition"] != ran["partition"]
        assert slow.result() == 200
    assert replay(journal.read_bytes().splitlines(), LivePlanner()) is None
    assert "Traceback" not in server.log.read_text()
