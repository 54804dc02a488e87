"""The data plane of a front end: requests go to the gateway's process, answers are read from shared memory."""

import asyncio
from collections.abc import Callable, Mapping

import numpy as np

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.front_ends.inputs import InputMemory
from sluice.gateway.front_ends.link import Arrival, Link
from sluice.gateway.front_ends.messages import (
    ANSWER,
    INLINE,
    Answered,
    Answers,
    Particulars,
    PlacedTensor,
)
from sluice.gateway.front_ends.relayed_memory import RelayedMemory
from sluice.gateway.front_ends.snapshot import ServedTable
from sluice.gateway.front_ends.templates import SentTemplates
from sluice.gateway.inference.dataplane import DataPlane, Submitted
from sluice.gateway.inference.response_stream import ResponseStream
from sluice.gateway.observability.request_ids import server_id
from sluice.gateway.observability.traces.context import NO_TRACE, TraceContext
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.pending_answer import PendingAnswer, RelayNeeded
from sluice.gateway.protocol.request_options import NO_PARAMETERS, RequestOptions
from sluice.gateway.protocol.signature import Signature
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.tensors.arrays import WireBytes, numpy_dtype
from sluice.models.tensors.spec import DataType
from sluice.mps.ipc.arena import Region


class _NamedSignature(Signature):
    """The signature of the pipeline that clients get by a version (`asked`, "" is the latest) of a name."""

    def __init__(self, pipeline: Pipeline, client_key: str | None, asked: str) -> None:
        super().__init__(pipeline, client_key)
        self.asked = asked
        self.dtypes = {
            spec.name: None if spec.datatype is DataType.BYTES else numpy_dtype(spec.datatype)
            for spec in pipeline.outputs
        }


class PassedRequest(PendingAnswer):
    """A request that was passed to the gateway's process."""

    __slots__ = ("_explanation", "given_id", "notes", "signature")

    def __init__(self, request: int, loop: asyncio.AbstractEventLoop, signature: _NamedSignature) -> None:
        super().__init__(request, loop)
        self.given_id = ""
        self.notes: list[tuple[str, str]] = []
        self.signature = signature
        self._explanation: tuple[tuple[str, str], ...] = ()

    def explain(self, given_id: str, explanation: tuple[tuple[str, str], ...]) -> None:
        """Take what the answer says beside its outputs."""
        self.given_id, self._explanation = given_id, explanation

    def explanation(self) -> list[tuple[str, str]]:
        """The explanation, as headers."""
        return list(self._explanation)


