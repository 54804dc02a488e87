"""Batches sent to a Triton server over HTTP/1.1, whose tensors lie in shared memory."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple, cast

import grpc
import httptools
import msgspec

from sluice.gateway.executors.triton.errors import ServerLost, meaning
from sluice.models.errors import BadTensor
from sluice.models.spec import ModelSpec

_CODES = {
    404: grpc.StatusCode.NOT_FOUND,
    500: grpc.StatusCode.INTERNAL,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
"""The statuses of Triton's HTTP server as they are over gRPC; all others mean that the request was wrong."""


class RegionRef(NamedTuple):
    """The place of a tensor in a region of shared memory."""

    name: str
    offset: int
    nbytes: int
    datatype: str = ""
    shape: tuple[int, ...] = ()


class _Output(msgspec.Struct):
    name: str
    datatype: str
    shape: tuple[int, ...]


class _Answer(msgspec.Struct):
    outputs: list[_Output] = []
    error: str = ""


_decode = msgspec.json.Decoder(_Answer).decode


def encode_request(host: str, spec: ModelSpec, region: str, inputs: list[RegionRef], outputs: list[RegionRef]) -> bytes:
    """A whole HTTP request for a batch whose inputs and outputs all lie in regions of shared memory."""

    def parameters(place: RegionRef) -> Mapping[str, object]:
        size = {"shared_memory_byte_size": place.nbytes, "shared_memory_offset": place.offset}
        return {"name": place.name, "parameters": {"shared_memory_region": region, **size}}

    given = [{"datatype": each.datatype, "shape": each.shape, **parameters(each)} for each in inputs]
    body = msgspec.json.encode({"inputs": given, "outputs": [parameters(each) for each in outputs]})
    head = f"POST /v2/models/{spec.name}/versions/{spec.version}/infer HTTP/1.1\r\nHost: {host}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def with_headers(request: bytes, headers: Iterable[tuple[str, str]]) -> bytes:
    """A request made by `encode_request`, with further headers."""
    line, end, rest = request.partition(b"\r\n")
    return b"".join((line, end, *(f"{name}: {value}\r\n".encode() for name, value in headers), rest))


def decode_answer(body: bytes) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The datatype and shape of each output. Raises BadTensor for a malformed answer."""
    try:
        return {each.name: (each.datatype, each.shape) for each in _decode(body).outputs}
    except msgspec.MsgspecError as error:
        raise BadTensor(f"the answer is no response to an inference: {error}") from error


class TritonHttp:
    """Connections to the HTTP service at `address`, a host and a port; one for each call at a time."""

    def __init__(self, address: str) -> None:
        self.address = address
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._free: list[_Connection] = []

    async def infer(self, request: bytes, timeout_s: float) -> bytes:
        """Send a request made by `encode_request`; returns the body of the answer. Raises as `TritonClient.infer`."""
        try:
            async with asyncio.timeout(timeout_s):
                status, body = await self._ask(request)
        except TimeoutError as error:
            raise ServerLost(f"no answer within {timeout_s:g} s") from error
        except (OSError, httptools.HttpParserError) as error:
            raise ServerLost(f"HTTP at {self.address}: {error}") from error
        if status == 200:
            return body
        try:
            reason = _decode(body).error
        except msgspec.MsgspecError:
            reason = f"HTTP status {status}"
        raise meaning(_CODES.get(status, grpc.StatusCode.INVALID_ARGUMENT), reason)

    async def _ask(self, request: bytes) -> tuple[int, bytes]:
        connection = self._free.pop() if self._free else await self._connect()
        try:
            answer = await connection.ask(request)
        except BaseException:
            connection.close()
            raise
        self._free.append(connection)
        return answer

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: _Connection(self._free), self._host, self._port)
        return connection

    def close(self) -> None:
        """Close the connections that no call uses."""
        for connection in list(self._free):
            connection.close()


class _Connection(asyncio.Protocol):
    """Carries one request at a time; removes itself from `free` when it is lost."""

    def __init__(self, free: list["_Connection"]) -> None:
        self._free = free
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer to a request."""
        self._answer = asyncio.get_running_loop().create_future()
        self._body = []
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Close the connection."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request that is under way."""
        if self in self._free:
            self._free.remove(self)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        """Take a part of an answer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(error)
            self.close()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Give the answer to the caller."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), b"".join(self._body)))
