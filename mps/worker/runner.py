"""Runs batches: holds the models of a worker and turns each `RunBatch` into its answer."""

import gc
import os
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import msgspec

from sluice.models.backends.base import Backend, GpuOptions
from sluice.models.backends.calling import (
    BatchBroke,
    BatchRan,
    CallingBackend,
    CallMade,
    Progress,
    ReadyAnswer,
    ResponseMade,
)
from sluice.models.backends.configured import calling_backend, load_backend, prepare, warm_up_runs, warm_up_shapes
from sluice.models.backends.device_errors import is_context_lost, is_out_of_memory
from sluice.models.backends.requests import RequestFailure, RequestPart
from sluice.models.backends.sequence_states import SequenceStates, measurable, sequence_states
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
    AnswerCall,
    AskReady,
    BatchFault,
    BatchFinished,
    BatchRefused,
    BatchWaits,
    CallModel,
    LoadResult,
    ModelFile,
    ModelMeasured,
    OverflowCreated,
    ReadinessReport,
    ResponseSent,
    ResponseTaken,
    RunBatch,
)
from sluice.mps.worker.responses import BatchResponses
from sluice.mps.worker.tensors import WorkerTensors

_NO_MODELS: set[str] = set()


class ColdBackend(NamedTuple):
    """A backend that has not run yet, and a meter whose base was taken before it was created; None without one."""

    backend: Backend
    memory: MemoryMeter | None = None


class _Model(NamedTuple):
    """A loaded model; `states` are those of its sequences, None if it has none."""

    file: ModelFile
    backend: Backend
    table: LatencyTable
    calling: CallingBackend | None = None
    states: SequenceStates | None = None


class Report(NamedTuple):
    """A message to the gateway with the descriptors that go along; `owned` ones are closed once it is sent."""

    message: BatchFinished | BatchRefused | OverflowCreated | BatchWaits | CallModel | ReadinessReport | ResponseSent
    fds: tuple[int, ...] = ()
    owned: bool = False


