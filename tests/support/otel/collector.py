"""A collector of OpenTelemetry for tests: real servers of OTLP over gRPC and over HTTP that keep what they get."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

WAIT_S = 60.0
"""Exporters have a low priority, so a busy machine keeps them waiting."""


class ReceivedLink(NamedTuple):
    """A link of a span, with ids in hexadecimal."""

    trace_id: str
    span_id: str


class ReceivedSpan(NamedTuple):
    """A span as the collector got it, with ids in hexadecimal ("" without a parent) and times of the day."""

    name: str
    trace_id: str
    id: str
    parent: str
    kind: int
    started_ns: int
    ended_ns: int
    attributes: Mapping[str, Any]
    links: tuple[ReceivedLink, ...]
    is_error: bool
    state: str
    resource: Mapping[str, Any]

    @property
    def ms(self) -> float:
        """Its length."""
        return (self.ended_ns - self.started_ns) / 1e6

    @property
    def is_server(self) -> bool:
        """True for the span of a request."""
        return self.kind == trace_pb2.Span.SPAN_KIND_SERVER


@dataclass
class Collector:
    """The spans that have come, and where exporters send them. `headers` are those of each export.

    While `delay_s` is set, exports wait for that time, or until `let_go` is called.
    """

    endpoint: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    delay_s: float = 0
    _going: threading.Event = field(default_factory=threading.Event)

    def let_go(self) -> None:
        """Delay no export any longer."""
        self.delay_s = 0
        self._going.set()

    def take(self, request: trace_service_pb2.ExportTraceServiceRequest, headers: dict[str, str]) -> None:
        """Keep the spans of an export."""
        if self.delay_s:
            self._going.wait(self.delay_s)
        self.headers.append(headers)
        for resource in request.resource_spans:
            about = _values(resource.resource.attributes)
            self.spans += [_span(span, about) for scope in resource.scope_spans for span in scope.spans]

    def of(self, trace_id: str) -> list[ReceivedSpan]:
        """The spans of a trace."""
        return [span for span in self.spans if span.trace_id == trace_id]

    def wait(self, has_come: Callable[[], Any]) -> None:
        """Wait until a condition is true. Raises AssertionError if it does not become true."""
        deadline_s = time.monotonic() + WAIT_S
        while not has_come():
            assert time.monotonic() < deadline_s, f"not within {WAIT_S:g} s; there are {len(self.spans)} spans"
            time.sleep(0.02)

    def tree(self, trace_id: str, roots: int = 1) -> list[ReceivedSpan]:
        """The spans of a trace, once the spans of `roots` requests have come with all that are exported with them."""
        self.wait(lambda: sum(span.is_server for span in self.of(trace_id)) >= roots)
        return self.of(trace_id)


@contextmanager
def grpc_collector(address: str = "127.0.0.1:0") -> Iterator[Collector]:
    """A collector over gRPC until the block ends."""
    collector = Collector()

    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
            collector.take(request, dict(context.invocation_metadata()))
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(4), options=(("grpc.so_reuseport", 1),))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port(address)
    server.start()
    collector.endpoint = f"http://127.0.0.1:{port}"
    try:
        yield collector
    finally:
        collector.let_go()
        server.stop(0).wait()


@contextmanager
def silent_address() -> Iterator[str]:
    """An address at which nobody listens, kept free from others: `grpc_collector` may listen there later."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@contextmanager
def http_collector() -> Iterator[Collector]:
    """A collector over HTTP until the block ends."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = 200 if self.path == "/v1/traces" else 404
            if status == 200:
                headers = {name.lower(): value for name, value in self.headers.items()}
                collector.take(trace_service_pb2.ExportTraceServiceRequest.FromString(body), headers)
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    collector.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        collector.let_go()
        server.shutdown()
        thread.join()
        server.server_close()


def _span(span: Any, resource: Mapping[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _values(span.attributes),
        tuple(ReceivedLink(each.trace_id.hex(), each.span_id.hex()) for each in span.links),
        span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        span.trace_state,
        resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
