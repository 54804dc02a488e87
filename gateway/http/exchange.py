"""Inference over HTTP without a framework: an exchange takes the place of uvicorn's ASGI cycle on a connection."""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from http import HTTPStatus
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import unquote

import httptools
import numpy as np
import orjson

from sluice.gateway.config.json_rules import JsonRules
from sluice.gateway.front_door.budget import Budget
from sluice.gateway.front_door.decompression import decompress
from sluice.gateway.http.codec import (
    Decode,
    decode_large_request,
    decode_request,
    encode_response,
)
from sluice.gateway.http.compression import (
    ENCODINGS,
    MIN_BYTES,
    UnsupportedEncoding,
    compress,
)
from sluice.gateway.http.dialect import Dialect, InferenceTarget, find_target, sagemaker_content_type
from sluice.gateway.http.known_response import EncodedBody, KnownResponse, known_response
from sluice.gateway.http.large_body import DIRECT_BYTES
from sluice.gateway.http.predict import PredictRequest, decode_invocation, decode_predict, encode_predictions
from sluice.gateway.http.request_head import Headers, RequestHead
from sluice.gateway.inference.dataplane import REQUEST_HEADER, DataPlane, Submitted, build_response
from sluice.gateway.inference.request_template import JsonTemplate, RequestTemplate, Template
from sluice.gateway.observability.load_report import LoadFormat
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.pending_answer import RelayNeeded
from sluice.gateway.protocol.request import InferRequest, InferResponse, SharedMemoryOutput
from sluice.gateway.protocol.signature import Signature
from sluice.gateway.protocol.status import error_message, http_status, retry_after_s
from sluice.models.errors import RequestError
from sluice.models.tensors.arrays import Buffer

LARGE_JSON_BYTES = 256 << 10
"""Larger JSON is parsed in a thread, and tensors of more bytes are written as JSON in one."""
LARGE_BYTES = 64 << 10
"""Smaller responses are joined: a system call of their own would cost more than the copy."""
THREADS = 2

_PLAIN_PATH = re.compile(r"/[^%?#]*")

_REQUEST_LINE = REQUEST_HEADER.encode() + b": %s\r\n"
_JSON = (b"content-type", b"application/json")
_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
_BINARY_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\n"
    b"inference-header-content-length: %d\r\ncontent-length: %d\r\n"
)
_SAGEMAKER_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n"
_ENCODING_LINE = b"content-encoding: %s\r\n"


# Most requests are of V2, and need no look-up.
_V1: Final = Dialect.V1
_SAGEMAKER: Final = Dialect.SAGEMAKER
_DECODERS: dict[Dialect, Decode] = {
    Dialect.V2: decode_request,
    Dialect.V1: decode_predict,
    Dialect.SAGEMAKER: decode_invocation,
}

Address: TypeAlias = tuple[str, int | None] | None
"""An address and a port; None if there is none."""


class Client(ABC):
    """The client of exchanges, with the `transport` of its connection.

    `template` is that of the previous request, if the next request may match it.
    """

    def __init__(self) -> None:
        self.transport: Any = None
        self.template: Template | None = None

    @abstractmethod
    def addresses(self) -> tuple[Address, Address]:
        """The client's end of the connection, and ours."""

    @abstractmethod
    def common_headers(self) -> bytes:
        """The header lines that every response has."""

    @abstractmethod
    def write_now(self, parts: Sequence[Buffer]) -> bytes:
        """Write as much of a response as the socket takes at once, which is not copied; returns the rest, to write."""

    @abstractmethod
    def on_response_complete(self) -> None:
        """Called when a response has been written."""

    @abstractmethod
    def on_ready(self) -> None:
        """Called when an exchange becomes ready some time after the end of its body."""


class RelayedAnswer(NamedTuple):
    """An answer of the gateway's process: `headers` are without the length of `body`."""

    status: int
    headers: Headers
    body: bytes
    keeps_alive: bool


class InferenceRelay(Protocol):
    """Passes requests on that only the gateway's process can answer."""

    async def infer(
        self,
        target: bytes,
        headers: Headers,
        body: bytes | bytearray | memoryview,
        client: Address,
        server: Address,
    ) -> RelayedAnswer:
        """The answer to a request of the connection from `client` to `server`. Raises ServingError without one."""
        ...


