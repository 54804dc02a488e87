"""Ensembles within ensembles, and of models of which only some have a batch dimension, on a real server."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from sluice.models.tensors.spec import DataType
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity

SPLIT = """
backend: "python"
input { name: "text" data_type: TYPE_STRING dims: 1 }
output { name: "numbers" data_type: TYPE_FP32 dims: 3 }
output { name: "words" data_type: TYPE_STRING dims: -1 }
"""
SPLIT_MODEL = """
import numpy as np

def infer(inputs):
    words = inputs["text"][0].split()
    return {"numbers": np.array([*words, 0, 0, 0][:3], np.float32), "words": np.array(words, np.object_)}
"""
ENSEMBLE = """
platform: "ensemble" max_batch_size: %d
input { name: "TEXT" data_type: TYPE_STRING dims: 1 }
output { name: "NUMBERS" data_type: TYPE_FP32 dims: 3 }
output { name: "WORDS" data_type: TYPE_STRING dims: -1 }
ensemble_scheduling {
  step {
    model_name: "split" model_version: -1
    input_map { key: "text" value: "TEXT" }
    output_map { key: "numbers" value: "n" } output_map { key: "words" value: "WORDS" }
  }
  step {
    model_name: "echo" model_version: -1
    input_map { key: "x" value: "n" } output_map { key: "y" value: "NUMBERS" }
  }
}
"""
OUTER = """
platform: "ensemble" max_batch_size: 8
input { name: "IN" data_type: TYPE_STRING dims: 1 }
output { name: "OUT" data_type: TYPE_FP32 dims: 3 }
ensemble_scheduling {
  step {
    model_name: "echo" model_version: -1
    input_map { key: "x" value: "m" } output_map { key: "y" value: "OUT" }
  }
  step {
    model_name: "whole" model_version: -1
    input_map { key: "TEXT" value: "IN" } output_map { key: "NUMBERS" value: "m" }
  }
}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("ensembles")
    repository = directory / "models"
    save_identity(repository / "echo" / "1" / "model.onnx", DataType.FP32, [3])
    texts = {"split": SPLIT, "whole": ENSEMBLE % 0, "rows": ENSEMBLE % 8, "outer": OUTER}
    for name, text in texts.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(text)
    (repository / "split" / "1" / "model.py").write_text(SPLIT_MODEL)
    config: dict[str, object] = {"partitions": 1, "max_batch_size": 8, "control": "explicit", "load_models": ["*"]}
    with gateway_server(repository, directory, config) as running:
        yield running


def infer(server: GatewayServer, model: str, name: str, texts: list[str], shape: list[int]) -> dict[str, object]:
    tensor = tritonclient.http.InferInput(name, shape, "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode() for text in texts], np.object_).reshape(shape))
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        result = client.infer(model, [tensor])
        return {each["name"]: result.as_numpy(each["name"]).tolist() for each in result.get_response()["outputs"]}


@pytest.mark.behaviour("L0_simple_ensemble", "steps with and without a batch dimension", through="http")
def test_only_some_models_have_a_batch_dimension(server: GatewayServer) -> None:
    assert infer(server, "whole", "TEXT", ["1 2 3 4"], [1]) == {
        "NUMBERS": [1, 2, 3],
        "WORDS": [b"1", b"2", b"3", b"4"],
    }
    assert infer(server, "rows", "TEXT", ["5 6 7"], [1, 1]) == {
        "NUMBERS": [[5, 6, 7]],
        "WORDS": [[b"5", b"6", b"7"]],
    }
    with pytest.raises(InferenceServerException, match="batch-size must be <= 1 for 'rows'"):
        infer(server, "rows", "TEXT", ["5 6 7", "5 6 7"], [2, 1])


@pytest.mark.behaviour("L0_simple_ensemble", "an ensemble is a step of another", through="http")
def test_an_ensemble_is_a_step_of_another(server: GatewayServer) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: infer(server, "outer", "IN", [f"{n} 2 3"], [1, 1]), range(16)))
    assert answers == [{"OUT": [[n, 2, 3]]} for n in range(16)]
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        metadata = client.get_model_metadata("outer")
        (entry,) = client.get_inference_statistics("outer")["model_stats"]
    assert [tensor["shape"] for tensor in metadata["inputs"] + metadata["outputs"]] == [[-1, 1], [-1, 3]]
    assert (entry["inference_count"], entry["execution_count"]) == (16, 16)


def test_an_outer_ensemble_goes_and_comes_with_the_inner_one(server: GatewayServer) -> None:
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        client.unload_model("whole")
        with pytest.raises(InferenceServerException):
            infer(server, "outer", "IN", ["1 2 3"], [1, 1])
        client.load_model("whole")
    assert infer(server, "outer", "IN", ["1 2 3"], [1, 1]) == {"OUT": [[1, 2, 3]]}
