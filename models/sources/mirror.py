"""A checked copy of a source on this machine, in which an entry changes as a whole or not at all.

The layout of a mirror's directory:

    repository/NAME -> ../revisions/NAME/DIGEST   what is served; the link is replaced at once
    revisions/NAME/DIGEST/…                       the files of a revision, as links to contents
    contents/SHA256                               each content once
    state.json                                    what was copied, with its tags
"""

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

import msgspec

from sluice.models.regular_file import is_safe_path
from sluice.models.sources.source import RemoteFile, Source, SourceError

REPOSITORY = "repository"
"""The folder of a mirror that is a model repository."""
MAX_FILES = 100_000
"""Files of a source."""
SPARE_BYTES = 256 << 20
"""Room that is left on the disk."""
LOCK_TIMEOUT_S = 60.0
"""Time for another process to end its copy."""

Check = Callable[[Path, Collection[str]], Mapping[str, str]]
"""Returns the names of a repository that cannot be served, with the reasons; models of the given names are loaded."""


class _Copied(msgspec.Struct, frozen=True):
    """A file that was copied; `stamp` is that of its content on the disk, which need not be read again if it is so."""

    tag: str
    sha256: str
    size: int
    stamp: tuple[int, int, int]


class _State(msgspec.Struct):
    """The record of a mirror: served files by entry and path, and the tags of the files of refused entries."""

    url: str
    entries: dict[str, dict[str, _Copied]] = {}
    refused: dict[str, dict[str, str]] = {}


_decode_state = msgspec.json.Decoder(_State).decode


