"""Runs a program on a pseudo-terminal, as a person at one sees it."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

_TIMEOUT_S = 120.0


class Terminal:
    """A program on a terminal: what it has written so far, as text, and the keys that it gets."""

    def __init__(self, process: "subprocess.Popen[bytes]", fd: int) -> None:
        self.process = process
        self.text = ""
        self._fd = fd

    def read_until(self, condition: Callable[[str], bool]) -> str:
        """Read until the text is as wanted; returns it. Fails after a time, or if the program ends before."""
        deadline = time.monotonic() + _TIMEOUT_S
        while not condition(self.text):
            assert time.monotonic() < deadline, f"expected something else within {_TIMEOUT_S:g} s:\n{self.text}"
            assert self._read(), f"the program ended before it wrote what was expected:\n{self.text}"
        return self.text

    def read_to_end(self) -> str:
        """Read all that the program writes; returns the text."""
        deadline = time.monotonic() + _TIMEOUT_S
        while self._read():
            assert time.monotonic() < deadline, f"the program did not end within {_TIMEOUT_S:g} s:\n{self.text}"
        return self.text

    def press(self, keys: str) -> None:
        """Type keys."""
        os.write(self._fd, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal; the program gets SIGWINCH."""
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self) -> bool:
        """Read what there is, waiting a little; False once the program has closed its end."""
        if not select.select([self._fd], [], [], 0.1)[0]:
            return True
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:  # Linux says so when the other end is closed
            return False
        self.text += data.decode(errors="replace")
        return bool(data)


@contextmanager
def on_terminal(
    command: Sequence[str], columns: int = 100, rows: int = 30, environment: Mapping[str, str] = {}
) -> Iterator[Terminal]:
    """Run a command whose three standard streams are a terminal of that size; it is ended with the block."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    unset = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    process = subprocess.Popen(
        command,
        stdin=child,
        stdout=child,
        stderr=child,
        env={**inherited, "TERM": "xterm-256color", **environment},
        start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509  # tests have no other threads
    )
    os.close(child)
    try:
        yield Terminal(process, parent)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(parent)


def sluice_command(*arguments: object) -> list[str]:
    """The command line of `sluice` in this environment."""
    return [sys.executable, "-m", "sluice.gateway.cli.main", *map(str, arguments)]


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
