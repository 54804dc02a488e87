"""The executor over worker processes, one a partition."""

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import DispatchBatch, LoadModel, Member, ReleaseReason, UnloadModel
from sluice.batcher.interface.events import (
    BatchCompleted,
    BatchFailed,
    BatchRevoked,
    BatchSuspended,
    FailureCause,
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
    PartitionResized,
)
from sluice.gateway.config.triton_settings import BATCH_TIMEOUT_S
from sluice.gateway.executors.base import EventSink
from sluice.gateway.executors.request_parts import (
    SHOWS_REQUESTS,
    FindSubmission,
    member_failures,
    no_submission,
    request_parts,
)
from sluice.gateway.executors.worker.answer_check import check_answer, check_response, missing_output
from sluice.gateway.executors.worker.readiness import Readiness, Send
from sluice.gateway.executors.worker.record import WorkerRecord
from sluice.gateway.executors.worker.waiting import (
    MOST_CALLS,
    MOST_WAITING,
    CallHandler,
    NoCalls,
    WaitingBatch,
)
from sluice.gateway.observability.custom_metrics import CustomMetrics
from sluice.gateway.partitions.inventory import ProcessDetails
from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.protocol.status import model_error
from sluice.gateway.tensors.assembly import Assembly
from sluice.gateway.tensors.body_memory import BodyMemory
from sluice.gateway.tensors.combiner import Combined
from sluice.gateway.tensors.input_slots import InputSlots
from sluice.gateway.tensors.pipeline_wiring import PipelineWiring
from sluice.gateway.tensors.request_tensors import BatchOutputs, no_release
from sluice.gateway.tensors.responses import ModelResponse, ResponseRouter
from sluice.gateway.tensors.stage_cache import StageCache
from sluice.models.backends.requests import CallResult, FailureCode
from sluice.models.errors import PartitionError, WorkerGone
from sluice.models.pipelines.pipeline import batch_key
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.profiles.measurement import ModelMemory
from sluice.models.spec import ModelSpec
from sluice.models.tensors.arrays import WireBytes, numpy_dtype
from sluice.mps.daemon.control import MpsControl
from sluice.mps.ipc.claim import new_claim, take
from sluice.mps.ipc.messages import (
    RESPONSE_WINDOW,
    AnswerCall,
    AskReady,
    BatchFault,
    BatchFinished,
    BatchRefused,
    BatchReport,
    BatchWaits,
    BatchWithdrawn,
    CallModel,
    CancelResponses,
    LoadResult,
    ModelFile,
    OutputTensor,
    ReadinessReport,
    ResponseSent,
    ResponseTaken,
    RunBatch,
    WithdrawBatch,
    WorkerReady,
)
from sluice.mps.partitions.partition import Partition
from sluice.mps.supervisor.child import Launch, launch_worker
from sluice.mps.supervisor.process import WorkerProcess
from sluice.mps.supervisor.quarantine import DEFAULT_QUARANTINE, QuarantineSettings
from sluice.mps.supervisor.supervisor import Supervisor
from sluice.mps.supervisor.worker_spec import WorkerSpec

_CAUSES = {BatchFault.MEMORY: FailureCause.OUT_OF_MEMORY, BatchFault.STATES: FailureCause.STATES_LOST}
_RECYCLED = "the worker is being recycled to free memory"


