"""The messages between the gateway's process and a front end, over a SEQPACKET socket.

A front end sends what one turn of its loop has brought in one message, and gets the answers of one turn likewise.
Tensors do not travel: they lie in regions of memory that both have mapped, whose descriptors come with `MapRegion`.
Each side numbers its own regions. Times are CLOCK_MONOTONIC nanoseconds, which all processes of a machine share.
"""

from typing import Annotated

import msgspec

from sluice.batcher.interface.outcome import Outcome
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.units import INFINITE_NS
from sluice.mps.ipc.messages import MapRegion, UnmapRegion

Count = Annotated[int, msgspec.Meta(ge=0, le=INFINITE_NS)]
Budget = Annotated[int, msgspec.Meta(ge=-INFINITE_NS, le=INFINITE_NS)]
"""Nanoseconds that are left, or by which it is too late."""
INLINE = 0
"""The region of outputs that lie in no region, but travel themselves."""


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
    """A tensor: `nbytes` bytes at `offset` of a region, or `data` itself if `region` is INLINE.

    BYTES are in wire form, with the start of each row relative to `offset`, and the end of the last row.
    """

    name: str
    shape: tuple[int, ...]
    region: int
    offset: int
    nbytes: int
    row_offsets: tuple[int, ...] | None = None
    data: bytes = b""


class Arrival(msgspec.Struct, frozen=True, array_like=True):
    """A checked request, which the front end has given the number `request`.

    The client asked for `version` of `name` and got the pipeline `key`. `outputs` are the outputs to answer, None for
    all. The rest is as in `RequestOptions` and in `RequestArrived`.
    """

    request: int
    name: str
    version: str
    key: str
    inputs: tuple[PlacedTensor, ...]
    outputs: tuple[str, ...] | None
    rows: Count
    batch_key: str
    memory_bytes: Count
    budget_ns: Budget
    id: str
    max_cost: float | None
    explain: bool
    priority: Annotated[int, msgspec.Meta(ge=0)]
    timeout_ns: Count
    client: str
    received_ns: Count


class Turn(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The arrivals of one turn of a front end, and changes of earlier requests, by their numbers.

    Clients have left the requests `cancelled`, and the outputs of those in `released` are no longer needed.
    """

    arrivals: tuple[Arrival, ...]
    cancelled: tuple[int, ...] = ()
    released: tuple[int, ...] = ()


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a request; without an outcome, only the gateway's process can answer it.

    `given_id` is the id that the server gave to the request, "" if the client gave one. `explanation` are headers.
    The front end releases outputs in regions with `Turn.released`.
    """

    request: int
    outcome: Outcome | None
    reason: str = ""
    retry_after_s: int | None = 0
    given_id: str = ""
    explanation: tuple[tuple[str, str], ...] = ()
    outputs: tuple[PlacedTensor, ...] = ()


class Answers(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answers of one turn, and the requests whose inputs are no longer needed."""

    answers: tuple[Answered, ...]
    freed: tuple[int, ...]


class AskCounts(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Report the counts now; answered by `Counts`."""


class Stop(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Accept no connections, answer the open requests, and exit after `timeout_s` at the latest."""

    timeout_s: float


ToFrontEnd = Start | NamesChanged | MapRegion | UnmapRegion | Answers | AskCounts | Stop


class FrontEndReady(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The front end accepts connections."""


class RelayOpened(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A connection to the gateway's own HTTP server, whose socket comes along."""


class Counts(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The counts of the front end's front doors; `faults` are since its start."""

    http_connections: int
    grpc_connections: int
    buffer_bytes: int
    faults: dict[str, int]


class LogLine(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A line for the log of the server; `lost` lines before it are left out, since there were too many."""

    level: int
    logger: str
    text: str
    lost: int


FromFrontEnd = FrontEndReady | MapRegion | UnmapRegion | Turn | RelayOpened | Counts | LogLine
