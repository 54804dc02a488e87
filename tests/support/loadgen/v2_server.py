"""An HTTP server that speaks V2 and leaves each answer to a test, which may misbehave."""

import asyncio
import json
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

METADATA = {
    "name": "m",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
}
JSON = b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}}]}'
TENSOR = np.array([[0.25, 0.75]], np.float32).tobytes()
ANSWER = b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n%s%s" % (
    len(JSON),
    len(JSON) + len(TENSOR),
    JSON,
    TENSOR,
)
BUSY = b'HTTP/1.1 503 Service Unavailable\r\nContent-Length: 16\r\n\r\n{"error":"busy"}'

Reply = Callable[[int, asyncio.StreamWriter], Awaitable[None]]
"""Called with the number of an inference request, from 0, and the connection to answer on."""


BodyReply = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
"""Called with the body of an inference request, and the connection to answer on."""


def answer_of(values: npt.NDArray[np.float32]) -> bytes:
    """An answer with the output `y`."""
    output = {"name": "y", "datatype": "FP32", "shape": values.shape, "parameters": {"binary_data_size": values.nbytes}}
    head = json.dumps({"outputs": [output]}).encode()
    lengths = f"Inference-Header-Content-Length: {len(head)}\r\nContent-Length: {len(head) + values.nbytes}"
    return f"HTTP/1.1 200 OK\r\n{lengths}\r\n\r\n".encode() + head + values.tobytes()


async def answer(number: int, writer: asyncio.StreamWriter) -> None:
    """Answer at once."""
    writer.write(ANSWER)


@contextmanager
def server(
    reply: Reply = answer,
    metadata: Callable[[], object] = lambda: METADATA,
    *,
    reads_bodies: bool = True,
    by_body: BodyReply | None = None,
) -> Iterator[str]:
    """An HTTP server in a thread that serves metadata and leaves inference to `reply`; yields its URL.

    Where `by_body` is given, it answers instead. Unless it `reads_bodies`, it reads no further than the head of a
    request for inference.
    """
    numbers = iter(range(1_000_000))
    started: queue.SimpleQueue[tuple[int, asyncio.AbstractEventLoop]] = queue.SimpleQueue()
    stop = asyncio.Event()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"GET"):
                    body = json.dumps(metadata()).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                    continue
                if not reads_bodies:
                    await stop.wait()
                    return
                length = int(head.lower().rpartition(b"\r\ncontent-length: ")[2].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                if by_body is None:
                    await reply(next(numbers), writer)
                else:
                    await by_body(body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def serve() -> None:
        listener = await asyncio.start_server(connection, "127.0.0.1", 0)
        started.put((listener.sockets[0].getsockname()[1], asyncio.get_running_loop()))
        await stop.wait()
        listener.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    port, loop = started.get(timeout=60)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
