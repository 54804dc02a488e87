import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.models.backends import python
from sluice.models.backends.configured import load_backend
from sluice.models.backends.python_models import model as python_model
from sluice.models.backends.python_models import triton_utils
from sluice.models.backends.python_models.model import PythonModel
from sluice.models.errors import BackendFailed
from sluice.models.tensors.spec import DataType, TensorSpec

CONFIG: dict[str, Any] = {
    "name": "m",
    "backend": "python",
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2]}],
    "parameters": {"factor": {"string_value": "3"}},
}
X = np.array([[1, 2], [3, 4]], np.float32)

FUNCTION = """
import numpy as np

def infer(inputs):
    return {"y": inputs["x"] * 2}
"""
LOADED = """
factor = 0

def load(config):
    global factor
    factor = int(config["parameters"]["factor"]["string_value"])

def infer(inputs):
    return {"y": inputs["x"] * np.float32(factor)}

import numpy as np
"""
TRITON = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        output = pb_utils.get_output_config_by_name(config, "y")
        self.dtype = pb_utils.triton_string_to_numpy(output["data_type"])
        self.where = args["model_name"], args["model_version"], args["model_instance_kind"]

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if (x < 0).any():
                responses.append(pb_utils.InferenceResponse([], pb_utils.TritonError("x is negative")))
                continue
            y = pb_utils.Tensor("y", (x + 1).astype(self.dtype))
            responses.append(pb_utils.InferenceResponse(output_tensors=[y]))
        return responses

    def finalize(self):
        import pathlib
        pathlib.Path(__file__).with_name("finalized").touch()
"""


def load(directory: Path, text: str, config: dict[str, Any] | None = None) -> PythonModel:
    """The model, in this process."""
    path = directory / "1" / "model.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return python_model.load(str(path), 1, json.dumps(config or CONFIG))


def test_a_function(tmp_path: Path) -> None:
    backend = load(tmp_path, FUNCTION)
    assert backend.inputs == (TensorSpec("x", DataType.FP32, (-1, 2)),)
    assert backend.outputs == (TensorSpec("y", DataType.FP32, (-1, 2)),)
    assert backend.run({"x": X})["y"].tolist() == [[2, 4], [6, 8]]


def test_a_file_that_is_saved_again_in_the_same_second_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for factor in (2, 3):
        (tmp_path / "1").mkdir(exist_ok=True)
        path = tmp_path / "1" / "model.py"
        path.write_text(FUNCTION.replace("* 2", f"* {factor}"))
        os.utime(path, (1, 1))
        model = python_model.load(str(path), 1, json.dumps(CONFIG))
        assert model.run({"x": X})["y"].tolist() == (factor * X).tolist()


def test_a_function_that_gets_its_configuration(tmp_path: Path) -> None:
    assert load(tmp_path, LOADED).run({"x": X})["y"].tolist() == [[3, 6], [9, 12]]


def test_a_model_without_a_batch_dimension(tmp_path: Path) -> None:
    backend = load(tmp_path, FUNCTION, CONFIG | {"max_batch_size": 0})
    assert backend.inputs == (TensorSpec("x", DataType.FP32, (2,)),)
    assert backend.run({"x": X[0]})["y"].tolist() == [2, 4]


def test_strings(tmp_path: Path) -> None:
    strings = [{"name": "x", "data_type": "TYPE_STRING", "dims": [1]}]
    outputs = [{"name": "y", "data_type": "TYPE_STRING", "dims": [1]}]
    text = """
import numpy as np

def infer(inputs):
    return {"y": np.array([[word[0].decode().upper()] for word in inputs["x"]], np.object_)}
