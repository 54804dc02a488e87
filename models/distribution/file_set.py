"""Sets of files by their contents: what identifies the files of a model version on every machine."""

import hashlib
import re
from collections.abc import Iterable
from itertools import pairwise

import msgspec

from sluice.models.regular_file import is_safe_path

MAX_FILES = 4096
"""Files of a set."""
MAX_BYTES = 1 << 42
"""Bytes of a set."""
MAX_PATH_BYTES = 1024
"""Bytes of a path in a set."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


class FileEntry(msgspec.Struct, frozen=True, array_like=True):
    """A file of a set: its path, with `/` between parts, its size in bytes, and its SHA-256 in hexadecimal.

    Raises ValueError for a path that could lead out of a directory, and for other values that no file has.
    """

    path: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        if not is_safe_path(self.path) or len(self.path.encode()) > MAX_PATH_BYTES:
            raise ValueError(
                f"expected a relative path below a directory, of at most {MAX_PATH_BYTES} bytes, got {self.path[:80]!r}"
            )
        if not 0 <= self.size <= MAX_BYTES:
            raise ValueError(f"'{self.path}': expected a size of 0 to {MAX_BYTES} bytes, got {self.size}")
        if not is_sha256(self.sha256):
            raise ValueError(f"'{self.path}': expected a SHA-256 in hexadecimal, got {self.sha256[:80]!r}")


class LocalStamp(msgspec.Struct, frozen=True, array_like=True):
    """The place of a file on the machine that described it, its inode and its time of modification."""

    path: str
    inode: int
    mtime_ns: int


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """Where the files of a set lie on the machine that described them, in the order of the set; its boot id."""

    machine: str
    stamps: tuple[LocalStamp, ...]


class FileSet(msgspec.Struct, frozen=True, array_like=True):
    """The files of a model version, in the order of their paths.

    Paths are relative to a model repository: `NAME/VERSION/model.onnx`. `digest` identifies paths and contents, and is
    the same on every machine; `model` is the path of the model's own file. `uri` is the URL of the repository if it can
    be read by URL, else "". Raises ValueError if these do not agree.
    """

    digest: str
    model: str
    files: tuple[FileEntry, ...]
    uri: str = ""
    origin: Origin | None = None

    def __post_init__(self) -> None:
        if not 0 < len(self.files) <= MAX_FILES:
            raise ValueError(f"expected 1 to {MAX_FILES} files, got {len(self.files)}")
        paths = [file.path for file in self.files]
        for before, after in pairwise(paths):
            if after <= before:
                raise ValueError(f"expected each path once and in order, got '{after}' after '{before}'")
        known = set(paths)
        for path in paths:
            above = path
            while "/" in above:
                above = above.rpartition("/")[0]
                if above in known:
                    raise ValueError(f"'{above}': expected a file or a directory, got '{path}' as well")
        if self.size > MAX_BYTES:
            raise ValueError(f"expected at most {MAX_BYTES} bytes, got {self.size}")
        if self.model not in known:
            raise ValueError(f"expected the model's file among the files, got '{self.model[:80]}'")
        if self.digest != digest_of(self.files):
            raise ValueError(f"expected the digest of the files, got {self.digest[:80]!r}")
        if self.origin is not None and len(self.origin.stamps) != len(self.files):
            raise ValueError(f"expected {len(self.files)} stamps of files, got {len(self.origin.stamps)}")

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def contents(self) -> dict[str, int]:
        """The sizes of the different contents, by SHA-256."""
        return {file.sha256: file.size for file in self.files}


def make_file_set(files: Iterable[FileEntry], model: str, uri: str = "", origin: Origin | None = None) -> FileSet:
    """The set of these files, in any order; the stamps of `origin` are in the order of paths. Raises ValueError."""
    ordered = tuple(sorted(files, key=lambda file: file.path))
    return FileSet(digest_of(ordered), model, ordered, uri, origin)


def digest_of(files: Iterable[FileEntry]) -> str:
    """The SHA-256 of a list of files, in hexadecimal."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.sha256} {file.size} {file.path}\n".encode())
    return digest.hexdigest()


def is_sha256(text: str) -> bool:
    """True for a SHA-256 in hexadecimal, which is also safe as the name of a file."""
    return _SHA256.fullmatch(text) is not None
