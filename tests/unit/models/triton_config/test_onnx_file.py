from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sluice.models.errors import ConfigError
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec
from tests.support.models.onnx_models import (
    Dimension,
    read_spec,
    save_fixed_batch,
    save_identity,
    save_mlp,
    save_model,
    save_spin,
    save_variable,
    value,
)


def test_a_symbolic_first_dimension_is_the_batch(tmp_path: Path) -> None:
    path = save_mlp(tmp_path / "m.onnx", [4, 8, 3])
    assert read_spec(path, "mlp", 2, 32) == ModelSpec(
        name="mlp",
        version=2,
        inputs=(TensorSpec("x", DataType.FP32, (4,)),),
        outputs=(TensorSpec("y", DataType.FP32, (3,)),),
        max_batch_size=32,
    )


def test_a_literal_first_dimension_is_not(tmp_path: Path) -> None:
    spec = read_spec(save_fixed_batch(tmp_path / "m.onnx"), "m", 1, 32)
    assert spec.max_batch_size == 0
    assert spec.inputs == (TensorSpec("x", DataType.FP32, (1, 4)),)


def test_other_symbols_are_variable_dimensions(tmp_path: Path) -> None:
    spec = read_spec(save_variable(tmp_path / "m.onnx"), "m", 1, 32)
    assert spec.max_batch_size == 32
    assert spec.inputs == (TensorSpec("x", DataType.FP32, (-1,)),)


def test_batching_switched_off_shows_the_whole_shape(tmp_path: Path) -> None:
    spec = read_spec(save_variable(tmp_path / "m.onnx"), "m", 1, 0)
    assert spec.max_batch_size == 0
    assert spec.inputs == (TensorSpec("x", DataType.FP32, (-1, -1)),)


@pytest.mark.parametrize("datatype", list(DataType))
def test_every_datatype(tmp_path: Path, datatype: DataType) -> None:
    spec = read_spec(save_identity(tmp_path / "m.onnx", datatype, [2]), "m", 1, 8)
    assert spec.inputs == (TensorSpec("x", datatype, (2,)),)


@pytest.mark.parametrize(
    ("x", "y", "batchable"),
    [
        (["N", 2], ["N"], True),
        (["N", 2], ["M"], False),
        ([None, 2], [None, 2], True),
        (["N", 2], [None, 2], True),
        ([-1, 2], ["N", 2], True),
        (["N", 2], ["N", "N"], False),
        (["N", 2], [2], False),
        (["N", 2], [], False),
        ([], ["N"], False),
        ([0, 2], ["N", 2], False),
        (["N", 0], ["N", 2], True),
    ],
)
def test_rows_must_be_the_first_dimension_of_every_tensor(
    tmp_path: Path, x: list[Dimension], y: list[Dimension], batchable: bool
) -> None:
    ends = [value("x", DataType.FP32, x)], [value("y", DataType.FP32, y)]
    path = save_model(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], *ends)
    assert read_spec(path, "m", 1, 8).batchable is batchable


def test_a_scalar_and_a_zero_stay_as_they_are(tmp_path: Path) -> None:
    ends = [value("x", DataType.INT64, [])], [value("y", DataType.INT64, [0, 3])]
    path = save_model(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], *ends)
    spec = read_spec(path, "m", 1, 8)
    assert (spec.inputs[0].shape, spec.outputs[0].shape) == ((), (0, 3))


def test_a_model_without_inputs_cannot_be_batched(tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["w"], ["y"])
    weights = {"w": np.ones((2, 2), np.float32)}
    path = save_model(tmp_path / "m.onnx", [node], [], [value("y", DataType.FP32, ["N", 2])], weights)
    assert read_spec(path, "m", 1, 8).max_batch_size == 0


def test_initializers_listed_as_inputs_are_weights(tmp_path: Path) -> None:
    inputs = [value("x", DataType.FP32, ["N", 2]), value("w", DataType.FP32, [2])]
    node = helper.make_node("Add", ["x", "w"], ["y"])
    weights = {"w": np.ones(2, np.float32)}
    path = save_model(tmp_path / "m.onnx", [node], inputs, [value("y", DataType.FP32, ["N", 2])], weights)
    spec = read_spec(path, "m", 1, 8)
    assert spec.batchable
    assert [tensor.name for tensor in spec.inputs] == ["x"]


def _save_output(path: Path, output: onnx.ValueInfoProto) -> Path:
    node = helper.make_node("Identity", ["x"], ["y"])
    return save_model(path, [node], [value("x", DataType.FP32, ["N"])], [output])


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            helper.make_tensor_value_info("y", TensorProto.COMPLEX64, ["N"]),
            "ONNX type COMPLEX64 is not supported; expected",
        ),
        (helper.make_tensor_value_info("y", TensorProto.UNDEFINED, ["N"]), "ONNX type UNDEFINED is not supported"),
        (helper.make_empty_tensor_value_info("y"), "expected a tensor, got a value without a type"),
        (helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None), "expected a tensor, got sequence_type"),
    ],
)
def test_a_tensor_that_cannot_be_served_is_named(tmp_path: Path, output: onnx.ValueInfoProto, message: str) -> None:
    path = _save_output(tmp_path / "m.onnx", output)
    with pytest.raises(ConfigError) as refused:
        read_spec(path, "m", 1, 8)
    assert str(refused.value).startswith(f"{path}: output 'y': {message}")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xffgarbage", "not an ONNX model"), (b"", "not an ONNX model: the file is empty")],
)
def test_a_file_that_is_no_model_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        read_spec(path, "m", 1, 8)
    assert str(refused.value).startswith(f"{path}: {message}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_spec(tmp_path / "none.onnx", "m", 1, 8)


def test_every_test_model_is_valid_onnx(tmp_path: Path) -> None:
    for path in (
        save_mlp(tmp_path / "mlp.onnx", [4, 8, 3]),
        save_identity(tmp_path / "identity.onnx", DataType.BYTES, [2]),
        save_fixed_batch(tmp_path / "fixed.onnx"),
        save_variable(tmp_path / "variable.onnx"),
        save_spin(tmp_path / "spin.onnx", 1, 1),
    ):
        onnx.checker.check_model(str(path), full_check=True)
