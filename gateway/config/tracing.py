"""Settings of traces: how many requests are remembered, and which of them go to a file or a collector of OpenTelemetry.

The log of slow and failed requests is set here, too.
"""

import enum
import math
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

TRACE_REQUESTS = 2000
"""Requests that are remembered: so few that they stay in the processor's cache, where forgetting them is cheap."""
MAX_TRACE_REQUESTS = 1_000_000
MAX_NUMBER = 2**31 - 1

LEAST_FILE_BYTES = 1 << 16
MOST_FILES = 10_000
MAX_QUEUE_SPANS = 1_000_000
MAX_LOG_LINES = 1000

LEAST = {"trace_rate": 1, "trace_count": -1, "log_frequency": 0}
"""The smallest value of each setting that is a number."""


class TraceLevel(enum.StrEnum):
    """The level of tracing: none, or the times of requests."""

    OFF = "OFF"
    TIMESTAMPS = "TIMESTAMPS"


class TraceMode(enum.StrEnum):
    """The form of traces: a file in Triton's format, or spans for a collector of OpenTelemetry."""

    TRITON = "triton"
    OPENTELEMETRY = "opentelemetry"


class OtlpProtocol(enum.StrEnum):
    """The protocol to a collector, by the names of OTEL_EXPORTER_OTLP_PROTOCOL."""

    GRPC = "grpc"
    HTTP = "http/protobuf"


class OtlpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A collector of OpenTelemetry. What is None, or left out, is as the variables OTEL_* of the environment say.

    `endpoint` is a URL, `headers` go with each export, and `resource` has attributes of the server. At most
    `queue_spans` wait for the collector; further ones are dropped.
    """

    endpoint: str | None = None
    protocol: OtlpProtocol | None = None
    headers: Mapping[str, str] = {}
    resource: Mapping[str, str] = {}
    queue_spans: int = 20_000

    def __post_init__(self) -> None:
        if self.endpoint is not None:
            url = urlsplit(self.endpoint)
            if url.scheme not in {"http", "https"} or not url.hostname:
                raise ValueError(f"endpoint: expected a URL such as http://localhost:4318, got '{self.endpoint}'")
        if not 1 <= self.queue_spans <= MAX_QUEUE_SPANS:
            raise ValueError(f"queue_spans: expected 1 to {MAX_QUEUE_SPANS}, got {self.queue_spans}")
        for name, value in self.headers.items():
            if not (name and name.isascii() and name.isprintable() and value.isprintable()):
                raise ValueError(f"headers: expected names and values of printable characters, got '{name:.80}'")


class TraceFileSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests to trace from the start: every `rate`-th one, at most `count` of them (-1: all).

    In `mode` triton they go to `file`: with a `log_frequency`, a new numbered file begins after that number of traces,
    and without a `file`, nothing is traced. A file that would have more than `max_bytes` is kept under a number, and
    another one begins; at most `max_files` are kept, the latest.

    In `mode` opentelemetry, spans go to the collector of `opentelemetry`. The rate is for requests whose client sends
    no trace context; 0 is none of them. A `level` of None is OFF in the first mode, and TIMESTAMPS in the second.
    """

    file: str = ""
    level: TraceLevel | None = None
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0
    max_bytes: int = 100 << 20
    max_files: int = 10
    mode: TraceMode = TraceMode.TRITON
    opentelemetry: OtlpSettings = OtlpSettings()

    def __post_init__(self) -> None:
        if self.mode is TraceMode.TRITON:
            if self.start_level is not TraceLevel.OFF and not self.file:
                raise ValueError(f"expected a file for level {self.level}")
            if self.opentelemetry != OtlpSettings():
                raise ValueError("expected mode: opentelemetry for the settings of a collector, got mode triton")
        elif self.file:
            raise ValueError(f"expected no file in mode opentelemetry, got '{self.file}'")
        for name, value in (("rate", self.rate), ("count", self.count), ("log_frequency", self.log_frequency)):
            least = self.least(f"trace_{name}")
            if not least <= value <= MAX_NUMBER:
                raise ValueError(f"expected a {name} from {least} to {MAX_NUMBER}")
        if self.max_bytes < LEAST_FILE_BYTES:
            raise ValueError(f"expected max_bytes of at least {LEAST_FILE_BYTES}, got {self.max_bytes}")
        if not 1 <= self.max_files <= MOST_FILES:
            raise ValueError(f"expected max_files from 1 to {MOST_FILES}, got {self.max_files}")

    @property
    def start_level(self) -> TraceLevel:
        """The level from the start."""
        if self.level is not None:
            return self.level
        return TraceLevel.TIMESTAMPS if self.mode is TraceMode.OPENTELEMETRY else TraceLevel.OFF

    def least(self, name: str) -> int:
        """The smallest value of a setting by its name in the protocol."""
        if name == "trace_rate" and self.mode is TraceMode.OPENTELEMETRY:
            return 0  # only requests whose clients trace them
        return LEAST.get(name, 0)


class RequestLogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests that get a line in the log: slow ones, and with `failed` those without an answer.

    A request is slow if it takes longer than `slower_than_ms` (None: none is). There are at most `lines_per_s`.
    """

    slower_than_ms: float | None = None
    failed: bool = False
    lines_per_s: int = 10

    def __post_init__(self) -> None:
        if self.slower_than_ms is not None and not 0 <= self.slower_than_ms < math.inf:
            raise ValueError(f"slower_than_ms: expected a finite number of at least 0, got {self.slower_than_ms:g}")
        if not 1 <= self.lines_per_s <= MAX_LOG_LINES:
            raise ValueError(f"lines_per_s: expected 1 to {MAX_LOG_LINES}, got {self.lines_per_s}")

    @property
    def is_on(self) -> bool:
        """True if some requests are logged."""
        return self.failed or self.slower_than_ms is not None
