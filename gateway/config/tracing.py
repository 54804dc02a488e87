"""Settings of traces: how many requests are remembered, and which of them go to the trace file from the start."""

import enum

import msgspec

TRACE_REQUESTS = 2000
"""Requests that are remembered: so few that they stay in the processor's cache, where forgetting them is cheap."""
MAX_TRACE_REQUESTS = 1_000_000
MAX_NUMBER = 2**31 - 1

LEAST_FILE_BYTES = 1 << 16
MOST_FILES = 10_000

LEAST = {"trace_rate": 1, "trace_count": -1, "log_frequency": 0}
"""The smallest value of each setting that is a number."""


class TraceLevel(enum.StrEnum):
    """The level of tracing: none, or the times of requests."""

    OFF = "OFF"
    TIMESTAMPS = "TIMESTAMPS"


class TraceFileSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests to trace from the start: every `rate`-th one, at most `count` of them (-1: all), to `file`.

    With a `log_frequency`, a new numbered file begins after that number of traces. Without a `file`, nothing is traced.
    A file that would have more than `max_bytes` is kept under a number, and another one begins; at most `max_files` are
    kept, the latest.
    """

    file: str = ""
    level: TraceLevel = TraceLevel.OFF
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0
    max_bytes: int = 100 << 20
    max_files: int = 10

    def __post_init__(self) -> None:
        if self.level is not TraceLevel.OFF and not self.file:
            raise ValueError(f"expected a file for level {self.level}")
        for name, value in (("rate", self.rate), ("count", self.count), ("log_frequency", self.log_frequency)):
            least = LEAST.get(f"trace_{name}", 0)
            if not least <= value <= MAX_NUMBER:
                raise ValueError(f"expected a {name} from {least} to {MAX_NUMBER}")
        if self.max_bytes < LEAST_FILE_BYTES:
            raise ValueError(f"expected max_bytes of at least {LEAST_FILE_BYTES}, got {self.max_bytes}")
        if not 1 <= self.max_files <= MOST_FILES:
            raise ValueError(f"expected max_files from 1 to {MOST_FILES}, got {self.max_files}")
