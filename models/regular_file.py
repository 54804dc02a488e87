"""Files that others put there: nothing but regular files is opened, and no more than a bound is read."""

import codecs
import os
import stat
from pathlib import Path
from typing import BinaryIO

from sluice.models.errors import ConfigError

MAX_LINKS = 40
"""The links of a chain that are followed, as many as Linux follows."""
MAX_NAME_BYTES = 255
"""The longest name of a file, as in Linux."""
MAX_TEXT_BYTES = 16 << 20
"""The largest file of text that is read: configurations, pipelines, labels and programs."""

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_MARKS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}


def is_there(path: Path) -> bool:
    """True if there is anything of that name, links that lead nowhere included; raises OSError if nobody can tell."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check_regular(path: Path) -> None:
    """Raise ConfigError, whose message starts with `path`, unless it is a regular file or a link to one."""
    try:
        _check(path, path.stat().st_mode)
    except OSError as error:
        raise _unreadable(path, error) from error


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, or a link to one, for reading; raises as `check_regular`, and never waits for a writer."""
    check_regular(path)  # first, because opening a device may do something
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        _check(path, os.fstat(file.fileno()).st_mode)  # the name may stand for another file by now
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: Path, most_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """The contents of a regular file; raises ConfigError as `check_regular`, and for more than `most_bytes`."""
    with open_regular(path) as file:
        try:
            data = file.read(most_bytes + 1)
        except OSError as error:
            raise _unreadable(path, error) from error
    if len(data) > most_bytes:
        raise ConfigError(f"{path}: cannot be read: expected at most {most_bytes} bytes")
    return data


def read_text(path: Path, most_bytes: int = MAX_TEXT_BYTES) -> str:
    """The text of a regular file in UTF-8, without a byte order mark, and with newlines as line ends.

    Raises ConfigError, whose message starts with `path`.
    """
    data = read_regular(path, most_bytes)
    for mark, name in _MARKS.items():
        if data.startswith(mark):
            raise ConfigError(f"{path}: cannot be read: expected UTF-8, got {name}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}: cannot be read: expected UTF-8, got the byte {data[error.start]:#04x} in line {line}"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def beside(path: Path, name: str) -> Path:
    """The file `name` beside `path` or, if it is not there and `path` is a link, where each link of the chain leads.

    Without any, the place beside `path`.
    """
    at = path
    for _ in range(MAX_LINKS):
        if os.path.exists(found := at.parent / name):  # False where it may not look, unlike the method of a path
            return found
        if not at.is_symlink():
            break
        at = at.parent / os.readlink(at)
    return path.parent / name


def is_safe_path(path: str) -> bool:
    """True for a relative path, with `/` between parts, that names a file below a directory on any machine."""
    parts = path.split("/")
    return all(part not in {"", ".", ".."} and len(os.fsencode(part)) <= MAX_NAME_BYTES for part in parts) and (
        printable(path) == path and "\\" not in path
    )


def printable(text: str) -> str:
    """A name or a message in which bytes that are not UTF-8, line ends and control characters are escapes."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # how Python keeps a byte of a file's name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def _check(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path}: expected a file, got {_KINDS.get(stat.S_IFMT(mode), 'something else')}")


def _unreadable(path: Path, error: OSError) -> ConfigError:
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return ConfigError(f"{path}: cannot be read: it is a link to {os.readlink(path)}, which does not exist")
    return ConfigError(f"{path}: cannot be read: {error.strerror}")
