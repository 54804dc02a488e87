"""Closed-loop clients: a fixed number of requests in flight, each followed at once by the next."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, cast

import grpc
import hpack
import numpy as np
import orjson
import uvloop
from tritonclient.grpc import service_pb2

_INFER = "/inference.GRPCInferenceService/ModelInfer"
_CALL_HEADS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", _INFER),
    (":authority", "127.0.0.1"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("user-agent", "closed-loop"),
)
MOST_S = 30.0
"""A measurement ends with TimeoutError after as many seconds more than it takes: no answer comes any more."""


class Closed(NamedTuple):
    """Measurement of a closed loop: requests a second, and latencies in ms."""

    rate: float
    p50_ms: float
    p99_ms: float
    requests: int


def http_request(path: str, name: str, shape: tuple[int, ...], seed: int = 0) -> bytes:
    """A V2 request with one binary FP32 input and binary outputs."""
    data = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32).tobytes()
    tensor = {"name": name, "shape": shape, "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}
    head = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    return (
        (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nInference-Header-Content-Length: {len(head)}\r\n"
            f"Content-Length: {len(head) + len(data)}\r\n\r\n"
        ).encode()
        + head
        + data
    )


def grpc_request(model: str, name: str, shape: tuple[int, ...]) -> bytes:
    """An encoded ModelInferRequest with one FP32 input in raw contents."""
    message = service_pb2.ModelInferRequest(model_name=model)
    message.inputs.add(name=name, datatype="FP32", shape=shape)
    message.raw_input_contents.append(np.ones(shape, np.float32).tobytes())
    encoded: bytes = message.SerializeToString()
    return encoded


class _Connection(asyncio.Protocol):
    """Repeats one request; calls `answered` with the latency of each answer, and stops when that returns false."""

    def __init__(self, request: bytes, answered: Callable[[int], bool]) -> None:
        self._request = request
        self._answered = answered
        self._buffer = b""
        self._sent_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._sent_ns = time.perf_counter_ns()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        assert head.startswith(b"http/1.1 200"), self._buffer[:300]
        start = head.index(b"\r\ncontent-length:") + 17
        stop = head.find(b"\r", start)
        length = int(head[start : stop if stop > 0 else None])
        if len(self._buffer) < end + 4 + length:
            return
        self._buffer = b""
        if self._answered(time.perf_counter_ns() - self._sent_ns):
            self._send()
        else:
            self._transport.close()


def drive_http(port: int, request: bytes, concurrency: int, seconds: float) -> Closed:
    """Repeat one request on `concurrency` connections for `seconds`, after a warm-up of a tenth of that."""

    async def drive(record: Callable[[int], bool], done: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        transports = []
        for _ in range(concurrency):
            transport, _ = await loop.create_connection(lambda: _Connection(request, record), "127.0.0.1", port)
            transports.append(transport)
        await done.wait()
        for transport in transports:
            transport.abort()
        await asyncio.sleep(0)  # the transports close in the loop's next turn

    return _measure(drive, seconds)


class _Calls(asyncio.Protocol):
    """Repeats one unary call on as many streams; calls `answered` with the latency of each, as `_Connection` does.

    A call is two frames that are known beforehand, and of an answer only the frames are read, so that the client takes
    less time than the server. Every answer has to be as long as the first one, which a real client has checked.
    """

    def __init__(self, message: bytes, answer_bytes: int, streams: int, answered: Callable[[int], bool]) -> None:
        self._answer_bytes = answer_bytes
        self._streams = streams
        self._answered = answered
        self._buffer = b""
        self._next = 1
        self._sent_ns: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._unacknowledged = 0
        encoder = hpack.Encoder()
        # All fields are in the table of the connection after the first block.
        self._blocks = [encoder.encode(_CALL_HEADS) for _ in range(2)]
        body = b"\0" + len(message).to_bytes(4, "big") + message
        self._data_head = len(body).to_bytes(3, "big") + b"\0\1"
        self._body = body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        settings = _frame(4, 0, 0, b"") + _frame(8, 0, 0, (1 << 30).to_bytes(4, "big"))
        self._transport.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
        self._transport.write(b"".join(self._call() for _ in range(self._streams)))

    def _call(self) -> bytes:
        stream = self._next
        block = self._blocks[stream > 1]
        self._next += 2
        self._sent_ns[stream] = time.perf_counter_ns()
        number = stream.to_bytes(4, "big")
        return b"".join((len(block).to_bytes(3, "big"), b"\1\4", number, block, self._data_head, number, self._body))

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        at = 0
        out = []
        going = True
        while len(buffer) >= at + 9:
            length = int.from_bytes(buffer[at : at + 3], "big")
            if len(buffer) < at + 9 + length:
                break
            kind, flags = buffer[at + 3], buffer[at + 4]
            stream = int.from_bytes(buffer[at + 5 : at + 9], "big")
            if kind == 0:
                self._unacknowledged += length
                self._lengths[stream] = self._lengths.get(stream, 0) + length
            elif kind == 1 and flags & 1:
                assert self._lengths.pop(stream, 0) == self._answer_bytes, buffer[at : at + 9 + length]
                going = self._answered(time.perf_counter_ns() - self._sent_ns.pop(stream))
                out.append(self._call())
            elif kind in (4, 6) and not flags & 1:  # SETTINGS and PING
                out.append(_frame(kind, 1, 0, buffer[at + 9 : at + 9 + length] if kind == 6 else b""))
            else:
                assert kind not in (3, 7), f"the server ends stream {stream}: {buffer[at : at + 9 + length]!r}"
            at += 9 + length
        self._buffer = buffer[at:]
        if self._unacknowledged > 1 << 24:
            out.append(_frame(8, 0, 0, self._unacknowledged.to_bytes(4, "big")))
            self._unacknowledged = 0
        if going and out:
            self._transport.write(b"".join(out))


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def drive_calls(port: int, request: bytes, concurrency: int, seconds: float, connections: int = 1) -> Closed:
    """As `drive_grpc`, for messages of up to 1 kB, by HTTP/2 frames that are made once: it outruns a server."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer: bytes = channel.unary_unary(_INFER, None, None)(request, timeout=10)

    async def drive(record: Callable[[int], bool], done: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        streams = concurrency // connections
        transports = []
        for _ in range(connections):
            transport, _ = await loop.create_connection(
                lambda: _Calls(request, 5 + len(answer), streams, record), "127.0.0.1", port
            )
            transports.append(transport)
        await done.wait()
        # What fails in a protocol ends its connection.
        assert not any(transport.is_closing() for transport in transports), "a connection has ended"
        for transport in transports:
            transport.abort()
        await asyncio.sleep(0)

    return _measure(drive, seconds)


def drive_grpc(port: int, request: bytes, concurrency: int, seconds: float, connections: int = 1) -> Closed:
    """Keep `concurrency` calls of ModelInfer in flight for `seconds`, without protobuf in the client."""

    async def drive(record: Callable[[int], bool], done: asyncio.Event) -> None:
        async with contextlib.AsyncExitStack() as stack:
            calls = []
            for _ in range(connections):
                options = (("grpc.use_local_subchannel_pool", 1),)  # a connection of its own
                channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}", options))
                # Without serialisers.
                calls.append(channel.unary_unary(_INFER, None, None))

            async def repeat(call: Callable[[bytes], Awaitable[bytes]]) -> None:
                going = True
                while going:
                    sent_ns = time.perf_counter_ns()
                    await call(request)
                    going = record(time.perf_counter_ns() - sent_ns)

            await asyncio.gather(*(repeat(calls[number % connections]) for number in range(concurrency)))

    return _measure(drive, seconds)


def _measure(drive: Callable[[Callable[[int], bool], asyncio.Event], Awaitable[None]], seconds: float) -> Closed:
    latencies: list[int] = []
    warm_until = time.perf_counter() + seconds / 10
    until = warm_until + seconds
    done = asyncio.Event()

    def record(latency_ns: int) -> bool:
        now = time.perf_counter()
        if now >= warm_until:
            latencies.append(latency_ns)
        if now >= until:
            done.set()
        return now < until

    async def main() -> None:
        async with asyncio.timeout(1.1 * seconds + MOST_S):
            await drive(record, done)

    uvloop.run(main())
    p50, p99 = np.percentile(latencies, [50, 99]) / 1e6
    return Closed(len(latencies) / seconds, float(p50), float(p99), len(latencies))
