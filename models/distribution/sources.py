"""Places that the contents of a set of files are read from: other machines, a URL, the gateway."""

import asyncio
import hashlib
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from io import FileIO
from pathlib import Path
from typing import Protocol

from sluice.models.distribution.file_set import FileEntry, FileSet
from sluice.models.errors import ServingError
from sluice.models.sources.source import FsspecSource, SourceError, check_url

STALL_S = 10.0
"""Time without a chunk, after which a stream has stalled."""
GRACE_S = 10.0
"""Time that a stream may be slower than it has to be."""
MAX_RESUMES = 3
"""Times that a stream which broke off is continued for one file."""
PEER_BYTES_PER_S = 1 << 20
"""The least rate of a peer: there are others to ask."""
GATEWAY_BYTES_PER_S = 1 << 15
"""The least rate of the gateway, which is asked last."""

_BLOCK_BYTES = 1 << 20

Chunk = bytes | bytearray | memoryview
ReadFile = Callable[[str, str, int], AsyncGenerator[Chunk, None]]
"""Reads a file of a set: (digest, path, offset in bytes) to chunks, to the end of the file.

Raises ServingError or OSError.
"""


class FileSourceError(ServingError):
    """A source does not give a file; the message starts with the source's name."""


class DiskError(Exception):
    """The disk of this machine does not take a file; made from the OSError."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))


class Part:
    """A file that is being received: it is hashed as it is written, and takes no byte more than the file has.

    The caller has opened it for writing, and closes it.
    """

    def __init__(self, opened: FileIO, file: FileEntry) -> None:
        self.path = Path(opened.name)
        self.received = 0
        self._file = file
        self._descriptor = opened.fileno()
        self._sha256 = hashlib.sha256()

    @property
    def is_complete(self) -> bool:
        """True if every byte is there; `matches` tells if they are the right ones."""
        return self.received == self._file.size

    @property
    def matches(self) -> bool:
        """True if the contents have the hash of the file."""
        return self._sha256.hexdigest() == self._file.sha256

    async def write(self, chunk: Chunk) -> None:
        """Append a chunk, off the event loop; raises FileSourceError if the file has fewer bytes, and DiskError."""
        if self.received + len(chunk) > self._file.size:
            raise FileSourceError(f"'{self._file.path}': expected {self._file.size} bytes, got more")
        written = asyncio.ensure_future(asyncio.to_thread(self._write, chunk))
        try:
            await asyncio.shield(written)
        except asyncio.CancelledError:
            await asyncio.wait((written,))  # else the thread could write once the descriptor is that of another file
            raise

    async def fill(self, write: Callable[[Path], None]) -> None:
        """Have a function that blocks write the whole file at a path; raises as it does, and as `write`."""
        await asyncio.to_thread(write, self.path)
        size = await asyncio.to_thread(self._hash_all)
        if size > self._file.size:
            raise FileSourceError(f"'{self._file.path}': expected {self._file.size} bytes, got {size}")
        self.received = size

    def _write(self, chunk: Chunk) -> None:
        at = memoryview(chunk)
        while at:
            try:
                written = os.pwrite(self._descriptor, at, self.received)
            except OSError as error:
                raise DiskError(error) from error
            self._sha256.update(at[:written])
            self.received += written
            at = at[written:]

    def _hash_all(self) -> int:
        with self.path.open("rb") as file:
            self._sha256 = hashlib.sha256()
            while block := file.read(_BLOCK_BYTES):
                self._sha256.update(block)
            return file.tell()


class FileSource(Protocol):
    """A place that files are read from; `name` is for messages."""

    @property
    def name(self) -> str:
        """The kind of source, and its address."""
        ...

    async def fetch(self, files: FileSet, file: FileEntry, part: Part) -> None:
        """Write the contents of a file of the set into an empty part.

        Raises FileSourceError within a time that is bounded by the size of the file, and DiskError.
        """
        ...


class StreamSource:
    """A source that sends chunks: a peer's cache or the gateway.

    A stream that breaks off is continued where it was. One that stalls, or stays slower than `least_bytes_per_s`, is
    given up.
    """

    def __init__(
        self, name: str, read: ReadFile, least_bytes_per_s: int = PEER_BYTES_PER_S, stall_s: float = STALL_S
    ) -> None:
        self.name = name
        self._read = read
        self._least_bytes_per_s = least_bytes_per_s
        self._stall_s = stall_s

    async def fetch(self, files: FileSet, file: FileEntry, part: Part) -> None:
        """Write a file; see `FileSource`."""
        end = asyncio.get_running_loop().time() + GRACE_S + file.size / self._least_bytes_per_s
        reason = ""
        for _ in range(1 + MAX_RESUMES):
            before = part.received
            try:
                await self._receive(files, file, part, end)
            except TimeoutError:
                raise self._error(file, f"too slow: {part.received} of {file.size} bytes arrived in time") from None
            except FileSourceError as error:
                raise FileSourceError(f"{self.name}: {error}") from error
            except (ServingError, OSError) as error:
                reason = str(error) or type(error).__name__
            else:
                reason = f"expected {file.size} bytes, got {part.received}"
            if part.is_complete:
                return
            if part.received == before:
                break
        raise self._error(file, reason)

    async def _receive(self, files: FileSet, file: FileEntry, part: Part, end: float) -> None:
        now = asyncio.get_running_loop().time
        async with asyncio.timeout_at(min(now() + self._stall_s, end)) as limit:
            stream = self._read(files.digest, file.path, part.received)
            async with aclosing(stream):
                async for chunk in stream:
                    await part.write(chunk)
                    limit.reschedule(min(now() + self._stall_s, end))

    def _error(self, file: FileEntry, reason: str) -> FileSourceError:
        return FileSourceError(f"{self.name}: '{file.path}': {reason}")


class UriSource:
    """The repository of the set by its URL, if it has one: each machine reads from an object store by itself."""

    MAX_OPEN = 16
    """Repositories that stay open."""

    name = "URL"

    def __init__(self) -> None:
        self._opened: OrderedDict[str, FsspecSource] = OrderedDict()

    async def fetch(self, files: FileSet, file: FileEntry, part: Part) -> None:
        """Write a file; see `FileSource`."""
        if not files.uri:
            raise FileSourceError(f"{self.name}: the model is in no repository by URL")
        try:
            source = self._open(files.uri)
            await part.fill(lambda path: source.fetch(file.path, path, file.size))
        except (SourceError, ValueError) as error:
            raise FileSourceError(f"{self.name}: {error}") from error

    def _open(self, uri: str) -> FsspecSource:
        """The repository of a URL, which is opened once: it has one attempt at a time. Raises ValueError."""
        source = self._opened.get(uri)
        if source is None:
            check_url(uri)
            source = self._opened[uri] = FsspecSource(uri)
            if len(self._opened) > self.MAX_OPEN:
                self._opened.popitem(last=False)
        self._opened.move_to_end(uri)
        return source
