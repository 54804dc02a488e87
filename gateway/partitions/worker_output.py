"""The standard error of workers: lines of ONNX Runtime become log lines, and the rest is passed on as it is."""

import asyncio
import logging
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress

from sluice.gateway.observability.logs import log
from sluice.mps.partitions.partition import Partition
from sluice.mps.supervisor.child import Child, launch_worker

logger = logging.getLogger(__name__)

READ_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 16
"""A longer line is cut into several."""
MAX_LINES = 100
"""Lines of one message of ONNX Runtime that are logged."""

_LEVELS = {
    "V": logging.DEBUG,
    "I": logging.DEBUG,
    "W": logging.WARNING,
    "E": logging.ERROR,
    "F": logging.CRITICAL,
}
_COLOUR = "\x1b["
_END = "\x1b[m"
"""The end of a message that began with a colour."""
_LINE = re.compile(r"(?:\x1b\[[0-9;]*m)?\d{4}-\d\d-\d\d [0-9:.]+ \[([VIWEF]):onnxruntime:[^,\]]*, ([^\]]*)\] (.*)")


class WorkerOutput:
    """The lines of one worker; `pass_on` gets those that ONNX Runtime has not written."""

    def __init__(self, worker: int, pass_on: Callable[[str], object]) -> None:
        self._worker = worker
        self._pass_on = pass_on
        self._rest = b""
        self._level, self._place = logging.ERROR, ""
        self._lines: list[str] = []
        """Those of a message that has not ended."""

    def feed(self, data: bytes) -> None:
        """Take what was written; empty data is the end."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._rest and (not data or len(self._rest) >= MAX_LINE_BYTES):
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._take(line.decode(errors="replace"))
        if not data:
            self._end()

    def _take(self, line: str) -> None:
        begins = _LINE.fullmatch(line)
        if begins is not None:
            self._end()
            self._level, self._place = _LEVELS[begins[1]], begins[2]
            self._lines = [begins[3]]
            if not line.startswith(_COLOUR) or line.endswith(_END):
                self._end()
        elif self._lines:
            self._lines.append(line)
            if line.endswith(_END) or len(self._lines) >= MAX_LINES:
                self._end()
        else:
            self._pass_on(f"{line}\n")

    def _end(self) -> None:
        if self._lines:
            message = "\n".join(self._lines).removesuffix(_END).strip()
            log(logger, self._level, "onnxruntime", worker=self._worker, place=self._place, message=message)
        self._lines = []


def launch_logged_worker(partition: Partition | None, stdout: int | None = None) -> Child:
    """Start a worker as `launch_worker` does, whose lines on standard error go through the log of this process.

    Call it in the event loop's thread. The lines are read until the worker and what it has started have ended.
    """
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        child = launch_worker(partition, stdout, theirs)
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    os.set_blocking(ours, False)
    loop = asyncio.get_running_loop()
    output = WorkerOutput(child.pid, _pass_on)

    def read() -> None:
        try:
            data = os.read(ours, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            loop.remove_reader(ours)
            os.close(ours)
        output.feed(data)

    loop.add_reader(ours, read)
    return child


def _pass_on(line: str) -> None:
    with suppress(OSError, ValueError):  # nobody reads it
        sys.stderr.write(line)
