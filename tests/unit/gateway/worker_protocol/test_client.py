"""The gateway's end of a session against servers that are no worker servers, or bad ones."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from sluice.gateway.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    ErrorCode,
    frame,
    go_away,
    settings_frame,
)
from sluice.gateway.http2.header_blocks import encode_fields
from sluice.gateway.worker_protocol.client import ClientSession, Credentials, SessionRefused, open_session, read_key
from sluice.gateway.worker_protocol.framing import head_of
from sluice.gateway.worker_protocol.messages import (
    Draining,
    Finished,
    Hello,
    RemoteRun,
    ServedWorker,
    SessionRefusal,
    SessionTensor,
    Welcome,
    Withdraw,
    Withdrawn,
)
from sluice.models.errors import ConfigError, PartitionError
from sluice.models.tensors.spec import DataType
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import CpuPartition

HELLO = Hello("1", "g", 30.0)
PARTITION = CpuPartition("p", (0,))
WELCOME = Welcome("1", "w", "n", "cpu1", PARTITION, ServedWorker(7, (0,), Evidence()), 1)
ANSWER = frame(HEADERS, END_HEADERS, 1, encode_fields(((b":status", b"200"), (b"content-type", b"application/grpc"))))


def message(content: msgspec.Struct) -> bytes:
    head = head_of(content)
    return frame(DATA, 0, 1, b"\0" + len(head).to_bytes(4, "big") + head)


def status(code: int, text: str) -> bytes:
    fields = (b":status", b"200"), (b"grpc-status", str(code).encode()), (b"grpc-message", text.encode())
    return frame(HEADERS, END_HEADERS | END_STREAM, 1, encode_fields(fields))


async def opened(
    answer: bytes | None, use: Callable[[ClientSession], None] | None = None, count: int = 0
) -> list[object]:
    """Open a session with a server that sends this once it has read something (None: nothing).

    The server then closes the connection, unless a `count` is awaited of the messages behind the answer to `Hello`, and
    of the end of the session, which are returned.
    """
    came: list[object] = []
    has_come = asyncio.Event()

    def take(each: object, views: object = ()) -> None:
        came.append(each)
        if len(came) == count:
            has_come.set()

    served: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read(1000)
            if answer is not None:
                writer.write(answer)
                await writer.drain()
                if not count:
                    writer.write_eof()
            await reader.read()
        writer.close()
        served.set_result(None)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        session = await open_session(url, Credentials("k"), HELLO, take, take, None, 0.5)
        if use is not None:
            use(session)
        await has_come.wait()
        session.close()
    finally:
        async with asyncio.timeout(20):
            await served
        server.close()
    return came


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "did not answer within 0.5 s"),
        (b"", "the other end closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP/1 came, expected HTTP/2"),
        (settings_frame({}), "connection"),
        (settings_frame({}) + status(12, "Method not found!"), "Method not found!"),
        (settings_frame({}) + status(7, ""), "it ended the call with the status 7"),
        (
            frame(HEADERS, END_HEADERS | END_STREAM, 1, encode_fields(((b":status", b"404"),))),
            "it answered with the HTTP status 404; it is no worker server",
        ),
        (go_away(0, ErrorCode.ENHANCE_YOUR_CALM, "too many"), "ENHANCE_YOUR_CALM: too many"),
        (ANSWER + message(WELCOME) + status(14, "it stops"), "ended the session at once: it stops"),
        (ANSWER + message(Draining("")), "a Draining came before the worker server had answered the session"),
        (ANSWER + frame(DATA, 0, 1, b"\0\0\0\0\6\2\0\0\0\xc1\xc1"), "a message cannot be read"),
    ],
)
def test_what_is_no_worker_server_is_named(answer: bytes | None, reason: str) -> None:
    with pytest.raises(PartitionError) as refused:
        asyncio.run(opened(answer))
    assert reason in str(refused.value)
    assert not isinstance(refused.value, SessionRefused)


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        (message(SessionRefusal("busy", True, "other")), ("busy", True, "other")),
        (message(SessionRefusal("old", False)), ("old", False, "")),
        (status(16, "the key is wrong"), ("the key is wrong", False, "")),
    ],
)
def test_refusals_have_their_reason(answer: bytes, refused: tuple[str, bool, str]) -> None:
    with pytest.raises(SessionRefused) as error:
        asyncio.run(opened(settings_frame({}) + ANSWER + answer))
    assert (error.value.reason, error.value.retry, error.value.holder) == refused


def test_messages_right_behind_the_welcome_are_not_lost() -> None:
    came = asyncio.run(opened(ANSWER + message(WELCOME) + message(Draining("soon")), count=1))
    assert came == [Draining("soon")]


def test_no_memory_is_taken_for_tensors_that_were_not_asked_for() -> None:
    outputs = (SessionTensor("y", DataType.UINT8, (1 << 30,), 1 << 30),)
    with pytest.raises(PartitionError, match="a Finished came with tensors that were not asked for"):
        asyncio.run(opened(ANSWER + message(WELCOME) + message(Finished(1, 0, 0, outputs)), count=1))


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_a_name_that_no_host_has_is_a_worker_that_cannot_be_reached(host: str) -> None:
    async def go() -> None:
        await open_session(f"{host}:9001", Credentials(), HELLO, lambda each, views: None, lambda reason: None)

    with pytest.raises(PartitionError, match=f"the worker server at {host}:9001 cannot be reached: "):
        asyncio.run(go())


def test_a_second_welcome_ends_the_session() -> None:
    def use(session: ClientSession) -> None:
        session.send(Withdraw(1))

    with pytest.raises(PartitionError, match="the worker server answered the session twice"):
        asyncio.run(opened(ANSWER + message(WELCOME) + message(WELCOME), use, 1))


def test_a_batch_of_which_nothing_was_sent_is_taken_back_here() -> None:
    def use(session: ClientSession) -> None:
        session.send(RemoteRun(5, "m", ()))
        session.send(Withdraw(5))

    assert asyncio.run(opened(ANSWER + message(WELCOME), use, 1))[0] == Withdrawn(5)


def test_an_address_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"127.0.0.1:{server.getsockname()[1]}"

    async def go() -> None:
        await open_session(url, Credentials(), HELLO, lambda each, views: None, lambda reason: None)

    with pytest.raises(PartitionError, match=f"the worker server at {url} cannot be reached: Connection refused$"):
        asyncio.run(go())


def test_a_server_without_tls_is_named_as_that() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(settings_frame({}))
        await reader.read(1)
        writer.close()

    async def go() -> None:
        async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
            url = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            credentials = Credentials(tls=ssl.create_default_context(), server_name="worker")
            await open_session(url, credentials, HELLO, lambda each, views: None, lambda reason: None)

    with pytest.raises(PartitionError, match=r"cannot be reached: it does not use TLS, and this side does$"):
        asyncio.run(go())


def test_keys_are_read_without_the_space_around_them(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("  open-sesame\n")
    assert read_key(str(tmp_path / "key")) == "open-sesame"
    assert read_key(None) == ""
    for content in (b"", b" \n", b"a\0b", "schlüssel".encode(), b"k" * 1025):
        (tmp_path / "key").write_bytes(content)
        with pytest.raises(ConfigError, match="the key file"):
            read_key(str(tmp_path / "key"))
    with pytest.raises(ConfigError, match=r"none cannot be read: No such file or directory$"):
        read_key(str(tmp_path / "none"))