"""
    backend = load(tmp_path, text, CONFIG | {"input": strings, "output": outputs})
    assert backend.run({"x": np.array([[b"a"], [b"b"]], np.object_)})["y"].tolist() == [["A"], ["B"]]


def test_modules_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "twice_module.py").write_text("def twice(x):\n    return x * 2\n")
    text = 'import twice_module\n\ndef infer(inputs):\n    return {"y": twice_module.twice(inputs["x"])}\n'
    assert load(tmp_path, text).run({"x": X})["y"].tolist() == [[2, 4], [6, 8]]


def test_the_memory_of_inputs_is_not_the_models(tmp_path: Path) -> None:
    backend = load(tmp_path, 'def infer(inputs):\n    inputs["x"] += 1\n    return {"y": inputs["x"]}\n')
    with pytest.raises(BackendFailed, match=r"ValueError: output array is read-only \(model\.py:2\)"):
        backend.run({"x": X})
    assert X[0, 0] == 1
    assert X.flags.writeable


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise KeyError('size')", r"^KeyError: 'size' \(model\.py:3\)$"),
        ("import sys; sys.exit(3)", r"^SystemExit: 3 \(model\.py:3\)$"),
        ("return None", "infer: expected a dict of arrays by name, got NoneType"),
        ("return {}", "^output 'y' is missing$"),
        ("return {'y': x, 'z': x}", "^output 'z': the configuration has no such output$"),
        ("return {'y': x.astype('float64')}", "^output 'y': expected FP32, got FP64$"),
        ("return {'y': x.astype('complex64')}", "^output 'y': numpy dtype complex64 has no V2 datatype"),
        ("return {'y': x[:, :1]}", r"^output 'y': expected shape \[-1, 2\], got \[2, 1\]$"),
        ("return {'y': 3}", "^output 'y': expected FP32, got INT64$"),
    ],
)
def test_what_fails_is_the_batchs_failure(tmp_path: Path, body: str, message: str) -> None:
    backend = load(tmp_path, f'def infer(inputs):\n    x = inputs["x"]\n    {body}\n')
    with pytest.raises(BackendFailed, match=message):
        backend.run({"x": X})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"model\.py: expected a function infer\(inputs\) or a class TritonPythonModel"),
        ("import no_such_module", r"cannot be loaded: ModuleNotFoundError: No module named 'no_such_module' \(model"),
        ("def infer(", r"cannot be loaded: SyntaxError: "),
        ("def load(config):\n    raise OSError('no table')\n", r"cannot be loaded: OSError: no table \(model\.py:2\)"),
        (
            "class TritonPythonModel:\n    def initialize(self, args):\n        args['x']\n",
            r"KeyError: 'x' \(model\.py:3\)",
        ),
    ],
)
def test_what_cannot_be_loaded(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BackendFailed, match=message):
        load(tmp_path, text)


def test_a_model_needs_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(BackendFailed, match=r"model\.py: expected a config\.pbtxt with its inputs and"):
        python.load(str(tmp_path / "model.py"), 1)


def test_a_triton_model(tmp_path: Path) -> None:
    backend = load(tmp_path, TRITON)
    assert backend.run({"x": X})["y"].tolist() == [[2, 3], [4, 5]]
    with pytest.raises(BackendFailed, match=r"^x is negative$"):
        backend.run({"x": -X})
    assert not (tmp_path / "1" / "finalized").exists()
    backend.finish()
    assert (tmp_path / "1" / "finalized").exists()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return []", "execute: expected a list of one response for one request"),
        (
            "return [None]",
            "execute: expected a response, got None; a decoupled model has",
        ),
        ("requests[0].exec()", "TritonModelException: other models can be called, loaded and unloaded only in execute"),
        (
            "import triton_python_backend_utils as u; u.load_model('other')",
            "other models can be called, loaded and unloaded only in execute",
        ),
    ],
)
def test_a_triton_model_that_does_more_than_answer(tmp_path: Path, body: str, message: str) -> None:
    backend = load(tmp_path, f"class TritonPythonModel:\n    def execute(self, requests):\n        {body}\n")
    with pytest.raises(BackendFailed, match=message):
        backend.run({"x": X})


def test_the_types_of_triton() -> None:
    assert triton_utils.triton_string_to_numpy("TYPE_FP16") is np.float16
    assert triton_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    assert triton_utils.triton_string_to_numpy("TYPE_NONE") is None
    assert triton_utils.numpy_to_triton_type(np.int64) == "TYPE_INT64"
    assert triton_utils.numpy_to_triton_type(np.uint16) == "TYPE_UINT16"
    assert triton_utils.numpy_to_triton_type(np.bytes_) == "TYPE_STRING"
    request = triton_utils.InferenceRequest(inputs=[triton_utils.Tensor("x", X)], requested_output_names=["y"])
    assert triton_utils.get_input_tensor_by_name(request, "z") is None
    assert request.requested_output_names() == ["y"]
    with pytest.raises(triton_utils.TritonModelException, match="tensor 'x': expected a numpy array, got list"):
        triton_utils.Tensor("x", [1])  # type: ignore[arg-type]


def test_tensors_may_be_reshaped_for_any_backend(tmp_path: Path) -> None:
    config = CONFIG | {
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1, 2], "reshape": {"shape": [2]}}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2, 1], "reshape": {"shape": [2]}}],
    }
    load(tmp_path, FUNCTION, config)
    backend = load_backend("python", str(tmp_path / "1" / "model.py"), 1, json.dumps(config))
    assert [tensor.shape for tensor in (*backend.inputs, *backend.outputs)] == [(-1, 1, 2), (-1, 2, 1)]
    assert backend.run({"x": X.reshape(2, 1, 2)})["y"].tolist() == [[[2], [4]], [[6], [8]]]
