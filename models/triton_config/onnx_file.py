"""Reads the tensors of a model from its ONNX file."""

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from sluice.models.errors import ConfigError
from sluice.models.tensors.spec import VARIABLE, DataType, TensorSpec
from sluice.models.triton_config.file_tensors import FileTensors
from sluice.models.triton_config.onnx_outline import check_external, read_outline

_DATATYPE: dict[int, DataType] = {
    onnx.TensorProto.BOOL: DataType.BOOL,
    onnx.TensorProto.UINT8: DataType.UINT8,
    onnx.TensorProto.UINT16: DataType.UINT16,
    onnx.TensorProto.UINT32: DataType.UINT32,
    onnx.TensorProto.UINT64: DataType.UINT64,
    onnx.TensorProto.INT8: DataType.INT8,
    onnx.TensorProto.INT16: DataType.INT16,
    onnx.TensorProto.INT32: DataType.INT32,
    onnx.TensorProto.INT64: DataType.INT64,
    onnx.TensorProto.FLOAT16: DataType.FP16,
    onnx.TensorProto.FLOAT: DataType.FP32,
    onnx.TensorProto.DOUBLE: DataType.FP64,
    onnx.TensorProto.BFLOAT16: DataType.BF16,
    onnx.TensorProto.STRING: DataType.BYTES,
}


def read_tensors(path: Path) -> FileTensors:
    """Return the tensors of the model in `path`; its weights are not read.

    The model is batchable if the first dimension of all its tensors is one symbol that no other dimension uses
    (dimensions without a name count as that symbol). Raises ConfigError, with the path, for a file that cannot be read
    and for tensors that the protocol cannot carry.
    """
    outline = read_outline(path)
    try:
        values = [onnx.ValueInfoProto.FromString(value) for value in outline.inputs]
        outputs = [onnx.ValueInfoProto.FromString(value) for value in outline.outputs]
    except DecodeError as error:
        raise ConfigError(f"{path}: not an ONNX model: {error}") from error
    inputs = [value for value in values if value.name not in outline.weights]
    if not outputs:
        raise ConfigError(f"{path}: not an ONNX model: the graph has no outputs")
    check_external(path, outline)
    return FileTensors(
        tuple(_tensor(path, "input", value) for value in inputs),
        tuple(_tensor(path, "output", value) for value in outputs),
        _has_batch_dimension(inputs, outputs),
        "onnxruntime_onnx",
    )


def _tensor(path: Path, role: str, value: onnx.ValueInfoProto) -> TensorSpec:
    """The spec of a whole tensor, batch dimension included."""
    where = f"{path}: {role} '{value.name}'"
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise ConfigError(f"{where}: expected a tensor, got {kind or 'a value without a type'}")
    tensor = value.type.tensor_type
    datatype = _DATATYPE.get(tensor.elem_type)
    if datatype is None:
        known = onnx.TensorProto.DataType.values()
        got = onnx.TensorProto.DataType.Name(tensor.elem_type) if tensor.elem_type in known else tensor.elem_type
        raise ConfigError(f"{where}: ONNX type {got} is not supported; expected one that maps to {', '.join(DataType)}")
    if not tensor.HasField("shape"):
        raise ConfigError(
            f"{where}: its rank is not declared; run onnx.shape_inference on the model or declare the shape"
        )
    shape = tuple(VARIABLE if _symbol(dim) is not None else dim.dim_value for dim in tensor.shape.dim)
    return TensorSpec(value.name, datatype, shape)


def _symbol(dim: onnx.TensorShapeProto.Dimension) -> str | None:
    """The name of a variable dimension ("" without a name), None for a number. Some exporters write -1."""
    if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
        return None
    return dim.dim_param


def _has_batch_dimension(inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> bool:
    shapes = [[_symbol(dim) for dim in value.type.tensor_type.shape.dim] for value in inputs + outputs]
    if not inputs or any(not shape or shape[0] is None for shape in shapes):
        return False
    named = {shape[0] for shape in shapes} - {""}
    # A second dimension of that size, as in an (N, N) output, means that rows depend on one another.
    return len(named) <= 1 and not any(symbol in named for shape in shapes for symbol in shape[1:])
