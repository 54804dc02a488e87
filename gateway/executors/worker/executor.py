"""The executor over worker processes, one a partition."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import DispatchBatch, LoadModel, Member, UnloadModel
from sluice.batcher.interface.events import (
    BatchCompleted,
    BatchFailed,
    BatchRevoked,
    FailureCause,
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
    PartitionResized,
)
from sluice.gateway.executors.base import Combined, Post
from sluice.gateway.executors.hang_detector import BATCH_TIMEOUT_S
from sluice.gateway.executors.worker.callbacks import Watcher
from sluice.gateway.executors.worker.record import WorkerRecord
from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.tensors.assembly import Assembly
from sluice.gateway.tensors.input_slots import InputSlots
from sluice.gateway.tensors.pipeline_wiring import PipelineWiring
from sluice.gateway.tensors.request_tensors import Outputs
from sluice.gateway.tensors.stage_cache import StageCache
from sluice.models.errors import PartitionError
from sluice.models.pipelines.pipeline import batch_key
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.profiles.measurement import ModelMemory
from sluice.models.spec import ModelSpec
from sluice.models.tensors.arrays import WireBytes, numpy_dtype
from sluice.mps.daemon.control import MpsControl
from sluice.mps.ipc.messages import (
    BatchFault,
    BatchFinished,
    BatchRefused,
    BatchWithdrawn,
    LoadResult,
    ModelFile,
    OutputTensor,
    RunBatch,
    WithdrawBatch,
    WorkerReady,
)
from sluice.mps.partitions.partition import Partition
from sluice.mps.supervisor.process import WorkerProcess
from sluice.mps.supervisor.quarantine import DEFAULT_QUARANTINE, QuarantineSettings
from sluice.mps.supervisor.supervisor import Supervisor
from sluice.mps.supervisor.worker_spec import WorkerSpec


class WorkerExecutor:
    """Runs batches on worker processes that share memory with the gateway.

    `plans` are the pipelines by `name:version`, `models` the specs by key; `input_bytes` is the size of the arena for
    inputs. The workers start with `start` and end with `drain`, and hold any of the models of their specs. One that
    does not end a batch within `batch_timeout_s` (more for a slow model, see `BatchWatch`) is killed.
    `quarantine` and `controls` are for its `recovery` from faults, `cache` is for stages that are looked up.
    """

    def __init__(
        self,
        workers: Sequence[WorkerSpec],
        plans: Mapping[str, PipelineWiring],
        models: Mapping[str, ModelSpec],
        input_bytes: int,
        watcher: Watcher,
        batch_timeout_s: float = BATCH_TIMEOUT_S,
        quarantine: QuarantineSettings = DEFAULT_QUARANTINE,
        controls: Mapping[str, MpsControl] = {},
        cache: StageCache | None = None,
    ) -> None:
        self._supervisor = Supervisor(workers, self, quarantine=quarantine, controls=controls)
        self.recovery = self._supervisor.recovery
        self._files = {spec.partition.name: {file.key: file for file in spec.models} for spec in workers}
        self._slots = InputSlots(self._supervisor, input_bytes)
        self._assembly = Assembly(plans, models, self._slots, cache)
        self._watcher = watcher
        self._batch_timeout_s = batch_timeout_s
        self._workers: dict[str, WorkerRecord] = {}
        self._replaced: dict[WorkerProcess, WorkerRecord] = {}
        self._resizing: dict[str, tuple[Partition, PartitionConfig, Mapping[str, LatencyTable]]] = {}
        self._variable: dict[str, frozenset[str]] = {}
        self._first_dimension: dict[str, int] = {}
        self.add(plans, models, {})
        self._post: Post
        # Tensors are the assembly's business alone.
        self.admit = self._assembly.admit
        self.recall = self._assembly.recall
        self.take = self._assembly.take
        self.forget = self._assembly.forget

    def add(
        self,
        plans: Mapping[str, PipelineWiring],
        models: Mapping[str, ModelSpec],
        files: Mapping[str, Mapping[str, ModelFile]],
    ) -> None:
        """Know more pipelines and models; `files` are those of the models, by partition and key."""
        self._assembly.add(plans, models)
        for key, spec in models.items():
            self._variable[key] = frozenset(output.name for output in spec.outputs if not output.fixed)
            self._first_dimension[key] = int(spec.batchable)
        for partition, given in files.items():
            self._files[partition].update(given)

    def remove(self, pipelines: Iterable[str], models: Collection[str]) -> None:
        """Know pipelines no more that get no requests, and models that no worker holds."""
        self._assembly.remove(pipelines, models)
        for key in models:
            self._variable.pop(key, None)
            self._first_dimension.pop(key, None)
            for files in self._files.values():
                files.pop(key, None)
            self._supervisor.forget_model(key)

    def recycle(self, partition: str) -> None:
        """Have a new worker take the place of that of a partition, which gives all its memory back to the system.

        The loss is reported at once, so that nothing is sent there any more; the worker goes when it has done what it
        was sent, which is bounded like all batches. Nothing happens when there is no worker.
        """
        worker = self._workers.get(partition)
        if worker is None or worker.retired:
            return
        reason = "another one takes its place, so that its memory returns"
        self._supervisor.cancel_replacement(partition, "the worker is given up, so that its memory returns")
        self._watcher.worker_retired(partition, reason)
        self._post(PartitionLost(partition, reason))
        # After the scheduler has been told: until then it may send a batch.
        asyncio.get_running_loop().call_soon(self._retire, partition, worker)

    async def resize(
        self, partition: Partition, config: PartitionConfig, tables: Mapping[str, LatencyTable], timeout_s: float
    ) -> None:
        """Have a worker on another share take the place of a partition's, which serves until that one is ready for it.

        `config` is the partition as the scheduler is to know it then, `tables` are what is known of the speed of models
        there. Raises PartitionError, and nothing has changed, when that cannot be.
        """
        name = partition.name
        worker = self._workers.get(name)
        if name in self._resizing or (worker is not None and worker.retired is not None):
            raise PartitionError(f"partition {name}: another worker takes the place of its own just now")
        taken_over = self._supervisor.resize(partition, tables)
        self._resizing[name] = partition, config, tables
        try:
            await asyncio.wait((taken_over,), timeout=timeout_s)
        except asyncio.CancelledError:
            taken_over.cancel()  # nobody is left to hear how it ends
            raise
        finally:
            # Unless it is done, be it in this very moment.
            self._supervisor.cancel_replacement(name, f"the new worker did not take over within {timeout_s:g} s")
            del self._resizing[name]
        await taken_over

    @property
    def assembly(self) -> Assembly:
        """The tensors of requests, for those who run batches elsewhere."""
        return self._assembly

    @property
    def arena_bytes(self) -> int:
        """Bytes of the input arena in use."""
        return self._slots.used_bytes

    def start(self, post: Post) -> None:
        """Start the workers."""
        self._post = post
        self._supervisor.start()

    async def drain(self, timeout_s: float = 5.0) -> None:
        """End the workers and give all shared memory up."""
        await self._supervisor.drain(timeout_s)

    def run(self, batch: DispatchBatch) -> None:
        """Lay out the inputs and send the batch.

        Raises PartitionError when there is no memory, no worker, or more to say of the batch than fits into a message;
        nothing is kept of it then.
        """
        worker = self._workers.get(batch.partition)
        if worker is None:
            raise PartitionError(f"partition {batch.partition} has no worker")
        inputs = self._assembly.begin(batch)
        try:
            worker.process.send(RunBatch(batch.batch, batch.model, inputs, tuple(worker.freed)))
        except BaseException:
            self._assembly.abandon(batch.batch)
            raise
        worker.freed.clear()
        worker.batches[batch.batch] = batch
        if len(worker.batches) == 1:
            worker.watch.restart()

    def revoke(self, batch: int) -> None:
        """Ask the worker to take a batch back; too late is no error."""
        for worker in (*self._workers.values(), *self._replaced.values()):
            if batch in worker.batches:
                worker.process.send(WithdrawBatch(batch))

    def load(self, order: LoadModel) -> None:
        """Have a worker load a model; to one that is gone nothing is sent, since its loss has been reported."""
        worker = self._workers.get(order.partition)
        if worker is not None and worker.retired is None:
            worker.loading[order.model] = None
            self._supervisor.load(order.partition, self._files[order.partition][order.model])

    def unload(self, order: UnloadModel) -> None:
        """Have a worker give up a model after the batches that it was sent; as `load`."""
        if order.partition in self._workers:
            self._supervisor.unload(order.partition, order.model)

    def combine(self, member: Member) -> Combined:
        """Join the answers of an ensemble, in this process."""
        return self._assembly.combine(member)

    def worker_ready(self, partition: str, worker: WorkerProcess, ready: WorkerReady, output_region: int) -> None:
        """Take a new worker into service."""
        tables = {model.key: model.table for model in ready.models if model.table is not None}
        self._workers[partition] = self._record(partition, worker, output_region, tables)
        self._watcher.worker_ready(partition, ready)
        self._post(PartitionReady(partition, tables, _memory(ready)))

    def worker_lost(self, partition: str, reason: str) -> None:
        """Report the loss, and the failure of each batch that the worker had, the running one first.

        The model that it was to load just then may be the reason, so it has failed there; others may be tried again.
        """
        worker = self._workers.pop(partition, None)
        if worker is None or worker.retired is None:
            if worker is not None and worker.loading:
                culprit = next(iter(worker.loading))
                self._watcher.model_load_failed(partition, culprit, f"the worker of {partition} was lost: {reason}")
            self._watcher.worker_lost(partition, reason)
            self._post(PartitionLost(partition, reason))
        if worker is not None:  # it was ready
            self._bury(worker, reason)

    def worker_replaced(
        self,
        partition: str,
        worker: WorkerProcess,
        ready: WorkerReady,
        output_region: int,
        tables: dict[str, LatencyTable],
    ) -> None:
        """Send what comes to another worker; the one before ends what it has."""
        share, config, stored = self._resizing[partition]
        before = self._workers[partition]
        self._workers[partition] = self._record(partition, worker, output_region, tables)
        self._files[partition] = {
            key: msgspec.structs.replace(file, table=stored.get(key)) for key, file in self._files[partition].items()
        }
        self._watcher.worker_replaced(share, ready)
        resized = PartitionResized(
            partition, config.kind, config.price, config.share, tables, config.device, _memory(ready)
        )
        self._post(resized)
        self._replaced[before.process] = before
        before.retired = lambda: self._supervisor.retire(before.process)
        if not before.batches:
            before.retired()

    def worker_gone(self, worker: WorkerProcess, reason: str) -> None:
        """Report what a worker has not answered that another one has taken the place of."""
        self._bury(self._replaced.pop(worker), reason)

    def _bury(self, worker: WorkerRecord, reason: str) -> None:
        worker.lost = True
        worker.watch.stop()
        for batch in worker.batches:
            self._assembly.abandon(batch)
            self._post(BatchFailed(batch, FailureCause.WORKER_LOST, reason))
        if not worker.slots_in_use:
            self._supervisor.drop_region(worker.region)

    def model_loaded(self, partition: str, model: LoadResult) -> None:
        """Report that a worker loaded a model, or could not; of one that is retired there is nothing to report."""
        worker = self._workers[partition]
        worker.loading.pop(model.key, None)
        if worker.retired is not None:
            return
        if worker.batches:
            worker.watch.restart()
        if model.evidence is not None:
            self._watcher.partition_proved(partition, model.evidence)
        if model.table is None:
            self._watcher.model_load_failed(partition, model.key, model.error)
            self._post(ModelLoadFailed(partition, model.key, model.error))
        else:
            worker.tables[model.key] = model.table
            self._watcher.model_loaded(partition, model.key)
            self._post(ModelLoaded(partition, model.key, model.table, model.memory))

    def model_unloaded(self, partition: str, key: str) -> None:
        """Report that a worker gave a model up, as `model_loaded`."""
        if self._workers[partition].retired is not None:
            return
        self._watcher.model_unloaded(partition, key)
        self._post(ModelUnloaded(partition, key))

    def message(self, partition: str, message: BatchFinished | BatchRefused | BatchWithdrawn) -> None:
        """Take a worker's answer."""
        worker = self._workers.get(partition)
        if worker is None or message.batch not in worker.batches:
            worker = next(each for each in self._replaced.values() if message.batch in each.batches)
        if isinstance(message, BatchRefused) and message.fault is BatchFault.DEVICE:
            self._context_lost(partition, worker.process, message.message)
            return
        batch = worker.batches.pop(message.batch)
        if worker.batches:
            worker.watch.restart()
        elif worker.retired is not None:
            worker.retired()
        match message:
            case BatchFinished():
                located = {output.name: output for output in message.outputs}
                tensors = {output.name: self._view(output) for output in message.outputs}
                self._assembly.complete(batch.batch, Outputs(tensors, located, self._free(worker, message)))
                key = self._output_key(batch.model, message.outputs)
                self._post(BatchCompleted(batch.batch, message.started_ns, message.ended_ns, message.confidences, key))
            case BatchRefused():
                self._assembly.abandon(batch.batch)
                cause = FailureCause.OUT_OF_MEMORY if message.fault is BatchFault.MEMORY else FailureCause.BACKEND
                self._post(BatchFailed(batch.batch, cause, message.message))
            case BatchWithdrawn():
                self._assembly.abandon(batch.batch)
                self._post(BatchRevoked(batch.batch))

    def _context_lost(self, partition: str, process: WorkerProcess, reason: str) -> None:
        """Have a worker ended, whose batches are lost with it; tell at once of those that go along.

        Otherwise what is tried again might be so on another of them, whose context is lost as well.
        """
        for name, why in self.recovery.context_lost(partition, process, reason).items():
            worker = self._workers.get(name)
            if worker is not None and worker.retired is None:
                worker.retired = lambda: None
                self._supervisor.cancel_replacement(name, why)
                self._watcher.worker_lost(name, why)
                self._post(PartitionLost(name, why))

    def _record(
        self, partition: str, worker: WorkerProcess, region: int, tables: Mapping[str, LatencyTable]
    ) -> WorkerRecord:
        overdue = partial(self.recovery.end_worker, partition, worker)
        return WorkerRecord(worker, region, tables, self._batch_timeout_s, overdue)

    def _retire(self, partition: str, worker: WorkerRecord) -> None:
        worker.retired = lambda: self._supervisor.recycle(partition)
        if not worker.batches:
            worker.retired()

    def _view(self, output: OutputTensor) -> Tensor:
        memory = self._supervisor.region(output.region).view
        if output.row_offsets is not None:
            content = memory[output.offset : output.offset + output.nbytes]
            return WireBytes(content, output.shape, np.array(output.row_offsets, np.int64))
        return np.ndarray(output.shape, numpy_dtype(output.datatype), memory, output.offset)

    def _free(self, worker: WorkerRecord, done: BatchFinished) -> Callable[[], None]:
        """What gives the memory of a batch's outputs back: it is told to the worker with the next batch."""
        if done.slot < 0:
            region = done.outputs[0].region
            return lambda: self._supervisor.drop_region(region)
        return worker.hold(done.slot, self._supervisor.drop_region)

    def _output_key(self, model: str, outputs: Sequence[OutputTensor]) -> str:
        """Tells apart outputs whose variable dimensions differ; "" when all are fixed."""
        variable = self._variable[model]
        if not variable:
            return ""
        first = self._first_dimension[model]
        return batch_key((output.name, output.shape[first:]) for output in outputs if output.name in variable)


def _memory(ready: WorkerReady) -> dict[str, ModelMemory]:
    """What the models that a worker began with take, as far as it could tell."""
    return {model.key: model.memory for model in ready.models if model.memory is not None}
