"""The messages between the gateway's process and a front end, over a SEQPACKET socket.

A front end sends what one turn of its loop has brought in one message, and gets the answers of one turn likewise.
Tensors do not travel: they lie in regions of memory that both have mapped, whose descriptors come with `MapRegion`.
Each side numbers its own regions. Times are CLOCK_MONOTONIC nanoseconds, which all processes of a machine share.

Most requests differ from earlier ones in their tensors alone. What they have in common is sent once, as a template, and
each of them is a few numbers. So are answers with small outputs. The numbers of a message are one string of bytes,
which takes no work for each field.
"""

import struct
from typing import Annotated

import msgspec

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.observability.traces.context import NO_TRACE, TraceContext
from sluice.models.backends.requests import FailureCode
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.sequence_batching import SequenceStep
from sluice.models.units import INFINITE_NS
from sluice.mps.ipc.messages import MapRegion, UnmapRegion

Count = Annotated[int, msgspec.Meta(ge=0, le=INFINITE_NS)]
INLINE = 0
"""The region of outputs that lie in no region, but travel themselves."""
TEMPLATES = 1024
"""The templates that a front end may have, and the layouts of answers that it may be sent."""
ARRIVALS_A_MESSAGE = 128
"""The most arrivals in a message. They are fewer than templates, so one that a message uses is not replaced in it."""
ALIGNMENT = 64
"""The inputs of a request lie one after the other, each at a multiple of this from the first one. Those that were
received where they lie may be closer together (see `Particulars.starts`)."""
OUTPUT_ALIGNMENT = 8
"""The outputs of an answer lie in the same way in `Answers.data`."""
ARRIVAL = struct.Struct("=7q")
"""An arrival: the numbers of the request and of its template, the region and the offset of its inputs there, the time
that is left, the time when it was received, and the position in `Turn.particulars` from 1 on (0: it has none)."""
ANSWER = struct.Struct("=4q")
"""An answer: the numbers of the request and of its layout, the number of which the server's id for it is made (0: the
client gave one), and the offset of its outputs in `Answers.data`."""


