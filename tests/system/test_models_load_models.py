"""Models in Python that load and unload others, as with Triton's model loading API."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http

from sluice.models.tensors.spec import DataType
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity

LOADER = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        said = []
        for name, *rest in json.loads(json.loads(request.parameters()).get("do", "[]")):
            try:
                said.append(getattr(self, name)(*rest))
            except pb_utils.TritonModelException as error:
                said.append(str(error))
        return pb_utils.InferenceResponse([pb_utils.Tensor("said", np.array([json.dumps(said)], np.object_))])

    def load(self, *given):
        return pb_utils.load_model(*given)

    def upload(self, name, config, path):
        with open(path, "rb") as file:
            pb_utils.load_model(model_name=name, config=config, files={"file:1/model.onnx": file.read()})

    def unload(self, name):
        return pb_utils.unload_model(name)

    def ready(self, *given):
        return pb_utils.is_model_ready(*given)

    def call(self, name):
        x = pb_utils.Tensor("x", np.array([[2.5]], np.float32))
        answer = pb_utils.InferenceRequest(model_name=name, requested_output_names=[], inputs=[x]).exec()
        if answer.has_error():
            raise pb_utils.TritonModelException(answer.error().message())
        return float(answer.output_tensors()[0].as_numpy().item())
"""
CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "said" data_type: TYPE_STRING dims: 1 }
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("loading") / "models"
    save_identity(repository / "echo" / "1" / "model.onnx", DataType.FP32, [1])
    (repository / "loader" / "1").mkdir(parents=True)
    (repository / "loader" / "config.pbtxt").write_text(CONFIG)
    (repository / "loader" / "1" / "model.py").write_text(LOADER)
    return repository


@pytest.fixture(scope="module", params=[0, 2], ids=["alone", "front_ends"])
def server(request: pytest.FixtureRequest, repository: Path) -> Iterator[GatewayServer]:
    config = {"partitions": 1, "control": "explicit", "load_models": ["loader"], "front_ends": request.param}
    with gateway_server(repository, repository.parent, config | {"default_slo_ms": 30_000}) as running:
        yield running


def do(server: GatewayServer, *deeds: list[Any]) -> list[Any]:
    """The answer of the model to each deed, or its error."""
    tensor = tritonclient.http.InferInput("x", [1], "FP32")
    tensor.set_data_from_numpy(np.zeros(1, np.float32))
    with tritonclient.http.InferenceServerClient(server.http_url, network_timeout=60) as client:
        answer = client.infer("loader", [tensor], parameters={"do": json.dumps(deeds)})
    said: list[Any] = json.loads(answer.as_numpy("said").item())
    return said


@pytest.mark.behaviour("L0_backend_python", "a model loads and unloads others", through="http")
def test_a_model_loads_calls_and_unloads_another_one(server: GatewayServer) -> None:
    deeds = (["ready", "echo"], ["load", "echo"], ["ready", "echo"], ["ready", "echo", "1"], ["call", "echo"])
    assert do(server, *deeds, ["unload", "echo"], ["ready", "echo"]) == [False, None, True, True, 2.5, None, False]


def test_a_model_loads_another_one_from_a_configuration_and_files(server: GatewayServer, repository: Path) -> None:
    config = '{"platform": "onnxruntime_onnx", "max_batch_size": 4}'
    path = str(repository / "echo" / "1" / "model.onnx")
    assert do(server, ["upload", "sent", config, path], ["call", "sent"], ["unload", "sent"]) == [None, 2.5, None]


def test_what_cannot_be_loaded_is_an_error_of_the_model(server: GatewayServer) -> None:
    missing, bad, ready, unknown = do(
        server, ["load", "nothing"], ["load", "echo", "{"], ["ready", "echo", "x"], ["ready", "no"]
    )
    assert "nothing" in missing
    assert "JSON" in bad
    assert not ready
    assert not unknown


def test_a_model_may_load_itself_again(server: GatewayServer) -> None:
    assert do(server, ["load", "loader"]) == [None]
    assert do(server, ["ready", "loader"]) == [True]


def test_models_are_loaded_only_where_clients_may(repository: Path, tmp_path: Path) -> None:
    with gateway_server(repository, tmp_path, {"partitions": 1, "default_slo_ms": 30_000}) as server:
        ready, refused, _ = do(server, ["ready", "echo"], ["load", "echo"], ["unload", "echo"])
        assert ready
        assert "explicit model load / unload is not allowed" in refused
