"""Adds to any backend what a model's configuration asks for: reshaped tensors, batches row by row, warm-up runs."""

import importlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sluice.models.backends.base import Backend, GpuOptions
from sluice.models.backends.calling import BatchRan, CallingBackend, Progress
from sluice.models.backends.metric_updates import MetricUpdate
from sluice.models.backends.requests import CallResult, RequestPart
from sluice.models.errors import BackendFailed
from sluice.models.tensors.arrays import Array, numpy_dtype
from sluice.models.tensors.spec import VARIABLE, DataType, TensorSpec
from sluice.models.triton_config.model_config import TensorConfig, TritonModelConfig, WarmUp, WarmUpInput, decode_config


class _Reshape(NamedTuple):
    """The dimensions of an item in the model, and those that clients see."""

    model: tuple[int, ...]
    client: tuple[int, ...]


class _ReshapedCalling:
    """The same for a backend whose models call others; see `CallingBackend`."""

    def __init__(self, calling: CallingBackend, reshaped: "ReshapedBackend") -> None:
        self._calling = calling
        self._reshaped = reshaped
        self.answer: Callable[[int, CallResult, Sequence[int]], None] = calling.answer
        self.filenos: Callable[[], Sequence[int]] = calling.filenos
        self.take_metrics: Callable[[], tuple[MetricUpdate, ...]] = calling.take_metrics
        self.ask_ready: Callable[[int], bool] = calling.ask_ready
        self.taken: Callable[[int], None] = calling.taken
        self.cancel: Callable[[int], None] = calling.cancel
        self.is_decoupled: bool = calling.is_decoupled

    @property
    def tells_ready(self) -> bool:
        """True if the model says by itself whether it is ready."""
        return self._calling.tells_ready

    def start(self, batch: int, inputs: Mapping[str, Array], requests: Sequence[RequestPart]) -> list[Progress]:
        """Start a batch on reshaped views."""
        return self._outside(self._calling.start(batch, self._reshaped.to_model(inputs), requests))

    def measure(self, inputs: Mapping[str, Array], requests: Sequence[RequestPart]) -> dict[str, Array]:
        """Run one batch on reshaped views for its time alone."""
        return self._reshaped.to_client(self._calling.measure(self._reshaped.to_model(inputs), requests))

    def resume(self) -> list[Progress]:
        """The progress of batches that waited."""
        return self._outside(self._calling.resume())

    def _outside(self, progress: Sequence[Progress]) -> list[Progress]:
        return [
            each._replace(outputs=self._reshaped.to_client(each.outputs)) if isinstance(each, BatchRan) else each
            for each in progress
        ]


