"""The files of model versions on this machine, and their hashes, which are computed once."""

import hashlib
import os
import posixpath
import re
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from sluice.models.distribution.file_set import (
    MAX_FILES,
    FileEntry,
    FileSet,
    LocalStamp,
    Origin,
    make_file_set,
)
from sluice.models.errors import ConfigError, NotFoundError
from sluice.models.regular_file import beside, is_safe_path, open_regular, printable
from sluice.models.repository.stamps import is_passed_over
from sluice.models.spec import public_key
from sluice.models.triton_config.onnx_outline import is_inside, read_outline
from sluice.models.triton_config.sequences import STATE_DIRECTORY

MAX_SETS = 4096
"""Sets whose files can be read; the one that was asked for the longest time ago goes first."""
MAX_HASHES = 65536
"""Files whose hashes are kept."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_VERSION = re.compile(r"[1-9][0-9]*")
_BLOCK_BYTES = 1 << 20


class _Hashed(NamedTuple):
    """A file as it was when it was hashed; it has changed if its status differs."""

    path: str
    status: tuple[int, ...]


class LocalFiles:
    """The file sets of models on this machine, and what is in them; its methods block, in any thread.

    `urls` are the URLs of the directories that are copies of repositories by URL. `machine` is the id of this machine.
    """

    def __init__(self, urls: Mapping[Path, str] | None = None, machine: str | None = None) -> None:
        self._urls = dict(urls or {})
        self._machine = machine_id() if machine is None else machine
        self._hashes: OrderedDict[_Hashed, str] = OrderedDict()
        self._sets: OrderedDict[str, dict[str, Path]] = OrderedDict()
        self._lock = threading.Lock()

    def file_set(self, key: str, path: Path, backend: str) -> FileSet:
        """The files of a model version, by its key (`mlp:1`), the path of its file and its backend.

        A file that changes while it is read is hashed again by the next call. Raises ConfigError.
        """
        name, _, version = public_key(key).rpartition(":")
        found = dict(sorted(_files_of(name, version, path, backend).items()))
        model = next(place for place, file in found.items() if file == path)
        entries, stamps = [], []
        for place, file in found.items():
            entry, stamp = self._described(place, file)
            entries.append(entry)
            stamps.append(stamp)
        origin = Origin(self._machine, tuple(stamps))
        try:
            files = make_file_set(entries, model, self._url(path), origin)
        except ValueError as error:
            raise ConfigError(f"{path}: its files cannot be sent to other machines: {error}") from error
        with self._lock:
            self._sets[files.digest] = found
            self._sets.move_to_end(files.digest)
            if len(self._sets) > MAX_SETS:
                self._sets.popitem(last=False)
        return files

    def open(self, digest: str, path: str) -> BinaryIO:
        """Open a file of a set that was asked for before; raises NotFoundError, and ConfigError as `open_regular`.

        Its contents may have changed since; who receives them has their hash.
        """
        with self._lock:
            file = self._sets.get(digest, {}).get(path)
        if file is None:
            raise NotFoundError(f"there is no file '{printable(path[:200])}' in files {printable(digest[:12])}")
        return open_regular(file)

    def _described(self, place: str, file: Path) -> tuple[FileEntry, LocalStamp]:
        with open_regular(file) as opened:
            try:
                status = os.fstat(opened.fileno())
                sha256 = self._sha256(file, opened, status)
            except OSError as error:
                raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
        try:
            entry = FileEntry(place, status.st_size, sha256)
        except ValueError as error:
            raise ConfigError(f"{file}: cannot be sent to other machines: {error}") from error
        return entry, LocalStamp(str(file.absolute()), status.st_ino, status.st_mtime_ns)

    def _sha256(self, file: Path, opened: BinaryIO, before: os.stat_result) -> str:
        hashed = _Hashed(str(file), _status(before))
        with self._lock:
            known = self._hashes.get(hashed)
        if known is not None:
            return known
        digest = hashlib.sha256()
        read = 0
        while block := opened.read(_BLOCK_BYTES):
            digest.update(block)
            read += len(block)
        if read != before.st_size or _status(os.fstat(opened.fileno())) != hashed.status:
            raise ConfigError(f"{file}: it is being changed")
        with self._lock:
            self._hashes[hashed] = digest.hexdigest()
            if len(self._hashes) > MAX_HASHES:
                self._hashes.popitem(last=False)
        return digest.hexdigest()

    def _url(self, path: Path) -> str:
        return next((url for directory, url in self._urls.items() if path.is_relative_to(directory)), "")


def machine_id() -> str:
    """The boot id of this machine: the same in all its containers, and another after a restart. "" if unknown."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def local_model(files: FileSet, machine: str) -> Path | None:
    """The model's file where a set was described, if all its files are the same ones here; blocks.

    The same machine is not enough: a container has other files at the same paths.
    """
    origin = files.origin
    if origin is None or not machine or origin.machine != machine:
        return None
    model = ""
    try:
        for stamp, file in zip(origin.stamps, files.files, strict=True):
            status = os.stat(stamp.path)
            if (status.st_ino, status.st_mtime_ns, status.st_size) != (stamp.inode, stamp.mtime_ns, file.size):
                return None
            if not os.access(stamp.path, os.R_OK):
                return None
            if file.path == files.model:
                model = stamp.path
    except (OSError, ValueError):  # ValueError: no path has a zero byte
        return None
    return Path(model)


