"""Places that files are read from by URL, through fsspec (https://filesystem-spec.readthedocs.io)."""

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sluice.models.errors import ConfigError

EXTRAS = {"s3": "s3", "gs": "gs", "az": "az", "abfs": "az", "http": "http", "https": "http", "hf": "hf"}
"""The extra of this package that brings what a scheme needs, by scheme."""

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

    def fetch(self, path: str, to: Path) -> None:
        """Write the contents of a file into a new file."""


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
    """A folder that a file system of fsspec reads; it is opened at the first use."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._scheme = url.partition("://")[0]
        self._opened: tuple[Any, str] | None = None

    def files(self) -> Mapping[str, RemoteFile]:
        """All files; see `Source`."""
        system, root = self._open()
        try:
            system.invalidate_cache()
            found = system.find(root, detail=True)
            return {
                posixpath.relpath(name, root): self._remote_file(system, name, info)
                for name, info in found.items()
                if info.get("type") == "file" and not name.endswith("/")
            }
        except Exception as error:  # every file system has errors of its own
            raise self._unreadable(error) from error

    def fetch(self, path: str, to: Path) -> None:
        """Write a file; see `Source`."""
        system, root = self._open()
        try:
            system.get_file(f"{root}/{path}", str(to))
        except Exception as error:  # as above
            raise self._unreadable(error, f"/{path}") from error

    def _remote_file(self, system: Any, name: str, info: Mapping[str, Any]) -> RemoteFile:
        if not any(info.get(key) for key in _TAGS):
            info = {**info, **system.info(name)}  # listings of web servers have names only
        size = info.get("size")
        lfs = info.get("lfs") or {}
        tag = next((str(info[key]) for key in (*_TAGS, *_LAST_RESORTS) if info.get(key)), "")
        return RemoteFile(f"{tag}/{size}", None if size is None else int(size), str(lfs.get("sha256") or ""))

    def _open(self) -> tuple[Any, str]:
        if self._opened is None:
            extra = EXTRAS[self._scheme]
            try:
                import fsspec

                system, root = fsspec.url_to_fs(self.url, skip_instance_cache=True)
            except ImportError as error:
                raise SourceError(
                    f"{self.url}: cannot be read without more packages ({error}); expected the extra '{extra}': "
                    f"pip install 'sluice-gateway[{extra}]'"
                ) from error
            except Exception as error:  # as above
                raise self._unreadable(error) from error
            self._opened = system, root.rstrip("/")
        return self._opened

    def _unreadable(self, error: Exception, path: str = "") -> SourceError:
        what = " ".join(str(error).split()) or type(error).__name__
        return SourceError(f"{self.url}{path}: cannot be read: {what:.500}")
