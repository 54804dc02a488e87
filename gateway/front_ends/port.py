"""The gateway's end of one front end: its requests go to the data plane, and the answers back."""

import asyncio
import itertools
import logging
import os
import socket
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.front_ends.layouts import SMALL_BYTES, SentLayout, SentLayouts
from sluice.gateway.front_ends.messages import (
    ANSWER,
    ARRIVAL,
    INLINE,
    Answered,
    AnswerLayout,
    Answers,
    Counts,
    FromFrontEnd,
    FrontEndReady,
    LogLine,
    Particulars,
    PlacedTensor,
    RelayOpened,
    Template,
    ToFrontEnd,
    Turn,
)
from sluice.gateway.front_ends.numbers import Numbers
from sluice.gateway.front_ends.outputs import Content, RegionIndex, content_of
from sluice.gateway.front_ends.templates import Served, TakenTemplate
from sluice.gateway.inference.local import LocalDataPlane
from sluice.gateway.protocol.answer import Answer
from sluice.gateway.protocol.request_options import NO_PARAMETERS, RequestOptions
from sluice.gateway.runtime.submission import Submission
from sluice.gateway.tensors.input_slots import SharedRegions
from sluice.gateway.tensors.request_tensors import BatchOutputs
from sluice.models.errors import PartitionError, ServingError
from sluice.models.units import INFINITE_NS
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.messages import MapRegion, UnmapRegion
from sluice.mps.supervisor.child import Child
from sluice.mps.supervisor.process import MessageProcess

KIND = "front end"
COPIED_BYTES = 32 << 10
"""Outputs in memory of this process alone travel in the answer up to this size, and have a region above it."""
OWN_REGIONS = 32
"""Regions for such outputs that may be in use; further answers wait for one of them."""
ANSWERS_A_MESSAGE = 128
_OWN_NUMBERS = 1 << 40
"""The numbers of these regions begin here; no other ones are as large."""
_NONE = Particulars("", "", ())
_NOT_PASSED_ON = "its answer could not be passed on, and a request of a sequence runs once"

logger = logging.getLogger(__name__)


class ServedLookup(Protocol):
    """Looks up what is served now."""

    @property
    def serving(self) -> object:
        """The pipelines by name and version, another object at each change."""
        ...

    def find(self, name: str, version: str, key: str) -> Served | None:
        """The pipeline that clients get now by that name and version; None if it is not the one of that key."""
        ...


