"""Runs batches: holds the models of a worker and turns each `RunBatch` into its answer."""

import gc
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from sluice.models.backends.base import Backend, GpuOptions
from sluice.models.backends.configured import load_backend, prepare, warm_up_runs, warm_up_shapes
from sluice.models.backends.device_errors import is_context_lost, is_out_of_memory
from sluice.models.backends.sequence_states import SequenceStates, StartingSequences, sequence_states
from sluice.models.backends.timed import SlowedBackend
from sluice.models.errors import BackendFailed, PartitionError, SequencesLost, first_line
from sluice.models.measuring.memory_meter import MemoryMeter, trim
from sluice.models.measuring.memory_peaks import MemoryPeaks
from sluice.models.measuring.model_loading import DEFAULT_MODEL_LOADING, ModelLoadingSettings
from sluice.models.measuring.quick import measure_steps, run_to_end, warm_up_steps
from sluice.models.measuring.thorough import profile_steps
from sluice.models.pipelines.confidence import confidence
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.tensors.arrays import Array
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.messages import (
    BatchFault,
    BatchFinished,
    BatchRefused,
    LoadResult,
    ModelFile,
    ModelMeasured,
    OverflowCreated,
    RunBatch,
)
from sluice.mps.worker.tensors import WorkerTensors


class ColdBackend(NamedTuple):
    """A backend that has not run yet, and a meter whose base was taken before it was created; None without one."""

    backend: Backend
    memory: MemoryMeter | None = None


class _Model(NamedTuple):
    """A loaded model; `states` are those of its sequences, None if it has none."""

    file: ModelFile
    backend: Backend
    table: LatencyTable
    states: SequenceStates | None = None


