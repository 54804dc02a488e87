"""The batches in flight on one Triton server; each is one call."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sluice.batcher.interface.config import ConfidenceSpec
from sluice.batcher.interface.decisions import DispatchBatch
from sluice.batcher.interface.events import BatchCompleted, BatchFailed, BatchRevoked, FailureCause
from sluice.gateway.executors.base import EventSink
from sluice.gateway.executors.hang_detector import LATENCY_FACTOR
from sluice.gateway.executors.triton.client import TritonClient
from sluice.gateway.executors.triton.errors import ModelLost, ServerLost
from sluice.gateway.executors.triton.memory import TritonMemory
from sluice.gateway.executors.triton.models import TritonModels
from sluice.gateway.executors.triton.wire import EncodedInfer, decode_batch, encode_for
from sluice.gateway.observability.traces.context import NO_TRACE, TraceContext
from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.tensors.assembly import Assembly
from sluice.gateway.tensors.request_tensors import BatchOutputs
from sluice.models.backends.device_errors import is_out_of_memory
from sluice.models.errors import BackendFailed, BadTensor, PartitionError
from sluice.models.pipelines.confidence import confidence
from sluice.models.pipelines.pipeline import batch_key
from sluice.models.tensors.arrays import WireBytes
from sluice.models.units import NS_PER_S

logger = logging.getLogger(__name__)


class TracedRequest(Protocol):
    """The record of a request (see `Trace`)."""

    def context_in(self, batch: int, stage: int) -> TraceContext:
        """The context of its trace for what is called while a stage of it is in a batch."""
        ...


class TracedSubmission(Protocol):
    """A request that has no outcome yet (see `Submission`)."""

    @property
    def trace(self) -> TracedRequest:
        """Its record."""
        ...


RequestLookup = Callable[[int], TracedSubmission | None]
"""Finds a request that has no outcome yet by its number."""


class TritonBatches:
    """Runs batches on one server and reports how they end.

    `confidence_specs` are the confidences that each model reports, by key. `lost` is called, with a sentence, when the
    end of a batch shows that the server is lost; `abandon` follows. A batch has `timeout_s`, and 20 times its measured
    latency if that is more. Tensors go through `memory`, if there is one. `answered` counts the answered
    calls.
    """

    def __init__(
        self,
        client: TritonClient,
        memory: TritonMemory | None,
        models: TritonModels,
        confidence_specs: Mapping[str, Sequence[ConfidenceSpec]],
        assembly: Assembly,
        timeout_s: float,
        lost: Callable[[str], None],
        clock: Callable[[], int],
    ) -> None:
        self._client = client
        self._memory = memory
        self._models = models
        self._confidence_specs = confidence_specs
        self._assembly = assembly
        self._timeout_s = timeout_s
        self._lost = lost
        self._clock = clock
        self._running: dict[int, tuple[DispatchBatch, asyncio.Task[None], EncodedInfer]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._free_ns = 0
        self.answered = 0
        self.submission: RequestLookup = _no_submission
        """Knows the requests of batches, whose traces go along."""
        self._report: EventSink

    def start(self, report: EventSink) -> None:
        """Report events to `report` from now on."""
        self._report = report

    @property
    def running(self) -> int:
        """The number of batches in flight."""
        return len(self._running)

    def of(self, model: str) -> list[asyncio.Task[None]]:
        """The calls in flight that run a model."""
        return [task for batch, task, _ in self._running.values() if batch.model == model]

    async def drain(self) -> None:
        """Cancel the calls in flight and report nothing."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def abandon(self, reason: str) -> None:
        """Fail all batches, in their order, since the server is lost."""
        self._free_ns = 0
        if self._memory is not None:
            self._memory.drop()
        for call in self._calls:
            if call is not asyncio.current_task():
                call.cancel()
        running = list(self._running)
        self._running.clear()
        for batch in running:
            self._assembly.abandon(batch)
            self._report(BatchFailed(batch, FailureCause.WORKER_LOST, reason))

    def run(self, batch: DispatchBatch) -> None:
        """Send a batch."""
        spec = self._models.specs[batch.model]
        try:
            sent = encode_for(self._memory, spec, batch.run_rows, self._assembly.collect(batch))
        except BaseException:
            self._assembly.abandon(batch.batch)
            raise
        task = asyncio.get_running_loop().create_task(self._run(batch, sent, self._trace(batch)))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        self._running[batch.batch] = batch, task, sent

    def revoke(self, batch: int) -> None:
        """Take a batch back that waits behind another one; too late is no error."""
        if batch not in self._running or next(iter(self._running)) == batch:
            return
        _, task, sent = self._running.pop(batch)
        # A batch in shared memory keeps its call: the server writes there until the call has ended.
        if sent.slot is None:
            task.cancel()
        self._assembly.abandon(batch)
        self._report(BatchRevoked(batch))

    def _trace(self, batch: DispatchBatch) -> TraceContext:
        """The trace of the first request of a batch that is in one: a call can be in one only."""
        for member in batch.members:
            if (submission := self.submission(member.request)) is not None:
                trace = submission.trace.context_in(batch.batch, member.stage)
                if trace.trace_id:
                    return trace
        return NO_TRACE

    async def _run(self, batch: DispatchBatch, sent: EncodedInfer, trace: TraceContext) -> None:
        sent_ns = self._clock()
        limit_s = LATENCY_FACTOR * self._models.tables[batch.model].latency_ns(batch.run_rows) / NS_PER_S
        free = True
        try:
            answer = await self._client.infer(sent.message, max(self._timeout_s, limit_s), sent.http, trace)
            if batch.batch in self._running:
                self._complete(batch, sent_ns, answer, sent)
                free = False  # with the last of the outputs
        except ModelLost as error:
            self._models.broken.add(batch.model)
            self._lost(f"{batch.model}: {error}")
        except ServerLost as error:
            self._lost(str(error))
        except BadTensor as error:
            self._lost(f"{batch.model}: {error}")
        except BackendFailed as error:
            is_memory = is_out_of_memory(error)
            self._fail(batch, FailureCause.OUT_OF_MEMORY if is_memory else FailureCause.BACKEND, str(error))
        except PartitionError as error:
            self._fail(batch, FailureCause.RESOURCES, str(error))
        except Exception as error:  # any error ends this batch and nothing else
            logger.exception("batch %d of %s could not be completed", batch.batch, batch.model)
            self._fail(batch, FailureCause.BACKEND, str(error))
        finally:
            if free:
                self._free(sent)

    def _complete(self, batch: DispatchBatch, sent_ns: int, answer: bytes, sent: EncodedInfer) -> None:
        """Take an answer; raises BadTensor for a malformed one."""
        ended_ns = self._clock()
        self.answered += 1
        spec = self._models.specs[batch.model]
        tensors = decode_batch(spec, batch.run_rows, answer, sent)
        confidences = tuple(_confidences(tensors, wanted) for wanted in self._confidence_specs.get(batch.model, ()))
        key = batch_key(
            (output.name, tensors[output.name].shape[int(spec.batchable) :])
            for output in spec.outputs
            if not output.fixed
        )
        # The server may have begun only after the batch before.
        started_ns = max(sent_ns, self._free_ns)
        self._free_ns = ended_ns
        del self._running[batch.batch]
        self._assembly.complete(batch.batch, BatchOutputs(tensors, {}, lambda: self._free(sent)))
        self._report(BatchCompleted(batch.batch, started_ns, ended_ns, confidences, key))

    def _free(self, sent: EncodedInfer) -> None:
        if self._memory is not None and sent.slot is not None:
            self._memory.free(sent.slot)

    def _fail(self, batch: DispatchBatch, cause: FailureCause, reason: str) -> None:
        if self._running.pop(batch.batch, None) is not None:
            self._assembly.abandon(batch.batch)
            self._report(BatchFailed(batch.batch, cause, f"{batch.model}: {reason}"))


def _no_submission(request: int) -> TracedSubmission | None:
    del request
    return None


def _confidences(tensors: Mapping[str, Tensor], wanted: ConfidenceSpec) -> tuple[float, ...]:
    tensor = tensors[wanted.output]
    assert not isinstance(tensor, WireBytes), "confidences are of numbers"
    return tuple(confidence(tensor, wanted.confidence).tolist())