class InferRoute:
    """Serves `POST /v2/models/NAME[/versions/VERSION]/infer`, and inference over V1 and SageMaker.

    It refuses bodies larger than `max_body_bytes`. `threads` do what would take the event loop too long. A `dataplane`
    that raises RelayNeeded has a `relay`. Requests that name no model go to `default_model`, or to the only one.
    """

    def __init__(
        self,
        dataplane: DataPlane,
        max_body_bytes: int,
        json_rules: JsonRules | None = None,
        budget: Budget | None = None,
        relay: InferenceRelay | None = None,
        default_model: str | None = None,
    ) -> None:
        self.dataplane = dataplane
        self.relay = relay
        self.max_body_bytes = max_body_bytes
        self.json = json_rules or JsonRules()
        self.unchecked_bytes = min(self.json.request_bytes, max_body_bytes)
        """No request of this size is too large."""
        self.budget = budget or Budget(1 << 62)
        self.threads = ThreadPoolExecutor(THREADS, "http")
        self.default_model = default_model

    @staticmethod
    def match(url: bytes) -> InferenceTarget | None:
        """The target in the URL of an inference request; None for any other URL."""
        path = url.decode("ascii")
        if not _PLAIN_PATH.fullmatch(path):
            path = unquote(httptools.parse_url(url).path.decode("ascii"))
        return find_target(path)

    def signature(self, target: InferenceTarget) -> Signature:
        """The signature of the model of a request. Raises ServingError, or RelayNeeded in a front end."""
        dataplane = self.dataplane
        if target.dialect is _SAGEMAKER and not target.name:
            return dataplane.signature(self.default_model or dataplane.only_name(), "")
        return dataplane.signature(target.name, target.version)


