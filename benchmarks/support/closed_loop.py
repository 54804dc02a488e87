"""Closed-loop clients: a fixed number of requests in flight, each followed at once by the next."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, cast

import grpc
import numpy as np
import orjson
import uvloop
from tritonclient.grpc import service_pb2


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


def drive_grpc(port: int, request: bytes, concurrency: int, seconds: float, connections: int = 1) -> Closed:
    """Keep `concurrency` calls of ModelInfer in flight for `seconds`, without protobuf in the client."""

    async def drive(record: Callable[[int], bool], done: asyncio.Event) -> None:
        async with contextlib.AsyncExitStack() as stack:
            calls = []
            for _ in range(connections):
                options = (("grpc.use_local_subchannel_pool", 1),)  # a connection of its own
                channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}", options))
                # Without serialisers.
                calls.append(channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None))

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
        await drive(record, done)

    uvloop.run(main())
    p50, p99 = np.percentile(latencies, [50, 99]) / 1e6
    return Closed(len(latencies) / seconds, float(p50), float(p99), len(latencies))
