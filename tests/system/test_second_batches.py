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
from pathlib import Path

def infer(inputs):
    number = int(inputs["x"][0, 0])  # 0 while it is measured
    while number and not Path({directory!r}, f"go{{number}}").exists():
        time.sleep(0.001)
    return {{"y": inputs["x"]}}
"""
"""It ends a batch with a number once there is a file with that."""


def ask(server: GatewayServer, number: int) -> int:
    values = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [number]}
    body = json.dumps({"id": f"r{number}", "inputs": [values]}).encode()
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
    (directory / "1" / "model.py").write_text(MODEL.format(directory=str(tmp_path)))
    config: dict[str, object] = {
        "partitions": 2,
        "default_slo_ms": 60_000,
        "batch_timeout_s": 60,
        "limits": {"straggler_factor": 1_000_000},  # no batch is overdue, however long it is held
    }
    journal = tmp_path / "journal"
    with (
        gateway_server(tmp_path / "models", tmp_path, config, ["--journal", str(journal)]) as server,
        ThreadPoolExecutor(3) as clients,
    ):
        asked = []
        for number in (1, 2, 3):  # the third waits behind one of the others
            asked.append(clients.submit(ask, server, number))
            until(lambda number=number: server.is_sent(f"r{number}", "sleeps"))  # type: ignore[misc]
        slow, *quick = asked
        for number in (2, 3):
            (tmp_path / f"go{number}").touch()
        assert [each.result() for each in quick] == [200, 200]
        assert not slow.done()
        assert moved(server)
        stages = [explained(server, f"r{number}")["stages"] for number in (2, 3)]
        (twice,) = [each for each in stages if isinstance(each, list) and len(each) == 2]
        revoked, ran = twice
        assert (revoked["failed"], ran["failed"]) == ("revoked", "")
        assert revoked["partition"] != ran["partition"]
        (tmp_path / "go1").touch()
        assert slow.result() == 200
    assert replay(journal.read_bytes().splitlines(), LivePlanner()) is None
    assert "Traceback" not in server.log.read_text()
