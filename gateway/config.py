"""The configuration of a server: a YAML file, every field of which has a default."""

import math
from pathlib import Path

import yaml

from batcher.settings import LimitSettings, ServingSettings, convert_settings
from gateway.executors.triton_settings import TritonSettings
from gateway.restricted import RestrictedSettings, Restrictions
from gateway.tls import TlsSettings
from gateway.trace import TRACE_REQUESTS
from gateway.trace_settings import TraceFileSettings
from models.errors import ConfigError
from mps.partition import CpuPartition

MAX_TRACE_REQUESTS = 1_000_000

_MIB = 1 << 20


class ServerLimits(LimitSettings, frozen=True, forbid_unknown_fields=True):
    """Bounds: those of the scheduler, and megabytes of the arenas that tensors are laid out in."""

    input_arena_mb: int = 128
    output_arena_mb: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.input_arena_mb, self.output_arena_mb) < 1:
            raise ValueError("expected limits of at least 1")


class ServerConfig(ServingSettings, frozen=True, forbid_unknown_fields=True):
    """All settings of a server. `partitions` is a list, a number of equal core sets, or None for one a core.

    `triton` are servers that are partitions, too.
    """

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    partitions: int | tuple[CpuPartition, ...] | None = None
    triton: tuple[TritonSettings, ...] = ()
    limits: ServerLimits = ServerLimits()
    max_body_bytes: int = 64 * _MIB
    allow_client_shm: bool = False
    tls: TlsSettings | None = None
    restricted: tuple[RestrictedSettings, ...] = ()
    trace: TraceFileSettings = TraceFileSettings()
    trace_requests: int = TRACE_REQUESTS
    drain_timeout_s: float = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(0 <= port <= 65535 for port in (self.http_port, self.grpc_port)):
            raise ValueError("expected ports from 0 (any free one) to 65535")
        if self.max_body_bytes < 1:
            raise ValueError("expected a max_body_bytes of at least 1")
        Restrictions(self.restricted)
        if not 0 <= self.trace_requests <= MAX_TRACE_REQUESTS:
            raise ValueError(f"expected trace_requests from 0 to {MAX_TRACE_REQUESTS}")
        if not 0 <= self.drain_timeout_s < math.inf:
            raise ValueError("expected a finite drain_timeout_s of at least 0")


def read_config(path: Path) -> ServerConfig:
    """Read a configuration file; raises ConfigError, whose message starts with the file and the place in it."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    return convert_config(document, str(path))


def convert_config(document: object, path: str) -> ServerConfig:
    """A configuration from what a YAML file holds; raises as `read_config`."""
    return convert_settings(document, ServerConfig, path)
