"""Tiny ONNX models (opset 17, IR 8), written to a path that the test gives."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sluice.models.spec import ModelSpec
from sluice.models.tensors.arrays import Array
from sluice.models.tensors.spec import DataType
from sluice.models.triton_config.onnx_file import read_tensors

Dimension = str | int | None

_ONNX_TYPE = {
    DataType.BOOL: TensorProto.BOOL,
    DataType.UINT8: TensorProto.UINT8,
    DataType.UINT16: TensorProto.UINT16,
    DataType.UINT32: TensorProto.UINT32,
    DataType.UINT64: TensorProto.UINT64,
    DataType.INT8: TensorProto.INT8,
    DataType.INT16: TensorProto.INT16,
    DataType.INT32: TensorProto.INT32,
    DataType.INT64: TensorProto.INT64,
    DataType.FP16: TensorProto.FLOAT16,
    DataType.FP32: TensorProto.FLOAT,
    DataType.FP64: TensorProto.DOUBLE,
    DataType.BF16: TensorProto.BFLOAT16,
    DataType.BYTES: TensorProto.STRING,
}


def value(name: str, datatype: DataType, shape: Sequence[Dimension]) -> onnx.ValueInfoProto:
    """A graph input or output; a dimension is a number, a symbol, or None (variable without a name)."""
    return helper.make_tensor_value_info(name, _ONNX_TYPE[datatype], shape)


def save_model(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, Array] | None = None,
) -> Path:
    """Write a model and the parent folders of `path`; returns `path`."""
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), path.parent.name or "model", list(inputs), list(outputs), tensors)
    opsets = [helper.make_opsetid("", 17)]
    if any(node.domain == "ai.onnx.ml" for node in nodes):
        opsets.append(helper.make_opsetid("ai.onnx.ml", 3))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def save_mlp(path: Path, sizes: Sequence[int], seed: int = 0) -> Path:
    """`x` FP32 [N, sizes[0]] -> `y` FP32 [N, sizes[-1]]: matrix products with ReLU between, softmax at the end."""
    random = np.random.default_rng(seed)
    nodes, weights, current = [], {}, "x"
    for index, (width, height) in enumerate(pairwise(sizes)):
        weights[f"w{index}"] = random.normal(0, np.sqrt(2 / width), (width, height)).astype(np.float32)
        nodes.append(helper.make_node("MatMul", [current, f"w{index}"], [f"z{index}"]))
        current = f"z{index}"
        if index < len(sizes) - 2:
            nodes.append(helper.make_node("Relu", [current], [f"h{index}"]))
            current = f"h{index}"
    nodes.append(helper.make_node("Softmax", [current], ["y"], axis=1))
    ends = value("x", DataType.FP32, ["N", sizes[0]]), value("y", DataType.FP32, ["N", sizes[-1]])
    return save_model(path, nodes, ends[:1], ends[1:], weights)


def save_identity(path: Path, datatype: DataType, item_shape: Sequence[Dimension] = ()) -> Path:
    """`x` [N, *item_shape] -> `y`, the same."""
    ends = [value(name, datatype, ["N", *item_shape]) for name in ("x", "y")]
    return save_model(path, [helper.make_node("Identity", ["x"], ["y"])], ends[:1], ends[1:])


def save_external(path: Path, location: str = "model.onnx_data", rows: tuple[str, str] = ("n", "n")) -> None:
    """A model y = x @ w, whose weights are in a file of their own; `rows` are the names of the rows of x and y."""
    data = np.eye(4, dtype=np.float32).tobytes()
    weights = helper.make_tensor("w", TensorProto.FLOAT, [4, 4], data, raw=True)
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [row, 4]) for name, row in zip("xy", rows, strict=True)
    )
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save_model(model, str(path), save_as_external_data=True, location=location, size_threshold=0)


def save_fixed_batch(path: Path) -> Path:
    """`x` FP32 [1, 4] -> `y` = 2x: every dimension is a number, so the model cannot be batched."""
    ends = [value(name, DataType.FP32, [1, 4]) for name in ("x", "y")]
    return save_model(path, [helper.make_node("Add", ["x", "x"], ["y"])], ends[:1], ends[1:])


def save_variable(path: Path) -> Path:
    """`x` FP32 [N, W] -> `y` = 2x: the width of items is variable."""
    ends = [value(name, DataType.FP32, ["N", "W"]) for name in ("x", "y")]
    return save_model(path, [helper.make_node("Add", ["x", "x"], ["y"])], ends[:1], ends[1:])


def save_wide(path: Path, width: int) -> Path:
    """`x` FP32 [N, 1] -> `y` = width * max(x, 0): the intermediate rows are `width` numbers wide and take memory."""
    nodes = [
        helper.make_node("MatMul", ["x", "ones"], ["wide"]),
        helper.make_node("Relu", ["wide"], ["positive"]),
        helper.make_node("ReduceSum", ["positive", "axis"], ["y"]),
    ]
    ends = [value(name, DataType.FP32, ["N", 1]) for name in ("x", "y")]
    weights: dict[str, Array] = {"ones": np.ones((1, width), np.float32), "axis": np.array([1])}
    return save_model(path, nodes, ends[:1], ends[1:], weights)


def save_spin(path: Path, fixed_iters: int, row_iters: int) -> Path:
    """`x` FP32 [N, 64] -> `y` = x bit for bit (x finite), after work that takes time.

    `fixed_iters` iterations cost the same for every batch, and the cost of `row_iters` grows with it: about 1.7 us each
    on one core.
    """
    width, height = 64, 16
    random = np.random.default_rng(0)
    # An orthogonal matrix: repeated products neither overflow nor become denormal.
    turn = np.linalg.qr(random.standard_normal((width, width)))[0].astype(np.float32)
    weights: dict[str, Array] = {
        "turn_fixed": turn,
        "turn_rows": turn.copy(),
        "start": random.standard_normal((height, width)).astype(np.float32),
        "low": np.array(-8, np.float32),
        "high": np.array(8, np.float32),
        "true": np.array(True),
        "zero": np.array(0, np.float32),
        "first": np.array([0, 0]),
        "second": np.array([1, 1]),
        "fixed_iters": np.array(fixed_iters, np.int64),
        "row_iters": np.array(row_iters, np.int64),
    }
    node = helper.make_node
    nodes = [
        # The fixed part starts from a value of x, so that it cannot be folded into a constant.
        node("Slice", ["x", "first", "second"], ["x00"]),
        node("Mul", ["x00", "zero"], ["nothing"]),
        node("Add", ["start", "nothing"], ["begin"]),
        node("Loop", ["fixed_iters", "true", "begin"], ["fixed"], body=_spin_body("turn_fixed", [height, width])),
        node("Loop", ["row_iters", "true", "x"], ["rows"], body=_spin_body("turn_rows", ["N", width])),
        node("ReduceMax", ["fixed"], ["largest"], keepdims=0),
        node("Mul", ["largest", "zero"], ["nothing_fixed"]),
        node("Mul", ["rows", "zero"], ["nothing_rows"]),
        node("Add", ["x", "nothing_rows"], ["x_again"]),
        node("Add", ["x_again", "nothing_fixed"], ["y"]),
    ]
    ends = [value(name, DataType.FP32, ["N", width]) for name in ("x", "y")]
    return save_model(path, nodes, ends[:1], ends[1:], weights)


def _spin_body(turn: str, shape: Sequence[Dimension]) -> onnx.GraphProto:
    nodes = [
        helper.make_node("Identity", ["go"], ["go_on"]),
        helper.make_node("MatMul", ["state", turn], ["turned"]),
        helper.make_node("Clip", ["turned", "low", "high"], ["next"]),
    ]
    inputs = [
        value("iteration", DataType.INT64, []),
        value("go", DataType.BOOL, []),
        value("state", DataType.FP32, shape),
    ]
    outputs = [value("go_on", DataType.BOOL, []), value("next", DataType.FP32, shape)]
    return helper.make_graph(nodes, f"body_{turn}", inputs, outputs)


def save_growing(path: Path, mib: int, filling: int = 0) -> Path:
    """`x` FP32 [N, 16] -> `y` FP32 [N, 16], allocating `mib` MiB at its run; the file is padded by `filling` bytes."""
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["large"]),
        helper.make_node("ArgMax", ["x"], ["row"], axis=1, keepdims=0),
        helper.make_node("Gather", ["large", "row"], ["zeros"]),
        helper.make_node("Gather", ["filling", "first"], ["nothing"]),
        helper.make_node("Add", ["x", "zeros"], ["same"]),
        helper.make_node("Add", ["same", "nothing"], ["y"]),
    ]
    weights: dict[str, Array] = {
        "shape": np.array([mib * 2**20 // 4 // 16, 16], np.int64),
        "filling": np.zeros(filling // 4 + 1, np.float32),
        "first": np.array([0], np.int64),
    }
    x, y = (value(name, DataType.FP32, ["N", 16]) for name in "xy")
    return save_model(path, nodes, [x], [y], weights)


def read_spec(path: Path, name: str, version: int, max_batch_size: int) -> ModelSpec:
    """The spec of the model in `path`, without a configuration, for batches of up to `max_batch_size` rows."""
    return read_tensors(path).spec(name, version, max_batch_size)
