"""A repository as it was written for Triton: configurations, models in Python, and an ensemble of them."""

import json
from pathlib import Path

import numpy as np
import pytest

from sluice.models.backends import onnxruntime
from tests.support.gateway.server import gateway_server
from tests.support.models.onnx_models import save_mlp

SCALE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            raw = pb_utils.get_input_tensor_by_name(request, "RAW").as_numpy()
            if (raw > 100).any():
                raise ValueError("RAW is above 100")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SCALED", raw.astype(np.float32) / 10)]))
        return responses
"""
BEST = """
import numpy as np

def infer(inputs):
    return {"CLASS": inputs["PROBS"].argmax(axis=1)[:, None]}
"""
CONFIGS = {
    "scale": """
backend: "python" max_batch_size: 8
input { name: "RAW" data_type: TYPE_INT32 dims: 4 }
output { name: "SCALED" data_type: TYPE_FP32 dims: 4 }
""",
    "net": """
platform: "onnxruntime_onnx" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: 4 } }
output { name: "y" data_type: TYPE_FP32 dims: 3 }
dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 100 }
""",
    "flat": 'platform: "onnxruntime_onnx" max_batch_size: 8',
    "best": """
backend: "python" max_batch_size: 16
input { name: "PROBS" data_type: TYPE_FP32 dims: -1 }
output { name: "CLASS" data_type: TYPE_INT64 dims: 1 }
model_warmup { name: "w" batch_size: 2 inputs { key: "PROBS" value { data_type: TYPE_FP32 dims: 3 zero_data: true } } }
""",
    "all": """
platform: "ensemble" max_batch_size: 8
input { name: "RAW" data_type: TYPE_INT32 dims: 4 }
output [ { name: "CLASS" data_type: TYPE_INT64 dims: 1 }, { name: "PROBS" data_type: TYPE_FP32 dims: 3 } ]
ensemble_scheduling { step [
  { model_name: "scale" model_version: -1
    input_map { key: "RAW" value: "RAW" } output_map { key: "SCALED" value: "scaled" } },
  { model_name: "flat" model_version: -1
    input_map { key: "x" value: "scaled" } output_map { key: "y" value: "PROBS" } },
  { model_name: "best" model_version: -1
    input_map { key: "PROBS" value: "PROBS" } output_map { key: "CLASS" value: "CLASS" } }
] }
""",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    directory = tmp_path / "models"
    for name, text in CONFIGS.items():
        (directory / name / "1").mkdir(parents=True)
        (directory / name / "config.pbtxt").write_text(text)
    (directory / "scale" / "1" / "model.py").write_text(SCALE)
    (directory / "best" / "1" / "model.py").write_text(BEST)
    for name in ("net", "flat"):
        save_mlp(directory / name / "1" / "model.onnx", [4, 3])
    return directory


@pytest.mark.behaviour("L0_simple_ensemble", "an ensemble of Python and ONNX models, from its config.pbtxt")
@pytest.mark.behaviour(
    "L0_infer_reshape",
    "a reshaped input",
)
@pytest.mark.behaviour("L0_backend_python", "an exception of a model is 500 with its message, and the model lives on")
def test_a_triton_repository_is_served(tmp_path: Path, repository: Path) -> None:
    raw = [[1, 2, 3, 4], [40, 30, 20, 10]]
    net = onnxruntime.load(str(repository / "net" / "1" / "model.onnx"), 1)
    expected = net.run({"x": np.array(raw, np.float32) / 10})["y"]
    with gateway_server(repository, tmp_path, {"partitions": 1}) as server:

        def infer(model: str, name: str, datatype: str, data: list[object]) -> tuple[int, dict[str, list[float]], str]:
            shape = list(np.shape(np.array(data)))
            body = {"inputs": [{"name": name, "datatype": datatype, "shape": shape, "data": data}]}
            status, _, answer = server.request("POST", f"/v2/models/{model}/infer", json.dumps(body).encode())
            decoded = json.loads(answer)
            outputs = {output["name"]: output["data"] for output in decoded.get("outputs", [])}
            return status, outputs, decoded.get("error", "")

        status, outputs, error = infer("all", "RAW", "INT32", list(raw))
        assert (status, error) == (200, "")
        assert outputs["CLASS"] == expected.argmax(axis=1).tolist()
        assert outputs["PROBS"] == pytest.approx(expected.ravel().tolist())

        status, outputs, _ = infer("net", "x", "FP32", [[[0.1, 0.2], [0.3, 0.4]]])
        assert status == 200
        assert outputs["y"] == pytest.approx(expected[0].tolist())

        status, _, error = infer("scale", "RAW", "INT32", [[1, 2, 3, 101]])
        assert status == 500
        assert "ValueError: RAW is above 100 (model.py:" in error
        assert infer("scale", "RAW", "INT32", [[1, 2, 3, 4]])[0] == 200

        status, _, answer = server.request("GET", "/v2/models/all")
        assert (status, json.loads(answer)["platform"]) == (200, "ensemble")