class _Waiting(NamedTuple):
    """A batch that waits for other models, or sends responses."""

    run: RunBatch
    started_ns: int
    responses: BatchResponses | None = None


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
        self._waiting: dict[int, _Waiting] = {}
        self._calls: dict[int, tuple[int, int]] = {}
        self._last_call = 0
        self._asked: dict[int, str] = {}
        self._running = 0

    def load(
        self, files: Sequence[ModelFile], note_done: Callable[[int], object] = lambda done: None
    ) -> tuple[LoadResult, ...]:
        """Load, warm up and time models; a model that fails is reported and does not stop the others.

        Models whose memory was measured before are created beside each other, after the others. `note_done` gets the
        number of models that were tried so far.
        """
        results: dict[str, LoadResult] = {}
        for file in files:
            if not file.memory_measured:
                results[file.key] = self._load(file, partial(self.create_backend, file, measure_memory=True))
                note_done(len(results))
        with ThreadPoolExecutor(self._loading.concurrent, "load") as threads:
            known = [file for file in files if file.memory_measured]
            backends = [threads.submit(self.create_backend, file, measure_memory=False) for file in known]
            for file, backend in zip(known, backends, strict=True):
                results[file.key] = self._load(file, backend.result)
                note_done(len(results))
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
        calling = calling_backend(backend)
        if self._slowdown == 1 or (calling is not None and calling.is_decoupled):
            return backend
        return SlowedBackend(backend, self._slowdown)

    def load_steps(self, file: ModelFile, make: Callable[[], ColdBackend]) -> Generator[None, None, LoadResult]:
        """Take the backend of `make`; warm up, time and measure it, one run a step, and hold it; never raises."""
        try:
            (backend, memory), table, shapes = make(), file.table, warm_up_shapes(file.config)
            states = sequence_states(file.config, file.path)
            measured = measurable(backend, states)
            peaks, budget_ns = MemoryPeaks(memory), self._loading.run_ns
            yield from warm_up_runs(measured, file.config)
            if table is None:
                table = yield from measure_steps(
                    measured,
                    file.batchable,
                    file.menu,
                    shapes=shapes,
                    peaks=peaks,
                    budget_ns=budget_ns,
                    declared=file.declared,
                )
            else:
                yield from warm_up_steps(
                    measured, file.batchable, file.menu, table, shapes, peaks, budget_ns, file.declared
                )
        except Exception as error:
            if isinstance(error, PartitionError):
                self._refusals[file.key] = f"model {file.key}: {first_line(error)}"
            return LoadResult(file.key, None, first_line(error))
        self._models[file.key] = _Model(file, backend, table, calling_backend(backend), states)
        self._refusals.pop(file.key, None)
        calling = self._models[file.key].calling
        loaded = LoadResult(file.key, table, memory=peaks.model_memory())
        if calling is None:
            return loaded
        return msgspec.structs.replace(loaded, metrics=calling.take_metrics(), tells_ready=calling.tells_ready)

    def profile_steps(self, file: ModelFile, meter: Callable[[], MemoryMeter]) -> Generator[None, None, ModelMeasured]:
        """Load and measure a model thoroughly, a run a step, and hold it; never raises. It must be the first model."""
        made = []

        def load() -> Backend:
            made.append(self.backend(file))
            return measurable(made[0], states)

        try:
            states = sequence_states(file.config, file.path)
            shapes = warm_up_shapes(file.config)
            prepare(file.backend, self._gpu)
            measurement = yield from profile_steps(load, file.batchable, file.menu, meter(), shapes, file.declared)
        except Exception as error:
            return ModelMeasured(error=first_line(error))
        self._models[file.key] = _Model(file, made[0], measurement.table(50), states=states)
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
            return self._refusal(run, error), None

    def shows_requests(self, key: str) -> bool:
        """Return whether batches of a model are to be given to `start` instead of `run`."""
        model = self._models.get(key)
        return model is not None and model.calling is not None

    @property
    def is_running(self) -> bool:
        """True while a batch of a decoupled model runs, beside which no other batch is to be started."""
        return self._running > 0

    @property
    def waiting_models(self) -> set[str]:
        """The models of batches that wait for other models or send responses, and those that were asked for readiness.

        There is something to `resume` for them.
        """
        if not self._waiting and not self._asked:
            return _NO_MODELS
        return {each.run.model for each in self._waiting.values()} | set(self._asked.values())

    def _ask_ready(self, question: AskReady) -> list[Report]:
        """Ask a model whether it is ready; returns the answer if there is one already."""
        model = self._models.get(question.model)
        calling = None if model is None else model.calling
        if calling is not None and calling.ask_ready(question.number):
            self._asked[question.number] = question.model
            return []
        # A model that was unloaded here meanwhile says nothing against those that other partitions hold.
        return [Report(ReadinessReport(question.number, calling is None))]

    def start(self, run: RunBatch) -> list[Report]:
        """Run a batch until it ends or waits for another model; returns what is to be sent, in this order.

        That of a decoupled model goes on until it does; see `is_running`. Beside others of its model, which may have
        to go on before it can, it counts as one that waits.
        """
        model = self._models[run.model]
        assert model.calling is not None
        if model.states is not None:
            try:
                model.states.begin(run.sequences)
            except SequencesLost as error:
                return [Report(self._refusal(run, error))]
        responses = BatchResponses(run.batch, model.calling, self._tensors) if model.calling.is_decoupled else None
        is_alone = all(each.run.model != run.model for each in self._waiting.values())
        self._waiting[run.batch] = _Waiting(run, time.monotonic_ns(), responses)
        if responses is not None and is_alone:
            self._running = run.batch
        try:
            inputs = {tensor.name: self._tensors.read(tensor) for tensor in run.inputs}
            requests: Sequence[RequestPart] = run.requests
            if model.states is not None:
                requests = model.states.placed_requests(requests, run.sequences)
                inputs = model.states.feed(inputs, run.sequences)
            progress = model.calling.start(run.batch, inputs, requests)
        except Exception as error:  # as in `run`
            progress = [BatchBroke(run.batch, first_line(error))]
        reports = self._reports(progress)
        if run.batch in self._waiting and run.batch != self._running:
            reports.insert(0, Report(BatchWaits(run.batch)))
        return reports

    def resume(self) -> list[Report]:
        """Return what has come from models that waited."""
        reports: list[Report] = []
        for key in self.waiting_models:
            calling = self._models[key].calling
            assert calling is not None
            reports += self._reports(calling.resume())
        return reports

    def filenos(self) -> list[int]:
        """The descriptors that can be read when there is something to `resume`."""
        filenos: list[int] = []
        for key in self.waiting_models:
            calling = self._models[key].calling
            assert calling is not None
            filenos += calling.filenos()
        return filenos

    def response_sent(self, batch: int) -> None:
        """Record that a response has left the worker."""
        if (responses := self._responses(batch)) is not None:
            responses.sent()

    def cancel_responses(self, batch: int) -> bool:
        """Tell the model of a batch that its client has gone; False if the batch has not started, or has ended."""
        responses = self._responses(batch)
        if responses is not None:
            responses.cancel()
        return responses is not None

    def _responses(self, batch: int) -> BatchResponses | None:
        waiting = self._waiting.get(batch)
        return None if waiting is None else waiting.responses

    def _response_taken(self, message: ResponseTaken) -> None:
        if (responses := self._responses(message.batch)) is not None:
            responses.taken(message.slot)
        elif message.slot >= 0:
            self._tensors.free(message.slot)

    def pass_on(self, message: AnswerCall | AskReady | ResponseTaken, fds: tuple[int, ...]) -> list[Report]:
        """Give a model the answer to its call, let it send more, or ask it; returns what can be answered at once."""
        if isinstance(message, AskReady):
            return self._ask_ready(message)
        if isinstance(message, ResponseTaken):
            self._response_taken(message)
            return []
        self._answer_call(message, fds)
        return []

    def _answer_call(self, answer: AnswerCall, fds: tuple[int, ...]) -> None:
        """Give the answer to a call to the model that waits for it, if it still does; the descriptors are closed."""
        try:
            batch, call = self._calls.pop(answer.call, (0, 0))
            waiting = self._waiting.get(batch)
            if waiting is not None and (calling := self._models[waiting.run.model].calling) is not None:
                calling.answer(call, answer.result, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _reports(self, progress: Sequence[Progress]) -> list[Report]:
        reports: list[Report] = []
        for each in progress:
            if isinstance(each, CallMade):
                self._last_call += 1
                self._calls[self._last_call] = each.batch, each.call
                if each.batch == self._running:
                    self._running = 0
                    reports.append(Report(BatchWaits(each.batch)))
                reports.append(Report(CallModel(each.batch, self._last_call, each.request), (each.fd,), owned=True))
                continue
            if isinstance(each, ReadyAnswer):
                del self._asked[each.number]
                reports.append(Report(ReadinessReport(each.number, each.is_ready)))
                continue
            if isinstance(each, ResponseMade):
                reports += self._response(each)
                continue
            run, started_ns, responses = self._waiting.pop(each.batch)
            if each.batch == self._running:
                self._running = 0
            for call in [call for call, (batch, _) in self._calls.items() if batch == each.batch]:
                del self._calls[call]
            try:
                if isinstance(each, BatchBroke):
                    raise self._error(run, each)
                if responses is not None and responses.failure is not None:
                    raise responses.failure
                reports += self._finished(run, started_ns, each)
            except Exception as error:  # as in `run`
                reports.append(Report(self._refusal(run, error)))
        return reports

    def _error(self, run: RunBatch, broke: BatchBroke) -> BackendFailed:
        """The error of a batch; the end of its model's process also ends the sequences of the model."""
        model = self._models.get(run.model)
        if model is None or model.states is None or not broke.process_ended:
            return BackendFailed(broke.message)
        model.states.clear()
        return SequencesLost(f"{broke.message}, with the states of its sequences; start them again")

    def _refusal(self, run: RunBatch, error: Exception) -> BatchRefused:
        return BatchRefused(run.batch, f"{run.model}: {first_line(error)}", self._fault(error))

    def _response(self, made: ResponseMade) -> list[Report]:
        responses = self._responses(made.batch)
        assert responses is not None, "only decoupled models send responses"
        if (written := responses.write(made)) is None:
            return []
        sent, overflow = written
        created = [] if overflow is None else [Report(overflow[0], (overflow[1].fd,))]
        return [*created, Report(sent)]

    def _finished(self, run: RunBatch, started_ns: int, ran: BatchRan) -> list[Report]:
        model = self._models[run.model]
        assert model.calling is not None
        if model.calling.is_decoupled:
            done, overflow = BatchFinished(run.batch, started_ns, time.monotonic_ns(), (), -1), None
        else:
            outputs, errors = ran.outputs, ran.errors
            if model.states is not None:
                outputs = model.states.taken_outputs(outputs, run.sequences)
                errors = model.states.taken_errors(errors, run.sequences)
            done, overflow = self._written(model.file, run, started_ns, outputs, errors)
        if metrics := model.calling.take_metrics() + ran.metrics:
            done = msgspec.structs.replace(done, metrics=metrics)
        created = [] if overflow is None else [Report(overflow[0], (overflow[1].fd,))]
        return [*created, Report(done)]

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
        file, backend, _, _, states = self._models[run.model]
        started_ns = time.monotonic_ns()
        inputs = {tensor.name: self._tensors.read(tensor) for tensor in run.inputs}
        outputs = backend.run(inputs) if states is None else states.run(backend, inputs, run.sequences)
        return self._written(file, run, started_ns, outputs, ())

    def _written(
        self,
        file: ModelFile,
        run: RunBatch,
        started_ns: int,
        outputs: dict[str, Array],
        errors: tuple[RequestFailure, ...],
    ) -> tuple[BatchFinished, tuple[OverflowCreated, Region] | None]:
        if file.batchable:
            _check_rows(outputs, run.inputs[0].shape[0])
        confidences = tuple(tuple(confidence(outputs[name], kind).tolist()) for name, kind in file.confidences)
        written, slot, region = self._tensors.write(outputs, file.batchable)
        done = BatchFinished(run.batch, started_ns, time.monotonic_ns(), written, slot, confidences, errors)
        return done, (OverflowCreated(written[0].region, region.nbytes), region) if region else None


def _check_rows(outputs: dict[str, Array], rows: int) -> None:
    for name, array in outputs.items():
        if not array.ndim or array.shape[0] != rows:
            raise BackendFailed(f"output {name} has shape {list(array.shape)}, expected {rows} rows as in the batch")