def _files_of(name: str, version: str, path: Path, backend: str) -> dict[str, Path]:
    """The files of a model version by their paths in a repository; raises ConfigError."""
    directory = path.parent.parent if path.parent.name == path.name else path.parent
    if directory.name == version and directory.parent.name == name:
        found = _files_of_entry(directory.parent, version, backend)
        model = f"{name}/{path.relative_to(directory.parent).as_posix()}"
    else:
        found = {}
        model = f"{name}/{version}/{path.name}"
    found[model] = path
    if backend == "onnxruntime":
        found |= _weights_beside(path, posixpath.dirname(model), found)
    if backend == "python" and path.is_symlink():
        found |= _modules_beside_target(name, version, path, found)
    for place in found:
        if not is_safe_path(place):
            raise ConfigError(f"{printable(str(found[place]))}: expected a name in UTF-8 without control characters")
    return found


def _files_of_entry(entry: Path, version: str, backend: str) -> dict[str, Path]:
    """The files of a version, and those beside it that models use: all but other versions for Python."""
    found: dict[str, Path] = {}
    try:
        for name in sorted(os.listdir(entry)):
            is_wanted = name in {version, STATE_DIRECTORY} or not (entry / name).is_dir() or backend == "python"
            if is_wanted and (name == version or not _VERSION.fullmatch(name)) and not is_passed_over(name):
                for file in _walk(entry / name, frozenset()):
                    found[f"{entry.name}/{file.relative_to(entry).as_posix()}"] = file
                    if len(found) > MAX_FILES:
                        raise ConfigError(f"{entry}: expected at most {MAX_FILES} files in a version")
    except OSError as error:
        raise ConfigError(f"{error.filename or entry}: cannot be read: {error.strerror}") from error
    return found


def _walk(path: Path, above: frozenset[tuple[int, int]]) -> Iterator[Path]:
    """A regular file, or those in a directory, behind links as well; links that lead nowhere are left out."""
    try:
        status = path.stat()
    except OSError:
        return
    if stat.S_ISREG(status.st_mode):
        yield path
    place = status.st_dev, status.st_ino
    if stat.S_ISDIR(status.st_mode) and place not in above:
        for name in sorted(os.listdir(path)):
            if not is_passed_over(name):
                yield from _walk(path / name, above | {place})


def _weights_beside(path: Path, directory: str, found: Mapping[str, Path]) -> dict[str, Path]:
    """The files with weights of an ONNX model that are not found yet: beside it, or where its link leads."""
    try:
        locations = read_outline(path).external
    except ConfigError:  # loading the model reports it
        return {}
    weights = {}
    for location in filter(is_inside, locations):
        place = posixpath.normpath(f"{directory}/{location}")
        file = beside(path, location)
        if place not in found and file.is_file():
            weights[place] = file
    return weights


def _modules_beside_target(name: str, version: str, path: Path, found: Mapping[str, Path]) -> dict[str, Path]:
    """The modules beside the file that a link leads to, which a Python model can import after its own."""
    target = Path(os.path.realpath(path)).parent
    modules = {}
    for file in sorted(target.glob("*.py")):
        place = f"{name}/{version}/{file.name}"
        if place not in found and f"{name}/{file.name}" not in found and file.is_file():
            modules[place] = file
    return modules


def _status(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
