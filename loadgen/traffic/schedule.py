"""Schedules: the due time and the request of each query, fixed before the run starts."""

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Schedule:
    """Query k is due `due_ns[k]` nanoseconds after the start and carries the prepared request `sample[k]`.

    All columns have shape (queries,). `due_ns` is int64, and all 0 where queries follow answers. `sample` is int64 and
    numbers the prepared requests: the samples of a mix's streams lie one after the other. `stream` is uint16, the
    stream of the mix; empty stands for all 0. `cancel_ns` is int64: how long after a query is due the client gives it
    up if it is still open, -1 for never; None when no query is given up. `group` successive queries are one query of
    the MultiStream scenario.
    """

    due_ns: npt.NDArray[np.int64]
    sample: npt.NDArray[np.int64]
    stream: npt.NDArray[np.uint16] = field(default_factory=lambda: np.empty(0, np.uint16))
    cancel_ns: npt.NDArray[np.int64] | None = None
    group: int = 1

    def __post_init__(self) -> None:
        if not len(self.stream):
            object.__setattr__(self, "stream", np.broadcast_to(np.uint16(0), len(self.due_ns)))

    def __len__(self) -> int:
        return len(self.due_ns)

    def part(self, index: int, count: int) -> "Schedule":
        """Every `count`-th query from number `index` on; groups stay together."""
        rows = np.arange(len(self)) // self.group % count == index
        cancel_ns = None if self.cancel_ns is None else self.cancel_ns[rows]
        return replace(
            self, due_ns=self.due_ns[rows], sample=self.sample[rows], stream=self.stream[rows], cancel_ns=cancel_ns
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the little-endian columns; equal digests mean the same requests at the same times.

        Streams, cancellations and groups count only where there are any.
        """
        content = hashlib.sha256(self.due_ns.astype("<i8").tobytes())
        content.update(self.sample.astype("<i8").tobytes())
        if self.stream.any():
            content.update(b"stream" + self.stream.astype("<u2").tobytes())
        if self.cancel_ns is not None:
            content.update(b"cancel" + self.cancel_ns.astype("<i8").tobytes())
        if self.group > 1:
            content.update(b"group" + self.group.to_bytes(8, "little"))
        return content.hexdigest()
