import asyncio
import http.client
from pathlib import Path

import pytest

from sluice.loadgen.target.http_get import UnixHttpConnection, get


def fetched(path: str, content: bytes, timeout_s: float = 60.0) -> tuple[int, bytes]:
    """The answer to a GET from a server that writes `content` and keeps the connection open."""

    async def run() -> tuple[int, bytes]:
        left = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(content)
            await reader.read()
            writer.close()
            await writer.wait_closed()
            left.set()

        async with await asyncio.start_unix_server(answer, path):
            try:
                return await get(UnixHttpConnection(path, 60.0), "/v2", {"key": "value"}, timeout_s)
            finally:
                await asyncio.wait_for(left.wait(), 60.0)

    return asyncio.run(run())


def test_a_body_may_come_in_chunks(tmp_path: Path) -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    assert fetched(str(tmp_path / "s"), chunked) == (200, b"ok")


@pytest.mark.parametrize("field", ["Connection: close", "X: y"])
def test_an_answer_that_does_not_end_holds_nothing_up(tmp_path: Path, field: str) -> None:
    # The thread that reads it ends as well, or the event loop would wait for its 60 seconds at the end.
    with pytest.raises(TimeoutError):
        fetched(str(tmp_path / "s"), f"HTTP/1.1 200 OK\r\n{field}\r\nContent-Length: 9\r\n\r\n12".encode(), 0.05)


def test_a_body_without_end_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.loadgen.target.http_get.MAX_ANSWER_BYTES", 4)
    with pytest.raises(OSError, match="an answer of more than 4 bytes"):
        fetched(str(tmp_path / "s"), b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12345")


def test_what_is_not_http_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(http.client.BadStatusLine):
        fetched(str(tmp_path / "s"), b"220 mail ready\r\n")