class Runner:
    """The models of one worker over its `tensors`; every run takes `slowdown` times as long as it would.

    `gpu` is None on a partition of cores. `meter` makes a meter of the memory that models take there.
    """

    def __init__(
        self,
        tensors: WorkerTensors,
        threads: int,
        slowdown: float = 1.0,
        gpu: GpuOptions | None = None,
        meter: Callable[[], MemoryMeter | None] = lambda: None,
        loading: ModelLoadingSettings = DEFAULT_MODEL_LOADING,
    ) -> None:
        self._tensors = tensors
        self._threads = threads
        self._slowdown = slowdown
        self._gpu = gpu
        self._meter = meter
        self._loading = loading
        self._refusals: dict[str, str] = {}
        self._models: dict[str, _Model] = {}

    def load(self, files: Sequence[ModelFile]) -> tuple[LoadResult, ...]:
        """Load, warm up and time models; a model that fails is reported and does not stop the others.

        Models whose memory was measured before are created beside each other, after the others.
        """
        results = {
            file.key: self._load(file, partial(self.create_backend, file, measure_memory=True))
            for file in files
            if not file.memory_measured
        }
        with ThreadPoolExecutor(self._loading.concurrent, "load") as threads:
            known = [file for file in files if file.memory_measured]
            backends = [threads.submit(self.create_backend, file, measure_memory=False) for file in known]
            for file, backend in zip(known, backends, strict=True):
                results[file.key] = self._load(file, backend.result)
        return tuple(results[file.key] for file in files)

    def _load(self, file: ModelFile, make: Callable[[], ColdBackend]) -> LoadResult:
        return run_to_end(self.load_steps(file, make))

    def create_backend(self, file: ModelFile, *, measure_memory: bool) -> ColdBackend:
        """Create the backend of a model; with `measure_memory` also a meter, which excludes the garbage of loading."""
        if not measure_memory:
            return ColdBackend(self.backend(file))
        prepare(file.backend, self._gpu)
        memory = self._meter()
        backend = self.backend(file)
        if memory is not None:
            memory.restart()
        return ColdBackend(backend, memory)

    def backend(self, file: ModelFile) -> Backend:
        """Load the backend of a model, cold; any thread may call it. Raises whatever the backend's module raises."""
        backend = load_backend(file.backend, file.path, self._threads, file.config, self._gpu)
        return backend if self._slowdown == 1 else SlowedBackend(backend, self._slowdown)

    def load_steps(self, file: ModelFile, make: Callable[[], ColdBackend]) -> Generator[None, None, LoadResult]:
        """Take the backend of `make`; warm up, time and measure it, one run a step, and hold it; never raises."""
        try:
            (backend, memory), table, shapes = make(), file.table, warm_up_shapes(file.config)
            states = sequence_states(file.config, file.path)
            measured = backend if states is None else StartingSequences(backend, states)
            peaks, budget_ns = MemoryPeaks(memory), self._loading.run_ns
            yield from warm_up_runs(measured, file.config)
            if table is None:
                table = yield from measure_steps(
                    measured, file.batchable, file.menu, shapes=shapes, peaks=peaks, budget_ns=budget_ns
                )
            else:
                yield from warm_up_steps(measured, file.batchable, file.menu, table, shapes, peaks, budget_ns)
        except Exception as error:
            if isinstance(error, PartitionError):
                self._refusals[file.key] = f"model {file.key}: {first_line(error)}"
            return LoadResult(file.key, None, first_line(error))
        self._models[file.key] = _Model(file, backend, table, states)
        self._refusals.pop(file.key, None)
        return LoadResult(file.key, table, memory=peaks.model_memory())

    def profile_steps(self, file: ModelFile, meter: Callable[[], MemoryMeter]) -> Generator[None, None, ModelMeasured]:
        """Load and measure a model thoroughly, a run a step, and hold it; never raises. It must be the first model."""
        made = []

        def load() -> Backend:
            made.append(self.backend(file))
            return made[0] if states is None else StartingSequences(made[0], states)

        try:
            states = sequence_states(file.config, file.path)
            shapes = warm_up_shapes(file.config)
            prepare(file.backend, self._gpu)
            measurement = yield from profile_steps(load, file.batchable, file.menu, meter(), shapes)
        except Exception as error:
            return ModelMeasured(error=first_line(error))
        self._models[file.key] = _Model(file, made[0], measurement.table(50), states)
        return ModelMeasured(measurement)

    @property
    def refusals(self) -> tuple[str, ...]:
        """The reasons why models were not loaded that would have run outside the partition."""
        return tuple(self._refusals.values())

    @property
    def providers(self) -> dict[str, str]:
        """ONNX Runtime's provider of each loaded model by key, without models that choose it by themselves."""
        return {key: provider for key, model in self._models.items() if (provider := model.backend.provider)}

    @property
    def threads(self) -> dict[str, int]:
        """The number of threads that run a batch of each loaded model by key, without models that do not report it."""
        return {key: threads for key, model in self._models.items() if (threads := model.backend.threads)}

    def loaded(self, key: str) -> LoadResult | None:
        """Return the load result of a loaded model, None if it is not loaded."""
        model = self._models.get(key)
        return model and LoadResult(key, model.table)

    def unload(self, key: str) -> None:
        """Unload a model, if it is loaded, and return its memory to the system."""
        if self._models.pop(key, None):
            gc.collect()
            trim()

    def run(self, run: RunBatch) -> tuple[BatchFinished | BatchRefused, tuple[OverflowCreated, Region] | None]:
        """Run a batch; the overflow region, if there is one, is to be sent before the answer."""
        try:
            return self._run(run)
        except Exception as error:  # An error of the backend, MemoryError included, fails this batch alone.
            return BatchRefused(run.batch, f"{run.model}: {first_line(error)}", self._fault(error)), None

    def _fault(self, error: Exception) -> BatchFault:
        if isinstance(error, SequencesLost):
            return BatchFault.STATES
        if is_out_of_memory(error):
            return BatchFault.MEMORY
        # On cores there is no context to lose: such a text may come from a request, and the worker goes on.
        return BatchFault.DEVICE if self._gpu is not None and is_context_lost(error) else BatchFault.BATCH

    def _run(self, run: RunBatch) -> tuple[BatchFinished, tuple[OverflowCreated, Region] | None]:
        if run.model not in self._models:
            raise BackendFailed("the model is not loaded on this worker")
        file, backend, _, states = self._models[run.model]
        started_ns = time.monotonic_ns()
        inputs = {tensor.name: self._tensors.read(tensor) for tensor in run.inputs}
        outputs = backend.run(inputs) if states is None else states.run(backend, inputs, run.sequences)
        if file.batchable:
            _check_rows(outputs, run.inputs[0].shape[0])
        confidences = tuple(tuple(confidence(outputs[name], kind).tolist()) for name, kind in file.confidences)
        written, slot, region = self._tensors.write(outputs, file.batchable)
        done = BatchFinished(run.batch, started_ns, time.monotonic_ns(), written, slot, confidences)
        return done, (OverflowCreated(written[0].region, region.nbytes), region) if region else None


def _check_rows(outputs: dict[str, Array], rows: int) -> None:
    for name, array in outputs.items():
        if not array.ndim or array.shape[0] != rows:
            raise BackendFailed(f"output {name} has shape {list(array.shape)}, expected {rows} rows as in the batch")
