"""The two ends of a session's connection, over transports in memory."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.gateway.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    frame,
    go_away,
    reset,
    settings_frame,
    window_update,
)
from sluice.gateway.worker_protocol.framing import CHUNK_BYTES, MessageDecoder, head_of, views_of
from sluice.gateway.worker_protocol.link import SessionLink
from sluice.gateway.worker_protocol.messages import FromGateway, Hello, Ping, RemoteRun, SessionTensor, Withdraw
from sluice.models.errors import PartitionError
from sluice.models.tensors.spec import DataType

LIMIT = 64 << 20
HELLO = Hello("1", "g", 3.0)


class MemoryTransport:
    """Keeps what is written; a write after which more than `room` bytes wait pauses the protocol."""

    def __init__(self) -> None:
        self.protocol: Any = None
        self.written: list[bytes] = []
        self.room = 1 << 62
        self.closed = self.aborted = False
        self.socket: socket.socket | None = None

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, parts: list[Any]) -> None:
        data = b"".join(bytes(part) for part in parts)
        self.written.append(data)
        self.room -= len(data)
        if self.room < 0:
            self.protocol.pause_writing()

    def make_room(self, size: int) -> None:
        paused, self.room = self.room < 0, size
        if paused:
            self.protocol.resume_writing()

    def take(self) -> bytes:
        taken = b"".join(self.written)
        self.written.clear()
        return taken

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        assert (high, low) == (0, 0)

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> Any:
        return self.socket if name == "socket" else None

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True


class End:
    """An end of a connection, and what came there."""

    def __init__(self, place: Callable[[Any, int], memoryview | None] | None = None) -> None:
        self.came: list[tuple[Any, list[bytes] | None]] = []
        self.ended: list[str] = []
        self.transport = MemoryTransport()
        decoder = MessageDecoder(FromGateway)
        give = place or (lambda message, size: np.empty(size, np.uint8).data)
        self.link = SessionLink(decoder, give, self._take, self.ended.append, LIMIT, LIMIT, self)

    def _take(self, message: Any, body: memoryview | None) -> None:
        views = None if body is None else [bytes(view) for view in views_of(getattr(message, "inputs", ()), body)]
        self.came.append((message, views))

    def on_headers(self, block: bytes, ended: bool) -> str | None:
        return "the end" if ended else None

    def last_block(self, reason: str, *, is_fault: bool) -> bytes | None:
        return None

    def read(self, data: bytes, sizes: "deque[int] | None" = None) -> None:
        """Read bytes as a loop does, in reads of these sizes."""
        view = memoryview(data)
        while view and not self.link.over:
            memory = self.link.get_buffer(-1)
            size = min(len(memory), len(view), sizes[0] if sizes else len(view))
            if sizes:
                sizes.rotate()
            memory[:size] = view[:size]
            self.link.buffer_updated(size)
            view = view[size:]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def open_end(place: Callable[[Any, int], memoryview | None] | None = None) -> End:
    end = End(place)
    end.link.begin(end.transport)
    end.link.pump()
    end.transport.take()
    return end


def messages(*contents: bytes) -> bytes:
    """Messages of gRPC in one frame each."""
    return b"".join(frame(DATA, 0, 1, b"\0" + len(each).to_bytes(4, "big") + each) for each in contents)


def tensor(name: str, size: int) -> SessionTensor:
    return SessionTensor(name, DataType.UINT8, (size,), size)


def test_a_connection_begins_with_wide_windows_and_frames() -> None:
    async def test() -> None:
        end = End()
        end.link.begin(end.transport, b"PREFACE")
        end.link.pump()
        settings_sent = settings_frame({4: 1 << 30, 5: (1 << 20) + 4096, 3: 1})
        assert end.transport.take() == b"PREFACE" + settings_sent + window_update(0, (1 << 30) - 65535)

    run(test)


def test_connections_within_a_machine_are_not_paced() -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
            end = End()
            end.transport.socket = client
            end.link.begin(end.transport)
            control = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            assert control.rstrip(b"\0") == b"reno"

    run(test)


def test_a_message_is_one_message_of_grpc_with_its_tensors() -> None:
    async def test() -> None:
        end = open_end()
        sent: list[str] = []
        message = RemoteRun(1, "m", (tensor("a", 3), tensor("b", 2)))
        end.link.send(message, [memoryview(b"abc"), [memoryview(b"d"), memoryview(b"e")]], lambda: sent.append("sent"))
        await asyncio.sleep(0)
        assert end.transport.take() == messages(head_of(message) + b"abc" + bytes(61) + b"de")
        assert sent == ["sent"]
        assert end.link.unsent_bytes == 0

    run(test)


def test_tensors_that_are_not_as_described_are_not_sent() -> None:
    async def test() -> None:
        end = open_end()
        with pytest.raises(ValueError, match="tensor a has 4 bytes, expected 3"):
            end.link.send(RemoteRun(1, "m", (tensor("a", 3), tensor("b", 2))), [memoryview(b"abcd"), memoryview(b"e")])
        await asyncio.sleep(0)
        assert end.transport.take() == b""

    run(test)


def test_memory_is_said_to_be_sent_once_the_kernel_has_it() -> None:
    async def test() -> None:
        end, sent = open_end(), list[int]()
        end.link.set_peer(1 << 30, 1 << 30, 1 << 30, 1 << 20)
        end.transport.room = 10
        for number in (1, 2):
            body = memoryview(bytes(100_000))
            message = RemoteRun(number, "m", (tensor("a", 100_000),))
            end.link.send(message, [body], partial(sent.append, number))
        await asyncio.sleep(0)
        assert sent == []
        end.transport.make_room(10)
        assert sent == [1]
        end.transport.make_room(10)
        assert sent == [1, 2]

    run(test)


def test_urgent_messages_go_between_the_chunks_of_a_large_one() -> None:
    async def test() -> None:
        end = open_end()
        end.link.set_peer(1 << 30, 1 << 30, 1 << 30, 1 << 24)
        end.transport.room = 0
        body = np.random.default_rng(1).integers(0, 256, 2 * CHUNK_BYTES + 5, np.uint8)
        message = RemoteRun(1, "m", (tensor("a", body.size),))
        end.link.send(message, [body.data])
        end.link.send(Withdraw(9))
        await asyncio.sleep(0)
        first = end.transport.take()
        end.link.send_urgent(Ping(1, 2))
        end.transport.make_room(1 << 62)
        other = open_end()
        other.read(first + end.transport.take())
        assert other.came == [(Ping(1, 2), []), (message, [body.tobytes()]), (Withdraw(9), [])]

    run(test)


def test_windows_of_the_other_end_are_kept() -> None:
    async def test() -> None:
        end = open_end()
        message = RemoteRun(1, "m", (tensor("a", 200_000),))
        end.link.send(message, [memoryview(bytes(200_000))])
        await asyncio.sleep(0)
        first = end.transport.take()
        assert len(first) == 65_535 + 4 * 9  # frames of 16 KiB
        end.read(window_update(1, 300_000))
        assert end.transport.take() == b""
        end.read(window_update(0, 300_000))
        other = open_end()
        other.read(first + end.transport.take())
        assert other.came == [(message, [bytes(200_000)])]
        end.read(settings_frame({4: 100, 5: 1 << 20}) + frame(PING, 0, 0, b"12345678"))
        await asyncio.sleep(0)
        assert end.transport.take() == frame(SETTINGS, 1, 0) + frame(PING, 1, 0, b"12345678")

    run(test)


def test_too_much_that_waits_is_refused() -> None:
    async def test() -> None:
        end = open_end()
        end.transport.room = 0
        body = memoryview(bytes(LIMIT // 2))
        end.link.send(RemoteRun(1, "m", (tensor("a", len(body)),)), [body])
        with pytest.raises(PartitionError, match="bytes wait to be sent; with the"):
            end.link.send(RemoteRun(2, "m", (tensor("a", len(body)),)), [body])

    run(test)


def test_a_message_of_which_nothing_is_sent_can_be_taken_back() -> None:
    async def test() -> None:
        end = open_end()
        end.transport.room = -1
        end.link.pause_writing()
        end.link.send(Withdraw(1))
        end.link.send(Withdraw(2))
        before = end.link.unsent_bytes
        assert end.link.take_back(lambda message: message == Withdraw(2))
        assert not end.link.take_back(lambda message: message == Withdraw(2))
        assert end.link.unsent_bytes == before // 2

    run(test)


def test_a_body_without_memory_is_dropped() -> None:
    async def test() -> None:
        end = open_end(lambda message, size: None)
        message = RemoteRun(1, "m", (tensor("a", 100_000),))
        end.read(messages(head_of(message) + bytes(60_000), bytes(4) + bytes(40_000), head_of(HELLO)))
        assert end.came == [(message, None), (HELLO, [])]

    run(test)


def test_padding_is_skipped() -> None:
    async def test() -> None:
        end = open_end()
        content = b"\0" + len(head_of(HELLO)).to_bytes(4, "big") + head_of(HELLO)
        end.read(frame(DATA, PADDED, 1, b"\x03" + content + bytes(3)))
        assert end.came == [(HELLO, [])]

    run(test)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame(DATA, 0, 3, b"x"), "data came on stream 3, expected stream 1"),
        (b"\x20\0\0\0\0\0\0\0\1", "a frame has 2097152 bytes, expected at most 1052672"),
        (b"\0\x80\0\x01\x04\0\0\0\1", "a frame of type 1 has 32768 bytes"),
        (frame(DATA, PADDED, 1, b"\x09abc"), "the padding of a frame is longer than the frame"),
        (frame(DATA, 0, 1, b"\x01" + bytes(8)), "a message is compressed, expected none that is"),
        (frame(DATA, 0, 1, b"\0\0\0\0\x02"), "a message has no size, expected 4 bytes of it first"),
        (messages(b"\x05\0\0\0ab"), "a message of 5 bytes came as 2 bytes"),
        (messages(bytes(5)), "1 bytes of tensors came, expected 0"),
        (frame(HEADERS, END_HEADERS | END_STREAM, 1, b"block"), "the end"),
        (frame(HEADERS, 0, 1, b"block"), "a header block came in parts, expected one frame"),
        (reset(1, ErrorCode.CANCEL), "the other end reset the session with CANCEL"),
        (frame(RST_STREAM, 0, 1, b"\0\0\0\x63"), "the other end reset the session with error 99"),
        (go_away(1, ErrorCode.INTERNAL_ERROR, "why"), "the other end ended the connection with INTERNAL_ERROR: why"),
        (frame(DATA, END_STREAM, 1), "the other end closed the session"),
        (window_update(1, (1 << 31) - 1), "a window exceeds 2147483647 bytes"),
        (settings_frame({5: 7}), "expected a largest frame from 16384 bytes on, got 7"),
    ],
)
def test_the_session_ends_with_the_reason(data: bytes, reason: str) -> None:
    async def test() -> None:
        end = open_end()
        end.read(data)
        assert end.ended == [reason]
        assert end.link.over
        end.read(messages(head_of(HELLO)))
        assert end.came == []
        sent: list[int] = []
        end.link.send(HELLO, (), lambda: sent.append(1))
        assert sent == [1]

    run(test)


def test_frames_that_mean_nothing_here_are_ignored() -> None:
    async def test() -> None:
        end = open_end()
        end.read(
            go_away(1, ErrorCode.NO_ERROR, "")
            + frame(99, 7, 5, b"unknown")
            + frame(WINDOW_UPDATE, 0, 5, bytes(4))
            + frame(SETTINGS, 1, 0)
            + frame(PING, 1, 0, bytes(8))
            + frame(HEADERS, END_HEADERS, 3, b"another call")
            + messages(head_of(HELLO))
        )
        assert end.came == [(HELLO, [])]
        assert end.ended == []
        await asyncio.sleep(0)
        assert end.transport.take() == reset(3, ErrorCode.REFUSED_STREAM)

    run(test)


def test_a_faulty_callback_ends_the_session_alone(caplog: pytest.LogCaptureFixture) -> None:
    def place(message: Any, size: int) -> memoryview:
        raise RuntimeError("a fault of ours")

    async def test() -> None:
        end = open_end(place)
        end.read(messages(head_of(RemoteRun(1, "m", (tensor("a", 1),))) + b"x"))
        assert end.ended == ["internal error"]

    run(test)
    assert "a fault of ours" in caplog.text


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 300_000), max_size=3), min_size=1, max_size=5),
    reads=st.lists(st.integers(1, 70_000), min_size=1, max_size=6),
    rooms=st.lists(st.integers(0, 500_000), min_size=1, max_size=6),
    frame_bytes=st.sampled_from([16_384, 100_000, 1 << 20]),
    seed=st.integers(0, 1 << 32),
)
def test_everything_arrives_whole_and_in_order(
    sizes: list[list[int]], reads: list[int], rooms: list[int], frame_bytes: int, seed: int
) -> None:
    """Whatever the sizes of reads and writes."""

    async def test() -> None:
        random = np.random.default_rng(seed)
        one, other = open_end(), open_end()
        one.link.set_peer(1 << 30, 1 << 30, 1 << 30, frame_bytes)
        expected: list[tuple[Any, list[bytes]]] = []
        free: set[int] = set()
        for number, each in enumerate(sizes):
            bodies = [random.integers(0, 256, size, np.uint8) for size in each]
            message = RemoteRun(number, "m", tuple(tensor(str(index), size) for index, size in enumerate(each)))
            one.link.send(message, [body.data for body in bodies], partial(free.add, number))
            expected.append((message, [body.tobytes() for body in bodies]))
        await asyncio.sleep(0)
        read_sizes, write_rooms = deque(reads), deque(rooms)
        for _ in range(1000):
            other.read(one.transport.take(), read_sizes)
            one.transport.make_room(write_rooms[0])
            write_rooms.rotate()
            if len(other.came) == len(expected) and not one.transport.written:
                break
        assert other.came == expected
        assert free == set(range(len(sizes)))
        assert one.link.unsent_bytes == 0

    run(test)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=300), reads=st.lists(st.integers(1, 50), min_size=1, max_size=4))
def test_garbage_raises_nothing(data: bytes, reads: list[int]) -> None:
    async def test() -> None:
        end = open_end()
        end.read(frame(DATA, 0, 1, data) + data, deque(reads))
        assert len(end.ended) <= 1

    run(test)