class Mirror:
    """The copy of a `source` in a directory, which is made by the first refresh.

    `check` looks at a new revision of the whole repository before it is served.
    """

    def __init__(self, source: Source, directory: Path, check: Check) -> None:
        self.source = source
        self.repository = directory / REPOSITORY
        self._directory = directory
        self._contents = directory / "contents"
        self._check = check
        self._whole_bytes = 0
        self._copying: Path | None = None
        self.bytes_to_copy = 0

    @property
    def copied_bytes(self) -> int:
        """The bytes that this refresh has copied so far, of `bytes_to_copy`; both may be read from any thread."""
        copying = self._copying
        with suppress(OSError):
            return self._whole_bytes + (copying.stat().st_size if copying is not None else 0)
        return self._whole_bytes  # the file has just been given its place

    @property
    def is_empty(self) -> bool:
        """True if nothing was ever copied, or nothing of it is whole."""
        return not self.repository.is_dir() or not any(self.repository.iterdir())

    def verify(self) -> None:
        """Drop every entry with a file that is missing or damaged on this machine; raises SourceError.

        Refused entries are looked at again by the next refresh: a machine that was short of time or memory may have
        refused them.
        """
        with self._locked() as state:
            state.refused.clear()
            for name, files in list(state.entries.items()):
                if all(map(self._is_whole, files.values())):
                    self._publish(name, files)
                else:
                    del state.entries[name]
            self._drop_others(state)

    def refresh(self) -> dict[str, str]:
        """Copy what has changed, and serve every entry that is whole; blocks.

        Returns the reasons why entries stay as they were, by name. Raises SourceError if the source cannot be read;
        then everything stays as it was.
        """
        with self._locked() as state:
            before = self._entries()
            left: dict[str, str] = {}
            new: dict[str, dict[str, _Copied]] = {}
            changed = {name: files for name, files in before.items() if _is_new(files, name, state)}
            self._whole_bytes = 0
            self.bytes_to_copy = sum(_size(files, state.entries.get(name, {})) for name, files in changed.items())
            for name, files in changed.items():
                try:
                    new[name] = self._copy(name, files, state.entries.get(name, {}))
                except SourceError as error:
                    left[name] = str(error)
            if new:
                after = self._entries()
                for name in [name for name in new if before[name] != after.get(name)]:
                    left[name] = f"{self.source.url}/{name}: it is being changed"
                    del new[name]
            left |= self._serve(state, new)
            for name in state.entries.keys() - before.keys():
                del state.entries[name]
            for name in state.refused.keys() - before.keys():
                del state.refused[name]
            self._drop_others(state)
            return left

    def _entries(self) -> dict[str, dict[str, RemoteFile]]:
        """The files of each entry of the source, by name and path; raises SourceError."""
        found: dict[str, dict[str, RemoteFile]] = {}
        listed = self.source.files()
        if len(listed) > MAX_FILES:
            raise SourceError(f"{self.source.url}: expected at most {MAX_FILES} files, got {len(listed)}")
        for path, file in listed.items():
            name, *rest = PurePosixPath(path).parts or ("",)
            if rest and name[0] != "." and is_safe_path(path):
                found.setdefault(name, {})["/".join(rest)] = file
        return found

    def _copy(self, name: str, files: Mapping[str, RemoteFile], known: Mapping[str, _Copied]) -> dict[str, _Copied]:
        """Copy the contents of an entry that are not there yet; raises SourceError."""
        same = {path: known[path] for path, file in files.items() if path in known and known[path].tag == file.tag}
        copied = {path: each for path, each in same.items() if self._is_whole(each)}
        missing = {path: file for path, file in files.items() if path not in copied}
        needed, free = sum(file.size or 0 for file in missing.values()), shutil.disk_usage(self._directory).free
        if needed + SPARE_BYTES > free:
            raise SourceError(
                f"{self.source.url}/{name}: too large for {self._directory}: it has {needed} bytes, and "
                f"{max(free - SPARE_BYTES, 0)} are free beside a reserve"
            )
        for path, file in missing.items():
            copied[path] = self._fetch(f"{name}/{path}", file)
            self._copying = None
            self._whole_bytes += copied[path].size
        return copied

    def _fetch(self, path: str, file: RemoteFile) -> _Copied:
        at = f"{self.source.url}/{path}"
        descriptor, temporary = tempfile.mkstemp(prefix="copy-", dir=self._directory)
        os.close(descriptor)
        try:
            self._copying = Path(temporary)
            room = max(shutil.disk_usage(self._directory).free - SPARE_BYTES, 0)
            self.source.fetch(path, Path(temporary), room if file.size is None else file.size)
            with open(temporary, "rb+") as content:
                sha256 = hashlib.file_digest(content, "sha256").hexdigest()
                size = content.seek(0, os.SEEK_END)
                os.fsync(content.fileno())
            if file.size is not None and size != file.size:
                raise SourceError(f"{at}: expected {file.size} bytes, got {size}")
            if file.sha256 and sha256 != file.sha256:
                raise SourceError(f"{at}: expected the SHA-256 {file.sha256}, got {sha256}")
            place = self._contents / sha256
            if not _has_hash(place, sha256):  # else it keeps its times, which tell that it is the same
                Path(temporary).chmod(0o644)
                os.replace(temporary, place)
            return _Copied(file.tag, sha256, size, _stamp(place))
        except OSError as error:
            raise SourceError(f"{at}: cannot be kept in {self._directory}: {error.strerror}") from error
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def _serve(self, state: _State, new: Mapping[str, dict[str, _Copied]]) -> dict[str, str]:
        """Serve new revisions of entries; returns the reasons why some are not served in place of what is there.

        An entry that was not there before is served in any case: the server lists it with what is wrong.
        """
        if not new:
            return {}
        refused: dict[str, str] = {}
        if replaced := new.keys() & state.entries.keys():
            wrong = self._newly_wrong(state, new, replaced)
            refused = {name: wrong[name] for name in sorted(replaced) if name in wrong}
        for name, files in new.items():
            if name in refused:
                state.refused[name] = {path: file.tag for path, file in files.items()}
            else:
                state.refused.pop(name, None)
                state.entries[name] = files
                self._publish(name, files)
        return refused

    def _newly_wrong(
        self, state: _State, new: Mapping[str, dict[str, _Copied]], replaced: Collection[str]
    ) -> dict[str, str]:
        """The names that cannot be served with the new revisions, but can be without them."""
        with tempfile.TemporaryDirectory(prefix="check-", dir=self._directory) as trial:
            for name, files in {**state.entries, **new}.items():
                (Path(trial) / name).symlink_to(self._revision(name, files))
            found = self._check(Path(trial), replaced)
            wrong = {name: reason.replace(trial, self.source.url) for name, reason in found.items()}
        already = self._check(self.repository, ())
        return {name: reason for name, reason in wrong.items() if name not in already}

    def _publish(self, name: str, files: Mapping[str, _Copied]) -> None:
        target = os.path.relpath(self._revision(name, files), self.repository)
        link = self.repository / name
        if link.is_symlink() and os.readlink(link) == target:
            return
        temporary = self._directory / f"link-{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(link)

    def _revision(self, name: str, files: Mapping[str, _Copied]) -> Path:
        """The directory of a revision, which is made if it is not there."""
        listed = sorted((path, file.sha256) for path, file in files.items())
        directory = self._directory / "revisions" / name / hashlib.sha256(repr(listed).encode()).hexdigest()[:16]
        if not directory.is_dir():
            made = Path(tempfile.mkdtemp(prefix="revision-", dir=self._directory))
            made.chmod(0o755)
            for path, sha256 in listed:
                (made / path).parent.mkdir(parents=True, exist_ok=True)
                above = "../" * (3 + len(PurePosixPath(path).parts) - 1)
                (made / path).symlink_to(f"{above}contents/{sha256}")
            directory.parent.mkdir(parents=True, exist_ok=True)
            made.rename(directory)
        return directory

    def _is_whole(self, file: _Copied) -> bool:
        """True if the content is on the disk as it was copied; it is read again only if it may have changed."""
        place = self._contents / file.sha256
        with suppress(OSError):
            return _stamp(place) == file.stamp or _has_hash(place, file.sha256)
        return False

    def _drop_others(self, state: _State) -> None:
        """Remove what is not served any more.

        The last revision before stays, since a worker may be loading it: only what was dropped longer ago is removed.
        """
        for link in self.repository.iterdir():
            if link.name not in state.entries:
                link.unlink()
        kept: set[str] = set()
        for revisions in (self._directory / "revisions").iterdir():
            now = self.repository / revisions.name
            newest = sorted(revisions.iterdir(), key=lambda each: each.stat().st_mtime_ns)
            current = {Path(os.path.realpath(now))} if now.is_symlink() else set()
            keep = current | set([each for each in newest if each.resolve() not in current][-1:])
            for each in newest:
                if each in keep or each.resolve() in keep:
                    kept.update(file.resolve().name for file in each.rglob("*") if file.is_symlink())
                else:
                    shutil.rmtree(each)
        for content in self._contents.iterdir():
            if content.name not in kept:
                content.unlink()

    @contextmanager
    def _locked(self) -> Iterator[_State]:
        """The state, alone among all processes; it is written at the end. Raises SourceError."""
        try:
            for part in (self.repository, self._contents, self._directory / "revisions"):
                part.mkdir(parents=True, exist_ok=True)
            with (self._directory / "lock").open("ab") as lock:
                self._wait_for(lock.fileno())
                for left in self._directory.glob("*-*"):  # of a process that was killed
                    if left.is_dir() and not left.is_symlink():
                        shutil.rmtree(left)
                    else:
                        left.unlink()
                state = self._read_state()
                yield state
                temporary = self._directory / "state.json.new"
                with temporary.open("wb") as file:
                    file.write(msgspec.json.encode(state))
                    file.flush()
                    os.fsync(file.fileno())  # an empty state after a power cut would cost the whole copy
                temporary.replace(self._directory / "state.json")
        except OSError as error:
            raise SourceError(
                f"{self.source.url}: its copy cannot be kept in {self._directory}: {error.strerror or error}; expected "
                "a directory that the server may write, as source_cache"
            ) from error

    def _wait_for(self, lock: int) -> None:
        end = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > end:
                    raise SourceError(
                        f"{self.source.url}: another process has been copying it for {LOCK_TIMEOUT_S:g} s"
                    ) from None
                time.sleep(0.1)

    def _read_state(self) -> _State:
        try:
            state = _decode_state((self._directory / "state.json").read_bytes())
        except (FileNotFoundError, msgspec.MsgspecError):
            return _State(self.source.url)
        return state if state.url == self.source.url else _State(self.source.url)


def _is_new(files: Mapping[str, RemoteFile], name: str, state: _State) -> bool:
    """True for an entry that differs from what is served and from what was refused."""
    tags = {path: file.tag for path, file in files.items()}
    known = {path: file.tag for path, file in state.entries.get(name, {}).items()}
    return tags not in (known, state.refused.get(name))


def _size(files: Mapping[str, RemoteFile], known: Mapping[str, _Copied]) -> int:
    """The bytes of the files that are not known, as far as their sizes are."""
    return sum(file.size or 0 for path, file in files.items() if path not in known or known[path].tag != file.tag)


def mirror_directory(url: str, cache: Path) -> Path:
    """The directory of the mirror of a URL."""
    url = url.rstrip("/")
    readable = re.sub(r"[^A-Za-z0-9]+", "_", url)[-40:].strip("_")
    return cache / f"{readable}.{hashlib.sha256(url.encode()).hexdigest()[:16]}"


def _has_hash(path: Path, sha256: str) -> bool:
    try:
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == sha256
    except FileNotFoundError:
        return False


def _stamp(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_ctime_ns, status.st_size