class ReshapedBackend:
    """A backend with tensors whose item shapes differ for clients and for the model; see `Backend`."""

    def __init__(self, backend: Backend, config: TritonModelConfig) -> None:
        self._backend = backend
        self.provider, self.threads = backend.provider, backend.threads
        self._batch = 1 if config.max_batch_size else 0
        self._reshapes = {
            tensor.name: _Reshape(tensor.reshape.shape, tensor.dims)
            for tensor in config.tensors
            if tensor.reshape is not None
        }
        self.inputs = tuple(self._outside(tensor) for tensor in backend.inputs)
        self.outputs = tuple(self._outside(tensor) for tensor in backend.outputs)
        self.calling = _ReshapedCalling(backend, self) if isinstance(backend, CallingBackend) else None

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch on reshaped views."""
        return self.to_client(self._backend.run(self.to_model(inputs)))

    def to_model(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Inputs as the model sees them."""
        return {name: self._reshaped(name, array, "model") for name, array in inputs.items()}

    def to_client(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs as clients see them."""
        return {name: self._reshaped(name, array, "client") for name, array in outputs.items()}

    def _reshaped(self, name: str, array: Array, side: str) -> Array:
        reshape = self._reshapes.get(name)
        if reshape is None:
            return array
        try:
            return array.reshape(array.shape[: self._batch] + getattr(reshape, side))
        except ValueError as error:
            raise BackendFailed(f"tensor '{name}': {error}") from error

    def _outside(self, tensor: TensorSpec) -> TensorSpec:
        reshape = self._reshapes.get(tensor.name)
        if reshape is None:
            return tensor
        return TensorSpec(tensor.name, tensor.datatype, tensor.shape[: self._batch] + reshape.client)


class RowByRowBackend:
    """A backend for batches over one that takes exactly one row; see `Backend`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.provider, self.threads = backend.provider, backend.threads
        self.inputs = tuple(_with_rows(tensor) for tensor in backend.inputs)
        self.outputs = tuple(_with_rows(tensor) for tensor in backend.outputs)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the rows of a batch one after the other; raises BackendFailed, also for rows that cannot be joined."""
        rows = len(next(iter(inputs.values())))
        # An output is only valid until the next run.
        answers = [
            {name: array.copy() for name, array in self._backend.run(_row_of(inputs, row)).items()}
            for row in range(rows)
        ]
        return {name: _joined(name, [answer[name] for answer in answers]) for name in answers[0]}


def _with_rows(tensor: TensorSpec) -> TensorSpec:
    return TensorSpec(tensor.name, tensor.datatype, (VARIABLE, *tensor.shape[1:]))


def _row_of(inputs: Mapping[str, Array], row: int) -> dict[str, Array]:
    return {name: array[row : row + 1] for name, array in inputs.items()}


def _joined(name: str, rows: list[Array]) -> Array:
    """The output of a batch from those of its rows."""
    for array in rows:
        if array.shape[:1] != (1,):
            raise BackendFailed(f"output '{name}' has shape {list(array.shape)} for one row; expected 1 in front")
        if array.shape != rows[0].shape:
            raise BackendFailed(
                f"output '{name}' has shape {list(array.shape)} for one row and {list(rows[0].shape)} for another one; "
                "send rows whose outputs differ in size one by one"
            )
    return np.concatenate(rows)


def load_backend(backend: str, path: str, threads: int, config: str, gpu: GpuOptions | None = None) -> Backend:
    """Load the model of a file on the backend of that name; `config` and `gpu` are as for the backend's `load`.

    Raises whatever the backend raises.
    """
    loaded: Backend = importlib.import_module(f"sluice.models.backends.{backend}").load(path, threads, config, gpu)
    if not config:
        return loaded
    form = decode_config(config)
    if form.max_batch_size and loaded.inputs and all(tensor.shape[:1] == (1,) for tensor in loaded.inputs):
        loaded = RowByRowBackend(loaded)
    return ReshapedBackend(loaded, form) if any(tensor.reshape is not None for tensor in form.tensors) else loaded


def calling_backend(backend: Backend) -> CallingBackend | None:
    """The backend as one whose models see requests and call other models; None for other backends."""
    if isinstance(backend, ReshapedBackend):
        return backend.calling
    return backend if isinstance(backend, CallingBackend) else None


def prepare(backend: str, gpu: GpuOptions | None = None) -> None:
    """Load the libraries that a backend's models share in a process, so that no model is charged with their memory."""
    module = importlib.import_module(f"sluice.models.backends.{backend}")
    if hasattr(module, "prepare"):
        module.prepare(gpu)


def warm_up_shapes(config: str) -> dict[str, tuple[int, ...]]:
    """The item shapes of a configuration's warm-up by input: typical sizes of variable dimensions."""
    runs = decode_config(config).model_warmup if config else ()
    return {name: each.dims for run in runs[:1] for name, each in run.inputs.items()}


def warm_up_runs(backend: Backend, config: str) -> Generator[None, None, None]:
    """Run the warm-ups of a configuration, one a step; raises BackendFailed."""
    if not config:
        return
    form = decode_config(config)
    for warm_up in form.model_warmup:
        inputs = _batch(warm_up, form.input, bool(form.max_batch_size))
        for _ in range(max(warm_up.count, 1)):
            backend.run(inputs)
            yield


def _batch(warm_up: WarmUp, tensors: Iterable[TensorConfig], batchable: bool) -> dict[str, Array]:
    rows = (warm_up.batch_size,) if batchable else ()
    given = (tensor for tensor in tensors if tensor.name in warm_up.inputs)
    return {tensor.name: _filled(tensor, warm_up.inputs[tensor.name], rows) for tensor in given}


def _filled(tensor: TensorConfig, given: WarmUpInput, rows: tuple[int, ...]) -> Array:
    shape, datatype = rows + given.dims, tensor.datatype
    assert datatype is not None
    if datatype is DataType.BYTES:
        return np.full(shape, b"", np.object_)
    if not given.random_data:
        return np.zeros(shape, numpy_dtype(datatype))
    random = np.random.default_rng(0)
    return random.random(shape).astype(numpy_dtype(datatype))
