import asyncio
import io
from collections.abc import Callable
from typing import BinaryIO

import pytest

from sluice.gateway.worker_protocol import file_parts as file_parts_module
from sluice.gateway.worker_protocol.file_parts import PARTS_AHEAD, FileReader, read_by_parts
from sluice.gateway.worker_protocol.messages import MOST_PART_BYTES, FilePart, FileWanted
from sluice.models.errors import NotFoundError, ServingError

DIGEST = "d" * 64


def opens(contents: bytes) -> Callable[[str, str], BinaryIO]:
    def open_file(digest: str, path: str) -> BinaryIO:
        if (digest, path) != (DIGEST, "m/1/model.onnx"):
            raise NotFoundError("there is no such file")
        return io.BytesIO(contents)

    return open_file


def read(contents: bytes, offset: int = 0, path: str = "m/1/model.onnx") -> tuple[bytes, list[int]]:
    """The contents that one end gets from the other, and the offsets that it asks for."""
    asked: list[int] = []

    async def run() -> bytes:
        reader = FileReader(opens(contents))

        async def ask(wanted: FileWanted) -> FilePart:
            asked.append(wanted.offset)
            return await reader.answer(wanted)

        return b"".join([chunk async for chunk in read_by_parts(ask)(DIGEST, path, offset)])

    return asyncio.run(run()), asked


def test_a_small_file_takes_one_question() -> None:
    assert read(b"model") == (b"model", [0])
    assert read(b"model", 2) == (b"del", [2])
    assert read(b"") == (b"", [0])


def test_a_large_file_is_read_some_parts_ahead() -> None:
    contents = bytes(range(256)) * (MOST_PART_BYTES // 256) * 3 + b"end"
    got, asked = read(contents)
    assert got == contents
    assert asked[: 1 + PARTS_AHEAD] == [MOST_PART_BYTES * number for number in range(1 + PARTS_AHEAD)]
    assert len(asked) <= 1 + PARTS_AHEAD + 2


def test_a_file_that_ends_with_a_part_is_whole() -> None:
    assert read(bytes(2 * MOST_PART_BYTES))[0] == bytes(2 * MOST_PART_BYTES)


def test_the_reason_for_which_there_is_no_file_reaches_the_other_end() -> None:
    with pytest.raises(ServingError, match="there is no such file"):
        read(b"model", path="../secret")


@pytest.mark.parametrize("wanted", [(0, 0), (0, MOST_PART_BYTES + 1), (-1, 1), (1 << 62, 1)])
def test_parts_are_bounded(wanted: tuple[int, int]) -> None:
    part = asyncio.run(FileReader(opens(b"model")).answer(FileWanted(7, DIGEST, "m/1/model.onnx", *wanted)))
    assert part == FilePart(7, error="expected a part of at most 262144 bytes of a file")


def test_parts_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_parts_module, "MOST_WAITING", 2)

    async def run() -> list[str]:
        reader = FileReader(opens(b"model"))
        wanted = FileWanted(1, DIGEST, "m/1/model.onnx", 0, 1)
        parts = await asyncio.gather(*(reader.answer(wanted) for _ in range(3)))
        return [part.error for part in [*parts, await reader.answer(wanted)]]

    assert asyncio.run(run()) == ["", "", "2 parts of files wait to be read already", ""]


def test_an_error_of_the_disk_has_no_path_of_the_machine() -> None:
    def broken(digest: str, path: str) -> BinaryIO:
        raise OSError(5, "Input/output error", "/srv/models/secret")

    part = asyncio.run(FileReader(broken).answer(FileWanted(1, DIGEST, "m", 0, 1)))
    assert part.error == "Input/output error"


def test_a_reader_that_goes_away_leaves_no_questions() -> None:
    async def run() -> None:
        cancelled: list[int] = []

        async def ask(wanted: FileWanted) -> FilePart:
            if wanted.offset == 0:
                return FilePart(wanted.number, bytes(MOST_PART_BYTES))
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(wanted.offset)
                raise
            raise AssertionError

        chunks = read_by_parts(ask)(DIGEST, "m", 0)
        await anext(chunks)
        waiting = asyncio.ensure_future(anext(chunks))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await chunks.aclose()
        assert len(cancelled) == PARTS_AHEAD

    asyncio.run(run())
