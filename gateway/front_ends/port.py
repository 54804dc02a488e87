"""The gateway's end of one front end: its requests go to the data plane, and the answers back."""

import asyncio
import itertools
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from sluice.gateway.front_ends.messages import (
    INLINE,
    Answered,
    Answers,
    Arrival,
    Counts,
    FromFrontEnd,
    FrontEndReady,
    LogLine,
    PlacedTensor,
    RelayOpened,
    ToFrontEnd,
    Turn,
)
from sluice.gateway.front_ends.outputs import Content, RegionIndex, content_of
from sluice.gateway.inference.local import LocalDataPlane
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.protocol.signature import Signature
from sluice.gateway.runtime.submission import Submission
from sluice.gateway.tensors.input_slots import SharedRegions
from sluice.gateway.tensors.request_tensors import BatchOutputs
from sluice.models.errors import PartitionError, ServingError
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.tensors.arrays import WireBytes, numpy_dtype
from sluice.models.tensors.spec import DataType
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.messages import MapRegion, OutputTensor, UnmapRegion
from sluice.mps.ipc.places import is_whole
from sluice.mps.supervisor.child import Child
from sluice.mps.supervisor.process import MessageProcess

KIND = "front end"
SMALL_BYTES = 1024
"""Outputs of at most this size travel in the answer, which costs less than to refer to them."""
COPIED_BYTES = 32 << 10
"""Outputs in memory of this process alone travel in the answer up to this size, and have a region above it."""
OWN_REGIONS = 32
"""Regions for such outputs that may be in use; further answers wait for one of them."""
ANSWERS_A_MESSAGE = 128
_OWN_NUMBERS = 1 << 40
"""The numbers of these regions begin here; no other ones are as large."""

logger = logging.getLogger(__name__)


class Served(NamedTuple):
    """A pipeline that gets requests, and what is needed of its tensors."""

    pipeline: Pipeline
    signature: Signature
    inputs: dict[str, DataType]
    required: frozenset[str]
    most_rows: int


class ServedLookup(Protocol):
    """Looks up what is served now."""

    def __call__(self, name: str, version: str, key: str) -> Served | None:
        """The pipeline that clients get now by that name and version; None if it is not the one of that key."""
        ...


