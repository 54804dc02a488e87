"""The standard error of workers: lines of ONNX Runtime become log lines, and the rest is passed on as it is."""

import logging
import os
import re
import threading
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
_MARK = b":onnxruntime:"
"""A part of the first line of every message."""
_STANDARD_ERROR = 2
_LINE = re.compile(r"(?:\x1b\[[0-9;]*m)?\d{4}-\d\d-\d\d [0-9:.]+ \[([VIWEF]):onnxruntime:[^,\]]*, ([^\]]*)\] (.*)")


class WorkerOutput:
    """The lines of one worker; `pass_on` gets those that ONNX Runtime has not written, several at a time."""

    def __init__(self, worker: int, pass_on: Callable[[bytes], object]) -> None:
        self._worker = worker
        self._pass_on = pass_on
        self._rest = b""
        self._level, self._place = logging.ERROR, ""
        self._lines: list[str] = []
        """Those of a message that has not ended."""

    def feed(self, data: bytes) -> None:
        """Take what was written; empty data is the end."""
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        whole += newline
        if self._rest and (not data or len(self._rest) >= MAX_LINE_BYTES):
            whole += self._rest + b"\n"
            self._rest = b""
        if self._lines or _MARK in whole:
            for line in whole.splitlines(keepends=True):
                self._take(line)
        elif whole:  # a model that prints a lot takes little of this process's time
            self._pass_on(whole)
        if not data:
            self._end()

    def _take(self, raw: bytes) -> None:
        line = raw.rstrip(b"\r\n").decode(errors="replace")
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
            self._pass_on(raw)

    def _end(self) -> None:
        if self._lines:
            message = "\n".join(self._lines).removesuffix(_END).strip()
            log(logger, self._level, "onnxruntime", worker=self._worker, place=self._place, message=message)
        self._lines = []


def launch_logged_worker(partition: Partition | None, stdout: int | None = None) -> Child:
    """Start a worker as `launch_worker` does, whose lines on standard error go through the log of this process.

    A thread reads the lines until the worker and what it has started have ended. So a worker that prints a lot, or a
    standard error that nobody reads, holds up neither clients nor the event loop.
    """
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        child = launch_worker(partition, stdout, theirs)
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    output = WorkerOutput(child.pid, _pass_on)
    threading.Thread(target=_read, args=(ours, output), name=f"output of worker {child.pid}", daemon=True).start()
    return child


def _read(pipe: int, output: WorkerOutput) -> None:
    with os.fdopen(pipe, "rb", buffering=0) as lines:
        while data := lines.read(READ_BYTES):
            output.feed(data)
    output.feed(b"")


def _pass_on(data: bytes) -> None:
    with suppress(OSError):  # nobody reads it
        while data:
            data = data[os.write(_STANDARD_ERROR, data) :]
