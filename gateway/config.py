"""The configuration of a server: a YAML file, every field of which has a default."""

import math
import re
from pathlib import Path

import msgspec
import yaml

from batcher.config import Limits, PolicyConfig, PolicyName
from models.errors import ConfigError
from models.units import NS_PER_US, ms_to_ns
from mps.partition import CpuPartition

_MIB = 1 << 20
_PLACE = re.compile(r"(?P<what>.*) - at `\$(?P<where>.*)`", re.DOTALL)


class PolicySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A batch policy; `preferred` sizes and `max_delay_ms` belong to `timeout`."""

    name: PolicyName = PolicyName.DEADLINE
    preferred: tuple[int, ...] = ()
    max_delay_ms: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.max_delay_ms < math.inf or any(size < 1 for size in self.preferred):
            raise ValueError("expected preferred sizes of at least 1 and a max_delay_ms of at least 0")
        if self.name is not PolicyName.TIMEOUT and (self.preferred or self.max_delay_ms):
            raise ValueError(f"preferred and max_delay_ms belong to policy timeout, not to {self.name}")

    def config(self) -> PolicyConfig:
        """The policy as the scheduler takes it."""
        return PolicyConfig(self.name, self.preferred, ms_to_ns(self.max_delay_ms))


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is different for one model, all its versions included; None stands for the server's default."""

    max_batch_size: int | None = None
    policy: PolicySettings | None = None


class LimitSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds: waiting requests a model, megabytes of tensors in flight, and of the arenas they are laid out in."""

    queue_requests: int = 4096
    memory_mb: float = 256
    input_arena_mb: int = 128
    output_arena_mb: int = 64
    hand_off_us: float = 150

    def __post_init__(self) -> None:
        if min(self.queue_requests, self.input_arena_mb, self.output_arena_mb) < 1 or not 0 < self.memory_mb < math.inf:
            raise ValueError("expected limits of at least 1")
        if not 0 <= self.hand_off_us < math.inf:
            raise ValueError("expected a finite hand_off_us of at least 0")

    def config(self) -> Limits:
        """The limits as the scheduler takes them."""
        return Limits(
            queue_requests=self.queue_requests,
            memory_bytes=round(self.memory_mb * _MIB),
            hand_off_ns=round(self.hand_off_us * NS_PER_US),
        )


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of a server. `partitions` is a list, a number of equal core sets, or None for one a core."""

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    partitions: int | tuple[CpuPartition, ...] | None = None
    policy: PolicySettings = PolicySettings()
    max_batch_size: int = 64
    models: dict[str, ModelSettings] = {}
    default_slo_ms: float = 10_000
    limits: LimitSettings = LimitSettings()
    max_body_bytes: int = 64 * _MIB
    drain_timeout_s: float = 30

    def __post_init__(self) -> None:
        if not all(0 <= port <= 65535 for port in (self.http_port, self.grpc_port)):
            raise ValueError("expected ports from 0 (any free one) to 65535")
        sizes = [size for each in self.models.values() if (size := each.max_batch_size) is not None]
        if min(self.max_batch_size, self.max_body_bytes, *sizes) < 1:
            raise ValueError("expected batch sizes and a max_body_bytes of at least 1")
        if not (0 < self.default_slo_ms < math.inf and 0 <= self.drain_timeout_s < math.inf):
            raise ValueError("expected a finite default_slo_ms above 0 and a finite drain_timeout_s of at least 0")


def read_config(path: Path) -> ServerConfig:
    """Read a configuration file; raises ConfigError, whose message starts with the file and the place in it."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    return convert_config({} if document is None else document, str(path))


def convert_config(document: object, path: str) -> ServerConfig:
    """A configuration from what a YAML file holds; raises as `read_config`."""
    try:
        return msgspec.convert(document, ServerConfig)
    except msgspec.ValidationError as error:
        match = _PLACE.fullmatch(str(error))
        what, where = (match["what"], match["where"].lstrip(".")) if match else (str(error), "")
        raise ConfigError(f"{path}: {where}: {what}" if where else f"{path}: {what}") from error
