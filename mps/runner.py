"""Runs batches: loads the models of a worker, turns one `Run` into its answer."""

import importlib
import time
from collections.abc import Sequence

from models.arrays import Array
from models.backends.base import Backend
from models.confidence import confidence
from models.errors import BackendFailed
from models.measure import measure_table, warm
from mps.arena import Region
from mps.messages import Done, Failed, LoadedModel, ModelFile, Overflow, Run
from mps.tensors import WorkerTensors


class Runner:
    """The models of one worker over its `tensors`."""

    def __init__(self, tensors: WorkerTensors, threads: int) -> None:
        self._tensors = tensors
        self._threads = threads
        self._models: dict[str, tuple[ModelFile, Backend]] = {}

    def load(self, files: Sequence[ModelFile]) -> tuple[LoadedModel, ...]:
        """Load, warm and time models; one that fails is reported and does not keep the others from serving."""
        return tuple(self._load(file) for file in files)

    def run(self, run: Run) -> tuple[Done | Failed, tuple[Overflow, Region] | None]:
        """Run a batch; the overflow region, where there is one, is to be sent before the answer."""
        try:
            return self._run(run)
        except Exception as error:  # Whatever a backend raises, MemoryError included, is this batch's failure alone.
            return Failed(run.batch, f"{run.model}: {_first_line(error)}"), None

    def _load(self, file: ModelFile) -> LoadedModel:
        try:
            backend: Backend = importlib.import_module(f"models.backends.{file.backend}").load(file.path, self._threads)
            table = file.table
            if table is None:
                table = measure_table(backend, file.batchable, file.menu)
            else:
                warm(backend, file.batchable, file.menu)
        except Exception as error:
            return LoadedModel(file.key, None, _first_line(error))
        self._models[file.key] = file, backend
        return LoadedModel(file.key, table)

    def _run(self, run: Run) -> tuple[Done, tuple[Overflow, Region] | None]:
        if run.model not in self._models:
            raise BackendFailed("the model is not loaded on this worker")
        file, backend = self._models[run.model]
        started_ns = time.monotonic_ns()
        outputs = backend.run({tensor.name: self._tensors.read(tensor) for tensor in run.inputs})
        if file.batchable:
            _check_rows(outputs, run.inputs[0].shape[0])
        verdicts = tuple(tuple(confidence(outputs[name], kind).tolist()) for name, kind in file.verdicts)
        written, slot, region = self._tensors.write(outputs, file.batchable)
        done = Done(run.batch, started_ns, time.monotonic_ns(), written, slot, verdicts)
        return done, (Overflow(written[0].region, region.nbytes), region) if region else None


def _check_rows(outputs: dict[str, Array], rows: int) -> None:
    for name, array in outputs.items():
        if not array.ndim or array.shape[0] != rows:
            raise BackendFailed(f"output {name} has shape {list(array.shape)}, expected {rows} rows as in the batch")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
