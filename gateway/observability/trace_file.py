"""A file of request traces, in the format that Triton's tools read."""

import io
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from sluice.gateway.observability.trace import BatchTrace, Trace
from sluice.models.spec import public_key

_END = b"\n]\n"


class TraceFile:
    """A JSON array that is complete after every request; the file is created with the first one.

    Times are nanoseconds of one monotonic clock, not the time of day.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._ids = count(1)
        self._index = 0
        self._written = 0

    def add(self, trace: Trace, log_frequency: int) -> None:
        """Write a request. After `log_frequency` requests (0: never) begin another, numbered file. Raises OSError."""
        if log_frequency and self._written >= log_frequency:
            self._written = 0
            self._index += 1
        path = Path(f"{self._path}.{self._index}" if log_frequency else self._path)
        entries = ",\n".join(json.dumps(entry) for entry in self._entries(trace)).encode()
        with path.open("r+b" if self._written else "wb", buffering=0) as file:
            if self._written:
                file.seek(-len(_END), io.SEEK_END)
            file.write((b",\n" if self._written else b"[\n") + entries + _END)
        self._written += 1

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
