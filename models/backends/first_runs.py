"""The runs of a model that nobody has asked for: their inputs, and the check that the model keeps its word in them."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np

from sluice.models.backends.base import Backend
from sluice.models.backends.configured import calling_backend
from sluice.models.backends.device_errors import is_out_of_memory
from sluice.models.errors import BackendFailed
from sluice.models.tensors.arrays import Array, datatype_of, numpy_dtype
from sluice.models.tensors.spec import VARIABLE, DataType, DeclaredTensors, TensorSpec, element_count

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


class Filling(NamedTuple):
    """Made-up contents of inputs: the size of variable dimensions, and every element of BYTES; numbers are zeros."""

    size: int
    text: bytes


FIRST_FILLING = Filling(1, b"")
OTHER_FILLINGS = (Filling(1, b"0"), Filling(8, b"0"), Filling(32, b"0"), Filling(224, b"0"), Filling(640, b"0"))
"""Those to try when a model refuses the first one: text that is a number, and sizes that convolutions need."""
MAX_ELEMENTS = 1 << 22
"""Elements of an item that is made up."""


class FirstRun(NamedTuple):
    """The inputs of a run, and the nanoseconds that it took."""

    inputs: dict[str, Array]
    took_ns: int


class FirstRuns:
    """The first run of a backend at each batch size, with made-up inputs; the outputs are checked.

    `shapes` are the sizes of variable dimensions; without them, one is found that the model takes. `declared` are the
    model's tensors (None: those of the backend). A decoupled model has no outputs to check: it sends responses.
    """

    def __init__(
        self, backend: Backend, batchable: bool, shapes: Shapes | None, declared: DeclaredTensors | None
    ) -> None:
        self._backend = backend
        self._batchable = batchable
        self._shapes = shapes
        self._tensors = declared or declared_by(backend, batchable)
        calling = calling_backend(backend)
        self._has_outputs = calling is None or not calling.is_decoupled
        self._filling: Filling | None = None

    def run(self, rows: int) -> FirstRun:
        """Run a batch; raises BackendFailed, also for outputs that are not as declared."""
        outputs, run = self._filled(rows, self._filling) if self._filling else self._searched(rows)
        if self._has_outputs:
            check_outputs(outputs, self._tensors.outputs, rows if self._batchable else None)
        return run

    def _searched(self, rows: int) -> tuple[dict[str, Array], FirstRun]:
        """Run the first batch of all with the first filling that the model takes."""
        try:
            found = self._filled(rows, FIRST_FILLING)
        except BackendFailed as error:
            if is_out_of_memory(error):
                raise
            others = list(fillings(self._tensors.inputs, self._shapes))
            for filling in others:
                with suppress(BackendFailed):
                    found = self._filled(rows, filling)
                    self._filling = filling
                    return found
            if not others:
                raise
            hint = "give typical sizes of its inputs with model_warmup in config.pbtxt"
            raise BackendFailed(f"{error}; the model was run on zeros of {len(others) + 1} kinds: {hint}") from error
        self._filling = FIRST_FILLING
        return found

    def _filled(self, rows: int, filling: Filling) -> tuple[dict[str, Array], FirstRun]:
        inputs = blank_batch(self._tensors.inputs, rows if self._batchable else None, self._shapes, filling)
        started = time.monotonic_ns()
        outputs = self._backend.run(inputs)
        return outputs, FirstRun(inputs, max(1, time.monotonic_ns() - started))


def fillings(inputs: Sequence[TensorSpec], shapes: Shapes | None) -> Iterator[Filling]:
    """The fillings after the first one that make other inputs and are not too large."""
    seen = [_shapes(inputs, shapes, FIRST_FILLING)]
    has_text = any(tensor.datatype is DataType.BYTES for tensor in inputs)
    for filling in OTHER_FILLINGS:
        made = _shapes(inputs, shapes, filling)
        is_new = made not in seen or (has_text and len(seen) == 1)
        if is_new and all(element_count(shape) <= MAX_ELEMENTS for shape in made):
            yield filling
            seen.append(made)


def blank_batch(
    inputs: Sequence[TensorSpec], rows: int | None, shapes: Shapes | None = None, filling: Filling = FIRST_FILLING
) -> dict[str, Array]:
    """Inputs that are made up; `rows` is None for a model without a batch dimension."""
    batch = () if rows is None else (rows,)
    return {
        tensor.name: _blank(tensor.datatype, batch + shape, filling)
        for tensor, shape in zip(inputs, _shapes(inputs, shapes, filling), strict=True)
    }


def batch_in_words(rows: int) -> str:
    """A batch as errors name it."""
    return f"a batch of {rows} {'row' if rows == 1 else 'rows'}"


@contextmanager
def naming_rows(rows: int | None) -> Iterator[None]:
    """Add the size of the batch to a BackendFailed."""
    try:
        yield
    except BackendFailed as error:
        if rows is None:
            raise
        raise BackendFailed(f"{batch_in_words(rows)}: {error}") from error


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


def _shapes(inputs: Sequence[TensorSpec], shapes: Shapes | None, filling: Filling) -> list[tuple[int, ...]]:
    """The shape of an item of each input."""
    known = shapes or {}
    return [
        known.get(tensor.name) or tuple(filling.size if size == VARIABLE else size for size in tensor.shape)
        for tensor in inputs
    ]


def _blank(datatype: DataType, shape: tuple[int, ...], filling: Filling) -> Array:
    if datatype is DataType.BYTES:
        return np.full(shape, filling.text, np.object_)
    return np.zeros(shape, numpy_dtype(datatype))
