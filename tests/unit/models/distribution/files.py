"""Sets of files without a disk, and sources that give, lie, break off and hang."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping

from sluice.models.distribution.file_set import FileEntry, FileSet, make_file_set
from sluice.models.distribution.sources import StreamSource
from sluice.models.errors import NotFoundError

MODEL = "m/1/model.py"


def set_of(contents: Mapping[str, bytes]) -> FileSet:
    entries = [FileEntry(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in contents.items()]
    return make_file_set(entries, MODEL)


class Holder:
    """The files of another machine; `reads` are the reads that were asked of it, as (path, offset)."""

    def __init__(self, contents: Mapping[str, bytes], chunk_bytes: int = 4) -> None:
        self.contents = dict(contents)
        self.reads: list[tuple[str, int]] = []
        self.breaks_after: int | None = None
        self.lies = False
        self.hangs = False
        self.hangs_then = False
        self.broke = asyncio.Event()
        self.asked = asyncio.Event()
        self.release = asyncio.Event()
        self.release.set()
        self._chunk_bytes = chunk_bytes

    def source(self, name: str = "peer a:1", rate: int = 1 << 20, stall_s: float = 60.0) -> StreamSource:
        return StreamSource(name, self.read, rate, stall_s)

    async def read(self, digest: str, path: str, offset: int) -> AsyncGenerator[bytes, None]:
        del digest
        self.reads.append((path, offset))
        self.asked.set()
        if path not in self.contents:
            raise NotFoundError(f"there is no file '{path}'")
        data = self.contents[path][offset:]
        sent = 0
        while data:
            await self.release.wait()
            if self.hangs:
                await asyncio.Event().wait()
            chunk, data = data[: self._chunk_bytes], data[self._chunk_bytes :]
            yield bytes(len(chunk)) if self.lies else chunk
            sent += len(chunk)
            if self.breaks_after is not None and sent >= self.breaks_after and data:
                self.broke.set()
                if self.hangs_then:
                    await asyncio.Event().wait()
                raise ConnectionResetError("the connection was reset")
