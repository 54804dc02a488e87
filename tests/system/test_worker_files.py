"""Models reach workers that do not see the repository: through the gateway, and from each other."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.gateway.processes import until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.gateway.worker_server import WorkerProcess, worker_server
from tests.support.models.onnx_models import save_external
from tests.support.sandbox import may_unshare
from tests.support.triton.server import free_ports

pytestmark = pytest.mark.skipif(not may_unshare("--mount"), reason="this machine lets nobody make a namespace")

WITHOUT_REPOSITORY = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
_SCRIPT = 'mount -t tmpfs none "$0" && exec "$@"'

CONFIG = """
backend: "python" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
"""
MODEL = """
import os

import adding
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        version = os.path.join(args["model_repository"], args["model_version"])
        self.added = np.fromfile(os.path.join(version, "added.bin"), np.float32)

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "x").as_numpy()) for request in requests]

    def answer(self, x):
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", adding.add(x, self.added))])
"""


@contextmanager
def worker(directory: Path, repository: Path, name: str, port: int) -> Iterator[WorkerProcess]:
    """A worker server with a cache of its own, for which the repository is an empty directory."""
    place = directory / name
    place.mkdir()
    arguments = ["--name", name, "--node", name, "--listen", f"127.0.0.1:{port}", "--cache", str(place / "cache")]
    with worker_server(place, arguments, (*WITHOUT_REPOSITORY, _SCRIPT, str(repository))) as process:
        yield process


def infer(gateway: GatewayServer, model: str) -> object:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    status, _, body = gateway.request("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}).encode())
    answer = json.loads(body)
    return answer["outputs"][0]["data"] if status == 200 else answer


def is_up(gateway: GatewayServer, count: int) -> bool:
    """True once that number of partitions has both models."""
    body = gateway.request("GET", "/v2/sluice/partitions")[2]
    return sum(len(each["models"]) == 2 and not each["lost"] for each in json.loads(body)["partitions"]) == count


def received(process: WorkerProcess) -> set[str]:
    """The sources from which a worker server got files."""
    lines = process.log.read_text().splitlines()
    return {line.partition("source=")[2].partition(" bytes=")[0].strip("'\"") for line in lines if "source=" in line}


def test_models_come_through_the_gateway_and_from_other_workers(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    save_external(repository / "weights" / "1" / "model.onnx")
    version = repository / "adding" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    (version.parent / "adding.py").write_text("def add(x, added):\n    return x + added[0]\n")
    (version / "model.py").write_text(MODEL)
    added = version / "added.bin"
    added.write_bytes(bytes.fromhex("00002041") * 250_000)  # 10.0 in FP32
    ports = free_ports(2)
    urls = [f"127.0.0.1:{port}" for port in ports]
    config: dict[str, object] = {
        "partitions": {"remote": [{"name": "edge", "kind": "cpu1", "urls": urls}]},
        "control": "explicit",
        "load_models": ["*"],
    }
    with (
        worker(tmp_path, repository, "first", ports[0]) as first,
        gateway_server(repository, tmp_path, config) as gateway,
    ):
        until(lambda: is_up(gateway, 1))
        assert received(first) == {"the gateway"}
        assert infer(gateway, "adding") == [11.0, 12.0, 13.0, 14.0]
        assert infer(gateway, "weights") == [1.0, 2.0, 3.0, 4.0]
        with worker(tmp_path, repository, "second", ports[1]) as second:
            until(lambda: is_up(gateway, 2))
            assert received(second) == {f"worker server {urls[0]}"}
            added.write_bytes(bytes.fromhex("0000a041") * 250_000)  # 20.0
            assert gateway.request("POST", "/v2/repository/models/adding/load")[0] == 200
            assert infer(gateway, "adding") == [21.0, 22.0, 23.0, 24.0]
            sets = list((tmp_path / "second/cache/sets").iterdir())
            assert len(sets) == 3  # two models, and one of them in two revisions
