"""The gateway's end of a session, whose other end may say anything."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import pytest

from sluice.gateway.http2.frames import DATA, END_HEADERS, HEADERS, frame, settings_frame
from sluice.gateway.http2.header_blocks import encode_fields
from sluice.gateway.worker_protocol.client import Credentials, open_session
from sluice.gateway.worker_protocol.framing import head_of
from sluice.gateway.worker_protocol.messages import Finished, Hello, ServedWorker, SessionTensor, Welcome
from sluice.models.errors import PartitionError
from sluice.models.tensors.spec import DataType
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import CpuPartition

HELLO = Hello("1", "g", 3.0)
WELCOME = Welcome("1", "w0", "n1", "cpu1", CpuPartition("w0", (0,)), ServedWorker(7, (0,), Evidence()), 1)
HUGE = 1 << 30


def of_grpc(message: msgspec.Struct) -> bytes:
    head = head_of(message)
    return frame(DATA, 0, 1, b"\0" + len(head).to_bytes(4, "big") + head)


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_a_name_that_no_host_has_is_a_worker_that_cannot_be_reached(host: str) -> None:
    async def test() -> None:
        with pytest.raises(PartitionError, match=f"the worker server at {host}:9001 cannot be reached: "):
            await open_session(f"{host}:9001", Credentials(), HELLO, lambda *given: None, lambda reason: None)

    asyncio.run(test())


@pytest.mark.parametrize("is_open", [True, False])
def test_no_memory_is_taken_for_tensors_that_were_not_asked_for(is_open: bool) -> None:
    """They come when the session is open, or right behind its answer."""
    taken: list[int] = []

    def memory(size: int) -> None:
        taken.append(size)

    async def test() -> str:
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        may_go_on, served = asyncio.Event(), asyncio.Event()
        outputs = (SessionTensor("y", DataType.UINT8, (HUGE,), HUGE),)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            headers = encode_fields(((b":status", b"200"), (b"content-type", b"application/grpc")))
            writer.write(settings_frame({}) + frame(HEADERS, END_HEADERS, 1, headers) + of_grpc(WELCOME))
            await may_go_on.wait()
            writer.write(of_grpc(Finished(1, 0, 0, outputs)))
            with suppress(ConnectionError):
                await reader.read()
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            served.set()

        def on_message(message: object, views: Sequence[memoryview]) -> None:
            raise AssertionError(message)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        if not is_open:
            may_go_on.set()
        try:
            await open_session(url, Credentials(), HELLO, on_message, ended.set_result, memory)
            may_go_on.set()
            return await ended
        except PartitionError as error:
            return str(error)
        finally:
            await served.wait()
            server.close()
            await server.wait_closed()

    assert asyncio.run(test()).endswith("a Finished came with tensors that were not asked for")
    assert taken == []