class FrontEndPort:
    """One front end's process, its open requests and the memory that it shares.

    `attach` takes connections of the relay. `on_ready` is called when it accepts connections, and `on_exit` with the
    cause when it has gone and its requests are cancelled.
    """

    def __init__(
        self,
        name: str,
        child: Child,
        dataplane: LocalDataPlane,
        find: ServedLookup,
        regions: SharedRegions,
        index: RegionIndex,
        attach: Callable[[socket.socket], None],
        on_ready: Callable[[], None],
        on_exit: Callable[[str], None],
    ) -> None:
        self.name = name
        self.counts = Counts(0, 0, 0, {})
        self.counted = asyncio.Event()
        """Set when counts have come."""
        self.unanswered = 0
        """Checks since the last counts."""
        self.is_ready = self.was_ready = False
        self.has_answered = False
        self._dataplane = dataplane
        self._find = find
        self._shared = regions
        self._index = index
        self._attach = attach
        self._on_ready = on_ready
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._inputs: dict[int, int] = {}
        """The regions of the front end: their numbers here, by its own."""
        self._reading = 0
        """Requests whose inputs are still needed."""
        self._open: dict[int, Submission] = {}
        self._held: dict[int, Answer] = {}
        self._own: dict[int, int] = {}
        """The regions for single answers, by request."""
        self._own_numbers = itertools.count(_OWN_NUMBERS)
        self._waiting: deque[tuple[int, Submission, Answer, bool]] = deque()
        self._mapped: set[int] = set()
        self._answers: list[Answered] = []
        self._freed: list[int] = []
        self._due = False
        self._handlers: dict[type[FromFrontEnd], Callable[..., None]] = {
            Turn: self._took_turn,
            MapRegion: self._shares_inputs,
            UnmapRegion: self._drops_inputs,
            RelayOpened: self._relay_opened,
            Counts: self._counted,
            FrontEndReady: self._got_ready,
            LogLine: self._log,
        }
        self.process: MessageProcess[ToFrontEnd, FromFrontEnd] = MessageProcess(
            KIND, child, FromFrontEnd, self._message, self._exited, self._flush
        )

    @property
    def has_gone(self) -> bool:
        """True once the process has exited."""
        return self.process.exited.is_set()

    def send(self, message: ToFrontEnd, fds: Sequence[int] = ()) -> None:
        """Send a message; one that is too long is left out, with a line in the log."""
        try:
            self.process.send(message, fds)
        except PartitionError as error:
            logger.error("%s does not hear of a change: %s", self.name, error)

    def region_dropped(self, number: int) -> None:
        """Unmap a region of outputs that has gone."""
        if number in self._mapped:
            self._mapped.discard(number)
            self.send(UnmapRegion(number))

    # -- messages

    def _message(self, message: FromFrontEnd, fds: tuple[int, ...]) -> None:
        expected = isinstance(message, MapRegion | RelayOpened)
        if len(fds) != expected:
            for fd in fds:
                os.close(fd)
            raise PartitionError(f"{type(message).__name__} came with {len(fds)} descriptors, expected {int(expected)}")
        self._handlers[type(message)](message, *fds)

    def _took_turn(self, turn: Turn) -> None:
        for arrival in turn.arrivals:
            self._arrived(arrival)
        for request in turn.cancelled:
            if (submission := self._open.get(request)) is not None:
                self._dataplane.cancel(submission)
        for request in turn.released:
            self._release(request)

    def _relay_opened(self, message: RelayOpened, fd: int) -> None:
        try:
            connection = socket.socket(fileno=fd)
        except OSError as error:
            os.close(fd)
            raise PartitionError(f"a connection of the relay is no socket: {error.strerror}") from error
        self._attach(connection)

    def _shares_inputs(self, message: MapRegion, fd: int) -> None:
        if message.region in self._inputs:
            os.close(fd)
            raise PartitionError(f"region {message.region} is shared already")
        self._inputs[message.region] = self._shared.share_region(Region.attach(fd, message.nbytes))

    def _drops_inputs(self, message: UnmapRegion) -> None:
        number = self._inputs.pop(message.region, None)
        if number is None:
            raise PartitionError(f"region {message.region} is not shared")
        self._shared.drop_region(number)

    def _counted(self, counts: Counts) -> None:
        self.counts = counts
        self.counted.set()
        self.unanswered = 0

    def _got_ready(self, message: FrontEndReady) -> None:
        self.is_ready = self.was_ready = True
        self._on_ready()

    def _log(self, line: LogLine) -> None:
        fields: dict[str, object] = {"front_end": self.name}
        if line.lost:
            fields["lost_lines"] = line.lost
        logging.getLogger(line.logger).log(line.level, "%s", line.text, extra={"fields": fields})

    def _arrived(self, arrival: Arrival) -> None:
        request = arrival.request
        if request in self._open or request in self._held:
            raise PartitionError(f"request {request} is open already")
        served = self._find(arrival.name, arrival.version, arrival.key)
        if served is None:  # replaced since then
            self._freed.append(request)
            self._answer(Answered(request, None))
            return
        located, tensors = self._locate(arrival, served)
        options = RequestOptions(
            served.signature.output_names if arrival.outputs is None else arrival.outputs,
            arrival.rows,
            arrival.batch_key,
            arrival.memory_bytes,
            arrival.budget_ns,
            arrival.id,
            arrival.max_cost,
            arrival.explain,
            arrival.priority,
            None,
            arrival.timeout_ns,
        )
        self._reading += 1
        shared = BatchOutputs(tensors, located, partial(self._input_freed, request))
        shared.references += 1  # ours, until it is submitted
        try:
            submission = self._dataplane.submit(
                served.signature, tensors, options, arrival.client, arrival.received_ns, shared
            )
        except ServingError:  # the relay finds the same error, and says so as the server does
            self._answer(Answered(request, None))
        except Exception:  # any error ends this request and nothing else
            logger.exception("a request of %s could not be submitted", self.name)
            self._answer(Answered(request, None))
        else:
            self._open[request] = submission
            submission.then(partial(self._answered, request, submission, arrival.explain))
        finally:
            shared.release_reference()

    def _locate(self, arrival: Arrival, served: Served) -> tuple[dict[str, OutputTensor], dict[str, Tensor]]:
        """The places of inputs, and the inputs.

        Raises PartitionError for places that are not in their region, and for inputs that the pipeline cannot have.
        """
        rows = arrival.rows
        if not 1 <= rows <= served.most_rows:
            raise PartitionError(f"a request to {arrival.key} has {rows} rows, expected 1 to {served.most_rows}")
        located: dict[str, OutputTensor] = {}
        tensors: dict[str, Tensor] = {}
        for placed in arrival.inputs:
            number = self._inputs.get(placed.region)
            datatype = served.inputs.get(placed.name)
            region = None if number is None else self._index.regions.get(number)
            if region is None or number is None or datatype is None:
                raise PartitionError(f"input '{placed.name}' of {arrival.key} is in no region that is shared")
            begin, end = placed.offset, placed.offset + placed.nbytes
            if not 0 <= begin <= end <= region.nbytes:
                raise PartitionError(f"input '{placed.name}' of {arrival.key} is not within its region")
            offsets = placed.row_offsets
            located[placed.name] = whole = OutputTensor(
                placed.name, datatype, placed.shape, number, begin, placed.nbytes, offsets
            )
            is_batched = served.pipeline.batchable
            if (
                not is_whole(whole)
                or (is_batched and placed.shape[:1] != (rows,))
                or (offsets is not None and len(offsets) != rows + 1)
            ):
                raise PartitionError(
                    f"input '{placed.name}' of {arrival.key} has {placed.nbytes} bytes, which do not make up "
                    f"{rows} rows of {datatype} in the shape {list(placed.shape)}"
                )
            if offsets is None:
                tensors[placed.name] = np.ndarray(placed.shape, numpy_dtype(datatype), region.view[begin:end])
            else:
                tensors[placed.name] = WireBytes(region.view[begin:end], placed.shape, np.array(offsets, np.int64))
        if not tensors or not served.required <= tensors.keys():
            raise PartitionError(f"a request to {arrival.key} has the inputs {sorted(tensors)} alone")
        return located, tensors

    def _input_freed(self, request: int) -> None:
        self._reading -= 1
        if not self.has_gone:
            self._freed.append(request)
            self._flush_soon()
        elif not self._reading:
            self._drop_inputs()

    def _drop_inputs(self) -> None:
        for number in self._inputs.values():
            self._shared.drop_region(number)
        self._inputs.clear()

    # -- answers

    def _answered(self, request: int, submission: Submission, explain: bool, answer: Answer) -> None:
        self._open.pop(request, None)
        if self.has_gone:
            answer.release()
            return
        self.has_answered = True
        if self._waiting or len(self._own) >= OWN_REGIONS:
            self._waiting.append((request, submission, answer, explain))
        else:
            self._pass_on(request, submission, answer, explain)

    def _pass_on(self, request: int, submission: Submission, answer: Answer, explain: bool) -> None:
        """Pass an answer on; without memory for its outputs, the request goes the way of the relay."""
        try:
            is_held = self._place(request, submission, answer, explain)
        except Exception as error:
            logger.error("an answer could not be passed to %s: %s", self.name, error)
            is_held = False
            self._answer(Answered(request, None))
        if is_held:
            self._held[request] = answer
        else:
            answer.release()

    def _place(self, request: int, submission: Submission, answer: Answer, explain: bool) -> bool:
        """Pass an answer on with the places of its outputs; returns whether it has to be held for them."""
        explanation = tuple(submission.explanation()) if explain else ()
        contents = {name: content_of(tensor) for name, tensor in answer.outputs.items()}
        placed: list[PlacedTensor] = []
        own: list[str] = []
        is_small = sum(each.array.nbytes for each in contents.values()) <= SMALL_BYTES
        is_held = False
        copied = 0
        for name, content in contents.items():
            shape = answer.outputs[name].shape
            found = None if is_small else self._index.find(content.array)
            if found is not None:
                self._map(found[0])
                is_held = True
                placed.append(PlacedTensor(name, shape, *found, content.array.nbytes, content.row_offsets))
            elif copied + content.array.nbytes <= COPIED_BYTES:
                copied += content.array.nbytes
                placed.append(_copied(name, shape, content))
            else:
                own.append(name)
        if own:
            placed += self._in_own_region(request, {name: contents[name] for name in own}, answer)
            is_held = True
        self._answer(
            Answered(
                request,
                answer.outcome,
                answer.reason,
                answer.retry_after_s,
                submission.given_id,
                explanation,
                tuple(placed),
            )
        )
        return is_held

    def _in_own_region(self, request: int, contents: dict[str, Content], answer: Answer) -> list[PlacedTensor]:
        """Copy outputs to a region of their own, which the front end gets. Raises OSError without memory."""
        number = next(self._own_numbers)
        region = Region.create("sluice-answer", sum(each.array.nbytes for each in contents.values()))
        placed, offset = [], 0
        for name, content in contents.items():
            nbytes = content.array.nbytes
            region.view[offset : offset + nbytes] = content.array.data.cast("B")
            placed.append(PlacedTensor(name, answer.outputs[name].shape, number, offset, nbytes, content.row_offsets))
            offset += nbytes
        self.send(MapRegion(number, region.nbytes), [region.fd])
        region.close()
        self._own[request] = number
        return placed

    def _map(self, number: int) -> None:
        if number not in self._mapped:
            self._mapped.add(number)
            region = self._index.regions[number]
            self.send(MapRegion(number, region.nbytes), [region.fd])

    def _release(self, request: int) -> None:
        """Release the outputs of a request, which has been encoded."""
        if not self._drop_held(request):
            raise PartitionError(f"request {request} has no outputs to release")

    def _drop_held(self, request: int) -> bool:
        """Release the outputs of a request, if some are held for it."""
        answer = self._held.pop(request, None)
        if answer is None:
            return False
        answer.release()
        if (number := self._own.pop(request, None)) is not None:
            self.send(UnmapRegion(number))
            while self._waiting and len(self._own) < OWN_REGIONS:
                self._pass_on(*self._waiting.popleft())
        return True

    def _answer(self, answer: Answered) -> None:
        self._answers.append(answer)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send the answers of this turn; while the front end does not read, they become more, but not without end."""
        self._due = False
        while (self._answers or self._freed) and not (self.process.is_blocked or self.has_gone):
            answers, self._answers = self._answers[:ANSWERS_A_MESSAGE], self._answers[ANSWERS_A_MESSAGE:]
            freed, self._freed = self._freed, []
            self._send_answers(tuple(answers), tuple(freed))

    def _send_answers(self, answers: tuple[Answered, ...], freed: tuple[int, ...]) -> None:
        """Send answers, in several messages if they are too long for one."""
        try:
            self.process.send(Answers(answers, freed))
        except PartitionError:
            middle = len(answers) // 2
            if not middle:
                for answer in answers:
                    self._drop_held(answer.request)
                answers = tuple(Answered(answer.request, None) for answer in answers)
            self._send_answers(answers[:middle] or answers, freed)
            if middle:
                self._send_answers(answers[middle:], ())

    # -- the end

    def _exited(self, reason: str) -> None:
        """Cancel the requests of the front end, and return its memory."""
        self.is_ready = False
        self.counted.set()
        for submission in list(self._open.values()):
            self._dataplane.cancel(submission)
        for answer in (*self._held.values(), *(each[2] for each in self._waiting)):
            answer.release()
        self._held.clear()
        self._waiting.clear()
        if not self._reading:
            self._drop_inputs()
        self._on_exit(reason)


def _copied(name: str, shape: tuple[int, ...], content: Content) -> PlacedTensor:
    data = content.array.tobytes()
    return PlacedTensor(name, shape, INLINE, 0, len(data), content.row_offsets, data)


def read_served(pipeline: Pipeline, signature: Signature) -> Served:
    """The parts of a pipeline that its requests need."""
    return Served(
        pipeline,
        signature,
        {spec.name: spec.datatype for spec in pipeline.inputs},
        frozenset(spec.name for spec in pipeline.inputs if not spec.optional),
        max(pipeline.max_batch_size, 1),
    )
