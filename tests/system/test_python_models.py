"""A model in Python that ends its process takes nothing along: neither other models nor other requests of its batch."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from sluice.models.tensors.spec import DataType
from tests.support.gateway.processes import allowed_cores, children
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity

CONFIG = """
backend: "python" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 100000 }
"""
MODEL = """
import os

def infer(inputs):
    if (inputs["x"] < 0).any():
        os._exit(1)
    return {"y": inputs["x"] * 2}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("python")
    repository = directory / "models"
    save_identity(repository / "echo" / "1" / "model.onnx", DataType.FP32, [1])
    (repository / "twice" / "1").mkdir(parents=True)
    (repository / "twice" / "config.pbtxt").write_text(CONFIG)
    (repository / "twice" / "1" / "model.py").write_text(MODEL)
    with gateway_server(repository, directory, {"partitions": 1}) as running:
        yield running


def infer(server: GatewayServer, model: str, value: float) -> float | str:
    tensor = tritonclient.http.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.array([[value]], np.float32))
    with tritonclient.http.InferenceServerClient(server.http_url, network_timeout=60) as client:
        try:
            return float(client.infer(model, [tensor]).as_numpy("y").item())
        except InferenceServerException as error:
            return str(error.message())


@pytest.mark.timed
@pytest.mark.behaviour("L0_backend_python", "a model whose process ends costs one request", through="http")
def test_a_process_that_ends_costs_only_the_request_that_ended_it(server: GatewayServer) -> None:
    (worker,) = children(server.process.pid)
    values = [1.0, 2.0, 3.0, -1.0, 5.0, 6.0]
    with ThreadPoolExecutor(8) as threads:
        twice = [threads.submit(infer, server, "twice", value) for value in values]
        echo = [threads.submit(infer, server, "echo", value) for value in values]
    ended = "the model failed: twice:1: the process of the model exited with status 1"
    assert [each.result() for each in twice] == [2.0, 4.0, 6.0, ended, 10.0, 12.0]
    assert [each.result() for each in echo] == values
    assert children(server.process.pid) == [worker]


def test_the_process_has_the_cores_of_its_partition(server: GatewayServer) -> None:
    assert infer(server, "twice", 4.0) == 8.0
    (worker,) = children(server.process.pid)
    (process,) = children(worker)
    assert allowed_cores(process) == allowed_cores(worker)


def test_a_model_may_have_packages_of_any_name_beside_it(tmp_path: Path) -> None:
    """Those of Sluice are all in one package, `sluice`, so that a model's own `models` or `gateway` is the model's."""
    names = ("models", "mps", "batcher", "gateway", "loadgen")
    version = tmp_path / "models" / "named" / "1"
    for number, name in enumerate(names):
        (version / name).mkdir(parents=True)
        (version / name / "__init__.py").write_text(f"from {name}.inner import NUMBER\n")
        (version / name / "inner.py").write_text(f"NUMBER = {10**number}\n")
    (version.parent / "config.pbtxt").write_text(CONFIG)
    (version / "model.py").write_text(
        f"import {', '.join(names)}\n\n"
        "def infer(inputs):\n"
        f"    return {{'y': inputs['x'] + {' + '.join(f'{name}.NUMBER' for name in names)}}}\n"
    )
    with gateway_server(tmp_path / "models", tmp_path, {"partitions": 1}) as server:
        assert infer(server, "named", 0.5) == 11111.5
