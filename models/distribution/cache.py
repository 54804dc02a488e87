"""The files of models on a worker's machine, each content once, shared by all worker servers of the machine.

The layout of a cache's directory:

    lock                          held while sets are added and removed
    contents/SHA256               each content once, verified; read-only
    sets/DIGEST/manifest.json     the files of a set: what it has, or is about to have
    sets/DIGEST/use               locked, shared, by each process that uses the set; its time is that of the last use
    sets/DIGEST/tree/PATH         hard links to contents
    receiving/…                   contents that are being received, each locked by its process

Locks are those of `flock`: they end with their process. So a crash leaves nothing that is in use, and parts of files
that the next user of the cache removes.
"""

import asyncio
import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from sluice.models.distribution.file_set import FileEntry, FileSet, is_sha256
from sluice.models.distribution.local_files import local_model, machine_id
from sluice.models.distribution.sources import DiskError, FileSource, FileSourceError, Part
from sluice.models.errors import BackendUnavailable, NotFoundError
from sluice.models.regular_file import printable

SPARE_BYTES = 256 << 20
"""Room that is left on the disk, but no more than a part of it: a volume may be for the cache alone."""
SPARE_PART = 20
"""One in this number of bytes is left of a small disk."""
LOCK_TIMEOUT_S = 60.0
"""Time for another process to end a change of the cache."""
OTHER_STALL_S = 30.0
"""Time without progress of another process that receives a content, after which this one does not wait for it."""

_WHOLE_NS = 1_000_000_000 * 10**9
"""The time of modification of contents that were verified: whatever writes to one gives it another time."""
_LOOK_S = 0.05
_MAX_REASON = 300
_MAX_REASONS = 4

_Result = TypeVar("_Result")


class FilesUnavailable(BackendUnavailable):
    """The files of a model cannot be had on this machine."""


class HeldFiles:
    """The files of a model on this machine; they stay there until they are released, or the process ends.

    `received` are the bytes that came for this load, by the name of their source.
    """

    def __init__(self, model: Path, use: BinaryIO | None = None, received: Mapping[str, int] = {}) -> None:
        self.model = model
        self.received = received
        self._use = use

    @property
    def is_copy(self) -> bool:
        """True for files of the cache, False for those of the machine itself."""
        return self._use is not None

    def release(self) -> None:
        """Let the files go; once is enough."""
        if self._use is not None and not self._use.closed:
            with suppress(OSError):
                _touch(self._use.fileno())
            self._use.close()


