"""Batches sent over HTTP to a server with prepared answers."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from sluice.gateway.executors.triton.errors import ModelLost, ServerLost
from sluice.gateway.executors.triton.http import RegionRef, TritonHttp, decode_answer, encode_request, with_headers
from sluice.models.errors import BackendFailed, BadTensor
from tests.support.triton.fake_server import M

REQUEST = encode_request(
    "127.0.0.1:8000", M, "slot-1", [RegionRef("x", 0, 16, "FP32", (2, 2))], [RegionRef("y", 64, 16)]
)


def asked(answers: list[bytes], ask: Callable[[TritonHttp], Awaitable[None]]) -> list[bytes]:
    """Ask a server that gives these answers, b"" to close its connection; returns the heads of the requests."""
    first: list[bytes] = []
    conversations: list[asyncio.Task[None]] = []

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversations.append(asyncio.create_task(converse(reader, writer)))

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.rpartition(b"Content-Length: ")[2]))
                first.append(head)
                if not answers or not (answer := answers.pop(0)):
                    break
                writer.write(answer)
        with suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()

    async def run() -> None:
        async with await asyncio.start_server(connected, "127.0.0.1") as server:
            http = TritonHttp(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
            await ask(http)
            http.close()
            await asyncio.gather(*conversations)

    asyncio.run(run())
    return first


def test_a_request_says_where_the_tensors_lie() -> None:
    head, _, body = REQUEST.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v2/models/m/versions/1/infer HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n")
    assert b"Content-Length: %d" % len(body) in head
    place = {"shared_memory_region": "slot-1", "shared_memory_byte_size": 16}
    assert json.loads(body) == {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [2, 2], "parameters": {**place, "shared_memory_offset": 0}}
        ],
        "outputs": [{"name": "y", "parameters": {**place, "shared_memory_offset": 64}}],
    }


def test_headers_of_a_trace_follow_the_first_line() -> None:
    request = with_headers(REQUEST, (("traceparent", "00-1"), ("tracestate", "a=b")))
    line, *lines = request.split(b"\r\n")
    assert lines[:2] == [b"traceparent: 00-1", b"tracestate: a=b"]
    assert b"\r\n".join((line, *lines[2:])) == REQUEST


def test_an_answer_tells_the_outputs() -> None:
    body = b'{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[2,2],"parameters":{}}]}'
    assert decode_answer(body) == {"y": ("FP32", (2, 2))}
    with pytest.raises(BadTensor, match="the answer is no response to an inference"):
        decode_answer(b'{"outputs":[{"name":"y"}]}')
    with pytest.raises(BadTensor, match="the answer is no response to an inference"):
        decode_answer(b"<html>")


def test_calls_use_a_connection_again() -> None:
    body = b'{"outputs":[]}'
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n" + body

    async def ask(http: TritonHttp) -> None:
        for _ in range(2):
            assert await http.infer(REQUEST, 60) == body
            assert len(http._free) == 1

    assert len(asked([answer, answer], ask)) == 2


@pytest.mark.parametrize(
    ("status", "reason", "error"),
    [
        (500, "Stub process 'm' is not healthy.", ModelLost),
        (404, "Request for unknown model: 'm' is not found", ModelLost),
        (503, "Request for unknown model: 'm' is not at ready state", ModelLost),
        (400, "unexpected shape for input 'x'", BackendFailed),
        (400, "Unable to find shared memory region: 'slot-1'", ServerLost),
        (500, "out of luck", BackendFailed),
    ],
)
def test_an_error_means_what_it_does_over_grpc(status: int, reason: str, error: type[Exception]) -> None:
    body = json.dumps({"error": reason}).encode()
    answer = b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body

    async def ask(http: TritonHttp) -> None:
        with pytest.raises(error) as caught:
            await http.infer(REQUEST, 60)
        assert str(caught.value) == reason

    asked([answer], ask)


@pytest.mark.parametrize(
    ("answer", "timeout_s", "reason"),
    [
        (b"", 60, "the server closed the connection"),
        (b"SSH-2.0\r\n", 60, "HTTP at 127"),
        (b"HTTP/1.1 200 OK\r\n", 0.2, "no answer within"),
    ],
)
def test_a_server_that_does_not_answer_is_lost(answer: bytes, timeout_s: float, reason: str) -> None:
    async def ask(http: TritonHttp) -> None:
        with pytest.raises(ServerLost, match=reason):
            await http.infer(REQUEST, timeout_s)

    asked([answer], ask)


def test_a_server_that_is_gone_is_lost() -> None:
    async def ask(http: TritonHttp) -> None:
        with pytest.raises(ServerLost, match="HTTP at 127"):
            await TritonHttp("127.0.0.1:1").infer(REQUEST, 60)

    asked([], ask)
