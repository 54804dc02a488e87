"""The executor over worker processes, one a partition."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from batcher.decisions import DispatchBatch, LoadModel, Member, UnloadModel
from batcher.events import (
    BatchCompleted,
    BatchFailed,
    BatchRevoked,
    FailureCause,
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
)
from gateway.answer import Tensor
from gateway.assembly import Assembly, Outputs
from gateway.executors.base import Combined, Post
from gateway.executors.batch_watch import BATCH_TIMEOUT_S, BatchWatch
from gateway.input_slots import InputSlots
from gateway.plan import PipelinePlan
from models.arrays import WireBytes, numpy_dtype
from models.errors import PartitionError
from models.pipeline import batch_key
from models.profile import LatencyTable
from models.spec import ModelSpec
from mps.messages import Done, Failed, LoadedModel, ModelFile, OutputTensor, Ready, Revoke, Revoked, Run
from mps.process import WorkerProcess
from mps.supervisor import Supervisor, WorkerSpec


class Watcher(Protocol):
    """Is told how the workers are."""

    def worker_ready(self, partition: str, ready: Ready) -> None:
        """A worker is up and has loaded what it could."""
        ...

    def worker_lost(self, partition: str, reason: str) -> None:
        """A worker is gone; another one will be started."""
        ...

    def model_loaded(self, partition: str, model: str) -> None:
        """A worker that is up holds one more model."""
        ...

    def model_load_failed(self, partition: str, model: str, reason: str) -> None:
        """A worker that is up could not load a model."""
        ...

    def model_unloaded(self, partition: str, model: str) -> None:
        """A worker that is up does not hold a model any more."""
        ...


class _Worker:
    """A worker that is, or was, up: what it runs, in order of dispatch, and which of its output slots are in use.

    `tables` are of all models that it has held, `loading` those that are on their way in, in order. One that is
    `retired` gets nothing any more.
    """

    def __init__(
        self, process: WorkerProcess, region: int, tables: Mapping[str, LatencyTable], batch_timeout_s: float
    ) -> None:
        self.process = process
        self.region = region
        self.batches: dict[int, DispatchBatch] = {}
        self.tables = dict(tables)
        self.loading: dict[str, None] = {}
        self.watch = BatchWatch(self.batches, self.tables, self.loading, batch_timeout_s, process.kill)
        self.slots_in_use = 0
        self.freed: list[int] = []
        self.retired = False
        self.lost = False


class WorkerExecutor:
    """Runs batches on worker processes that share memory with the gateway.

    `plans` are the pipelines by `name:version`, `models` the specs by key; `input_bytes` is the size of the arena for
    inputs. The workers start with `start` and end with `drain`, and hold any of the models of their specs. One that
    does not end a batch within `batch_timeout_s` (more for a slow model, see `BatchWatch`) is killed.
    """

    def __init__(
        self,
        workers: Sequence[WorkerSpec],
        plans: Mapping[str, PipelinePlan],
        models: Mapping[str, ModelSpec],
        input_bytes: int,
        watcher: Watcher,
        batch_timeout_s: float = BATCH_TIMEOUT_S,
    ) -> None:
        self._supervisor = Supervisor(workers, self)
        self._files = {spec.partition.name: {file.key: file for file in spec.models} for spec in workers}
        self._slots = InputSlots(self._supervisor, input_bytes)
        self._assembly = Assembly(plans, models, self._slots)
        self._watcher = watcher
        self._batch_timeout_s = batch_timeout_s
        self._workers: dict[str, _Worker] = {}
        self._variable: dict[str, frozenset[str]] = {}
        self._first_dimension: dict[str, int] = {}
        self.add(plans, models, {})
        self._post: Post
        # Tensors are the assembly's business alone.
        self.admit = self._assembly.admit
        self.take = self._assembly.take
        self.forget = self._assembly.forget

    def add(
        self,
        plans: Mapping[str, PipelinePlan],
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
            self._supervisor.forget(key)

    def recycle(self, partition: str) -> None:
        """Have a new worker take the place of that of a partition, which gives all its memory back to the system.

        The loss is reported at once, so that nothing is sent there any more; the worker goes when it has done what it
        was sent, which is bounded like all batches. Nothing happens when there is no worker.
        """
        worker = self._workers.get(partition)
        if worker is None or worker.retired:
            return
        reason = "another one takes its place, so that its memory returns"
        self._watcher.worker_lost(partition, reason)
        self._post(PartitionLost(partition, reason))
        # After the scheduler has been told: until then it may send a batch.
        asyncio.get_running_loop().call_soon(self._retire, partition, worker)

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
            worker.process.send(Run(batch.batch, batch.model, inputs, tuple(worker.freed)))
        except BaseException:
            self._assembly.abandon(batch.batch)
            raise
        worker.freed.clear()
        worker.batches[batch.batch] = batch
        if len(worker.batches) == 1:
            worker.watch.restart()

    def revoke(self, batch: int) -> None:
        """Ask the worker to take a batch back; too late is no error."""
        for worker in self._workers.values():
            if batch in worker.batches:
                worker.process.send(Revoke(batch))

    def load(self, order: LoadModel) -> None:
        """Have a worker load a model; to one that is gone nothing is sent, since its loss has been reported."""
        worker = self._workers.get(order.partition)
        if worker is not None and not worker.retired:
            worker.loading[order.model] = None
            self._supervisor.load(order.partition, self._files[order.partition][order.model])

    def unload(self, order: UnloadModel) -> None:
        """Have a worker give up a model after the batches that it was sent; as `load`."""
        if order.partition in self._workers:
            self._supervisor.unload(order.partition, order.model)

    def combine(self, member: Member) -> Combined:
        """Join the answers of an ensemble, in this process."""
        return self._assembly.combine(member)

    def worker_ready(self, partition: str, worker: WorkerProcess, ready: Ready, output_region: int) -> None:
        """Take a new worker into service."""
        tables = {model.key: model.table for model in ready.models if model.table is not None}
        self._workers[partition] = _Worker(worker, output_region, tables, self._batch_timeout_s)
        self._watcher.worker_ready(partition, ready)
        self._post(PartitionReady(partition, tables))

    def worker_lost(self, partition: str, reason: str) -> None:
        """Report the loss, and the failure of each batch that the worker had, the running one first.

        The model that it was to load just then may be the reason, so it has failed there; others may be tried again.
        """
        worker = self._workers.pop(partition, None)
        if worker is None or not worker.retired:
            if worker is not None and worker.loading:
                culprit = next(iter(worker.loading))
                self._watcher.model_load_failed(partition, culprit, f"the worker of {partition} was lost: {reason}")
            self._watcher.worker_lost(partition, reason)
            self._post(PartitionLost(partition, reason))
        if worker is None:  # it was lost before it was ready
            return
        worker.lost = True
        worker.watch.stop()
        for batch in worker.batches:
            self._assembly.abandon(batch)
            self._post(BatchFailed(batch, FailureCause.WORKER_LOST, reason))
        if not worker.slots_in_use:
            self._supervisor.drop_region(worker.region)

    def model_loaded(self, partition: str, model: LoadedModel) -> None:
        """Report that a worker loaded a model, or could not; of one that is retired there is nothing to report."""
        worker = self._workers[partition]
        worker.loading.pop(model.key, None)
        if worker.retired:
            return
        if worker.batches:
            worker.watch.restart()
        if model.table is None:
            self._watcher.model_load_failed(partition, model.key, model.error)
            self._post(ModelLoadFailed(partition, model.key, model.error))
        else:
            worker.tables[model.key] = model.table
            self._watcher.model_loaded(partition, model.key)
            self._post(ModelLoaded(partition, model.key, model.table))

    def model_unloaded(self, partition: str, key: str) -> None:
        """Report that a worker gave a model up, as `model_loaded`."""
        if self._workers[partition].retired:
            return
        self._watcher.model_unloaded(partition, key)
        self._post(ModelUnloaded(partition, key))

    def message(self, partition: str, message: Done | Failed | Revoked) -> None:
        """Take a worker's answer."""
        worker = self._workers[partition]
        batch = worker.batches.pop(message.batch)
        if worker.batches:
            worker.watch.restart()
        elif worker.retired:
            self._supervisor.recycle(partition)
        match message:
            case Done():
                located = {output.name: output for output in message.outputs}
                tensors = {output.name: self._view(output) for output in message.outputs}
                self._assembly.complete(batch.batch, Outputs(tensors, located, self._free(worker, message)))
                key = self._output_key(batch.model, message.outputs)
                self._post(BatchCompleted(batch.batch, message.started_ns, message.ended_ns, message.verdicts, key))
            case Failed():
                self._assembly.abandon(batch.batch)
                self._post(BatchFailed(batch.batch, FailureCause.BACKEND, message.message))
            case Revoked():
                self._assembly.abandon(batch.batch)
                self._post(BatchRevoked(batch.batch))

    def _retire(self, partition: str, worker: _Worker) -> None:
        worker.retired = True
        if not worker.batches:
            self._supervisor.recycle(partition)

    def _view(self, output: OutputTensor) -> Tensor:
        memory = self._supervisor.region(output.region).view
        if output.row_offsets is not None:
            content = memory[output.offset : output.offset + output.nbytes]
            return WireBytes(content, output.shape, np.array(output.row_offsets, np.int64))
        return np.ndarray(output.shape, numpy_dtype(output.datatype), memory, output.offset)

    def _free(self, worker: _Worker, done: Done) -> Callable[[], None]:
        """What gives the memory of a batch's outputs back: it is told to the worker with the next batch."""
        if done.slot < 0:
            region = done.outputs[0].region
            return lambda: self._supervisor.drop_region(region)
        worker.slots_in_use += 1

        def free() -> None:
            worker.slots_in_use -= 1
            if not worker.lost:
                worker.freed.append(done.slot)
            elif not worker.slots_in_use:
                self._supervisor.drop_region(worker.region)

        return free

    def _output_key(self, model: str, outputs: Sequence[OutputTensor]) -> str:
        """Tells apart outputs whose variable dimensions differ; "" when all are fixed."""
        variable = self._variable[model]
        if not variable:
            return ""
        first = self._first_dimension[model]
        return batch_key((output.name, output.shape[first:]) for output in outputs if output.name in variable)
