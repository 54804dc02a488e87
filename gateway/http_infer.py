"""The inference route as raw ASGI in front of the rest: a framework would cost more than the gateway's own work."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import orjson

from gateway.codec_http import decode_request, encode_response
from gateway.dataplane import DataPlane
from gateway.http_server import CONNECTION
from gateway.request import is_version
from gateway.status import error_message, http_status, retry_after_s
from models.errors import RequestError, UnsupportedRequest

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers: TypeAlias = list[tuple[bytes, bytes]]

MAX_LENGTH_DIGITS = 18

_JSON = (b"content-type", b"application/json")
_BINARY = (b"content-type", b"application/octet-stream")


class _DisconnectError(Exception):
    """Nobody waits for the response any more."""


class InferRoute:
    """Answers `POST /v2/models/NAME[/versions/VERSION]/infer` and leaves every other request to `rest`."""

    def __init__(self, rest: Application, dataplane: DataPlane, max_body_bytes: int) -> None:
        self._rest = rest
        self._dataplane = dataplane
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        target = _target(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if target is None:
            await self._rest(scope, receive, send)
            return
        status = 200
        try:
            headers, body = await self._answer(*target, scope, receive)
        except _DisconnectError:
            return
        except Exception as error:
            status, headers, body = error_response(error)
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, name: str, version: str, scope: Scope, receive: Receive) -> tuple[Headers, bytes]:
        length, header_length = _lengths(scope["headers"])
        body = await self._body(length, receive)
        signature = self._dataplane.signature(name, version)
        request, binary = decode_request(body, header_length, signature)
        connection = scope.get(CONNECTION)
        task = asyncio.current_task()
        if connection is not None and task is not None:
            connection.watch(task.cancel)
        try:
            response = await self._dataplane.infer(signature, request)
        except asyncio.CancelledError:
            if connection is not None and connection.lost:
                raise _DisconnectError from None
            raise
        finally:
            if connection is not None:
                connection.on_disconnect = None
        try:
            payload, head_length = encode_response(response, binary, signature)
        finally:
            response.release()
        if head_length is None:
            return [_JSON], payload
        return [_BINARY, (b"inference-header-content-length", b"%d" % head_length)], payload

    async def _body(self, length: int | None, receive: Receive) -> bytes:
        """The whole body. Raises RequestError as soon as it is known to be longer than the limit."""
        limit = self._max_body_bytes
        if length is not None and length > limit:
            raise RequestError(f"the body has {length} bytes, the limit is {limit}")
        chunks: list[bytes] = []
        received = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _DisconnectError
            chunk = message["body"]
            received += len(chunk)
            if received > limit:
                raise RequestError(f"the body has more than {limit} bytes, which is the limit")
            if not message.get("more_body", False):
                return b"".join((*chunks, chunk)) if chunks else chunk
            chunks.append(chunk)


def error_response(error: Exception) -> tuple[int, Headers, bytes]:
    """Status, headers (without the length) and JSON body that tell a client of an error."""
    status = http_status(error)
    headers: Headers = [_JSON]
    wait_s = retry_after_s(error)
    if wait_s is not None:
        headers.append((b"retry-after", b"%d" % wait_s))
    # A message may quote lone surrogates of the request, which UTF-8 cannot carry.
    message = error_message(error).encode(errors="replace").decode()
    return status, headers, orjson.dumps({"error": message})


def _target(path: str) -> tuple[str, str] | None:
    """The name and version in the path of an inference request; None for any other path."""
    if not (path.startswith("/v2/models/") and path.endswith("/infer")):
        return None
    parts = path.split("/")
    if len(parts) == 5:
        return parts[3], ""
    if len(parts) == 7 and parts[4] == "versions" and is_version(parts[5]):
        return parts[3], parts[5]
    return None


def _lengths(headers: Headers) -> tuple[int | None, int | None]:
    """The body's length, if given, and that of its JSON part, if not all of it. Raises RequestError."""
    length = header_length = None
    for name, value in headers:
        if name == b"content-length":
            length = int(value)
        elif name == b"inference-header-content-length":
            header_length = _header_length(value)
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise UnsupportedRequest(
                f"Content-Encoding '{value.decode('latin-1')}' is not supported; send the body uncompressed"
            )
    return length, header_length


def _header_length(value: bytes) -> int:
    if not value.isdigit() or len(value) > MAX_LENGTH_DIGITS:
        raise RequestError(
            f"Inference-Header-Content-Length must be a number of bytes, got '{value[:80].decode('latin-1')}'"
        )
    if int(value) == 0:
        raise UnsupportedRequest("raw binary requests (Inference-Header-Content-Length 0) are not supported")
    return int(value)
