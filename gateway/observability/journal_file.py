"""The file of a journal: whole lines, a bound on its bytes, and no wait for a disk or a reader that takes no more."""

import errno
import os
import select
import stat
from contextlib import suppress
from pathlib import Path

from sluice.models.errors import ConfigError

MAX_BYTES = 4 << 30
"""The bytes of a journal, after which nothing more is recorded."""
BUFFER_BYTES = 8 << 10
"""Lines are written together once they have this many bytes."""
PIECE_BYTES = 64 << 10
"""The most that is written at a time."""
WAITING_BYTES = 16 << 20
"""The bytes that may wait for the reader of a pipe."""
CLOSE_S = 1.0
"""The time that a reader of a pipe has for what waits when the journal is closed."""

_FLAGS = os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK


class JournalFile:
    """A new file, or an existing device or pipe. Raises ConfigError if it cannot be opened.

    A journal is replayed from its beginning, so one that is full ends: it is not rotated. Whatever ends it, a file has
    whole lines only.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._lines = bytearray()
        self._size = 0
        """The bytes that the file has."""
        is_new = not path.exists() or path.is_file()
        try:
            self._file = os.open(path, _FLAGS | (os.O_CREAT | os.O_EXCL if is_new else 0), 0o666)
        except FileExistsError as error:
            raise ConfigError(f"the journal {path} exists already; move it away or name another file") from error
        except OSError as error:
            reason = "no process reads this pipe" if error.errno == errno.ENXIO else error.strerror
            raise ConfigError(f"the journal {path} cannot be written: {reason}") from error
        self._is_file = stat.S_ISREG(os.fstat(self._file).st_mode)

    def write(self, line: bytes) -> None:
        """Append a line, which ends with a line break. Raises OSError; nothing may be written after that."""
        if self._size + len(self._lines) + len(line) > self._max_bytes:
            self.flush()
            raise OSError(errno.EFBIG, f"it has reached its limit of {self._max_bytes} bytes")
        self._lines += line
        if len(self._lines) >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the lines that wait, as far as a pipe takes them. Raises OSError."""
        lines, done = self._lines, 0
        try:
            while done < len(lines):
                done += os.write(self._file, lines[done : done + PIECE_BYTES])
        except BlockingIOError:
            del lines[:done]
            if len(lines) > WAITING_BYTES:
                lines.clear()
                raise OSError(errno.EAGAIN, "its reader does not keep up") from None
        except OSError:
            done = lines.rfind(b"\n", 0, done) + 1
            lines.clear()
            if self._is_file:
                os.ftruncate(self._file, self._size + done)
            raise
        else:
            lines.clear()
        self._size += done

    def close(self) -> None:
        """Write what waits, and close the file. Raises OSError if that is not possible."""
        try:
            if self._lines and not self._is_file:
                poll = select.poll()
                poll.register(self._file, select.POLLOUT)
                while self._lines and poll.poll(CLOSE_S * 1000):
                    self.flush()
            self.flush()
            if self._lines:
                raise OSError(errno.EAGAIN, "its reader does not keep up")
        finally:
            os.close(self._file)

    def discard(self) -> None:
        """Close the file of a server that did not start, and remove it: it would be in the way of the next attempt."""
        self._lines.clear()
        os.close(self._file)
        if self._is_file:
            with suppress(OSError):
                self.path.unlink()
