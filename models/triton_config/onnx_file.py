"""Reads the tensors of a model from its ONNX file."""

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

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


def read_tensors(path: Path, wanted: Collection[str] = ()) -> FileTensors:
    """Return the tensors of the model in `path`, without outputs other than those `wanted`; its weights are not read.

    All outputs are read if none is wanted, or one that there is not.

    The model is batchable if the first dimension of all its tensors is one symbol that no other dimension uses. Where
    inputs have variable first dimensions without a name, or of different names, or an output has another one, runs are
    needed to decide. Raises ConfigError, with the path, for a file that cannot be read and for tensors that the
    protocol cannot carry.
    """
    outline = read_outline(path)
    try:
        values = [onnx.ValueInfoProto.FromString(value) for value in outline.inputs]
        outputs = [onnx.ValueInfoProto.FromString(value) for value in outline.outputs]
    except DecodeError as error:
        raise ConfigError(f"{path}: not an ONNX model: {error}") from error
    inputs = [value for value in values if value.name not in outline.weights]
    if not outputs:
        reason = "the graph has no outputs" if path.stat().st_size else "the file is empty"
        raise ConfigError(f"{path}: not an ONNX model: {reason}")
    check_external(path, outline)
    if {value.name for value in outputs}.issuperset(wanted):
        outputs = [value for value in outputs if not wanted or value.name in wanted]
    shapes = [_Shape.of("input", value) for value in inputs], [_Shape.of("output", value) for value in outputs]
    batchable, no_batches, needs_trial = _batching(*shapes)
    return FileTensors(
        tuple(_tensor(path, "input", value) for value in inputs),
        tuple(_tensor(path, "output", value) for value in outputs),
        batchable,
        "onnxruntime_onnx",
        no_batches=no_batches,
        needs_trial=needs_trial,
        unranked=frozenset(shape.name for shape in shapes[0] + shapes[1] if shape.dims is None),
    )


def _tensor(path: Path, role: str, value: onnx.ValueInfoProto) -> TensorSpec:
    """The spec of a whole tensor, batch dimension included."""
    where = f"{path}: {role} '{value.name}'"
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        hint = ""
        if _is_map(value.type):
            hint = "; export a classifier of scikit-learn with options={'zipmap': False}"
        raise ConfigError(f"{where}: expected a tensor, got {kind or 'a value without a type'}{hint}")
    tensor = value.type.tensor_type
    datatype = _DATATYPE.get(tensor.elem_type)
    if datatype is None:
        known = onnx.TensorProto.DataType.values()
        got = onnx.TensorProto.DataType.Name(tensor.elem_type) if tensor.elem_type in known else tensor.elem_type
        raise ConfigError(f"{where}: ONNX type {got} is not supported; expected one that maps to {', '.join(DataType)}")
    shape = tuple(VARIABLE if _symbol(dim) is not None else dim.dim_value for dim in tensor.shape.dim)
    return TensorSpec(value.name, datatype, shape)


def _symbol(dim: onnx.TensorShapeProto.Dimension) -> str | None:
    """The name of a variable dimension ("" without a name), None for a number. Some exporters write -1."""
    if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
        return None
    return dim.dim_param


def _is_map(kind: onnx.TypeProto) -> bool:
    """Return whether a value is a map, or a sequence of maps as ZipMap makes it."""
    which = kind.WhichOneof("value")
    return which == "map_type" or (which == "sequence_type" and _is_map(kind.sequence_type.elem_type))


class _Shape(NamedTuple):
    """The dimensions of a tensor as in `_symbol`, None without a rank; `title` is for messages."""

    name: str
    title: str
    dims: list[str | int] | None

    @classmethod
    def of(cls, role: str, value: onnx.ValueInfoProto) -> "_Shape":
        tensor = value.type.tensor_type
        dims: list[str | int] | None = None
        if tensor.HasField("shape"):
            symbols = [(_symbol(dim), dim.dim_value) for dim in tensor.shape.dim]
            dims = [number if symbol is None else symbol for symbol, number in symbols]
        return cls(value.name, f"{role} '{value.name}'", dims)


def _batching(inputs: list[_Shape], outputs: list[_Shape]) -> tuple[bool, str, bool]:
    """Return whether the model is batchable, why it is not, and whether runs can decide better."""
    for reason in (_no_rows_in(inputs), _scalar_in(outputs)):
        if reason:
            return False, reason, False
    ranked = [(shape.title, shape.dims) for shape in inputs + outputs if shape.dims is not None]
    names = {dims[0] for _, dims in ranked} - {""}
    # A second dimension of that size, as in an (N, N) output, means that rows depend on one another.
    for title, dims in ranked:
        for symbol in dims[1:]:
            if isinstance(symbol, str) and symbol in names:
                return False, f"{title} has the dimension '{symbol}', the rows, behind the first one as well", False
    different = ""
    for shape in outputs:
        if shape.dims is None:
            different = f"the rank of {shape.title} is not declared"
        elif isinstance(shape.dims[0], int):
            different = f"{shape.title} has a fixed first dimension of {shape.dims[0]}, and inputs have not"
    if not different and len(names) > 1:
        different = f"the first dimensions have different names: {', '.join(sorted(map(str, names)))}"
    unnamed = any(dims[0] == "" for _, dims in ranked)
    return not different, different and f"{different}; set max_batch_size if it is the rows", bool(different) or unnamed


def _no_rows_in(inputs: list[_Shape]) -> str:
    """The reason why inputs have no rows; "" if their first dimensions are all variable."""
    if not inputs:
        return "the model has no inputs"
    one_row = all(shape.dims is not None and shape.dims[:1] == [1] for shape in inputs)
    for _, title, dims in inputs:
        if dims is None:
            return f"the rank of {title} is not declared; set max_batch_size if its first dimension is the rows"
        if not dims:
            return f"{title} is a scalar, without rows; send what belongs together in one request"
        if isinstance(dims[0], int):
            by_row = ", or set max_batch_size to run it row by row" if one_row else ""
            return f"{title} has a fixed first dimension of {dims[0]}; export with dynamic_axes{by_row}"
    return ""


def _scalar_in(outputs: list[_Shape]) -> str:
    scalars = [shape.title for shape in outputs if shape.dims == []]
    if not scalars:
        return ""
    remedy = "send what belongs together in one request"
    if len(scalars) < len(outputs):
        remedy = "name only the other outputs in config.pbtxt"
    return f"{scalars[0]} is a scalar, without rows; {remedy}"