class FrontEndDataPlane(DataPlane):
    """Checks requests against `served`, and passes them on over `link`.

    What cannot be decided here raises RelayNeeded, or is relayed when the answer says so.
    """

    def __init__(
        self, config: ServerConfig, served: ServedTable, link: Link, memory: InputMemory, clock: Callable[[], int]
    ) -> None:
        super().__init__(
            served,
            config.default_slo_ms,
            config.network_ms,
            RelayedMemory(config.allow_client_shm, 0),
            config.statuses,
            config.client_key,
            config.front_door.id_bytes,
        )
        self._table = served
        self._link = link
        link.on_too_long = self._too_long
        self._memory = memory
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._known: dict[tuple[str, str], _NamedSignature] = {}
        self._known_changes = 0
        self._templates = SentTemplates()
        self._layouts: dict[int, tuple[Outcome, list[tuple[str, tuple[int, ...], int]]]] = {}
        """By number: the outcome, and the names, shapes and offsets of outputs."""
        self._open: dict[int, PassedRequest] = {}
        self._next = 0
        self._views: dict[int, memoryview] = {}

    def signature(self, name: str, version: str) -> Signature:
        """The signature of a pipeline; version "" is the latest. Raises RelayNeeded for a name that is not known."""
        pipeline = self._table.pipeline(name, version)
        if self._known_changes != self._table.changes:
            self._known_changes = self._table.changes
            self._known = {
                asked: known for asked, known in self._known.items() if self._table.has(asked, known.pipeline)
            }
            self._templates.clear()
        signature = self._known.get((name, version))
        if signature is None:
            signature = self._known[name, version] = _NamedSignature(pipeline, self._client_key, version)
        return signature

    def memory(self, nbytes: int) -> memoryview | None:
        """Memory to receive the tensors of a large request into, where workers can read them; None without such."""
        return self._memory.bodies.allocate(nbytes)

    def submit(
        self,
        signature: Signature,
        inputs: Mapping[str, Tensor],
        options: RequestOptions,
        client: str = "",
        trace: TraceContext = NO_TRACE,
    ) -> PassedRequest:
        """Pass on a checked request. Raises RejectedError without memory for its tensors."""
        assert isinstance(signature, _NamedSignature), "it was made here"
        link = self._link
        if link.waiting or not link.arrivals:  # arrivals that wait came in earlier turns
            self._received_ns = self._clock()
        request = self._next = self._next + 1
        region, offset, row_offsets, starts = self._memory.write(request, inputs)
        particulars = None
        has_more = options.sequence is not None or options.parameters != NO_PARAMETERS or trace.trace_id != ""
        if options.id or client or row_offsets or starts or has_more:
            particulars = Particulars(
                options.id, client, row_offsets, starts, options.parameters, options.sequence, trace
            )
        template = self._templates.find(signature, signature.asked, inputs, options)
        arrival = Arrival(request, template, region, offset, options.budget_ns, self._received_ns, particulars)
        passed = self._open[request] = PassedRequest(request, self._loop, signature)
        link.arrivals.append(arrival)
        link.flush_soon()
        return passed

    def open_responses(
        self,
        signature: Signature,
        inputs: Mapping[str, Tensor],
        options: RequestOptions,
        client: str = "",
        trace: TraceContext = NO_TRACE,
    ) -> ResponseStream:
        """Only the gateway's process has the responses of decoupled models."""
        raise RelayNeeded

    def _too_long(self, request: int) -> None:
        """Let a request go through the relay that fits into no message."""
        self._memory.free(request)
        self._open.pop(request).relay()

    def cancel(self, submission: Submitted) -> None:
        """Tell the gateway's process that the client of a request has gone; nothing happens once it is answered."""
        if submission.request in self._open:
            self._link.cancelled.append(submission.request)
            self._link.flush_soon()

    def map(self, number: int, region: Region) -> None:
        """Map memory in which outputs lie."""
        self._views[number] = region.view
        region.close()  # the descriptor; the view keeps the mapping

    def unmap(self, number: int) -> None:
        """Unmap memory in which no output lies any more."""
        del self._views[number]

    def answered(self, answers: Answers) -> None:
        """Take answers."""
        for answer in answers.answers:
            passed = self._open.pop(answer.request)
            if answer.outcome is not None:
                passed.explain(answer.given_id, answer.explanation)
                if answer.notes:
                    passed.notes = list(answer.notes)
                passed.settle(self._answer(answer, passed.signature))
            else:
                passed.relay()
        if answers.small:
            self._small_answered(answers)
        for request in answers.freed:
            self._memory.free(request)

    def _small_answered(self, answers: Answers) -> None:
        """Take the answers that have a layout."""
        for layout in answers.layouts:
            places = [(place.name, place.shape, place.offset) for place in layout.outputs]
            self._layouts[layout.number] = layout.outcome, places
        data = answers.data
        for request, number, given, first in ANSWER.iter_unpack(answers.small):
            passed, (outcome, places) = self._open.pop(request), self._layouts[number]
            if given:
                passed.explain(server_id(given), ())
            dtypes = passed.signature.dtypes
            outputs: dict[str, Tensor] = {
                name: np.ndarray(shape, dtypes[name], data, first + offset) for name, shape, offset in places
            }
            passed.settle(Answer(outcome, outputs=outputs))

    def _answer(self, answer: Answered, signature: _NamedSignature) -> Answer:
        assert answer.outcome is not None
        if not answer.outputs:
            return Answer(answer.outcome, answer.reason, answer.retry_after_s, failure=answer.failure)
        outputs = {placed.name: self._tensor(placed, signature) for placed in answer.outputs}
        is_held = any(placed.region != INLINE for placed in answer.outputs)
        release = (lambda: self._release(answer.request)) if is_held else None
        return Answer(answer.outcome, answer.reason, answer.retry_after_s, outputs, release)

    def _tensor(self, placed: PlacedTensor, signature: _NamedSignature) -> Tensor:
        memory = memoryview(placed.data) if placed.region == INLINE else self._views[placed.region]
        dtype = signature.dtypes[placed.name]
        if dtype is not None:
            return np.ndarray(placed.shape, dtype, memory, placed.offset)
        assert placed.row_offsets is not None, "BYTES have them"
        content = memory[placed.offset : placed.offset + placed.nbytes]
        return WireBytes(content, placed.shape, np.array(placed.row_offsets, np.int64))

    def _release(self, request: int) -> None:
        self._link.released.append(request)
        self._link.flush_soon()
