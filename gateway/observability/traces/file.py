"""Files of request traces, in the format that Triton's tools read."""

import json
import os
import re
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from sluice.gateway.observability.traces.trace import BatchTrace, Trace
from sluice.models.spec import public_key

_BEGIN, _NEXT, _END = b"[\n", b",\n", b"\n]\n"
_OPEN_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK


class TraceFile:
    """A JSON array that is complete after every request; the file is created with the first one.

    A file that would grow beyond `max_bytes` gets a number, and a new one begins. Of the numbered files, those of
    earlier servers included, the latest are kept, so that there are at most `max_files` with the one that is written.
    Times are nanoseconds of one monotonic clock, not the time of day.
    """

    def __init__(self, path: str, max_bytes: int, max_files: int) -> None:
        self._path = Path(path)
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._ids = count(1)
        self._numbered: deque[int] | None = None
        """The numbers of the numbered files, in ascending order; None until the folder has been read."""
        self._number: int | None = None
        """The number of the file that is written; None if it has none."""
        self._written = 0
        """The requests in the file that is written."""
        self._size = 0
        """The bytes of that file; another size means that somebody else has changed it, and it begins again."""

    def add(self, trace: Trace, log_frequency: int) -> None:
        """Write a request. After `log_frequency` requests (0: never) begin another, numbered file.

        Raises OSError; the file is complete without the request then.
        """
        entries = _NEXT.join(json.dumps(entry).encode() for entry in self._entries(trace))
        if self._written and (
            self._size + len(_NEXT) + len(entries) > self._max_bytes
            or (log_frequency and self._written >= log_frequency)
            or (log_frequency > 0) is not (self._number is not None)
        ):
            self._finish()
        if not self._written:
            self._number = self._next_number() if log_frequency else None
        self._append(self._path if self._number is None else self._numbered_path(self._number), entries)
        self._written += 1

    def _append(self, path: Path, entries: bytes) -> None:
        file = os.open(path, _OPEN_FLAGS, 0o666)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"expected a regular file at {path}")
            if not self._written or status.st_size != self._size:
                os.ftruncate(file, 0)
                self._written = self._size = 0
            place = self._size - len(_END) if self._written else 0
            text = (_NEXT if self._written else _BEGIN) + entries + _END
            try:
                _write(file, text, place)
            except OSError:
                # The file has room for its old end.
                if self._written:
                    _write(file, _END, place)
                os.ftruncate(file, self._size)
                raise
            self._size = place + len(text)
        finally:
            os.close(file)

    def _finish(self) -> None:
        """Begin another file with the next request."""
        if self._number is None and self._max_files > 1:
            number = self._next_number()
            with suppress(FileNotFoundError):
                self._path.replace(self._numbered_path(number))
        self._written = self._size = 0

    def _next_number(self) -> int:
        """The number of the next numbered file; those that are too many with it are removed."""
        if self._numbered is None:
            self._numbered = deque(self._found())
        most = max(self._max_files - self._path.exists(), 1)
        while len(self._numbered) >= most:
            self._numbered_path(self._numbered.popleft()).unlink(missing_ok=True)
        number = self._numbered[-1] + 1 if self._numbered else 0
        self._numbered.append(number)
        return number

    def _found(self) -> list[int]:
        """The numbers of the numbered files in the folder, in ascending order."""
        pattern = re.compile(re.escape(self._path.name) + r"\.([0-9]{1,18})", re.ASCII)
        with os.scandir(self._path.parent) as entries:
            return sorted(int(match[1]) for entry in entries if (match := pattern.fullmatch(entry.name)))

    def _numbered_path(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _entries(self, trace: Trace) -> Iterator[dict[str, Any]]:
        """The request and, for a pipeline, each of its batches as a request of its own."""
        runs = [run for run in trace.runs if not run.failed]
        parent = next(self._ids)
        inner = [] if trace.is_pipeline or not runs else _compute(runs[-1])
        times = [("REQUEST_START", trace.arrived_ns), ("QUEUE_START", trace.arrived_ns), *inner]
        times += [("INFER_RESPONSE_COMPLETE", trace.ended_ns), ("REQUEST_END", trace.ended_ns)]
        about = {"request_id": trace.id, "outcome": trace.outcome}
        yield {"id": parent, **_model(trace.arrival.pipeline), **about, "timestamps": _timestamps(times)}
        if not trace.is_pipeline:
            return
        for run in runs:
            ready_ns = trace.ready_ns(run.dispatched_ns)
            times = [("REQUEST_START", ready_ns), ("QUEUE_START", ready_ns)]
            times += [*_compute(run), ("REQUEST_END", run.reported_ns)]
            yield {
                "id": next(self._ids),
                "parent_id": parent,
                **_model(run.batch.model),
                "request_id": trace.id,
                "timestamps": _timestamps(times),
            }


def _write(file: int, text: bytes, place: int) -> None:
    """Write all of a text at a place of a file. Raises OSError: a full disk takes a part before it says so."""
    done = 0
    while done < len(text):
        done += os.pwrite(file, text[done:], place + done)


def _model(key: str) -> dict[str, Any]:
    name, _, version = public_key(key).rpartition(":")
    return {"model_name": name, "model_version": int(version)}


def _compute(run: BatchTrace) -> list[tuple[str, int]]:
    return [
        ("COMPUTE_START", run.startable_ns),
        ("COMPUTE_INPUT_END", run.started_ns),
        ("COMPUTE_OUTPUT_START", run.ended_ns),
        ("COMPUTE_END", run.reported_ns),
    ]


def _timestamps(times: list[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"name": name, "ns": ns} for name, ns in times]
