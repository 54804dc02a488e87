"""Models as common exporters write them, with the batches that they are to be served with."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

from sluice.models.tensors.arrays import Array
from sluice.models.tensors.spec import DataType
from tests.support.models.onnx_models import Dimension, save_model, value

FP32, INT64, BYTES = DataType.FP32, DataType.INT64, DataType.BYTES


class Export(NamedTuple):
    """A model: its nodes, tensors and `config.pbtxt`, and what `sluice validate` says of it after its name.

    `rows` is the number of rows of a request that is answered by as many; 0 for a model that takes none.
    """

    nodes: Sequence[onnx.NodeProto]
    inputs: Sequence[onnx.ValueInfoProto]
    outputs: Sequence[onnx.ValueInfoProto]
    verdict: str
    config: str = ""
    rows: int = 0

    def save(self, repository: Path, name: str) -> None:
        """Write the model and its configuration."""
        weights: dict[str, Array] = {
            "kernel": np.ones((1, 1, 5, 5), np.float32),
            "two": np.array(2, np.float32),
            "flat": np.array([-1, 4]),
            "first": np.array([0]),
        }
        used = {each for node in self.nodes for each in node.input}
        path = repository / name / "1" / "model.onnx"
        save_model(path, self.nodes, self.inputs, self.outputs, {key: weights[key] for key in used & weights.keys()})
        if self.config:
            (repository / name / "config.pbtxt").write_text(self.config)


def x(*shape: Dimension) -> onnx.ValueInfoProto:
    return value("x", FP32, shape)


def y(*shape: Dimension, datatype: DataType = FP32) -> onnx.ValueInfoProto:
    return value("y", datatype, shape)


def unranked(name: str, element: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, None)


def _zip_map(name: str) -> onnx.ValueInfoProto:
    item = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    return helper.make_value_info(name, helper.make_sequence_type_proto(item))


DOUBLE = [helper.make_node("Mul", ["x", "two"], ["y"])]
RESHAPED = [helper.make_node("Reshape", ["x", "flat"], ["y"])]
SUM = [helper.make_node("ReduceSum", ["x", "first"], ["y"], keepdims=1)]
SCALAR = [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)]
FOUND = [helper.make_node("NonZero", ["x"], ["z"]), helper.make_node("Transpose", ["z"], ["y"])]
BOTH = [helper.make_node("Add", ["x", "b"], ["y"])]
TOWERS = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Relu", ["b"], ["c"])]
ALL_PAIRS = [helper.make_node("Transpose", ["b"], ["t"]), helper.make_node("MatMul", ["x", "t"], ["y"])]
CONVOLUTION = [helper.make_node("Conv", ["x", "kernel"], ["y"])]
NUMBERS = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)]
LOWER = [helper.make_node("Identity", ["x"], ["y"])]
BATCHED = "ok, batches of up to 64"
BY_ROW = "ok, batches of up to 8: row by row: the model takes one row"
TEXT = value("x", BYTES, ["batch", 1])
BROKEN = "the rows of the batch; set max_batch_size to 0 in config.pbtxt to serve the model without batches"
SEND = "send what belongs together in one request"

EXPORTS = {
    # torch.onnx names the rows, or leaves them out of the output's axes.
    "torch": Export(DOUBLE, [x("batch_size", 4)], [y("batch_size", 4)], BATCHED, rows=3),
    "torch_two_names": Export(DOUBLE, [x("batch", 4)], [y("Muly_dim_0", 4)], BATCHED, rows=3),
    "torch_input_only": Export(DOUBLE, [x("batch", 4)], [y(1, 4)], BATCHED, rows=3),
    "torch_fixed": Export(
        DOUBLE,
        [x(1, 4)],
        [y(1, 4)],
        "ok, no batches: input 'x' has a fixed first dimension of 1; export with dynamic_axes, or set max_batch_size "
        "to run it row by row",
        rows=1,
    ),
    "torch_by_row": Export(DOUBLE, [x(1, 4)], [y(1, 4)], BY_ROW, "max_batch_size: 8", rows=3),
    "torch_batch_of_8": Export(
        DOUBLE,
        [x(8, 4)],
        [y(8, 4)],
        "ok, no batches: input 'x' has a fixed first dimension of 8; export with dynamic_axes",
    ),
    "torch_one_of_two": Export(
        BOTH,
        [x("batch", 4), value("b", FP32, [1, 4])],
        [y("batch", 4)],
        "ok, no batches: input 'b' has a fixed first dimension of 1; export with dynamic_axes",
    ),
    # tf2onnx numbers the rows of each tensor.
    "tf": Export(RESHAPED, [x("unk__123", 4)], [y("unk__124", 4)], BATCHED, rows=3),
    "tf_two_inputs": Export(BOTH, [x("unk__1", 4), value("b", FP32, ["unk__2", 4])], [y("unk__3", 4)], BATCHED, rows=3),
    "tf_configured": Export(
        RESHAPED, [x("unk__1", 4)], [y("unk__2", 4)], "ok, batches of up to 8", "max_batch_size: 8", rows=3
    ),
    "tf_configured_wrongly": Export(
        SUM,
        [x("unk__1", 4)],
        [y("unk__2", 4)],
        f"cannot be loaded: a batch of 2 rows: output 'y' has shape [1, 4], expected 2 in front, {BROKEN}",
        "max_batch_size: 8",
    ),
    "tf_sum": Export(
        SUM,
        [x("unk__1", 4)],
        [y("unk__2", 4)],
        "ok, no batches: output 'y' has the shape [1, 4] for 2 rows; export the model with a row of each output for "
        "each row of its inputs",
    ),
    "unnamed": Export(DOUBLE, [x(None, 4)], [y(None, 4)], BATCHED, rows=3),
    "unnamed_sum": Export(
        SUM,
        [x(None, 4)],
        [y(None, 4)],
        "ok, no batches: output 'y' has the shape [1, 4] for 2 rows; export the model with a row of each output for "
        "each row of its inputs",
    ),
    # The rows are no requests, but the words of one text or the points of one cloud.
    "unnamed_softmax_over_rows": Export(
        [helper.make_node("Softmax", ["x"], ["y"], axis=0)],
        [x(None, 4)],
        [y(None, 4)],
        "ok, no batches: a row of output 'y' depends on the other rows of its batch; set max_batch_size if it may",
    ),
    # The rows of the output depend on data.
    "found": Export(
        FOUND,
        [x("N", 4)],
        [y("found", 2, datatype=INT64)],
        "ok, no batches: output 'y' has the shape [0, 2] for a row; export the model with a row of each output for "
        "each row of its inputs",
    ),
    "named_sum": Export(
        SUM,
        [x("N", 4)],
        [y("N", 4)],
        f"cannot be loaded: a batch of 2 rows: output 'y' has shape [1, 4], expected 2 in front, {BROKEN}",
    ),
    "named_sum_without_batches": Export(
        SUM, [x("N", 4)], [y("N", 4)], "ok, no batches: max_batch_size is 0 in config.pbtxt", "max_batch_size: 0"
    ),
    "scalar_output": Export(
        SCALAR,
        [x("N", 4)],
        [y()],
        f"ok, no batches: output 'y' is a scalar, without rows; {SEND}",
    ),
    "scalar_input": Export(
        BOTH,
        [x("N", 4), value("b", FP32, [])],
        [y("N", 4)],
        f"ok, no batches: input 'b' is a scalar, without rows; {SEND}",
    ),
    "all_pairs": Export(
        ALL_PAIRS,
        [x("queries", 4), value("b", FP32, ["documents", 4])],
        [y("queries", "documents")],
        "ok, no batches: output 'y' has the dimension 'documents', the rows, behind the first one as well",
    ),
    "all_pairs_unnamed": Export(
        ALL_PAIRS,
        [x(None, 4), value("b", FP32, [None, 4])],
        [y(None, None)],
        "ok, no batches: output 'y' has the number of rows behind its first dimension as well: [3, 3]",
    ),
    "towers": Export(
        TOWERS,
        [x("n", 4), value("b", FP32, ["m", 4])],
        [y("n", 4), value("c", FP32, ["m", 4])],
        "ok, no batches: inputs 'x' and 'b' may have different numbers of rows; set max_batch_size if they never have",
    ),
    # The rank is not declared.
    "rankless_output": Export(RESHAPED, [x("batch", 4)], [unranked("y")], BATCHED, rows=3),
    "rankless_input": Export(
        DOUBLE,
        [unranked("x")],
        [unranked("y")],
        "input 'x': its rank is not declared; give its dims in config.pbtxt, or run onnx.shape_inference on the model",
    ),
    "rankless_configured": Export(
        DOUBLE,
        [unranked("x")],
        [unranked("y")],
        "ok, batches of up to 8",
        'max_batch_size: 8 input { name: "x" dims: 4 } output { name: "y" dims: 4 }',
        rows=3,
    ),
    "rankless_without_batches": Export(
        DOUBLE,
        [unranked("x")],
        [unranked("y")],
        "ok, no batches: the rank of input 'x' is not declared; set max_batch_size if its first dimension is the rows",
        'input { name: "x" dims: [ 2, 4 ] } output { name: "y" dims: [ 2, 4 ] }',
    ),
    # Exporters saw one size of the output only.
    "narrow": Export(
        DOUBLE,
        [x("N", "length")],
        [y("N", 50)],
        "cannot be loaded: a batch of 1 row: output 'y' has shape [1, 1], expected [50] after the rows as the model "
        "declares; give the output dims of -1 in config.pbtxt where its size varies",
    ),
    "narrow_configured": Export(
        DOUBLE, [x("N", "length")], [y("N", 50)], BATCHED, 'output { name: "y" dims: -1 }', rows=3
    ),
    # skl2onnx.
    "sklearn": Export(DOUBLE, [x(None, 4)], [y(None, 4)], BATCHED, rows=3),
    "sklearn_zipmap": Export(
        DOUBLE,
        [x(None, 4)],
        [_zip_map("y")],
        "output 'y': expected a tensor, got sequence_type; export a classifier of scikit-learn with "
        "options={'zipmap': False}",
    ),
    # The models take neither an image of one pixel nor words that are no numbers.
    "image": Export(CONVOLUTION, [x("batch", 1, "height", "width")], [y("batch", 1, "h", "w")], BATCHED),
    "image_tf": Export(CONVOLUTION, [x("unk__1", 1, None, None)], [y("unk__2", 1, None, None)], BATCHED),
    "numbers_as_text": Export(NUMBERS, [TEXT], [y("batch", 1)], BATCHED),
    "one_scalar": Export(
        [*DOUBLE, helper.make_node("Identity", ["two"], ["c"])],
        [x("N", 4)],
        [y("N", 4), value("c", FP32, [])],
        "ok, no batches: output 'c' is a scalar, without rows; name only the other outputs in config.pbtxt",
    ),
    # A configuration leaves out what cannot be batched, or is no tensor.
    "with_scalar": Export(
        [*DOUBLE, helper.make_node("Identity", ["two"], ["c"])],
        [x("N", 4)],
        [y("N", 4), value("c", FP32, [])],
        BATCHED,
        'output { name: "y" }',
        rows=3,
    ),
    "with_map": Export(
        [*DOUBLE, helper.make_node("ZipMap", ["y"], ["m"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2, 3])],
        [x("unk__1", 4)],
        [y("unk__2", 4), _zip_map("m")],
        BATCHED,
        'output { name: "y" }',
        rows=3,
    ),
    "text": Export(LOWER, [TEXT], [y("batch", 1, datatype=BYTES)], BATCHED),
}