class _SmallAnswer(NamedTuple):
    """An answer with a layout, and the bytes of its outputs; `given` is as in ANSWER."""

    request: int
    layout: SentLayout
    given: int
    data: bytes


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
        served: ServedLookup,
        regions: SharedRegions,
        index: RegionIndex,
        attach: Callable[[socket.socket], None],
        on_ready: Callable[[], None],
        on_exit: Callable[[str], None],
    ) -> None:
        self.name = name
        self.counts = Counts(0, 0, 0, 0, {})
        self.counted = asyncio.Event()
        """Set when counts have come."""
        self.unanswered = 0
        """Checks since the last counts."""
        self.is_ready = self.was_ready = False
        self.has_answered = False
        self._dataplane = dataplane
        self._served = served
        self._shared = regions
        self._index = index
        self._attach = attach
        self._on_ready = on_ready
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._inputs: dict[int, tuple[int, memoryview]] = {}
        """The regions of the front end by its numbers: their numbers here, and their memory."""
        self._serving: object = None
        """The state of the server in which the templates were looked up."""
        self._templates: dict[int, TakenTemplate] = {}
        self._gone: set[int] = set()
        """The numbers of templates whose pipelines are not served any more."""
        self._layouts = SentLayouts()
        self._numbers: Numbers[SentLayout] = Numbers()
        self._reading = 0
        self._once: set[int] = set()
        """Requests that are not relayed once they have been submitted."""
        """Requests whose inputs are still needed."""
        self._open: dict[int, Submission] = {}
        self._held: dict[int, Answer] = {}
        self._own: dict[int, int] = {}
        """The regions for single answers, by request."""
        self._own_numbers = itertools.count(_OWN_NUMBERS)
        self._waiting: dict[int, tuple[Submission, Answer, RequestOptions]] = {}
        """Requests whose answers wait for a region, the first one first."""
        self._mapped: set[int] = set()
        self._answers: list[Answered | _SmallAnswer] = []
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
        if self._serving is not self._served.serving:
            self._look_templates_up()
        for template in turn.templates:
            self._take_template(template)
        try:
            arrivals = ARRIVAL.iter_unpack(turn.arrivals)
        except struct.error as error:
            raise PartitionError(f"arrivals of {len(turn.arrivals)} bytes cannot be: {error}") from error
        for request, number, region, offset, budget_ns, received_ns, position in arrivals:
            if not (-INFINITE_NS <= budget_ns <= INFINITE_NS and 0 <= received_ns <= INFINITE_NS):
                raise PartitionError(f"request {request} has the times {budget_ns} and {received_ns}")
            if position and not 1 <= position <= len(turn.particulars):
                raise PartitionError(f"request {request} has particulars {position} of {len(turn.particulars)}")
            particulars = turn.particulars[position - 1] if position else _NONE
            self._arrived(request, number, region, offset, budget_ns, received_ns, particulars)
        for request in turn.cancelled:
            if (submission := self._open.get(request)) is not None:
                self._dataplane.cancel(submission)
        for request in turn.released:
            self._release(request)

    def _take_template(self, template: Template) -> None:
        """Check a template, and take it in place of the one that had its number.

        It is dropped if it is of a pipeline that has been replaced: its requests go through the relay.
        """
        served = self._served.find(template.name, template.version, template.key)
        if served is None:
            self._templates.pop(template.number, None)
            self._gone.add(template.number)
        else:
            self._gone.discard(template.number)
            self._templates[template.number] = TakenTemplate(template, served)

    def _look_templates_up(self) -> None:
        """Drop the templates of pipelines that have been replaced. O(templates)."""
        self._serving = self._served.serving
        for template, signature in [(each.template, each.signature) for each in self._templates.values()]:
            served = self._served.find(template.name, template.version, template.key)
            if served is None or served.signature is not signature:
                self._take_template(template)

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
        region = Region.attach(fd, message.nbytes)
        memory = region.view
        self._inputs[message.region] = self._shared.share_region(region), memory

    def _drops_inputs(self, message: UnmapRegion) -> None:
        region = self._inputs.pop(message.region, None)
        if region is None:
            raise PartitionError(f"region {message.region} is not shared")
        self._shared.drop_region(region[0])

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

    def _arrived(
        self,
        request: int,
        number: int,
        region: int,
        offset: int,
        budget_ns: int,
        received_ns: int,
        particulars: Particulars,
    ) -> None:
        if request in self._open or request in self._held or request in self._waiting:
            raise PartitionError(f"request {request} is open already")
        template = self._templates.get(number)
        if template is None:
            if number not in self._gone:
                raise PartitionError(f"template {number} was not sent")
            self._freed.append(request)
            self._answer(Answered(request, None))
            return
        shared = self._inputs.get(region)
        if shared is None:
            raise PartitionError(f"the inputs of request {request} are in no region that is shared")
        located, tensors = template.locate(*shared, offset, particulars)
        options = template.options(budget_ns, particulars.id, located)
        if particulars.parameters != NO_PARAMETERS:
            options = options._replace(parameters=particulars.parameters)
        if particulars.sequence is not None:
            options = options._replace(sequence=particulars.sequence)
            self._once.add(request)
        self._reading += 1
        inputs = BatchOutputs(tensors, located, partial(self._input_freed, request))
        inputs.references += 1  # ours, until it is submitted
        try:
            submission = self._dataplane.submit(
                template.signature, tensors, options, particulars.client, particulars.trace, received_ns, inputs
            )
        except ServingError:  # the relay finds the same error, and says so as the server does
            self._answer(Answered(request, None))
        except Exception:  # any error ends this request and nothing else
            logger.exception("a request of %s could not be submitted", self.name)
            self._answer(self._instead(request))
        else:
            self._open[request] = submission
            submission.then(partial(self._answered, request, submission, options))
        finally:
            inputs.release_reference()

    def _input_freed(self, request: int) -> None:
        self._reading -= 1
        if not self.has_gone:
            self._freed.append(request)
            self._flush_soon()
        elif not self._reading:
            self._drop_inputs()

    def _drop_inputs(self) -> None:
        for number, _ in self._inputs.values():
            self._shared.drop_region(number)
        self._inputs.clear()

    # -- answers

    def _answered(self, request: int, submission: Submission, options: RequestOptions, answer: Answer) -> None:
        self._open.pop(request, None)
        if self.has_gone:
            answer.release()
            return
        self.has_answered = True
        if self._waiting or len(self._own) >= OWN_REGIONS:
            self._waiting[request] = submission, answer, options
        else:
            self._pass_on(request, submission, answer, options)

    def _pass_on(self, request: int, submission: Submission, answer: Answer, options: RequestOptions) -> None:
        """Pass an answer on; without memory for its outputs, the request goes the way of the relay, as it may."""
        try:
            is_held = self._place(request, submission, answer, options)
        except Exception as error:
            logger.error("an answer could not be passed to %s: %s", self.name, error)
            is_held = False
            self._answer(self._instead(request))
        if is_held:
            self._held[request] = answer
        else:
            answer.release()

    def _place(self, request: int, submission: Submission, answer: Answer, options: RequestOptions) -> bool:
        """Pass an answer on with the places of its outputs; returns whether it has to be held for them."""
        if not (options.explain or answer.reason):
            found = self._layouts.find(answer.outcome, answer.outputs)
            if found is not None:
                self._answer(_SmallAnswer(request, found[0], 0 if options.id else submission.request, found[1]))
                return False
        explanation = tuple(submission.explanation()) if options.explain else ()
        contents = {name: content_of(tensor) for name, tensor in answer.outputs.items()}
        placed: list[PlacedTensor] = []
        own: list[str] = []
        is_small = sum(each.array.nbytes for each in contents.values()) <= SMALL_BYTES
        is_held = False
        copied = 0
        for name, content in contents.items():
            shape = answer.outputs[name].shape
            found_at = None if is_small else self._index.find(content.array)
            if found_at is not None:
                self._map(found_at[0])
                is_held = True
                placed.append(PlacedTensor(name, shape, *found_at, content.array.nbytes, content.row_offsets))
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
                answer.failure,
                tuple(submission.notes),
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
                first = next(iter(self._waiting))
                self._pass_on(first, *self._waiting.pop(first))
        return True

    def _answer(self, answer: Answered | _SmallAnswer) -> None:
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
            self._send_answers(answers, tuple(freed))

    def _send_answers(self, answers: Sequence[Answered | _SmallAnswer], freed: tuple[int, ...]) -> None:
        """Send answers, in several messages if they are too long for one."""
        numbers, pack = self._numbers, ANSWER.pack
        new: list[SentLayout] = []
        layouts: list[AnswerLayout] = []
        others: list[Answered] = []
        records: list[bytes] = []
        data: list[bytes] = []
        offset = 0
        for answer in answers:
            if isinstance(answer, Answered):
                others.append(answer)
                continue
            request, layout, given, content = answer
            if numbers.refers(layout):
                new.append(layout)
                layouts.append(layout.message())
            records.append(pack(request, layout.number, given, offset))
            data.append(content)
            offset += len(content)
        try:
            self.process.send(Answers(tuple(others), freed, tuple(layouts), b"".join(records), b"".join(data)))
        except PartitionError:
            numbers.withdraw(new)
            middle = len(answers) // 2
            if not middle:
                for answer in answers:
                    self._drop_held(answer.request)
                answers = [self._instead(answer.request) for answer in answers]
            self._send_answers(answers[:middle] or answers, freed)
            if middle:
                self._send_answers(answers[middle:], ())
            return
        if self._once:
            self._once.difference_update(answer.request for answer in answers)

    def _instead(self, request: int) -> Answered:
        """Have the front end relay a request that has no answer here.

        One of a sequence fails: it may have run, and the state of its sequence would count it twice.
        """
        if request in self._once:
            return Answered(request, Outcome.FAILED_BACKEND, _NOT_PASSED_ON)
        return Answered(request, None)

    # -- the end

    def _exited(self, reason: str) -> None:
        """Cancel the requests of the front end, and return its memory."""
        self.is_ready = False
        self.counted.set()
        for submission in list(self._open.values()):
            self._dataplane.cancel(submission)
        for answer in (*self._held.values(), *(each[1] for each in self._waiting.values())):
            answer.release()
        self._held.clear()
        self._waiting.clear()
        if not self._reading:
            self._drop_inputs()
        self._on_exit(reason)


def _copied(name: str, shape: tuple[int, ...], content: Content) -> PlacedTensor:
    data = content.array.tobytes()
    return PlacedTensor(name, shape, INLINE, 0, len(data), content.row_offsets, data)
