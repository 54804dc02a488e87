"""The runs of a model that nobody has asked for: their inputs, and the check that the model keeps its word in them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from sluice.models.backends.base import Backend
from sluice.models.errors import BackendFailed
from sluice.models.tensors.arrays import Array, datatype_of, numpy_dtype
from sluice.models.tensors.spec import VARIABLE, DataType, DeclaredTensors, TensorSpec

Shapes = Mapping[str, tuple[int, ...]]
"""Item shapes for inputs of variable shape, by input."""


def declared_by(backend: Backend, batchable: bool) -> DeclaredTensors:
    """The tensors that a backend says the model has."""
    start = 1 if batchable else 0
    inputs, outputs = (
        tuple(TensorSpec(tensor.name, tensor.datatype, tensor.shape[start:]) for tensor in tensors)
        for tensors in (backend.inputs, backend.outputs)
    )
    return DeclaredTensors(inputs, outputs)


def blank_batch(inputs: Sequence[TensorSpec], rows: int | None, shapes: Shapes | None = None) -> dict[str, Array]:
    """Zeros and empty strings for inputs, with variable dimensions of 1 unless `shapes` has others.

    `rows` is None for a model without a batch dimension.
    """
    known = shapes or {}
    return {tensor.name: _blank(tensor, rows, known.get(tensor.name)) for tensor in inputs}


@contextmanager
def naming_rows(rows: int | None) -> Iterator[None]:
    """Add the size of the batch to a BackendFailed."""
    try:
        yield
    except BackendFailed as error:
        if rows is None:
            raise
        raise BackendFailed(f"a batch of {rows} {'row' if rows == 1 else 'rows'}: {error}") from error


def check_outputs(outputs: Mapping[str, Array], declared: Sequence[TensorSpec], rows: int | None) -> None:
    """Check the outputs of a run against those that the model declares; raises BackendFailed.

    `rows` is None for a model without a batch dimension. Outputs that are not declared are ignored.
    """
    for tensor in declared:
        array = outputs.get(tensor.name)
        if array is None:
            raise BackendFailed(f"output '{tensor.name}' is missing")
        datatype = datatype_of(array.dtype)
        if numpy_dtype(datatype) != numpy_dtype(tensor.datatype):
            raise BackendFailed(f"output '{tensor.name}': expected {tensor.datatype}, got {datatype}")
        _check_shape(tensor, array.shape, rows)


def _check_shape(tensor: TensorSpec, shape: tuple[int, ...], rows: int | None) -> None:
    item = shape if rows is None else shape[1:]
    has = f"output '{tensor.name}' has shape {list(shape)}"
    if rows is not None and shape[:1] != (rows,):
        raise BackendFailed(
            f"{has}, expected {rows} in front, the rows of the batch; "
            "set max_batch_size to 0 in config.pbtxt to serve the model without batches"
        )
    if not tensor.accepts(item):
        raise BackendFailed(
            f"{has}, expected {list(tensor.shape)}{'' if rows is None else ' after the rows'} as the model declares; "
            "give the output dims of -1 in config.pbtxt where its size varies"
        )


def _blank(tensor: TensorSpec, rows: int | None, item: tuple[int, ...] | None) -> Array:
    batch = () if rows is None else (rows,)
    shape = batch + (item or tuple(1 if dimension == VARIABLE else dimension for dimension in tensor.shape))
    if tensor.datatype is DataType.BYTES:
        return np.full(shape, b"", np.object_)
    return np.zeros(shape, numpy_dtype(tensor.datatype))
