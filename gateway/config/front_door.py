"""The bounds of what clients can make the server keep, and for how long."""

import enum
import math

import msgspec

_MIB = 1 << 20
_SHARE = 8
"""An eighth of the buffer is left free for small requests while large ones wait."""
_COUNTS = {
    "max_connections": 1,
    "max_connections_per_address": 0,
    "head_bytes": 1024,
    "head_lines": 8,
    "json_bytes": 1024,
    "answer_json_bytes": 1024,
    "id_bytes": 1,
    "min_bytes_per_s": 0,
    "grpc_connections": 1,
    "grpc_head_bytes": 1024,
    "grpc_streams": 1,
}
"""The least value of each setting that is a whole number."""
_SECONDS = (
    "head_timeout_s",
    "first_request_s",
    "idle_s",
    "progress_s",
    "grpc_idle_s",
    "grpc_age_s",
    "grpc_message_s",
    "grpc_ping_s",
)


class GrpcServerKind(enum.StrEnum):
    """Which gRPC server is used: Sluice's own, or one on the core of grpcio."""

    SLUICE = "sluice"
    GRPCIO = "grpcio"


class FrontDoorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of connections, requests on their way in, and answers on their way out.

    Without `buffer_mb`, the buffer is as large as `limits.memory_mb`, and never too small for the largest request.
    """

    buffer_mb: float | None = None
    max_connections: int = 4096
    max_connections_per_address: int = 0
    head_bytes: int = 64 << 10
    head_lines: int = 100
    json_bytes: int = 4 * _MIB
    answer_json_bytes: int = 16 * _MIB
    id_bytes: int = 256
    head_timeout_s: float = 10
    first_request_s: float = 60
    idle_s: float = 75
    progress_s: float = 10
    min_bytes_per_s: int = 1024
    grpc_connections: int = 1024
    grpc_head_bytes: int = 16 << 10
    grpc_streams: int = 1024
    grpc_idle_s: float = 300
    grpc_age_s: float = 3600
    grpc_message_s: float = 120
    grpc_ping_s: float = 10

    def __post_init__(self) -> None:
        for name, least in _COUNTS.items():
            if not least <= (count := getattr(self, name)) < 1 << 31:
                raise ValueError(f"{name}: expected a whole number from {least} to {(1 << 31) - 1}, got {count}")
        for name in _SECONDS:
            if not 0 < (seconds := getattr(self, name)) <= 1_000_000:
                raise ValueError(f"{name}: expected seconds above 0, at most 1000000, got {seconds:g}")
        if self.buffer_mb is not None and not 0 < self.buffer_mb < math.inf:
            raise ValueError(f"buffer_mb: expected a finite number above 0, got {self.buffer_mb:g}")

    def buffer_bytes(self, memory_mb: float, max_body_bytes: int, parts: int = 1) -> int:
        """The size of the buffer. Raises ValueError if it is given and too small for the largest request.

        Of a buffer in several `parts`, each has room for the largest request.
        """
        least = max_body_bytes + self.head_bytes
        least += -(-least // (_SHARE - 1))
        if self.buffer_mb is None:
            return max(round(memory_mb * _MIB) // parts, least)
        size = round(self.buffer_mb * _MIB)
        if size < least:
            raise ValueError(
                f"front_door: buffer_mb: expected at least {math.ceil(least / _MIB * 100) / 100:g} "
                f"for max_body_bytes {max_body_bytes}, got {self.buffer_mb:g}"
            )
        return max(size // parts, least)
