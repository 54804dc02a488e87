"""The expected inputs and outputs of a pipeline, prepared once per revision so that checks are cheap."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.protocol.client_key import ClientKey
from sluice.gateway.protocol.request import WireTensor
from sluice.gateway.protocol.shared_memory import SharedMemoryRef, SharedMemoryWindow
from sluice.models.errors import BadTensor, RequestError, ShapeMismatch, UnknownInput, UnknownOutput
from sluice.models.pipelines.pipeline import Pipeline, batch_key
from sluice.models.tensors.arrays import Buffer, WireBytes, encode_bytes, numpy_dtype, wire_row_offsets
from sluice.models.tensors.spec import RAW_ONLY, VARIABLE, DataType, TensorSpec, element_count


class CheckedInputs(NamedTuple):
    """The checked inputs of a request, as the runtime takes them."""

    inputs: dict[str, Tensor]
    rows: int
    batch_key: str
    memory_bytes: int


class _Input:
    """An expected input, with the properties that its check needs."""

    __slots__ = ("datatype", "dtype", "fixed", "is_text", "itemsize", "shape", "spec")

    def __init__(self, spec: TensorSpec, is_text: bool) -> None:
        self.is_text = is_text
        self.spec = spec
        self.shape = spec.shape
        self.fixed = spec.fixed
        self.datatype = spec.datatype.value
        self.itemsize = spec.datatype.itemsize
        self.dtype = numpy_dtype(spec.datatype)


class Signature:
    """The expected tensors of one immutable revision of a pipeline, and what tells its clients apart, if anything does.

    `client_key` is the server's, for pipelines without one of their own.
    """

    def __init__(self, pipeline: Pipeline, client_key: str | None = None) -> None:
        self.pipeline = pipeline
        name = client_key if pipeline.client_key is None else pipeline.client_key
        self.client_key = None if name is None else ClientKey(name)
        self.name = pipeline.name
        self.version = str(pipeline.version)
        self.key = pipeline.key
        self.outputs = {spec.name: spec for spec in pipeline.outputs}
        self.output_names = tuple(self.outputs)
        self.datatypes = {spec.name: spec.datatype.value for spec in pipeline.outputs}
        self.input_datatypes = {spec.name: spec.datatype.value for spec in pipeline.inputs}
        self._inputs = {spec.name: _Input(spec, spec.name in pipeline.text_inputs) for spec in pipeline.inputs}
        self.binary_only = tuple(spec.name for spec in pipeline.outputs if spec.datatype in RAW_ONLY)
        self._keyed = [spec.name for spec in pipeline.inputs if spec.keyed]
        self._batchable = pipeline.batchable
        self._max_rows = pipeline.max_batch_size

    def check_inputs(self, tensors: Sequence[WireTensor]) -> CheckedInputs:
        """Check the inputs of a request and make tensors of them; binary data is viewed, not copied.

        BYTES that go to a model of ONNX must be UTF-8, as its strings are. Raises RequestError, or a subclass of it,
        which names the tensor and the expectation.
        """
        inputs: dict[str, Tensor] = {}
        rows = 0
        memory_bytes = 0
        for tensor in tensors:
            expected = self._inputs.get(tensor.name)
            if expected is None:
                raise UnknownInput(
                    f"unexpected inference input '{tensor.name}' for model '{self.name}': "
                    f"allowed inputs are {_quoted(self._inputs)}"
                )
            if tensor.name in inputs:
                raise RequestError(f"input '{tensor.name}' already exists in request: an input may be given once")
            if tensor.datatype != expected.datatype:
                raise BadTensor(
                    f"inference input '{tensor.name}' data-type is '{tensor.datatype}', "
                    f"but model '{self.name}' expects '{expected.datatype}'"
                )
            tensor_rows = self._check_shape(expected, tensor.shape)
            if not inputs:
                rows = tensor_rows
            elif tensor_rows != rows:
                raise ShapeMismatch(
                    f"input '{tensor.name}' batch size does not match other inputs for '{self.name}': "
                    f"it has {tensor_rows} rows, '{next(iter(inputs))}' has {rows}"
                )
            inputs[tensor.name] = array = _tensor(expected, tensor, rows)
            memory_bytes += array.nbytes
        if len(inputs) != len(self._inputs):
            self._check_missing(inputs)
        return CheckedInputs(inputs, rows, self._batch_key(inputs) if self._keyed else "", memory_bytes)

    def _check_missing(self, inputs: Mapping[str, Tensor]) -> None:
        """Raise UnknownInput unless all missing inputs are optional and at least one input is given."""
        required = [name for name, each in self._inputs.items() if not each.spec.optional]
        missing = [name for name in required if name not in inputs]
        if inputs and not missing:
            return
        count = f"{len(self._inputs)}"
        if len(required) < len(self._inputs):
            count = f"number of inputs between {max(len(required), 1)} and {len(self._inputs)}"
        else:
            count += " inputs"
        raise UnknownInput(
            f"expected {count} but got {len(inputs)} inputs for model '{self.name}'"
            + (f": missing required input(s) {_quoted(missing)}" if missing else "")
        )

    def raw_input(self, data: Buffer) -> WireTensor:
        """The only input, from a body that is all data: one row, with at most one variable dimension.

        An input of BYTES is one element, without its length. Raises RequestError if the shape cannot be deduced.
        """
        specs = self.pipeline.inputs
        if len(specs) != 1:
            raise RequestError(
                f"Raw request must only have 1 input (found 1) to be deduced but got {len(specs)} inputs in "
                f"'{self.name}' model configuration"
            )
        (spec,) = specs
        wire_shape = (1, *spec.shape) if self._batchable else spec.shape
        fixed = element_count(tuple(dimension for dimension in wire_shape if dimension != VARIABLE))
        if spec.datatype is DataType.BYTES:
            if not spec.fixed or fixed != 1:
                raise RequestError(f"For BYTES datatype raw input '{spec.name}', the model must have input shape [1]")
            data = len(data).to_bytes(4, "little") + bytes(data)
        elif wire_shape.count(VARIABLE) > 1:
            raise RequestError(
                f"The shape of the raw input '{spec.name}' can not be deduced because there are more than one "
                "variable-sized dimension"
            )
        else:
            size = len(data) // (fixed * spec.datatype.itemsize) if fixed else 0
            wire_shape = tuple(size if dimension == VARIABLE else dimension for dimension in wire_shape)
        return WireTensor(spec.name, spec.datatype.value, wire_shape, data)

    def check_outputs(self, names: Sequence[str]) -> Sequence[str]:
        """The outputs to answer, in the requested order; all if none are named. Raises UnknownOutput."""
        if not names:
            return self.output_names
        for index, name in enumerate(names):
            if name not in self.outputs:
                raise UnknownOutput(
                    f"unexpected inference output '{name}' for model '{self.name}': "
                    f"allowed outputs are {_quoted(self.outputs)}"
                )
            if name in names[:index]:
                raise RequestError(f"output '{name}' already exists in request: an output may be asked for once")
        return names

    def _check_shape(self, expected: _Input, shape: tuple[int, ...]) -> int:
        """Check the shape of an input; returns its number of rows, which is 1 for a model without a batch dimension."""
        item = shape[1:] if self._batchable else shape
        known = item == expected.shape and expected.fixed
        # Without the last check an empty shape would pass as a scalar item of a batched model.
        if not (known or (expected.spec.accepts(item) and min(item, default=0) >= 0)) or (
            self._batchable and not shape
        ):
            raise ShapeMismatch(
                f"unexpected shape for input '{expected.spec.name}' for model '{self.name}'. "
                f"Expected {_dims(self.pipeline.wire_shape(expected.spec))}, got {_dims(shape)}"
            )
        if not self._batchable:
            return 1
        rows = shape[0]
        if rows > self._max_rows:
            raise ShapeMismatch(
                f"inference request batch-size must be <= {self._max_rows} for '{self.name}': "
                f"input '{expected.spec.name}' has {rows} rows"
            )
        if rows <= 0:
            problem = "is a zero-size batch" if rows == 0 else f"has {rows} rows"
            raise ShapeMismatch(f"input '{expected.spec.name}' {problem}: expected 1 to {self._max_rows} rows")
        return rows

    def _batch_key(self, inputs: dict[str, Tensor]) -> str:
        first = 1 if self._batchable else 0
        return batch_key((name, inputs[name].shape[first:]) for name in self._keyed if name in inputs)


def _tensor(expected: _Input, tensor: WireTensor, rows: int) -> Tensor:
    data, shape = tensor.data, tensor.shape
    count = element_count(shape)
    if isinstance(data, (np.ndarray, list)):
        if len(data) != count:
            raise BadTensor(
                f"input '{tensor.name}' has {len(data)} elements, but its shape {_dims(shape)} takes {count}"
            )
        if isinstance(data, np.ndarray):
            return data.reshape(shape)
        try:
            buffer, offsets = encode_bytes(np.array(data, np.object_), rows)
        except UnicodeEncodeError as error:
            raise BadTensor(f"input '{tensor.name}' has a string that UTF-8 cannot carry") from error
        if expected.is_text:
            _check_text(buffer, count, tensor.name)
        return WireBytes(buffer, shape, offsets)
    if isinstance(data, SharedMemoryWindow):
        if expected.itemsize and data.byte_size != count * expected.itemsize:
            raise _wrong_size(expected, shape, data.byte_size)
        data = data.read()
    assert not isinstance(data, SharedMemoryRef), "it has been looked up"
    if not expected.itemsize:
        offsets = wire_row_offsets(data, count, rows, f"input '{tensor.name}'")
        if expected.is_text:
            _check_text(data, count, tensor.name)
        return WireBytes(data, shape, offsets)
    if len(data) != count * expected.itemsize:
        raise _wrong_size(expected, shape, len(data))
    try:
        return np.ndarray(shape, expected.dtype, data)
    except ValueError as error:
        raise ShapeMismatch(f"input '{tensor.name}' has shape {_dims(shape)}, which no tensor can have") from error


def _wrong_size(expected: _Input, shape: tuple[int, ...], size: int) -> BadTensor:
    return BadTensor(
        f"input '{expected.spec.name}' has {size} bytes of data, but its shape {_dims(shape)} "
        f"of {expected.datatype} takes {element_count(shape) * expected.itemsize}"
    )


def _check_text(data: Buffer, count: int, name: str) -> None:
    """Raise BadTensor unless all `count` elements of a BYTES tensor in wire form are UTF-8."""
    if bytes(data).isascii():  # then so is every element
        return
    for element, (begin, end) in enumerate(pairwise(wire_row_offsets(data, count, count).tolist())):
        try:
            str(data[begin + 4 : end], "utf-8")
        except UnicodeDecodeError as error:
            raise BadTensor(
                f"input '{name}': element {element} is not UTF-8 text, as the strings of ONNX models must be"
            ) from error


def _dims(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
