"""The batches in flight on one remote worker."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from sluice.batcher.interface.decisions import DispatchBatch
from sluice.batcher.interface.events import BatchCompleted, BatchFailed, BatchRevoked, FailureCause
from sluice.gateway.cluster.links import NodeLink
from sluice.gateway.executors.base import EventSink
from sluice.gateway.executors.hang_detector import LATENCY_FACTOR, HangDetector
from sluice.gateway.executors.remote.answer_check import output_key, read_outputs
from sluice.gateway.executors.remote.session import WorkerSession
from sluice.gateway.executors.request_parts import SHOWS_REQUESTS, FindSubmission, member_failures, request_parts
from sluice.gateway.observability.custom_metrics import CustomMetrics
from sluice.gateway.tensors.assembly import Assembly, BatchInput
from sluice.gateway.tensors.body_memory import BodyMemory
from sluice.gateway.tensors.request_tensors import BatchOutputs, no_release
from sluice.gateway.worker_protocol.messages import (
    Fault,
    Finished,
    RemoteRun,
    RunRefused,
    SessionTensor,
    Withdraw,
    Withdrawn,
)
from sluice.models.errors import BadTensor, PartitionError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.spec import ModelSpec
from sluice.models.tensors.arrays import Array
from sluice.models.units import NS_PER_S
from sluice.mps.ipc.messages import ModelFile

_CAUSES = {
    Fault.BATCH: FailureCause.BACKEND,
    Fault.MEMORY: FailureCause.OUT_OF_MEMORY,
    Fault.STATES: FailureCause.STATES_LOST,
    Fault.RESOURCES: FailureCause.RESOURCES,
    Fault.DEADLINE: FailureCause.WORKER_LOST,
    Fault.LOST: FailureCause.WORKER_LOST,
}


class RemoteBatchContext(NamedTuple):
    """The needs of batches besides their worker: shared by all workers of a gateway.

    Large outputs are received into `bodies`, if it has room. `specs` are the specs of models by key. A batch may take
    `timeout_s`, and 20 times its measured latency if that is more. `find` knows the requests without an outcome;
    `metrics` are those that models define.
    """

    assembly: Assembly
    bodies: BodyMemory
    specs: Mapping[str, ModelSpec]
    clock: Callable[[], int]
    timeout_s: float
    metrics: CustomMetrics
    find: FindSubmission
    report: EventSink


class _Sent(NamedTuple):
    """A batch that was sent at `sent_ns` with `nbytes` of inputs; `alone` says that the worker had no other one."""

    batch: DispatchBatch
    sent_ns: int
    nbytes: int
    alone: bool


class RemoteBatches:
    """Sends batches over one session and reports how they end; each has one end, whatever comes later.

    `files` and `tables` are the models of the worker by key, and `loading` those that it is loading. `link` is the way
    there. `overdue` is called, with a sentence, for a batch that does not end.
    """

    def __init__(
        self,
        context: RemoteBatchContext,
        session: WorkerSession,
        files: Mapping[str, ModelFile],
        tables: Mapping[str, LatencyTable],
        loading: Mapping[str, None],
        link: NodeLink,
        overdue: Callable[[str], None],
    ) -> None:
        self._context = context
        self._session = session
        self._files = files
        self._tables = tables
        self._link = link
        self._running: dict[int, DispatchBatch] = {}
        self._sent: dict[int, _Sent] = {}
        self._free_ns = 0
        self._hang_detector = HangDetector(self._running, tables, loading.keys(), context.timeout_s, _nothing, overdue)
        self.is_closed = False
        """Batches are kept but not sent any more, since the session has ended."""
        self.is_draining = False
        """Batches that the worker server refuses from now on are retried elsewhere."""
        self.idle = asyncio.Event()
        """Set when the last batch has ended, once it is draining."""

    def run(self, batch: DispatchBatch) -> None:
        """Send a batch. Raises PartitionError if the session has no room for it; nothing of it is kept then."""
        context = self._context
        inputs = context.assembly.collect(batch)
        try:
            nbytes = 0 if self.is_closed else self._send(batch, inputs)
        except BaseException:
            context.assembly.abandon(batch.batch)
            raise
        self._sent[batch.batch] = _Sent(batch, context.clock(), nbytes, not self._running)
        self._running[batch.batch] = batch
        if len(self._running) == 1:
            self.restart()

    def restart(self) -> None:
        """Watch the first batch from now on: it starts to run, or goes on."""
        if self._running and not self.is_closed:
            self._hang_detector.restart()

    def revoke(self, batch: int) -> None:
        """Ask for a batch back; too late is no error."""
        if batch in self._running and not self.is_closed:
            with suppress(PartitionError):  # the session has ended, or has no room: the batch ends as it does
                self._session.send(Withdraw(batch))

    def drain(self) -> None:
        """Expect no more batches; `idle` is set when those that were sent have ended."""
        self.is_draining = True
        if not self._running:
            self.idle.set()

    def close(self) -> None:
        """Send nothing any more; `abandon` follows."""
        self.is_closed = True
        self._hang_detector.stop()

    def abandon(self, reason: str) -> list[int]:
        """Fail all batches in their order, since the worker is lost; returns their numbers."""
        self._free_ns = 0
        running = list(self._running)
        self._running.clear()
        self._sent.clear()
        self.idle.set()
        for batch in running:
            self._context.assembly.abandon(batch)
            self._context.report(BatchFailed(batch, FailureCause.WORKER_LOST, reason))
        return running

    # -- answers

    def finished(self, answer: Finished, views: Sequence[memoryview]) -> None:
        """Take the outputs of a batch. Raises PartitionError for an answer that does not fit."""
        sent = self._known(answer.batch)
        batch, context = sent.batch, self._context
        spec = context.specs[batch.model]
        try:
            tensors = read_outputs(batch, spec, self._files[batch.model].confidences, answer, views)
        except BadTensor as error:
            raise PartitionError(f"batch {batch.batch} of {batch.model}: {error}") from error
        failures = member_failures(batch, answer.errors, context.find)
        started_ns, ended_ns = self._times(sent, answer, sum(view.nbytes for view in views))
        self._end(batch.batch)
        if answer.metrics:
            context.metrics.update(batch.model, answer.metrics)
        if missing := min({output.name for output in spec.outputs} - tensors.keys(), default=""):
            context.assembly.abandon(batch.batch)
            reason = f"{batch.model}: output {missing} is missing"
            context.report(BatchFailed(batch.batch, FailureCause.BACKEND, reason))
            return
        # Workers of this machine read them where they lie, if that is in shared memory.
        outputs = context.bodies.locate(tensors) or BatchOutputs(tensors, {}, no_release)
        context.assembly.complete(batch.batch, outputs)
        key = output_key(spec, tensors)
        context.report(BatchCompleted(batch.batch, started_ns, ended_ns, answer.confidences, key, failures))

    def refused(self, answer: RunRefused) -> None:
        """Take the failure of a batch; raises PartitionError for one that is not in flight."""
        batch = self._known(answer.batch).batch
        self._end(batch.batch)
        self._context.assembly.abandon(batch.batch)
        cause = _CAUSES[answer.fault]
        if cause is FailureCause.RESOURCES and self.is_draining:
            cause = FailureCause.WORKER_LOST
        self._context.report(BatchFailed(batch.batch, cause, answer.message))

    def withdrawn(self, answer: Withdrawn) -> None:
        """Take a batch back; raises PartitionError for one that is not in flight."""
        batch = self._known(answer.batch).batch
        self._end(batch.batch)
        self._context.assembly.abandon(batch.batch)
        self._context.report(BatchRevoked(batch.batch))

    # -- details

    def _send(self, batch: DispatchBatch, inputs: Sequence[BatchInput]) -> int:
        """Send a batch; returns the bytes of its inputs."""
        context = self._context
        pieces = [[_bytes_of(piece) for piece in each.pieces] for each in inputs]
        tensors = tuple(
            SessionTensor(each.spec.name, each.spec.datatype, tuple(each.shape), sum(piece.nbytes for piece in own))
            for each, own in zip(inputs, pieces, strict=True)
        )
        shows_requests = self._files[batch.model].backend == SHOWS_REQUESTS
        requests = request_parts(batch, context.find) if shows_requests else ()
        latency_ns = self._tables[batch.model].latency_ns(batch.run_rows)
        limit_ns = max(round(context.timeout_s * NS_PER_S), LATENCY_FACTOR * latency_ns)
        run = RemoteRun(batch.batch, batch.model, tensors, limit_ns, requests, batch.sequences)
        self._session.send(run, pieces)
        return sum(tensor.nbytes for tensor in tensors)

    def _known(self, batch: int) -> _Sent:
        sent = self._sent.get(batch)
        if sent is None:
            expected = sorted(self._sent) or "none"
            raise PartitionError(f"an answer to batch {batch}, expected one of those sent to it: {expected}")
        return sent

    def _end(self, batch: int) -> None:
        del self._running[batch], self._sent[batch]
        if self._running:
            self.restart()
        elif self.is_draining:
            self.idle.set()

    def _times(self, sent: _Sent, answer: Finished, output_bytes: int) -> tuple[int, int]:
        """When a batch started and ended, by the clock here; its answer has just come.

        The worker only knows how long it took. Its answer was on the way for half a round trip, and its outputs for
        what they take over the link.
        """
        now_ns = self._context.clock()
        if sent.alone:
            on_the_way_ns = now_ns - sent.sent_ns - answer.waited_ns - answer.ran_ns
            self._link.transferred(sent.nbytes + output_bytes, on_the_way_ns)
        first_ns = max(sent.sent_ns, self._free_ns)
        ended_ns = min(max(now_ns - self._link.one_way_ns(output_bytes), first_ns + answer.ran_ns), now_ns)
        self._free_ns = ended_ns
        return max(ended_ns - answer.ran_ns, min(first_ns, ended_ns)), ended_ns


def _bytes_of(piece: Array) -> memoryview:
    """The bytes of an array, where they lie if it is contiguous."""
    return np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data


def _nothing() -> None:
    """There are no answers to take in before a batch is overdue: a late check is repeated."""