class WorkerExecutor:
    """Runs batches on worker processes that share memory with the gateway.

    `wirings` are the pipelines by `name:version`, and `models` the specs by key; `input_bytes` is the size of the arena
    for inputs. The workers start with `start`, end with `drain`, and hold any of the models of their specs. A worker
    that does not end a batch within `batch_timeout_s` (more for a slow model, see `HangDetector`) is killed.
    `quarantine`, `controls` and `spare` are for `recovery` from faults, and `launch` starts the processes (see
    `Supervisor`). `cache` is for stages that use the response cache. `responses` get what decoupled models send.
    """

    def __init__(
        self,
        workers: Sequence[WorkerSpec],
        wirings: Mapping[str, PipelineWiring],
        models: Mapping[str, ModelSpec],
        input_bytes: int,
        batch_timeout_s: float = BATCH_TIMEOUT_S,
        quarantine: QuarantineSettings = DEFAULT_QUARANTINE,
        controls: Mapping[str, MpsControl] = {},
        cache: StageCache | None = None,
        *,
        spare: bool = False,
        launch: Launch = launch_worker,
        responses: ResponseRouter | None = None,
    ) -> None:
        self.responses = responses or ResponseRouter()
        self._supervisor = Supervisor(
            workers, self, quarantine=quarantine, controls=controls, spare=spare, launch=launch
        )
        self.recovery = self._supervisor.recovery
        self._files = {spec.partition.name: {file.key: file for file in spec.models} for spec in workers}
        self._slots = InputSlots(self._supervisor, input_bytes)
        self.bodies = BodyMemory(input_bytes, self._slots.take_part)
        self._assembly = Assembly(wirings, models, self._slots, cache)
        self._batch_timeout_s = batch_timeout_s
        self._workers: dict[str, WorkerRecord] = {}
        self._replaced: dict[WorkerProcess, WorkerRecord] = {}
        self._resizing: dict[str, tuple[Partition, PartitionConfig, Mapping[str, LatencyTable]]] = {}
        self._variable: dict[str, frozenset[str]] = {}
        self._specs: dict[str, ModelSpec] = {}
        self._streaming: dict[int, tuple[WorkerRecord, int]] = {}
        """The batches of decoupled models that workers have, by request, with the worker."""
        self.add(wirings, models, {})
        self._report: EventSink
        self._judged_models: set[str] = set()
        self._readiness = Readiness()
        self.metrics = CustomMetrics()
        """The metrics that models define."""
        self.calls: CallHandler = NoCalls()
        """Runs the calls that models make of other models."""
        self.ask_elsewhere: Send = _ask_nobody
        """Asks models on other machines whether they are ready."""
        self.submission: FindSubmission = no_submission
        """The submission of a request without an outcome, for models that see requests."""
        # Only the assembly handles tensors.
        self.admit = self._assembly.admit
        self.look_up_cache = self._assembly.look_up_cache
        self.take_outputs = self._assembly.take_outputs

    def add(
        self,
        wirings: Mapping[str, PipelineWiring],
        models: Mapping[str, ModelSpec],
        files: Mapping[str, Mapping[str, ModelFile]],
    ) -> None:
        """Add pipelines and models; `files` are the models' files, by partition and key."""
        self._assembly.add(wirings, models)
        for key, spec in models.items():
            self._variable[key] = frozenset(output.name for output in spec.outputs if not output.fixed)
            self._specs[key] = spec
        for partition, given in files.items():
            self._files[partition].update(given)

    def remove(self, pipelines: Iterable[str], models: Collection[str]) -> None:
        """Remove pipelines that get no requests, and models that no worker holds."""
        self._assembly.remove(pipelines, models)
        self.metrics.forget(models)
        self._judged_models.difference_update(models)
        for pipeline in pipelines:
            self.responses.forget(pipeline)
        for key in models:
            self._variable.pop(key, None)
            self._specs.pop(key, None)
            for files in self._files.values():
                files.pop(key, None)
            self._supervisor.forget_model(key)

    def recycle(self, partition: str) -> None:
        """Replace the worker of a partition, which returns all its memory to the system.

        The loss is reported at once, so that no more batches are sent there; the worker ends when it has run its
        batches, which is bounded as for all batches. Without a worker, nothing happens.
        """
        worker = self._workers.get(partition)
        if worker is None or worker.on_drained:
            return
        self._supervisor.cancel_replacement(partition, _RECYCLED)
        self._report(PartitionLost(partition, _RECYCLED), ProcessDetails(planned=True))
        worker.on_drained = lambda: None  # it is retired from now on
        # It ends later, once the scheduler handled the event: until then it may send a batch.
        asyncio.get_running_loop().call_soon(self._retire, partition, worker)

    async def resize(
        self, partition: Partition, config: PartitionConfig, tables: Mapping[str, LatencyTable], timeout_s: float
    ) -> None:
        """Replace a partition's worker by one on another share; the old one serves until the new one is ready.

        `config` is the partition as the scheduler is to know it then, and `tables` are the latencies that are known for
        models there. Raises PartitionError, and nothing has changed, when that fails.
        """
        name = partition.name
        worker = self._workers.get(name)
        if name in self._resizing or (worker is not None and worker.on_drained is not None):
            raise PartitionError(f"partition {name}: its worker is being replaced already")
        taken_over = self._supervisor.resize(partition, tables)
        self._resizing[name] = partition, config, tables
        try:
            await asyncio.wait((taken_over,), timeout=timeout_s)
        except asyncio.CancelledError:
            taken_over.cancel()  # no caller waits for its end any more
            raise
        finally:
            # No effect if the replacement has just finished.
            self._supervisor.cancel_replacement(name, f"the new worker did not take over within {timeout_s:g} s")
            del self._resizing[name]
        await taken_over

    @property
    def regions(self) -> Supervisor:
        """The memory that this process and the workers share."""
        return self._supervisor

    @property
    def assembly(self) -> Assembly:
        """The tensors of requests, for executors that run batches elsewhere."""
        return self._assembly

    @property
    def arena_bytes(self) -> int:
        """Bytes of the input arena in use."""
        return self._slots.used_bytes + self.bodies.used_bytes

    def start(self, report: EventSink) -> None:
        """Start the workers."""
        self._report = report
        self._supervisor.start()

    async def drain(self, timeout_s: float = 5.0) -> None:
        """End the workers and release all shared memory."""
        for worker in (*self._workers.values(), *self._replaced.values()):
            worker.hang_detector.stop()
            for batch in list(worker.claims):
                worker.drop_claim(batch)
        await self._supervisor.drain(timeout_s)

    def run(self, batch: DispatchBatch) -> None:
        """Lay out the inputs and send the batch.

        Raises WorkerGone without a worker, and PartitionError without memory or if the batch does not fit into a
        message; nothing of the batch is kept then.
        """
        worker = self._workers.get(batch.partition)
        if worker is None:
            raise WorkerGone(f"partition {batch.partition} has no worker")
        file = self._files[batch.partition][batch.model]
        requests = request_parts(batch, self.submission) if file.backend == SHOWS_REQUESTS else ()
        # Confidences and requests come by row, as sequences do, and the core knows the rows in their order.
        keeps_order = bool(file.confidences or requests or batch.sequences)
        inputs = self._assembly.begin(batch, keeps_order=keeps_order)
        run = RunBatch(batch.batch, batch.model, inputs, tuple(worker.freed), requests, batch.sequences)
        claim = new_claim() if worker.batches else None
        try:
            worker.process.send(run, () if claim is None else (claim,))
        except BaseException:
            self._assembly.abandon(batch.batch)
            if claim is not None:
                os.close(claim)
            raise
        if claim is not None:
            worker.claims[batch.batch] = claim
        worker.freed.clear()
        worker.batches[batch.batch] = batch
        if self._specs[batch.model].decoupled:
            self._streaming[batch.members[0].request] = worker, batch.batch
        if len(worker.batches) == 1:
            worker.hang_detector.restart()

    def revoke(self, batch: int) -> None:
        """Take a batch back that waits behind another one, or ask the worker to; too late is no error."""
        for worker in (*self._workers.values(), *self._replaced.values()):
            if batch not in worker.batches:
                continue
            claim = worker.claims.get(batch)
            if claim is None:
                worker.process.send(WithdrawBatch(batch))
            elif take(claim):
                self._taken_back(worker, worker.batches.pop(batch))
            return

    def _taken_back(self, worker: WorkerRecord, batch: DispatchBatch) -> None:
        """Report a batch that the worker will not begin, and not answer."""
        worker.drop_claim(batch.batch)
        if self._specs[batch.model].decoupled:
            self._streaming.pop(batch.members[0].request, None)
        self._assembly.abandon(batch.batch)
        self._drained(worker)
        self._report(BatchRevoked(batch.batch))

    def discard(self, request: int) -> None:
        """Drop a request that gets no answer; a decoupled model that runs it hears of that."""
        self._assembly.discard(request)
        if self._streaming and (streaming := self._streaming.get(request)) is not None:
            worker, batch = streaming
            worker.process.send(CancelResponses(batch))

    def load(self, order: LoadModel) -> None:
        """Have a worker load a model; a worker that is gone is not asked, since its loss was reported."""
        worker = self._workers.get(order.partition)
        if worker is not None and worker.on_drained is None:
            worker.loading[order.model] = None
            self._supervisor.load(order.partition, self._files[order.partition][order.model])

    def unload(self, order: UnloadModel) -> None:
        """Have a worker unload a model after the batches that it was sent; not asked if it is gone."""
        if order.partition in self._workers:
            self._supervisor.unload(order.partition, order.model)

    def combine(self, members: Sequence[Member]) -> list[Combined | Exception]:
        """Join the answers of ensembles, in this process."""
        return self._assembly.combine(members)

    def worker_ready(self, partition: str, worker: WorkerProcess, ready: WorkerReady, output_region: int) -> None:
        """Take a new worker into service."""
        tables = {model.key: model.table for model in ready.models if model.table is not None}
        self.note_loaded(ready.models)
        self._workers[partition] = self._record(partition, worker, output_region, tables)
        details = ProcessDetails(
            ready.pid,
            ready.cores,
            ready.evidence,
            failed={model.key: model.error for model in ready.models if model.table is None},
        )
        self._report(PartitionReady(partition, tables, _memory(ready)), details)

    def worker_lost(self, partition: str, reason: str) -> None:
        """Report the loss, and the failure of each batch that the worker had, the running one first.

        The model that it was loading may be the reason, so its load has failed there; other models may be tried again.
        """
        worker = self._workers.pop(partition, None)
        if worker is None or worker.on_drained is None:
            failed = {}
            if worker is not None and worker.loading:
                failed[next(iter(worker.loading))] = f"the worker of {partition} was lost: {reason}"
            self._report(PartitionLost(partition, reason), ProcessDetails(failed=failed))
        if worker is not None:  # it was ready
            self._fail_batches(worker, reason)

    def runs_retry(self, partition: str) -> bool:
        """Return whether the first batch of a partition's worker has failed before."""
        worker = self._workers.get(partition)
        first = next(iter(worker.batches.values()), None) if worker is not None else None
        return first is not None and first.reason is ReleaseReason.RETRY

    def worker_replaced(
        self,
        partition: str,
        worker: WorkerProcess,
        ready: WorkerReady,
        output_region: int,
        tables: dict[str, LatencyTable],
    ) -> None:
        """Send new batches to another worker; the old one ends the batches that it has."""
        share, config, stored = self._resizing[partition]
        before = self._workers[partition]
        self._workers[partition] = self._record(partition, worker, output_region, tables)
        self._files[partition] = {
            key: msgspec.structs.replace(file, table=stored.get(key)) for key, file in self._files[partition].items()
        }
        resized = PartitionResized(
            partition, config.kind, config.price, config.share, tables, config.device, _memory(ready)
        )
        self._report(resized, ProcessDetails(ready.pid, ready.cores, ready.evidence, share))
        self._replaced[before.process] = before
        before.on_drained = lambda: self._supervisor.retire(before.process)
        self._drained(before)

    def worker_gone(self, worker: WorkerProcess, reason: str) -> None:
        """Report the batches that a replaced worker left unanswered."""
        self._fail_batches(self._replaced.pop(worker), reason)

    def _fail_batches(self, worker: WorkerRecord, reason: str) -> None:
        worker.lost = True
        worker.hang_detector.stop()
        left = [*worker.batches.items(), *((number, each.batch) for number, each in worker.waiting.items())]
        for batch, dispatched in left:
            self._forget_waiting(worker, batch)
            worker.drop_claim(batch)
            self._assembly.abandon(batch)
            self._streaming.pop(dispatched.members[0].request, None)
            self._report(BatchFailed(batch, FailureCause.WORKER_LOST, reason))
        if not worker.slots_in_use:
            self._supervisor.drop_region(worker.region)

    def model_loaded(self, partition: str, model: LoadResult) -> None:
        """Report that a worker loaded a model, or could not; not for a retired worker."""
        worker = self._workers[partition]
        worker.loading.pop(model.key, None)
        self.note_loaded((model,))
        if worker.on_drained is not None:
            return
        if worker.batches:
            worker.hang_detector.restart()
        details = ProcessDetails(evidence=model.evidence)
        if model.table is None:
            self._report(ModelLoadFailed(partition, model.key, model.error), details)
        else:
            worker.tables[model.key] = model.table
            self._report(ModelLoaded(partition, model.key, model.table, model.memory), details)

    def model_unloaded(self, partition: str, key: str) -> None:
        """Report that a worker unloaded a model; not for a retired worker."""
        if self._workers[partition].on_drained is not None:
            return
        self._report(ModelUnloaded(partition, key))

    def message(
        self,
        partition: str,
        process: WorkerProcess,
        message: BatchReport,
    ) -> None:
        """Handle a worker's answer; raises PartitionError for one that does not fit the worker's batches."""
        worker = self._replaced.get(process) or self._workers[partition]
        if worker.process is process and message.batch in worker.waiting and not isinstance(message, BatchWaits):
            if isinstance(message, ResponseSent):
                self._take_response(worker, worker.waiting[message.batch].batch, message)
            else:
                self._ended_waiting(partition, worker, message)
            return
        due = worker.batches if worker.process is process else {}  # it may yet have to replace another one
        if message.batch not in due:
            expected = sorted(due) or "none"
            raise PartitionError(f"an answer to batch {message.batch}, expected one of those sent to it: {expected}")
        if isinstance(message, ResponseSent):
            first = next(iter(worker.batches.values()))
            if message.batch != first.batch:
                raise PartitionError(f"a response of batch {message.batch} came while batch {first.batch} was running")
            self._take_response(worker, first, message)
            return
        if isinstance(message, BatchFinished):
            self._check(partition, worker, message)
        if isinstance(message, BatchRefused) and message.fault is BatchFault.DEVICE:
            self._context_lost(partition, worker.process, message.message)
            return
        batch = worker.batches.pop(message.batch)
        worker.drop_claim(batch.batch)
        if not worker.batches or next(iter(worker.batches)) > batch.batch:
            worker.hang_detector.held = False
        if worker.batches:
            worker.hang_detector.restart()
        if isinstance(message, BatchWaits):
            overdue = partial(self.recovery.end_worker, partition, process)
            waiting = WaitingBatch(batch, self._batch_timeout_s, overdue, worker.progress)
            worker.waiting[batch.batch] = waiting
            if worker.untaken.get(batch.batch) == RESPONSE_WINDOW:
                waiting.responded(is_held=True)
            self._report(BatchSuspended(batch.batch))
            return
        self._drained(worker)
        self._ended(worker, batch, message)

    async def says_ready(self, model: str) -> bool:
        """Return whether a model is ready by its own account, on each partition that holds it.

        True for a model that does not say. Callers that ask at the same time share one question.
        """
        return model not in self._judged_models or await self._readiness.ask(model, self._ask_ready)

    def _ask_ready(self, number: int, model: str) -> frozenset[str]:
        """Send a question to the workers that hold a model; returns their partitions."""
        asked = [name for name, each in self._workers.items() if model in each.tables and not each.lost]
        for name in asked:
            self._workers[name].process.send(AskReady(number, model))
        return self.ask_elsewhere(number, model).union(asked)

    def readiness_reported(self, partition: str, report: ReadinessReport) -> None:
        """Record that a model has said whether it is ready."""
        self.note_readiness(partition, report.number, report.is_ready)

    def note_readiness(self, partition: str, number: int, is_ready: bool) -> None:
        """Record the answer of a partition, here or elsewhere; one that is no longer expected counts for nothing."""
        self._readiness.reported(partition, number, is_ready=is_ready)

    def note_loaded(self, models: Iterable[LoadResult]) -> None:
        """Record what models that were loaded, here or elsewhere, say of themselves."""
        for model in models:
            if model.tells_ready:
                self._judged_models.add(model.key)
            if model.metrics:
                self.metrics.update(model.key, model.metrics)

    def _ended_waiting(
        self, partition: str, worker: WorkerRecord, message: BatchFinished | BatchRefused | BatchWithdrawn
    ) -> None:
        """Handle the answer to a batch that waited for other models."""
        batch = worker.waiting[message.batch].batch
        if isinstance(message, BatchFinished):
            check_answer(batch, self._specs[batch.model], self._files[partition][batch.model].confidences, message)
        self._forget_waiting(worker, message.batch)
        self._drained(worker)
        self._ended(worker, batch, message)

    def _forget_waiting(self, worker: WorkerRecord, batch: int) -> None:
        if (waiting := worker.waiting.pop(batch, None)) is not None:
            waiting.ended()
            self.calls.ended(batch)

    @staticmethod
    def _drained(worker: WorkerRecord) -> None:
        if worker.on_drained is not None and not worker.batches and not worker.waiting:
            worker.on_drained()

    def model_called(self, partition: str, process: WorkerProcess, call: CallModel, fd: int) -> None:
        """Run the call of a model; raises PartitionError for one of no batch that waits."""
        worker = self._replaced.get(process) or self._workers[partition]
        waiting = worker.waiting.get(call.batch) if worker.process is process else None
        if waiting is None:
            os.close(fd)
            raise PartitionError(f"a call of batch {call.batch}, expected one of a batch that waits")
        waiting.call_made()
        answer = partial(self._answer_call, worker, waiting, call.call)
        refusal = ""
        if len(worker.waiting) > MOST_WAITING:
            refusal = f"{MOST_WAITING} batches of the partition wait for other models already"
        elif waiting.calls > MOST_CALLS:
            refusal = f"the batch has {MOST_CALLS} calls under way already"
        if not refusal:
            self.calls.call(waiting.batch, call.request, fd, answer)
            return
        os.close(fd)
        answer(CallResult(error=f"the server is overloaded: {refusal}", code=FailureCode.UNAVAILABLE), ())

    @staticmethod
    def _answer_call(
        worker: WorkerRecord, waiting: WaitingBatch, call: int, result: CallResult, fds: Sequence[int]
    ) -> None:
        if waiting.batch.batch in worker.waiting:  # it has not ended
            waiting.call_answered()
            worker.process.send(AnswerCall(call, result), fds)

    def _ended(
        self, worker: WorkerRecord, batch: DispatchBatch, message: BatchFinished | BatchRefused | BatchWithdrawn
    ) -> None:
        """Report the end of a batch."""
        is_decoupled = self._specs[batch.model].decoupled
        if is_decoupled:
            self._end_responses(worker, batch)
        match message:
            case BatchFinished() if is_decoupled:
                if message.metrics:
                    self.metrics.update(batch.model, message.metrics)
                self._assembly.complete(batch.batch, BatchOutputs({}, {}, no_release))
                self._report(BatchCompleted(batch.batch, message.started_ns, message.ended_ns, (), ""))
            case BatchFinished() if name := missing_output(self._specs[batch.model], message):
                self._free(worker, message)()
                self._assembly.abandon(batch.batch)
                missing = f"{batch.model}: output {name} is missing"
                self._report(BatchFailed(batch.batch, FailureCause.BACKEND, missing))
            case BatchFinished():
                if message.metrics:
                    self.metrics.update(batch.model, message.metrics)
                located = {output.name: output for output in message.outputs}
                tensors = {output.name: self._view(output) for output in message.outputs}
                self._assembly.complete(batch.batch, BatchOutputs(tensors, located, self._free(worker, message)))
                key = self._output_key(batch.model, message.outputs)
                failures = member_failures(batch, message.errors, self.submission)
                self._report(
                    BatchCompleted(
                        batch.batch, message.started_ns, message.ended_ns, message.confidences, key, failures
                    )
                )
            case BatchRefused():
                self._assembly.abandon(batch.batch)
                cause = _CAUSES.get(message.fault, FailureCause.BACKEND)
                self._report(BatchFailed(batch.batch, cause, message.message))
            case BatchWithdrawn():
                self._assembly.abandon(batch.batch)
                self._report(BatchRevoked(batch.batch))

    def _take_response(self, worker: WorkerRecord, batch: DispatchBatch, message: ResponseSent) -> None:
        """Pass a response of a batch on to its request; raises as `message`."""
        check_response(batch, self._specs[batch.model], message)
        untaken = worker.untaken.get(message.batch, 0) + 1
        if untaken > RESPONSE_WINDOW:
            raise PartitionError(f"batch {message.batch} has more than {RESPONSE_WINDOW} responses that are not taken")
        self._went_on(worker, message.batch, untaken)
        tensors = {output.name: self._view(output) for output in message.outputs}
        error = None if message.error is None else model_error(message.error, message.code)
        free = self._free(worker, message) if message.outputs else None
        release = partial(self._response_taken, worker, message, free)
        self.responses.route(batch.members[0].request, ModelResponse(tensors, error, message.is_final, release))

    @staticmethod
    def _went_on(worker: WorkerRecord, batch: int, untaken: int) -> None:
        """Record how many responses of a batch are held here; with a full window it waits for its client."""
        worker.untaken[batch] = untaken
        is_held = untaken == RESPONSE_WINDOW
        if (waiting := worker.waiting.get(batch)) is not None:
            waiting.responded(is_held=is_held)
        else:
            worker.hang_detector.held = is_held
            worker.hang_detector.restart()

    def _response_taken(self, worker: WorkerRecord, response: ResponseSent, free: Callable[[], None] | None) -> None:
        """Return the memory of a response, and let its model send another one."""
        untaken = worker.untaken.get(response.batch)
        if worker.lost or untaken is None:
            if free is not None:
                free()
            return
        self._went_on(worker, response.batch, untaken - 1)
        if response.slot >= 0:  # the worker hears of it now: there may be no next batch for long
            worker.slots_in_use -= 1
        elif free is not None:
            free()
        worker.process.send(ResponseTaken(response.batch, response.slot))

    def _end_responses(self, worker: WorkerRecord, batch: DispatchBatch) -> None:
        """Record that a batch of a decoupled model has ended, before or after it began to run."""
        self._streaming.pop(batch.members[0].request, None)
        worker.untaken.pop(batch.batch, None)

    def _check(self, partition: str, worker: WorkerRecord, answer: BatchFinished) -> None:
        first = next(iter(worker.batches.values()))
        if answer.batch != first.batch:
            raise PartitionError(f"batch {answer.batch} has ended before batch {first.batch}, which was sent before it")
        confidences = self._files[partition][first.model].confidences
        check_answer(first, self._specs[first.model], confidences, answer)

    def _context_lost(self, partition: str, process: WorkerProcess, reason: str) -> None:
        """End a worker whose batches are lost; report at once the others that are lost with it.

        Otherwise a batch might be retried on one of them, whose context is lost as well.
        """
        for name, why in self.recovery.context_lost(partition, process, reason).items():
            worker = self._workers.get(name)
            if worker is not None and worker.on_drained is None:
                worker.on_drained = lambda: None
                self._supervisor.cancel_replacement(name, why)
                self._report(PartitionLost(name, why))

    def _record(
        self, partition: str, worker: WorkerProcess, region: int, tables: Mapping[str, LatencyTable]
    ) -> WorkerRecord:
        overdue = partial(self.recovery.end_worker, partition, worker)
        return WorkerRecord(worker, region, tables, self._batch_timeout_s, overdue)

    def _retire(self, partition: str, worker: WorkerRecord) -> None:
        worker.on_drained = lambda: self._supervisor.recycle(partition)
        self._drained(worker)

    def _view(self, output: OutputTensor) -> Tensor:
        memory = self._supervisor.region(output.region).view
        if output.row_offsets is not None:
            content = memory[output.offset : output.offset + output.nbytes]
            return WireBytes(content, output.shape, np.array(output.row_offsets, np.int64))
        return np.ndarray(output.shape, numpy_dtype(output.datatype), memory, output.offset)

    def _free(self, worker: WorkerRecord, done: BatchFinished | ResponseSent) -> Callable[[], None]:
        """A function that returns the memory of a batch's outputs: the worker hears of it with its next batch."""
        if done.slot < 0:
            region = done.outputs[0].region
            return lambda: self._supervisor.drop_region(region)
        return worker.keep_slot(done.slot, self._supervisor.drop_region)

    def _output_key(self, model: str, outputs: Sequence[OutputTensor]) -> str:
        """Distinguishes outputs whose variable dimensions differ; "" when all are fixed."""
        variable = self._variable[model]
        if not variable:
            return ""
        first = int(self._specs[model].batchable)
        return batch_key((output.name, output.shape[first:]) for output in outputs if output.name in variable)


def _ask_nobody(number: int, model: str) -> frozenset[str]:
    del number, model
    return frozenset()


def _memory(ready: WorkerReady) -> dict[str, ModelMemory]:
    """The memory that models took when a worker began with them, as far as it could measure that."""
    return {model.key: model.memory for model in ready.models if model.memory is not None}