class Start(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The first message to a front end. The descriptor of its listening socket for HTTP comes along.

    So does that for gRPC, if the front end is to serve that as well. `config` is the server's configuration in JSON.
    The front end may have `max_connections` over HTTP, `grpc_connections` over gRPC, and bodies of `buffer_bytes`
    together. It logs from `log_level` on.
    """

    config: bytes
    max_connections: int
    grpc_connections: int
    buffer_bytes: int
    log_level: int


class ServedName(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The key of the pipeline that clients get by a name and a version ("" is the latest); "" for none any more."""

    name: str
    version: str
    key: str


class NamesChanged(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The names whose pipelines have changed, and the pipelines that are new, without what only the scheduler needs.

    `draining` is true from the time on at which the server stops.
    """

    names: tuple[ServedName, ...]
    pipelines: tuple[Pipeline, ...]
    draining: bool


class PlacedTensor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An output: `nbytes` bytes at `offset` of a region, or `data` itself if `region` is INLINE.

    BYTES are in wire form, with the start of each row relative to `offset`, and the end of the last row.
    """

    name: str
    shape: tuple[int, ...]
    region: int
    offset: int
    nbytes: int
    row_offsets: tuple[int, ...] | None = None
    data: bytes = b""


class InputShape(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The shape of an input."""

    name: str
    shape: tuple[int, ...]


class Template(msgspec.Struct, frozen=True, array_like=True):
    """The common part of requests, under a number that replaces an earlier template.

    Their clients asked for `version` of `name` and got the pipeline `key`. `outputs` are the outputs to answer, None
    for all. The rest is as in `RequestOptions`.
    """

    number: Annotated[int, msgspec.Meta(ge=0, lt=TEMPLATES)]
    name: str
    version: str
    key: str
    inputs: tuple[InputShape, ...]
    outputs: tuple[str, ...] | None
    max_cost: float | None
    explain: bool
    priority: Annotated[int, msgspec.Meta(ge=0)]
    timeout_ns: Count
    min_accuracy: float = 0.0
    start_after_ns: Count = 0


class Particulars(msgspec.Struct, frozen=True, array_like=True):
    """The parts that only some requests have: an id, a client, BYTES, inputs not written, a sequence, a trace.

    `row_offsets` has an entry for each input of BYTES: the start of each row, and the end of the last one. `starts` has
    one for each input of numbers if they do not lie one after the other: how far it is from the offset of the arrival.
    `parameters` are those that only the model knows, as a JSON object.
    """

    id: str
    client: str
    row_offsets: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...] = ()
    parameters: str = "{}"
    sequence: SequenceStep | None = None
    trace: TraceContext = NO_TRACE


class Turn(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The arrivals of one turn of a front end (see ARRIVAL), and changes of earlier requests, by their numbers.

    The templates are those that the front end has not sent before. Clients have left the requests `cancelled`, and the
    outputs of those in `released` are no longer needed.
    """

    templates: Annotated[tuple[Template, ...], msgspec.Meta(max_length=ARRIVALS_A_MESSAGE)]
    arrivals: Annotated[bytes, msgspec.Meta(max_length=ARRIVALS_A_MESSAGE * ARRIVAL.size)]
    particulars: tuple[Particulars, ...] = ()
    cancelled: tuple[int, ...] = ()
    released: tuple[int, ...] = ()


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a request; without an outcome, only the gateway's process can answer it.

    `given_id` is the id that the server gave to the request, "" if the client gave one. `explanation` and `notes` are
    headers. The front end releases outputs in regions with `Turn.released`. `failure` is as in `Answer`.
    """

    request: int
    outcome: Outcome | None
    reason: str = ""
    retry_after_s: int | None = 0
    given_id: str = ""
    explanation: tuple[tuple[str, str], ...] = ()
    outputs: tuple[PlacedTensor, ...] = ()
    failure: FailureCode | None = None
    notes: tuple[tuple[str, str], ...] = ()


class OutputPlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The shape of an output, and its offset from the first one."""

    name: str
    shape: tuple[int, ...]
    offset: int


class AnswerLayout(msgspec.Struct, frozen=True, array_like=True):
    """The common part of answers with small outputs of numbers, under a number that replaces an earlier layout."""

    number: int
    outcome: Outcome
    outputs: tuple[OutputPlace, ...]


class Answers(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answers of one turn, and the requests whose inputs are no longer needed.

    `small` are answers with a layout (see ANSWER), and `data` their outputs.
    """

    answers: tuple[Answered, ...]
    freed: tuple[int, ...]
    layouts: tuple[AnswerLayout, ...] = ()
    small: bytes = b""
    data: bytes = b""


class AskCounts(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Report the counts now; answered by `Counts`."""


class AskToGo(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Ask clients to go, as `FrontDoor.ask_to_go` does."""

    last: bool


class Stop(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Accept no connections, answer the open requests, and exit after `timeout_s` at the latest."""

    timeout_s: float


ToFrontEnd = Start | NamesChanged | MapRegion | UnmapRegion | Answers | AskCounts | AskToGo | Stop


class FrontEndReady(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The front end accepts connections."""


class RelayOpened(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A connection to the gateway's own HTTP server, whose socket comes along."""


class Counts(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The counts of the front end's front doors, and the memory of its inputs; `faults` are since its start."""

    http_connections: int
    grpc_connections: int
    buffer_bytes: int
    input_bytes: int
    faults: dict[str, int]


class LogLine(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A line for the log of the server; `lost` lines before it are left out, since there were too many."""

    level: int
    logger: str
    text: str
    lost: int


FromFrontEnd = FrontEndReady | MapRegion | UnmapRegion | Turn | RelayOpened | Counts | LogLine
