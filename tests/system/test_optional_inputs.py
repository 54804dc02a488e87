"""Requests that leave out optional inputs, to a real server with a model in Python, alone and in an ensemble."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.support.gateway.server import GatewayServer, gateway_server

SCALED = """
backend: "python" max_batch_size: 8
input [
  { name: "x" data_type: TYPE_FP32 dims: 2 },
  { name: "factor" data_type: TYPE_FP32 dims: 1 optional: true }
]
output { name: "y" data_type: TYPE_FP32 dims: 2 }
dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 300000 }
"""
MODEL = """
def infer(inputs):
    return {"y": inputs["x"] * inputs["factor"] if "factor" in inputs else inputs["x"]}
"""
ENSEMBLE = """
platform: "ensemble" max_batch_size: 8
input [
  { name: "a" data_type: TYPE_FP32 dims: 2 },
  { name: "by" data_type: TYPE_FP32 dims: 1 optional: true }
]
output { name: "b" data_type: TYPE_FP32 dims: 2 }
ensemble_scheduling { step {
  model_name: "scaled" model_version: -1
  input_map { key: "x" value: "a" } input_map { key: "factor" value: "by" }
  output_map { key: "y" value: "b" }
} }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("optional")
    repository = directory / "models"
    for name, text in (("scaled", SCALED), ("both", ENSEMBLE)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(text)
    (repository / "scaled" / "1" / "model.py").write_text(MODEL)
    with gateway_server(repository, directory, {"partitions": 1}) as running:
        yield running


def infer(server: GatewayServer, model: str, **values: list[float]) -> list[list[float]]:
    tensors = []
    for name, value in values.items():
        tensor = tritonclient.http.InferInput(name, [1, len(value)], "FP32")
        tensor.set_data_from_numpy(np.array([value], np.float32))
        tensors.append(tensor)
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        result = client.infer(model, tensors)
    output: list[list[float]] = result.as_numpy("b" if model == "both" else "y").tolist()
    return output


@pytest.mark.behaviour(
    "L0_optional_input", "optional inputs may be left out; other sets of inputs are other batches", through="http"
)
def test_requests_with_other_inputs_are_batched_apart(server: GatewayServer) -> None:
    with ThreadPoolExecutor(8) as threads:
        with_factor = [threads.submit(infer, server, "scaled", x=[number, 1], factor=[10]) for number in range(4)]
        without = [threads.submit(infer, server, "scaled", x=[number, 1]) for number in range(4)]
    assert [each.result() for each in with_factor] == [[[10 * number, 10]] for number in range(4)]
    assert [each.result() for each in without] == [[[number, 1]] for number in range(4)]
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        (entry,) = client.get_inference_statistics("scaled")["model_stats"]
    assert entry["inference_count"] == 8


@pytest.mark.behaviour(
    "L0_optional_input", "an ensemble passes on the optional inputs that it is given", through="http"
)
def test_an_ensemble_passes_on_what_it_is_given(server: GatewayServer) -> None:
    assert infer(server, "both", a=[3, 4], by=[2]) == [[6, 8]]
    assert infer(server, "both", a=[3, 4]) == [[3, 4]]
    with pytest.raises(InferenceServerException, match="expected number of inputs between 1 and 2 but got 1 inputs"):
        infer(server, "both", by=[2])
