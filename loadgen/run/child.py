"""A child process of a run: a module that is given a task, and says on its output how it gets on.

The child writes a line a second, which may say how far it is. While it lives, its parent hears of it, and it ends when
nobody reads the lines any more.
"""

import asyncio
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from sluice.loadgen.target.base import TargetUnreachable
from sluice.models.errors import ConfigError
from sluice.models.processes import module_environment

SILENCE_S = 60.0
"""A child that has said nothing for so long is ended."""

UNREACHABLE, REFUSED = b"unreachable ", b"refused "
"""Beginnings of the lines for errors; their messages follow."""

_BEAT_S = 1.0
_EXIT_S = 10.0


class TaskProcess:
    """A child process, seen by its parent; `lost` says how it was lost, and is empty otherwise.

    `progress` is what its last line of a second said, as far as it was heard.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self.lost = ""
        self.progress = b""

    @classmethod
    async def start(cls, module: str, task: object) -> "TaskProcess":
        """Start a module with a task, which is pickled."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=module_environment(),
            start_new_session=True,  # an interrupt at the terminal is for the parent, which passes it on
        )
        child = cls(process)
        await child.tell(pickle.dumps(task))
        return child

    async def hear(self, word: bytes, takes: Callable[[bytes], bool] | None = None) -> bytes:
        """Wait for a line that begins with a word; returns its rest, or nothing if the child is lost.

        Lines that `takes` is true for say nothing about progress. Raises the error that the child says instead.
        """
        while not self.lost:
            try:
                line = await asyncio.wait_for(self._stdout.readline(), SILENCE_S)
            except TimeoutError:
                self.lost = f"said nothing for {SILENCE_S:g} s"
                break
            if not line.endswith(b"\n"):
                self.lost = f"ended with {_exit_text(await self._process.wait())}"
                break
            line = line.removesuffix(b"\n")
            if line.startswith(UNREACHABLE):
                raise TargetUnreachable(line.removeprefix(UNREACHABLE).decode())
            if line.startswith(REFUSED):
                raise ConfigError(line.removeprefix(REFUSED).decode())
            if line.startswith(word):
                return line.removeprefix(word)
            if takes is None or not takes(line):
                self.progress = line
        return b""

    async def tell(self, content: bytes) -> None:
        """Write to the child's input; one that is lost does not hear it."""
        with suppress(ConnectionError):
            self._stdin.write(content)
            await self._stdin.drain()

    def interrupt(self) -> None:
        """Pass an interrupt on."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)

    async def end(self, at_once: bool) -> None:
        """End the process: at once, or when it has not exited by itself in 10 seconds."""
        if self._process.returncode is None and (at_once or self.lost):
            self._process.kill()
        try:
            await asyncio.wait_for(self._process.wait(), _EXIT_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def take_task() -> object:
    """The task of this process, in the child."""
    # An interrupt is for the parent. It means something here once there is a handler for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return pickle.load(sys.stdin.buffer)


def say(line: bytes) -> None:
    """Write a line for the parent; ends this process if there is none any more."""
    try:
        os.write(sys.stdout.fileno(), line.replace(b"\n", b" ") + b"\n")
    except BrokenPipeError:
        os._exit(1)


async def beat(progress: Callable[[], bytes] = bytes) -> None:
    """Let the parent hear of this process until cancelled, and of its progress."""
    while True:
        await asyncio.sleep(_BEAT_S)
        say(progress())


def _exit_text(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