class Exchange:
    """An inference request on a connection, and its response.

    The connection passes the body to `receive` and `finish`. It calls `run` once, when the exchange is `ready` and all
    earlier responses have been written. A request that is refused because of its head or its length is ready at once;
    the rest of its body is ignored.
    """

    __slots__ = (
        "_blobs",
        "_body",
        "_client",
        "_columnar",
        "_error",
        "_kept",
        "_kept_blobs",
        "_relaying",
        "_route",
        "_submission",
        "_template",
        "disconnected",
        "head",
        "held",
        "keep_alive",
        "ready",
        "response_complete",
        "started",
    )

    message_event: ClassVar[asyncio.Event] = asyncio.Event()
    """The event that uvicorn sets when the connection is lost; no exchange waits for it."""

    def __init__(self, route: InferRoute, client: Client, head: RequestHead, body: Buffer = b"") -> None:
        self._route = route
        self._client = client
        self.head = head
        self._body = body
        self._blobs: memoryview | None = None
        """The binary data of a body whose JSON alone is in `_body`."""
        self._columnar: bool | None = None
        """For an answer of V1: whether it is by tensor; None for an answer of V2."""
        self._error: Exception | None = None
        self._submission: Submitted | None = None
        self._kept: bytes | bytearray | memoryview = b""
        """The body, which may have to be passed on until there is an answer."""
        self._kept_blobs: memoryview | None = None
        self._relaying: asyncio.Task[RelayedAnswer] | None = None
        self.keep_alive = head.keep_alive
        self.held = 0
        """The bytes of the request that count in the buffer of the front door."""
        self.ready = self.started = self.response_complete = self.disconnected = False
        if head.error is not None:
            self._refuse(head.error)
        elif head.length > route.unchecked_bytes:
            self._try_length(head.length)

    def receive(self, chunk: bytes) -> None:
        """Add the next part of the body."""
        if not self._body:
            self._body = chunk
        else:
            # Not a list of chunks: one object per byte would take many times the limit.
            body = self._body if isinstance(self._body, bytearray) else bytearray(self._body)
            body += chunk
            self._body = body
        if len(self._body) > self._route.unchecked_bytes:
            self._try_length(len(self._body), known=False)

    @property
    def read_bytes(self) -> int:
        """The bytes that were passed to `receive`."""
        return len(self._body)

    @property
    def missing_bytes(self) -> int:
        """The bytes of the body that have not come; 0 or less if its length is unknown or it does not matter."""
        return 0 if self.ready else self.head.length - len(self._body)

    def memory_for_rest(self) -> memoryview | None:
        """The memory for the next part of a body of which much is to come; None for others, and after the last part.

        Binary data gets memory in which workers can read it, if there is some; what is missing of the JSON before it is
        a part of its own. The system provides other memory as it is filled: a client that only announces a large body
        makes the server keep nothing.
        """
        head, read = self.head, len(self._body)
        if self.ready or self._blobs is not None or head.length - read < DIRECT_BYTES:
            return None
        json_length = head.length if head.json_length is None or head.encoded else head.json_length
        if head.length - json_length >= DIRECT_BYTES:
            if read < json_length:
                return self._grow(json_length)
            blobs = self._route.dataplane.memory(head.length - json_length)
            if blobs is not None:
                body, begun = memoryview(self._body), read - json_length
                blobs[:begun] = body[json_length:]
                self._body, self._blobs = bytes(body[:json_length]), blobs
                return blobs[begun:]
        return self._grow(head.length)

    def _grow(self, size: int) -> memoryview:
        """Make the memory of the body as large as that; returns what is missing."""
        read = len(self._body)
        body = np.empty(size, np.uint8).data  # a bytearray would be filled with zeros
        body[:read] = self._body
        self._body = body
        return body[read:]

    def _try_length(self, length: int, known: bool = True) -> None:
        """Refuse a body that has this length, or more if that is not `known`, if it is too long."""
        limit = self._route.max_body_bytes
        if length > limit:
            size = f"has {length} bytes, the limit is {limit}" if known else f"exceeds the limit of {limit} bytes"
            self._refuse(RequestError(f"the body {size}"))
        elif self.head.json_length is None and not self.head.encoded:
            try:
                self._check_json(length)
            except RequestError as error:
                self._refuse(error)

    def _check_json(self, length: int) -> None:
        limit = self._route.json.request_bytes
        if length > limit:
            raise RequestError(f"the JSON of the request exceeds {limit} bytes; large tensors are sent as binary data")

    def finish(self) -> None:
        """Mark the body as complete."""
        if not self.head.encoded:
            self.ready = True
            return
        # In a thread: a small body may expand to a large one, and the loop serves other clients.
        body, self._body = self._body, b""
        route = self._route
        decoding = asyncio.get_running_loop().run_in_executor(
            route.threads, decompress, body, route.max_body_bytes, route.budget
        )
        decoding.add_done_callback(self._decompressed)

    def _decompressed(self, decoding: asyncio.Future[bytes | bytearray]) -> None:
        try:
            body = decoding.result()
        except Exception as error:
            self._error = error
        else:
            if self.disconnected:
                return
            self._body = body
            self.held += len(body)
            self._route.budget.used += len(body)
        self.ready = True
        self._client.on_ready()

    def send_continue(self) -> None:
        """Send `100 Continue` to a client that waits for it."""
        if self.head.expects_continue and not self.ready:
            self._client.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def run(self) -> None:
        """Submit the request, or answer its error."""
        self.started = True
        body, self._body = self._body, b""
        blobs, self._blobs = self._blobs, None
        head = self.head
        if self._route.relay is not None:
            self._kept, self._kept_blobs = body, blobs
        try:
            if self._error is not None:
                raise self._error
            if head.load is not None and self._route.relay is not None:
                self._relay()  # the load is known there
                return
            dialect = head.target.dialect
            signature = self._route.signature(head.target)
            json_length = len(body) if head.json_length is None else min(head.json_length, len(body))
            if json_length > LARGE_JSON_BYTES:
                self._check_json(json_length)
                decode = _DECODERS[dialect]
                parsing = asyncio.get_running_loop().run_in_executor(
                    self._route.threads, decode_large_request, decode, body, head.json_length, signature, blobs
                )
                parsing.add_done_callback(partial(self._parsed, body, blobs, signature))
                return
            template, inputs = None if dialect is _V1 else self._client.template, None
            if template is not None and template.matches(body, head.json_length, signature, blobs):
                inputs = template.tensors(body, blobs)
            if template is None or inputs is None:
                decoded = _DECODERS[dialect](body, head.json_length, signature, blobs)
                template, inputs = self._check(body, blobs, signature, *decoded)
                self._client.template = template if template.repeatable and self._columnar is None else None
            self._submit(signature, template, inputs)
        except RelayNeeded:
            self._relay()
        except Exception as error:
            self._fail(error)

    def _parsed(
        self,
        body: Buffer,
        blobs: memoryview | None,
        signature: Signature,
        parsing: asyncio.Future[tuple[InferRequest, tuple[bool, ...]]],
    ) -> None:
        """Submit a request that a thread has parsed."""
        if self.disconnected:
            return
        try:
            parsed = parsing.result()
            if self._route.signature(self.head.target) is not signature:  # replaced since
                self._body, self._blobs = body, blobs
                self.run()
                return
            self._submit(signature, *self._check(body, blobs, signature, *parsed))
        except RelayNeeded:
            self._relay()
        except Exception as error:
            self._fail(error)

    def _check(
        self,
        body: Buffer,
        blobs: memoryview | None,
        signature: Signature,
        request: InferRequest,
        binary_flags: tuple[bool, ...],
    ) -> tuple[Template, dict[str, Tensor]]:
        if isinstance(request, PredictRequest):
            self._columnar = request.columnar
        inputs, options = self._route.dataplane.check(signature, request, one_response="HTTP end point")
        if self.head.json_length is None and not request.shared:
            return JsonTemplate(body, signature, inputs, options, binary_flags), inputs
        length = self.head.json_length
        return RequestTemplate(body, length, signature, inputs, options, binary_flags, blobs), inputs

    def _submit(self, signature: Signature, template: Template, inputs: dict[str, Tensor]) -> None:
        self._template = template
        client = "" if signature.client_key is None else signature.client_key.in_headers(self.head.headers)
        options = template.options
        if self.head.explain and not options.explain:
            options = options._replace(explain=True)
        self._submission = self._route.dataplane.submit(signature, inputs, options, client, self.head.trace)
        self._submission.then(self._answered, self._relay)

    def _fail(self, error: Exception) -> None:
        self._error = None
        self._send(self._error_response(error))

    def disconnect(self) -> None:
        """Cancel the request: the client has closed the connection."""
        self.disconnected = True
        self._body = self._kept = b""
        self._blobs = self._kept_blobs = None
        if self._submission is not None:
            self._route.dataplane.cancel(self._submission)
        if self._relaying is not None:
            self._relaying.cancel()

    def _refuse(self, error: RequestError) -> None:
        self._error = error
        self._body, self._blobs = b"", None
        self.ready = True
        # The client may send its body without `100 Continue` or not, so the connection cannot be reused.
        if self.head.expects_continue:
            self.keep_alive = False

    def _relay(self) -> None:
        """Have the gateway's process answer the request, unless its client has gone."""
        body, self._kept = self._kept, b""
        blobs, self._kept_blobs = self._kept_blobs, None
        self._submission = None
        if self.disconnected:
            return
        if blobs is not None:
            body = b"".join((body, blobs))
        relay, head = self._route.relay, self.head
        assert relay is not None, "only its data plane asks for it"
        self._relaying = asyncio.get_running_loop().create_task(
            relay.infer(head.target.path, head.headers, body, *self._client.addresses())
        )
        self._relaying.add_done_callback(self._relayed)

    def _relayed(self, relaying: asyncio.Task[RelayedAnswer]) -> None:
        self._relaying = None
        if self.disconnected:
            if not relaying.cancelled():
                relaying.exception()
            return
        try:
            answer = relaying.result()
        except Exception as error:
            self._fail(error)
            return
        self.keep_alive = self.keep_alive and answer.keeps_alive
        lines = [b"%b: %b\r\n" % header for header in (*answer.headers, (b"content-length", b"%d" % len(answer.body)))]
        end = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        self._send(b"".join((_status_line(answer.status), *lines, self._client.common_headers(), end, answer.body)))

    def _answered(self, answer: Answer) -> None:
        if self.disconnected:
            answer.release()
            return
        try:
            response = build_response(answer, self._template.options, self._route.dataplane.statuses)
            known: KnownResponse | None = self._template.response
            encoded = None if known is None else known.encode(response)
            if encoded is None:
                if json_tensor_bytes(response, self._template.binary_flags) > LARGE_JSON_BYTES:
                    encoding = asyncio.get_running_loop().run_in_executor(self._route.threads, self._encode, response)
                    encoding.add_done_callback(partial(self._encoded, answer))
                    return
                encoded = self._encode(response)
        except Exception as error:
            answer.release()
            self._fail(error)
            return
        self._deliver(answer, encoded)

    def _encoded(self, answer: Answer, encoding: asyncio.Future[EncodedBody]) -> None:
        """Send a response that a thread has encoded."""
        error = encoding.exception()
        if error is None and not self.disconnected:
            self._deliver(answer, encoding.result())
            return
        answer.release()
        if isinstance(error, Exception) and not self.disconnected:
            self._fail(error)

    def _deliver(self, answer: Answer, encoded: EncodedBody) -> None:
        """Send a response, and release its tensors."""
        try:
            if encoded.length > self._route.budget.limit:  # or the connection would end with a part of it sent
                raise RequestError(
                    f"the answer has {encoded.length} bytes, more than the server keeps for its clients "
                    f"({self._route.budget.limit}); front_door.buffer_mb sets that"
                )
            if self.head.accepted and encoded.length >= MIN_BYTES:
                self._compress(encoded)
                return
            json, blobs = encoded.head, encoded.blobs
            head = self._response_head(len(json), encoded.length, bool(blobs))
            parts = (head, self._last_headers(), json, *blobs)
            response = b"".join(parts) if encoded.length < LARGE_BYTES else self._client.write_now(parts)
        except Exception as error:
            response = self._error_response(error)
        finally:
            answer.release()
        self._send(response)

    def _encode(self, response: InferResponse) -> EncodedBody:
        template = self._template
        columnar = self._columnar
        if columnar is not None:
            return encode_predictions(response, template.signature, self._route.json, columnar=columnar)
        encoded = encode_response(response, template.binary_flags, template.signature, self._route.json)
        if template.repeatable:
            template.response = known_response(response, encoded)
        return encoded

    def _response_head(self, json_length: int, length: int, is_binary: bool) -> bytes:
        if not is_binary:
            return _JSON_HEAD % length
        if self.head.target.dialect is _SAGEMAKER:
            return _SAGEMAKER_HEAD % (sagemaker_content_type(json_length), length)
        return _BINARY_HEAD % (json_length, length)

    def _compress(self, encoded: EncodedBody) -> None:
        """Compress a response in a thread and send it."""
        json, blobs = encoded.head, encoded.blobs
        # A copy: the memory under the blobs is about to be released.
        body = b"".join((json, *blobs))

        def send(compressing: asyncio.Future[bytes]) -> None:
            try:
                content = compressing.result()
                head = self._response_head(len(json), len(content), bool(blobs))
                response = b"".join((head, _ENCODING_LINE % self.head.accepted, self._last_headers(), content))
            except Exception as error:
                response = self._error_response(error)
            if not self.disconnected:
                self._send(response)

        asyncio.get_running_loop().run_in_executor(None, compress, self.head.accepted, body).add_done_callback(send)

    def _error_response(self, error: Exception) -> bytes:
        status, headers, body = error_response(error)
        if status == 503 and self._route.dataplane.stopping:
            self.keep_alive = False
        lines = [b"%b: %b\r\n" % header for header in headers]
        length = b"content-length: %d\r\n" % len(body)
        return b"".join((_status_line(status), *lines, length, self._last_headers(), body))

    def _last_headers(self) -> bytes:
        end = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        return self._client.common_headers() + self.head.added_lines + self._request_headers() + end

    def _request_headers(self) -> bytes:
        """The header lines of this request; none if it never reached the runtime."""
        submission = self._submission
        if submission is None:
            return b""
        load = b"" if self.head.load is None else self._load_line(self.head.load)
        explain = self.head.explain or self._template.options.explain
        if explain or submission.notes:
            headers = self._route.dataplane.response_headers(submission, explain=explain)
            return load + b"".join([f"{name}: {value}\r\n".encode() for name, value in headers])
        given_id = submission.given_id
        return load + _REQUEST_LINE % given_id.encode() if given_id else load

    def _load_line(self, form: LoadFormat) -> bytes:
        """The header line with the load of the server."""
        report = self._route.dataplane.load_report
        if report is None:
            return b""
        name, value = report.header(form)
        return f"{name}: {value}\r\n".encode()

    def _send(self, response: bytes) -> None:
        client, self._submission = self._client, None
        self._kept, self._kept_blobs = b"", None
        self.response_complete = True
        if client.transport.is_closing():
            return
        if response:
            client.transport.write(response)
        if not self.keep_alive:
            client.transport.close()
        client.on_response_complete()


def json_tensor_bytes(response: InferResponse, binary_flags: tuple[bool, ...]) -> int:
    """The bytes of the tensors that a response will have as JSON."""
    size = 0
    for position, (_, values) in enumerate(response.outputs):
        if not binary_flags[position] and not isinstance(values, SharedMemoryOutput):
            size += values.nbytes
    return size


@cache
def _status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode())


def error_response(error: Exception) -> tuple[int, Headers, bytes]:
    """Status, headers (without the length) and JSON body for an error."""
    status = http_status(error)
    headers: Headers = [_JSON]
    wait_s = retry_after_s(error)
    if wait_s is not None:
        headers.append((b"retry-after", b"%d" % wait_s))
    if isinstance(error, UnsupportedEncoding):
        headers.append((b"accept-encoding", ENCODINGS))
    # A message may quote lone surrogates of the request, which UTF-8 cannot carry.
    message = error_message(error).encode(errors="replace").decode()
    return status, headers, orjson.dumps({"error": message})