class ModelCache:
    """A cache in a directory, of at most `max_bytes`, which several processes of a machine may use.

    What was not used for the longest time goes first, and nothing goes that is in use. `machine` is compared with that
    of file sets: those of the same machine are used as they are; "" copies them as well.
    """

    def __init__(self, root: Path, max_bytes: int, machine: str | None = None) -> None:
        self.root = root
        self._max_bytes = max_bytes
        self._machine = machine_id() if machine is None else machine
        self._manifests: dict[str, FileSet] = {}

    async def ensure(self, files: FileSet, sources: Sequence[FileSource]) -> HeldFiles:
        """Have the files of a set on this machine, from the first of `sources` that gives them; the caller releases.

        A source that fails is not asked again for this set. Processes and tasks that want the same content at the same
        time receive it once. Raises FilesUnavailable.
        """
        here = await asyncio.to_thread(local_model, files, self._machine)
        if here is not None:
            return HeldFiles(here)
        use = await self._in_thread(files, lambda: self._hold(files))
        try:
            missing = await self._in_thread(files, lambda: self._missing(files))
            asked = _Sources(files, sources)
            for file in missing:
                await self._receive_once(file, asked)
            if missing or not await self._in_thread(files, lambda: self._is_linked(files)):
                await self._in_thread(files, lambda: self._link(files))
        except BaseException:
            use.close()
            raise
        return HeldFiles(self._tree(files.digest) / files.model, use, asked.received)

    def prepare(self) -> None:
        """Make the directory, and remove what processes that were killed have left; blocks, and raises OSError."""
        with self._locked():
            self._sweep()

    def open(self, digest: str, path: str) -> BinaryIO:
        """Open a file of a set, for other machines; blocks. Raises NotFoundError if it is not there, and OSError."""
        files = self._manifest(digest) if is_sha256(digest) else None
        file = None if files is None else next((each for each in files.files if each.path == path), None)
        if file is not None and self._is_whole(file.sha256, file.size):
            with suppress(FileNotFoundError):
                return self._content(file.sha256).open("rb")
        raise NotFoundError(f"the cache does not have '{printable(path[:200])}' of files {printable(digest[:12])}")

    @property
    def max_bytes(self) -> int:
        """The most bytes that it takes."""
        return self._max_bytes

    @property
    def used_bytes(self) -> int:
        """The bytes of all sets, those included that are about to be received; blocks, and raises OSError."""
        return _contents_bytes(self._known_sets().values())

    async def _in_thread(self, files: FileSet, work: Callable[[], _Result]) -> _Result:
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            raise FilesUnavailable(f"{_named(files)}: {self._disk_reason(error.strerror or str(error))}") from error

    def _disk_reason(self, reason: str) -> str:
        return f"the cache in {self.root} cannot keep it: {reason}"

    # Sets

    def _hold(self, files: FileSet) -> BinaryIO:
        """Add a set, whether its files are there or not, and lock it against eviction; raises FilesUnavailable."""
        with self._locked():
            self._sweep()
            folder = self.root / "sets" / files.digest
            known = self._known_sets()
            others = [each for digest, each in known.items() if digest != files.digest]
            self._make_room(files, others)
            folder.mkdir(exist_ok=True)
            if files.digest not in known:
                _write_whole(folder / "manifest.json", msgspec.json.encode(_plain(files)))
            use = (folder / "use").open("ab")
            try:
                fcntl.flock(use, fcntl.LOCK_SH | fcntl.LOCK_NB)
                _touch(use.fileno())
            except BaseException:
                use.close()
                raise
            return use

    def _make_room(self, files: FileSet, others: Sequence[FileSet]) -> None:
        """Evict what was not used for the longest time until a set has room; raises FilesUnavailable.

        Nothing is evicted if that does not help.
        """
        if files.size > self._max_bytes:
            raise FilesUnavailable(
                f"{_named(files)}: too large for the cache in {self.root}: it has {files.size} bytes, and the cache "
                f"takes {self._max_bytes}"
            )
        on_disk = {content.name: content.stat().st_size for content in (self.root / "contents").iterdir()}
        missing = sum(size for sha256, size in files.contents.items() if sha256 not in on_disk)
        disk = shutil.disk_usage(self.root)
        room = disk.free - min(SPARE_BYTES, disk.total // SPARE_PART)
        kept = sorted(others, key=lambda each: self._last_use(each.digest), reverse=True)
        unused = [each for each in kept if not self._is_used(each.digest)]
        evicted: list[FileSet] = []
        while True:
            too_many = _contents_bytes((*kept, files)) - self._max_bytes
            wanted = {sha256 for each in (*kept, files) for sha256 in each.contents}
            free = room + sum(size for sha256, size in on_disk.items() if sha256 not in wanted)
            if too_many <= 0 and (missing <= free or not missing):
                break
            if not unused and too_many > 0:
                raise FilesUnavailable(
                    f"{_named(files)}: no room in the cache in {self.root}: expected {too_many} bytes more than its "
                    f"{self._max_bytes}, and all other models in it are in use"
                )
            if not unused:
                raise FilesUnavailable(
                    f"{_named(files)}: too large for the disk of {self.root}: {missing} bytes are missing, and "
                    f"{max(free, 0)} are free beside a reserve, or would be without models that are not in use"
                )
            evicted.append(unused.pop())
            kept.remove(evicted[-1])
        for each in evicted:
            self._remove_set(each.digest)
        self._drop_contents((*kept, files))

    def _is_used(self, digest: str) -> bool:
        with (self.root / "sets" / digest / "use").open("ab") as use:
            try:
                fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def _remove_set(self, digest: str) -> None:
        """Remove a set that is not in use."""
        folder = self.root / "sets" / digest
        (folder / "manifest.json").unlink(missing_ok=True)  # without it, a set that is half removed is none
        shutil.rmtree(folder)

    def _sweep(self) -> None:
        """Remove what processes that were killed have left."""
        for part in (self.root / "receiving").iterdir():
            with suppress(FileNotFoundError), part.open("rb") as opened, suppress(BlockingIOError):
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                part.unlink()
        known = self._known_sets()
        for folder in (self.root / "sets").iterdir():
            if folder.is_dir() and folder.name not in known and not self._is_used(folder.name):
                self._remove_set(folder.name)
        self._drop_contents(tuple(known.values()))

    def _drop_contents(self, kept: Sequence[FileSet]) -> None:
        """Remove the contents that are in none of these sets."""
        wanted = {sha256 for each in kept for sha256 in each.contents}
        for content in (self.root / "contents").iterdir():
            if content.name not in wanted:
                content.unlink()

    def _known_sets(self) -> dict[str, FileSet]:
        """The sets that are there, by digest; those whose manifest cannot be read are left out."""
        found: dict[str, FileSet] = {}
        for folder in (self.root / "sets").iterdir():
            if (files := self._manifest(folder.name)) is not None:
                found[folder.name] = files
        self._manifests = found
        return found

    def _manifest(self, digest: str) -> FileSet | None:
        path = self.root / "sets" / digest / "manifest.json"
        known = self._manifests.get(digest)
        with suppress(FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
            if known is not None:
                path.stat()
                return known
            files = _decode_manifest(path.read_bytes())
            return files if files.digest == digest else None
        return None

    def _last_use(self, digest: str) -> int:
        with suppress(OSError):
            return (self.root / "sets" / digest / "use").stat().st_mtime_ns
        return 0

    # Contents

    def _content(self, sha256: str) -> Path:
        return self.root / "contents" / sha256

    def _tree(self, digest: str) -> Path:
        return self.root / "sets" / digest / "tree"

    def _missing(self, files: FileSet) -> list[FileEntry]:
        """The files whose contents are not there, one for each content; damaged contents are removed."""
        by_content = {file.sha256: file for file in files.files}
        return [file for sha256, file in by_content.items() if not self._is_whole(sha256, file.size)]

    def _is_whole(self, sha256: str, size: int) -> bool:
        """True if a content is there as it was verified; it is read again only if it may have changed."""
        place = self._content(sha256)
        with suppress(FileNotFoundError):
            status = place.stat()
            if status.st_size == size and status.st_mtime_ns == _WHOLE_NS:
                return True
            with place.open("rb") as content:
                if hashlib.file_digest(content, "sha256").hexdigest() == sha256:
                    os.utime(place, ns=(_WHOLE_NS, _WHOLE_NS))
                    return True
            place.unlink()
        return False

    async def _receive_once(self, file: FileEntry, asked: "_Sources") -> None:
        """Receive a content, unless another process or task does so; raises FilesUnavailable."""
        files = asked.files
        seen, since = -1, time.monotonic()
        while (turn := await self._in_thread(files, lambda: self._take_turn(file))) is None:
            if (now := await self._in_thread(files, lambda: self._received_by_others(file))) != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > OTHER_STALL_S:
                break  # twice is better than never
            await asyncio.sleep(_LOOK_S)
        try:
            if not await self._in_thread(files, lambda: self._is_whole(file.sha256, file.size)):
                await self._receive(file, asked)
        finally:
            if turn is not None:
                turn.close()

    def _take_turn(self, file: FileEntry) -> BinaryIO | None:
        """The lock of a content, None while another has it."""
        turn = (self.root / "receiving" / f"{file.sha256}.turn").open("ab")
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            turn.close()
            return None
        except BaseException:
            turn.close()
            raise
        return turn

    def _received_by_others(self, file: FileEntry) -> int:
        """The bytes of parts of a content."""
        parts = (self.root / "receiving").glob(f"{file.sha256}.part-*")
        sizes = 0
        for part in parts:
            with suppress(FileNotFoundError):
                sizes += part.stat().st_size
        return sizes

    async def _receive(self, file: FileEntry, asked: "_Sources") -> None:
        files = asked.files
        reasons: list[str] = []
        for source in asked.left():
            opened = await self._in_thread(files, lambda: self._new_part(file))
            try:
                received = Part(opened, file)
                if file.size:
                    await source.fetch(files, file, received)
                if received.is_complete and received.matches:
                    await self._in_thread(files, lambda: self._keep(file, received.path))  # noqa: B023 - awaited here
                    asked.gave(source, file.size)
                    return
                wrong = "other contents" if received.is_complete else f"{received.received} of {file.size} bytes"
                reasons.append(f"{source.name}: '{file.path}': it gave {wrong}")
            except FileSourceError as error:
                reasons.append(str(error)[:_MAX_REASON])
            except DiskError as error:
                raise FilesUnavailable(f"{_named(files)}: {self._disk_reason(str(error))}") from error
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(opened.name)
                opened.close()
            asked.drop(source, reasons[-1])
        shown = "; ".join(asked.reasons[-_MAX_REASONS:])
        raise FilesUnavailable(f"{_named(files)}: no source gives its files: {shown or 'none is known'}")

    def _new_part(self, file: FileEntry) -> FileIO:
        with self._locked():  # so that nobody sweeps it before it is locked
            part = FileIO(self.root / "receiving" / f"{file.sha256}.part-{os.getpid()}-{time.monotonic_ns()}", "xb")
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return part

    def _keep(self, file: FileEntry, part: Path) -> None:
        """Make a part a content, durably."""
        with part.open("rb") as content:
            os.fchmod(content.fileno(), 0o444)
            os.utime(content.fileno(), ns=(_WHOLE_NS, _WHOLE_NS))
            os.fsync(content.fileno())
        os.replace(part, self._content(file.sha256))
        _sync_directory(self.root / "contents")

    def _is_linked(self, files: FileSet) -> bool:
        tree = self._tree(files.digest)
        try:
            return all(os.path.samefile(tree / file.path, self._content(file.sha256)) for file in files.files)
        except OSError:
            return False

    def _link(self, files: FileSet) -> None:
        """Give the contents of a set their names; a name that leads elsewhere is replaced."""
        tree = self._tree(files.digest)
        temporary = self.root / "sets" / files.digest / f"link-{os.getpid()}-{time.monotonic_ns()}"
        for file in files.files:
            content, place = self._content(file.sha256), tree / file.path
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(content, temporary)
            os.replace(temporary, place)
            # Two names of one file: replacing does nothing then.
            temporary.unlink(missing_ok=True)

    # Locks

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among all processes and threads; raises OSError, also when another takes too long."""
        for part in ("contents", "sets", "receiving"):
            (self.root / part).mkdir(parents=True, exist_ok=True)
        with (self.root / "lock").open("ab") as lock:
            end = time.monotonic() + LOCK_TIMEOUT_S
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise OSError(
                            errno.EAGAIN, f"another process has been changing it for {LOCK_TIMEOUT_S:g} s"
                        ) from None
                    time.sleep(_LOOK_S)
            yield


class _Sources:
    """The sources of one set that have not failed, why the others have, and the bytes that each gave."""

    def __init__(self, files: FileSet, sources: Sequence[FileSource]) -> None:
        self.files = files
        self.reasons: list[str] = []
        self.received: dict[str, int] = {}
        self._left = list(sources)

    def left(self) -> list[FileSource]:
        return list(self._left)

    def gave(self, source: FileSource, nbytes: int) -> None:
        self.received[source.name] = self.received.get(source.name, 0) + nbytes

    def drop(self, source: FileSource, reason: str) -> None:
        self._left.remove(source)
        self.reasons.append(reason)


def _named(files: FileSet) -> str:
    """The model of a set, for messages."""
    return f"model file '{files.model}'"


def _plain(files: FileSet) -> FileSet:
    """The set without what differs by who asks for it."""
    return msgspec.structs.replace(files, uri="", origin=None)


def _contents_bytes(sets: Iterable[FileSet]) -> int:
    contents: dict[str, int] = {}
    for files in sets:
        contents.update(files.contents)
    return sum(contents.values())


def _touch(descriptor: int) -> None:
    now = time.time_ns()  # the kernel's own stamp is too coarse for an order
    os.utime(descriptor, ns=(now, now))


def _write_whole(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_decode_manifest = msgspec.json.Decoder(FileSet).decode
