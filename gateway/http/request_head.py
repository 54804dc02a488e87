"""The heads of inference requests: what they say, and the latest one of a connection, which its client repeats."""

import re
from typing import Final, TypeAlias

from sluice.gateway.http.compression import accepted_encoding, is_encoded
from sluice.gateway.http.dialect import TARGET_MODEL, Dialect, InferenceTarget, sagemaker_json_length, target_model
from sluice.gateway.inference.dataplane import EXPLAIN_HEADER, asks_for_explanation
from sluice.gateway.observability.load_report import LOAD_FORMAT_HEADER, LoadFormat, load_format
from sluice.gateway.observability.traces.context import OVER_HTTP, TraceContext, parse_context
from sluice.models.errors import RequestError

Headers: TypeAlias = list[tuple[bytes, bytes]]

MAX_LENGTH_DIGITS = 18
MAX_KNOWN_BYTES = 2048
"""Longer heads are not remembered."""

_HEAD_END = b"\r\n\r\n"
_EXPLAIN = EXPLAIN_HEADER.encode()
_LOAD_FORMAT = LOAD_FORMAT_HEADER.encode()
TRACEPARENT, TRACESTATE = b"traceparent", b"tracestate"
_EXTRAS = frozenset({_EXPLAIN, _LOAD_FORMAT, TRACEPARENT})
"""Headers that ask for more than inference, or tell where it belongs."""
_V2: Final = Dialect.V2
_SAGEMAKER: Final = Dialect.SAGEMAKER


class RequestHead:
    """The head of an inference request to a `target`, which a header of SageMaker may name.

    `length` is that of the body (0 if it is unknown), and `json_length` that of its JSON part (None if all of it is
    JSON). The body is `encoded`, or not, and `accepted` is the encoding for the response (b"" for none). `added_lines`
    are header lines that the response gets besides. `load` is the format of a load report, if one is asked for. `trace`
    is the trace that the client says it is in. A head that is wrong has an `error`.
    """

    __slots__ = (
        "accepted",
        "added_lines",
        "encoded",
        "error",
        "expects_continue",
        "explain",
        "headers",
        "json_length",
        "keep_alive",
        "length",
        "load",
        "target",
        "trace",
    )

    def __init__(
        self,
        target: InferenceTarget,
        headers: Headers,
        expects_continue: bool = False,
        keep_alive: bool = True,
        added_lines: bytes = b"",
    ) -> None:
        self.target = target
        self.headers = headers
        self.expects_continue = expects_continue
        self.keep_alive = keep_alive
        self.added_lines = added_lines
        self.length = 0
        self.json_length: int | None = None
        self.explain = self.encoded = False
        self.accepted = b""
        self.load: LoadFormat | None = None
        self.trace: TraceContext = OVER_HTTP
        self.error: RequestError | None = None

    def with_traceparent(self, traceparent: bytes) -> "RequestHead":
        """The same head with another value of that header."""
        headers = [(name, traceparent if name == TRACEPARENT else value) for name, value in self.headers]
        head = RequestHead(self.target, headers, self.expects_continue, self.keep_alive, self.added_lines)
        head.read_headers()
        return head

    def read_headers(self) -> None:
        """Take from the headers what concerns inference."""
        dialect = self.target.dialect
        try:
            for name, value in self.headers:
                if name == b"content-length":
                    self.length = int(value)
                elif name == b"inference-header-content-length":
                    if dialect is _V2:
                        self.json_length = _parse_json_length(value)
                elif name in _EXTRAS:
                    self._read_extra(name, value)
                elif name == b"content-encoding":
                    self.encoded = is_encoded(value) or self.encoded
                elif name == b"accept-encoding":
                    self.accepted = accepted_encoding(value)
                elif dialect is _SAGEMAKER:
                    if name == b"content-type":
                        self.json_length = sagemaker_json_length(value)
                    elif name == TARGET_MODEL:
                        self.target = target_model(value)
        except RequestError as error:
            self.error = error

    def _read_extra(self, name: bytes, value: bytes) -> None:
        """Take one of `_EXTRAS`. Raises RequestError."""
        if name == TRACEPARENT:
            self.trace = trace_in(self.headers)
        elif name == _EXPLAIN:
            self.explain = asks_for_explanation(value.decode("latin-1"))
        else:
            self.load = load_format(value.decode("latin-1"))


def trace_in(headers: Headers) -> TraceContext:
    """The trace that headers name; those of several lines `tracestate` are joined."""
    traceparent = ""
    states: list[str] = []
    for name, value in headers:
        if name == TRACEPARENT:
            if traceparent:  # two of them mean nothing
                return OVER_HTTP
            traceparent = value.decode("latin-1")
        elif name == TRACESTATE:
            states.append(value.decode("latin-1"))
    return parse_context(traceparent, ",".join(states), OVER_HTTP) if traceparent else OVER_HTTP


_TRACEPARENT_BYTES: Final = 55
_TRACEPARENT = re.compile(rb"[0-9a-f-]{55}")
_TRACE_LINE = re.compile(rb"\r\ntraceparent:[ \t]*([0-9a-f-]{55})[ \t]*(?=\r\n)", re.IGNORECASE)


class KnownRequest:
    """A request of `size` bytes that begins with `begin`, the bytes of `head`.

    The next one mostly differs in its body alone, or in the ids of its trace, and then its head need not be parsed.
    """

    __slots__ = ("_after", "_before", "_head", "begin", "size")

    def __init__(self, begin: bytes, size: int, head: RequestHead) -> None:
        self.begin = begin
        self.size = size
        self._head = head
        self._before = self._after = b""
        """The bytes of the head before and after the ids of its trace, empty if it has none."""
        if head.trace.trace_id:
            places = list(_TRACE_LINE.finditer(begin))
            if len(places) == 1:
                self._before, self._after = begin[: places[0].start(1)], begin[places[0].end(1) :]

    def head_of(self, data: bytes) -> RequestHead | None:
        """The head of a request that begins with these bytes, with the ids of its own trace; None if it is another."""
        if data.startswith(self.begin):
            return self._head
        before = self._before
        if not before or not data.startswith(before):
            return None
        end = len(before) + _TRACEPARENT_BYTES
        if not data.startswith(self._after, end):
            return None
        traceparent = data[len(before) : end]
        return self._head.with_traceparent(traceparent) if _TRACEPARENT.fullmatch(traceparent) else None


def known_request(data: bytes, head: RequestHead) -> KnownRequest | None:
    """The request in `data`, which has all of it and nothing else; None if another must not be taken for the same.

    The parser also passes over empty lines before and after a request: data with these is not remembered.
    """
    begin = data.find(_HEAD_END, 0, MAX_KNOWN_BYTES) + len(_HEAD_END)
    return known_beginning(data[:begin], head) if begin + head.length == len(data) else None


def known_beginning(begin: bytes, head: RequestHead) -> KnownRequest | None:
    """The request that begins with the bytes of its head; None if another must not be taken for the same."""
    if len(begin) > MAX_KNOWN_BYTES or not head.length or head.expects_continue or not head.keep_alive:
        return None
    size = len(begin) + head.length
    return KnownRequest(begin, size, head) if head.error is None and not head.encoded else None


def _parse_json_length(value: bytes) -> int:
    if not value.isdigit() or len(value) > MAX_LENGTH_DIGITS:
        raise RequestError(
            f"Inference-Header-Content-Length must be a number of bytes, got '{value[:80].decode('latin-1')}'"
        )
    return int(value)
