"""The requests of a batch as models in Python see them, and the calls of other models that they make."""

import enum

import msgspec

from sluice.models.sequence_batching import SequenceStep
from sluice.models.tensors.spec import DataType


class FailureCode(enum.IntEnum):
    """The kinds of errors that models report and get; the numbers are those of Triton's `TritonError`."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class RequestPart(msgspec.Struct, frozen=True, array_like=True):
    """A request of a batch: its rows, the id that its client gave, and its parameters as a JSON object.

    `sequence` is its part in a sequence, None outside of sequences. `timeout_us` is the time that the client lets it
    wait (0: no limit). `traceparent` and `tracestate` are the headers of its trace, "" without one.
    """

    rows: int
    id: str = ""
    parameters: str = "{}"
    sequence: SequenceStep | None = None
    timeout_us: int = 0
    traceparent: str = ""
    tracestate: str = ""


class RequestFailure(msgspec.Struct, frozen=True, array_like=True):
    """The error of the request at a position of a batch; the other requests of the batch have their answers."""

    position: int
    message: str
    code: FailureCode = FailureCode.INTERNAL


class MemorySpan(msgspec.Struct, frozen=True, array_like=True):
    """The position of a tensor in a file of memory, BYTES in wire form."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class CallKind(enum.IntEnum):
    """The kind of a call: to run another model, to load or unload it, or to ask whether it is ready."""

    INFER = 0
    LOAD = 1
    UNLOAD = 2
    IS_READY = 3


class CallRequest(msgspec.Struct, frozen=True, array_like=True):
    """A call of another model; its inputs lie in a file of memory of `nbytes` bytes, whose descriptor comes along.

    `version` "" is the latest, and empty `outputs` ask for all. `timeout_us` bounds the time of the call (0: only by
    the time that is left to the caller). `parameters` is a JSON object. The inputs of a model that is to be loaded are
    its files. `traceparent` and `tracestate` are the headers of the trace that the model says the call belongs to.
    """

    model: str
    version: str
    outputs: tuple[str, ...]
    tensors: tuple[MemorySpan, ...]
    nbytes: int
    id: str = ""
    parameters: str = "{}"
    timeout_us: int = 0
    kind: CallKind = CallKind.INFER
    traceparent: str = ""
    tracestate: str = ""


class CallResult(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a call: outputs in a file of memory, whose descriptor comes along, or an `error`.

    `is_ready` answers whether a model is ready.
    """

    tensors: tuple[MemorySpan, ...] = ()
    nbytes: int = 0
    error: str = ""
    code: FailureCode = FailureCode.INTERNAL
    is_ready: bool = False
