"""The contexts of traces that clients send and models get: the headers `traceparent` and `tracestate` (W3C).

Source: https://www.w3.org/TR/trace-context/.
"""

import re
from random import getrandbits

import msgspec

MAX_STATE = 512
"""Longest `tracestate` in characters that is passed on; a longer one is left out, as the standard allows."""
SAMPLED = 1
"""The flag of `traceparent` that says that the caller records the trace."""

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_NO_TRACE_ID = "0" * 32
_NO_SPAN_ID = "0" * 16
_MASK = (1 << 64) - 1


class TraceContext(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The trace that a request belongs to: its id, and the id of the caller's span, in lower-case hexadecimal.

    Without a trace, `trace_id` is "". A trace that begins here has the `parent_id` "". `state` is the caller's
    `tracestate`. `transport` is `http`, `grpc`, or "" where it is not known.
    """

    trace_id: str = ""
    parent_id: str = ""
    sampled: bool = False
    state: str = ""
    transport: str = ""

    @property
    def traceparent(self) -> str:
        """The header; the context has a trace and a caller's span."""
        return f"00-{self.trace_id}-{self.parent_id}-{int(self.sampled):02x}"


class SpanRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The span of a traced request that is in a batch, for the links between the requests of the batch."""

    trace_id: str
    span_id: int


NO_TRACE = TraceContext()
OVER_HTTP = TraceContext(transport="http")
OVER_GRPC = TraceContext(transport="grpc")
"""The contexts of requests without a trace."""


def parse_context(traceparent: str, state: str, without: TraceContext) -> TraceContext:
    """The context in the two headers; `without`, the context of the transport, if the first one is malformed."""
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None:
        return without
    version, trace_id, parent_id, flags, more = match.groups()
    if version == "ff" or (more and version == "00") or trace_id == _NO_TRACE_ID or parent_id == _NO_SPAN_ID:
        return without
    kept = state if len(state) <= MAX_STATE and state.isprintable() and state.isascii() else ""
    return TraceContext(trace_id, parent_id, bool(int(flags, 16) & SAMPLED), kept, without.transport)


def new_context(transport: str) -> TraceContext:
    """The context of a trace that begins here."""
    return TraceContext(f"{getrandbits(128) or 1:032x}", "", True, "", transport)


def new_span_id() -> int:
    """A random id for a span, never 0."""
    return getrandbits(64) or 1


def derived_span_id(span_id: int, number: int) -> int:
    """The id of a span within another one, never 0.

    Both the gateway, which passes it on while a batch runs, and the exporter, which makes the span later, derive it.
    It is the mixing function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    """
    mixed = (span_id + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return mixed ^ mixed >> 31 or 1


def batch_span_id(span_id: int, batch: int, stage: int) -> int:
    """The id of the span of a request's stage in a batch, whose root span has the id `span_id`."""
    return derived_span_id(derived_span_id(span_id, batch), stage)
