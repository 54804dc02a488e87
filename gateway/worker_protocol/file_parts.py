"""Files of models, in parts: the end that has them, and the end that wants them."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import BinaryIO

from sluice.gateway.worker_protocol.messages import MOST_PART_BYTES, FilePart, FileWanted
from sluice.models.distribution.sources import ReadFile
from sluice.models.errors import ServingError

MOST_READS = 4
"""Parts that are read from the disk at a time."""
MOST_WAITING = 256
"""Parts that may wait to be read."""
PARTS_AHEAD = 4
"""Parts that are asked for at a time."""
_MOST_REASON = 500

OpenFile = Callable[[str, str], BinaryIO]
"""open(digest, path): a file of a set. Raises ServingError and OSError."""
AskFile = Callable[[FileWanted], Awaitable[FilePart]]
"""Gets the answer to a question. Raises ServingError and OSError."""


class FileReader:
    """Reads the parts that others ask for, off the event loop."""

    def __init__(self, open_file: OpenFile) -> None:
        self._open = open_file
        self._turns = asyncio.Semaphore(MOST_READS)
        self._waiting = 0

    async def answer(self, wanted: FileWanted) -> FilePart:
        """The part that is wanted, or the reason why there is none."""
        if not (0 <= wanted.offset < 1 << 62 and 0 < wanted.nbytes <= MOST_PART_BYTES):
            return FilePart(wanted.number, error=f"expected a part of at most {MOST_PART_BYTES} bytes of a file")
        if self._waiting >= MOST_WAITING:
            return FilePart(wanted.number, error=f"{MOST_WAITING} parts of files wait to be read already")
        self._waiting += 1
        try:
            async with self._turns:
                return FilePart(wanted.number, await asyncio.to_thread(self._read, wanted))
        except (ServingError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            return FilePart(wanted.number, error=(reason or str(error))[:_MOST_REASON])
        finally:
            self._waiting -= 1

    def _read(self, wanted: FileWanted) -> bytes:
        with self._open(wanted.digest, wanted.path) as file:
            file.seek(wanted.offset)
            return file.read(wanted.nbytes)


def read_by_parts(ask: AskFile) -> ReadFile:
    """Reads files from the end that has them, some parts ahead; see `ReadFile`."""
    numbers = itertools.count(1)

    async def read(digest: str, path: str, offset: int) -> AsyncGenerator[bytes, None]:
        ahead: deque[asyncio.Future[FilePart]] = deque()

        def want() -> None:
            nonlocal offset
            wanted = FileWanted(next(numbers), digest, path, offset, MOST_PART_BYTES)
            offset += MOST_PART_BYTES
            ahead.append(asyncio.ensure_future(ask(wanted)))

        try:
            want()
            while ahead:
                part = await ahead.popleft()
                if part.error:
                    raise ServingError(part.error[:_MOST_REASON])
                if part.data:
                    yield part.data
                if len(part.data) < MOST_PART_BYTES:
                    return
                while len(ahead) < PARTS_AHEAD:
                    want()
        finally:
            for each in ahead:
                each.cancel()
            for each in ahead:
                with suppress(asyncio.CancelledError, ServingError, OSError):
                    await each

    return read
