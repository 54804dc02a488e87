"""Places that files are read from by URL, through fsspec (https://filesystem-spec.readthedocs.io)."""

import concurrent.futures
import posixpath
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from sluice.models.errors import ConfigError

EXTRAS = {"s3": "s3", "gs": "gs", "az": "az", "abfs": "az", "http": "http", "https": "http", "hf": "hf"}
"""The extra of this package that brings what a scheme needs, by scheme."""

_BY_FOLDER = frozenset(("http", "https"))
"""Schemes whose folders are listed one by one: fsspec's `find` passes over those that cannot be reached."""

STALL_TIMEOUT_S = 60.0
"""Time for a list of files, and time without another byte of a file, after which a source cannot be read."""
_LOOK_S = 0.5

_Result = TypeVar("_Result")

_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<place>.+)", re.DOTALL)
_TAGS = ("ETag", "etag", "e_tag", "blob_id", "generation", "Content-MD5", "LastModified", "last_modified")
"""Properties that tell two contents of a file apart, the best first, by the names in file systems of fsspec."""
_LAST_RESORTS = ("Last-Modified", "mtime", "created")


class SourceError(ConfigError):
    """A source cannot be read, or its copy cannot be kept; the message starts with the URL."""


class RemoteFile(NamedTuple):
    """A file of a source: `tag` changes with its contents; the size in bytes and the SHA-256 where they are known."""

    tag: str
    size: int | None = None
    sha256: str = ""


class Source(Protocol):
    """A folder of files; both methods block, and raise SourceError."""

    url: str

    def files(self) -> Mapping[str, RemoteFile]:
        """All files by path relative to the folder, with `/` between parts."""

    def fetch(self, path: str, to: Path, most_bytes: int) -> None:
        """Write the contents of a file into the empty file `to`; raises SourceError for more than `most_bytes`."""


def is_url(text: str) -> bool:
    """True for a URL, whatever its scheme."""
    return _URL.fullmatch(text) is not None


def check_url(url: str) -> None:
    """Raise ValueError for a URL that no source can have."""
    match = _URL.fullmatch(url)
    if match is None or match["scheme"] not in EXTRAS:
        raise ValueError(f"repository: expected a directory or a URL with {', '.join(EXTRAS)}, got '{url}'")
    if "@" in match["place"].partition("/")[0] and match["scheme"] in {"http", "https"}:
        raise ValueError("repository: expected a URL without a password; give credentials as fsspec reads them")


class FsspecSource:
    """A folder that a file system of fsspec reads; it is opened at the first use.

    File systems have timeouts of their own, or none. So each attempt runs in a thread that is left behind when it
    stalls; there is no other attempt before that thread has ended.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._scheme = url.partition("://")[0]
        self._opened: tuple[Any, str] | None = None
        self._attempt: threading.Thread | None = None

    def check_packages(self) -> None:
        """Raise SourceError if packages are missing that read such a source; nothing is asked of it."""
        extra = EXTRAS[self._scheme]
        try:
            import fsspec

            fsspec.get_filesystem_class(self._scheme)
        except ImportError as error:
            raise SourceError(
                f"{self.url}: cannot be read without more packages ({error}); expected the extra '{extra}': "
                f"pip install 'sluice-gateway[{extra}]'"
            ) from error

    def files(self) -> Mapping[str, RemoteFile]:
        """All files; see `Source`."""
        looked_at = 0

        def listed() -> dict[str, RemoteFile]:
            nonlocal looked_at
            system, root = self._open()
            system.invalidate_cache()
            files: dict[str, RemoteFile] = {}
            for name, info in self._found(system, root):
                looked_at += 1
                if info.get("type") == "file" and not name.endswith("/"):
                    files[posixpath.relpath(name, root)] = self._remote_file(system, name, info)
            return files

        return self._unless_stalled(listed, lambda: looked_at)

    def fetch(self, path: str, to: Path, most_bytes: int) -> None:
        """Write a file; see `Source`."""
        given_up = threading.Event()

        def fetched() -> None:
            import fsspec.callbacks

            class Progress(fsspec.callbacks.Callback):  # type: ignore[misc]  # fsspec has no types
                def relative_update(self, inc: int = 1) -> None:
                    super().relative_update(inc)
                    if self.value > most_bytes or given_up.is_set():
                        raise _TooLarge(f"expected at most {most_bytes} bytes, got more")

            system, root = self._open()
            system.get_file(f"{root}/{path}", str(to), callback=Progress())

        def progress() -> int:
            size = to.stat().st_size if to.exists() else 0
            if size > most_bytes:  # of a file system that does not tell its progress
                raise self._unreadable(_TooLarge(f"expected at most {most_bytes} bytes, got more"), f"/{path}")
            return size

        try:
            self._unless_stalled(fetched, progress, f"/{path}")
        finally:
            given_up.set()

    def _unless_stalled(self, work: Callable[[], _Result], progress: Callable[[], int], path: str = "") -> _Result:
        """The result of blocking `work`; raises SourceError once its `progress` stays the same for too long."""
        if self._attempt is not None and self._attempt.is_alive():
            raise self._unreadable(TimeoutError("an earlier attempt still waits for an answer"), path)
        result: concurrent.futures.Future[_Result] = concurrent.futures.Future()

        def attempt() -> None:
            try:
                result.set_result(work())
            except Exception as error:  # every file system has errors of its own
                result.set_exception(error if isinstance(error, SourceError) else self._unreadable(error, path))

        self._attempt = threading.Thread(target=attempt, name=f"read {self._scheme} source", daemon=True)
        self._attempt.start()
        before, since = progress(), time.monotonic()
        while not concurrent.futures.wait({result}, timeout=_LOOK_S).done:
            if (now := progress()) != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > STALL_TIMEOUT_S:
                raise self._unreadable(TimeoutError(f"nothing arrived within {STALL_TIMEOUT_S:g} s"), path)
        self._attempt.join()
        return result.result()

    def _found(self, system: Any, root: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The files below a folder, with their properties; raises whatever the file system does."""
        if self._scheme not in _BY_FOLDER:
            yield from system.find(root, detail=True).items()
            return
        folders = [root]
        while folders:
            for info in system.ls(folders.pop(), detail=True):
                name = info["name"].rstrip("/")
                if info["type"] == "directory":
                    folders.append(name)
                elif "?" not in name:  # else it is a link that sorts the list
                    yield name, info

    def _remote_file(self, system: Any, name: str, info: Mapping[str, Any]) -> RemoteFile:
        if not any(info.get(key) for key in _TAGS):
            info = {**info, **system.info(name)}  # listings of web servers have names only
        size = info.get("size")
        lfs = info.get("lfs") or {}
        tag = next((str(info[key]) for key in (*_TAGS, *_LAST_RESORTS) if info.get(key)), "")
        return RemoteFile(f"{tag}/{size}", None if size is None else int(size), str(lfs.get("sha256") or ""))

    def _open(self) -> tuple[Any, str]:
        if self._opened is None:
            self.check_packages()
            import fsspec

            system, root = fsspec.url_to_fs(self.url, skip_instance_cache=True)
            self._opened = system, root.rstrip("/")
        return self._opened

    def _unreadable(self, error: Exception, path: str = "") -> SourceError:
        what = " ".join(str(error).split()) or type(error).__name__
        return SourceError(f"{self.url}{path}: cannot be read: {what:.500}")


class _TooLarge(Exception):
    """A file has more bytes than were announced, or than there is room for."""
