"""Stamps of files, which tell those of a repository entry from those that were there before."""

import os
import stat
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

Stamp = tuple[str | int, ...]
"""The parts of a stamp, as in `FileStamps`."""
FileStamps = Mapping[str, frozenset[Stamp]]
"""Stamps of files, which tell each from the one that was there before, by the version or file of the entry.

Path, device, inode, time of change of contents and of status in nanoseconds, and bytes. The latter time cannot be set:
it shows a file that was written again with the size and time of the old one. A folder within has its path alone, and
what cannot be read its path and the reason.
"""

MAX_FILES = 100_000
"""Files of an entry that are looked at; what comes after them is not noticed."""

_PASSED_OVER = frozenset({"__pycache__", "@eaDir", "lost+found"})
_PROFILE = "profile.json"


def file_stamps(entry: Path) -> FileStamps:
    """Return stamps that change with the files of an entry, behind links as well.

    Hidden files, what systems and tools put beside files, and files that Sluice writes do not count. Raises OSError for
    an entry that cannot be read.
    """
    found: dict[str, frozenset[Stamp]] = {}
    for child in sorted(os.listdir(entry)):
        if not is_passed_over(child):
            found[child] = frozenset(islice(_stamps(entry / child, frozenset()), MAX_FILES))
    return found


def _stamps(path: Path, above: frozenset[tuple[int, int]]) -> Iterator[Stamp]:
    """The stamps of a file, or of a folder and all that is in it; `above` are the folders around it, for links."""
    try:
        status = path.stat()
        place = status.st_dev, status.st_ino
        if not stat.S_ISDIR(status.st_mode):
            yield (str(path), *place, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
            return
        if place in above:
            return
        names = sorted(os.listdir(path))
    except OSError as error:  # it has just been deleted, is a link that leads nowhere, or may not be read
        yield str(path), str(error.strerror)
        return
    yield (str(path),)
    for name in names:
        if not is_passed_over(name):
            yield from _stamps(path / name, above | {place})


def is_passed_over(name: str) -> bool:
    """True for the names of files and folders that do not count."""
    return name[0] == "." or name in _PASSED_OVER or name.endswith(_PROFILE)
