"""A spare worker becomes the next worker, so that a lost worker is back without the time for imports."""

import json
import os
import signal
from pathlib import Path

import pytest

from sluice.models.tensors.spec import DataType
from tests.support.gateway.processes import alive, allowed_cores, children, until
from tests.support.gateway.server import GatewayServer, gateway_server, stop
from tests.support.models.onnx_models import save_identity


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    save_identity(tmp_path / "models" / "echo" / "1" / "model.onnx", DataType.FP32, [1])
    return tmp_path / "models"


def worker(server: GatewayServer) -> int | None:
    (partition,) = json.loads(server.request("GET", "/v2/sluice/partitions")[2])["partitions"]
    found: int | None = partition["worker"]
    return found


def spare(server: GatewayServer) -> int:
    """The id of the spare worker, once it has imported its libraries."""

    def found() -> list[int]:
        others = [pid for pid in children(server.process.pid) if pid != worker(server)]
        return [pid for pid in others if "onnxruntime" in Path(f"/proc/{pid}/maps").read_text()]

    until(lambda: len(found()) == 1)
    return found()[0]


def echo(server: GatewayServer, value: float) -> object:
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [value]}
    _, _, answer = server.request("POST", "/v2/models/echo/infer", json.dumps({"inputs": [tensor]}).encode())
    return json.loads(answer)["outputs"][0]["data"]


def test_lost_workers_are_replaced_by_spare_workers_on_their_cores(repository: Path, tmp_path: Path) -> None:
    with gateway_server(repository, tmp_path, {"partitions": 1, "spare_worker": True}) as server:
        for value in (1.0, 2.0):
            lost, next_worker = worker(server), spare(server)
            assert lost is not None
            cores = allowed_cores(lost)
            assert echo(server, value) == [value]
            os.kill(lost, signal.SIGKILL)
            until(lambda: worker(server) == next_worker)  # noqa: B023
            assert allowed_cores(next_worker) == cores
            assert echo(server, value) == [value]
        left = [worker(server), spare(server)]
        assert stop(server.process) == 0
        assert not any(alive(pid) for pid in left if pid is not None)


def test_a_spare_worker_that_is_gone_is_missed_by_no_worker(repository: Path, tmp_path: Path) -> None:
    with gateway_server(repository, tmp_path, {"partitions": 1, "spare_worker": True}) as server:
        gone, lost = spare(server), worker(server)
        assert lost is not None
        os.kill(gone, signal.SIGKILL)
        until(lambda: not alive(gone))
        os.kill(lost, signal.SIGKILL)
        until(lambda: worker(server) not in (lost, None))
        assert echo(server, 3.0) == [3.0]
        assert spare(server) != gone


def test_there_is_none_if_the_configuration_says_so(repository: Path, tmp_path: Path) -> None:
    with gateway_server(repository, tmp_path, {"partitions": 1, "spare_worker": False}) as server:
        assert children(server.process.pid) == [worker(server)]
