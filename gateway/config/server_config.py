"""The configuration of a server: a YAML file, every field of which has a default."""

import enum
import math
import re
from pathlib import Path
from typing import Any

import yaml

from sluice.batcher.settings.scheduling import LimitSettings, ServingSettings, convert_settings
from sluice.gateway.config.restricted import RestrictedSettings, Restrictions
from sluice.gateway.config.status_settings import TRITONS, StatusSettings
from sluice.gateway.config.tls import TlsSettings
from sluice.gateway.config.triton_settings import TritonSettings
from sluice.gateway.observability.trace import TRACE_REQUESTS
from sluice.gateway.observability.trace_settings import TraceFileSettings
from sluice.models.errors import ConfigError, InfeasibleLayout
from sluice.mps.partitions.balance import BalanceSettings
from sluice.mps.partitions.capacity_check import check_capacity
from sluice.mps.partitions.partition import CpuPartition, MigPartition, MpsPartition, Partition
from sluice.mps.supervisor.quarantine import QuarantineSettings

MAX_TRACE_REQUESTS = 1_000_000

_MIB = 1 << 20
_KINDS: dict[str, type[Partition]] = {"cpu": CpuPartition, "mig": MigPartition, "mps": MpsPartition}
_HEX = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_DEVICE = re.compile(rf"(?P<kind>GPU|MIG)-{_HEX}")
_OLD_INSTANCE = "MIG-GPU-"
"""How MIG instances were named before they had UUIDs of their own; neither NVML nor CUDA tells such names."""


class ServerLimits(LimitSettings, frozen=True, forbid_unknown_fields=True):
    """Bounds: those of the scheduler, and megabytes of the arenas that tensors are laid out in."""

    input_arena_mb: int = 128
    output_arena_mb: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("input_arena_mb", "output_arena_mb"):
            if (size := getattr(self, name)) < 1:
                raise ValueError(f"{name}: expected at least 1, got {size}")


class Control(enum.StrEnum):
    """What changes the models that are served: nothing, clients that load and unload them, or the repository."""

    NONE = "none"
    EXPLICIT = "explicit"
    POLL = "poll"


class ResizeMode(enum.StrEnum):
    """Who gives partitions other shares: only clients, or the server as well."""

    MANUAL = "manual"
    AUTO = "auto"


class ServerConfig(ServingSettings, frozen=True, forbid_unknown_fields=True):
    """All settings of a server. `partitions` is a list, a number of equal core sets, or None for one a core.

    With `strict` it serves only while every partition is proved to hold, and with `strict_readiness` it says that it is
    ready only while everything is that it is to serve. `quarantine` says which are left alone.
    `resize` is `auto`, or has the settings for that, if partitions are to be lent cores that are nobody's.

    With a `metrics_port`, metrics are served there, too. `triton` are servers that are partitions, too. `repository`
    are directories of models, `control` is what changes what of them is served: with `explicit`, a server begins with
    `load_models` ("*" for all) and clients change it; with `poll`, the directories are looked at every `poll_s`. With
    `recycle`, what is unloaded leaves no memory behind, as the workers that held it are replaced. `cache_bytes` bounds
    the answers that are kept; 0 keeps none.
    """

    repository: str | tuple[str, ...] = ()
    control: Control = Control.NONE
    load_models: tuple[str, ...] = ()
    poll_s: float = 15
    recycle: bool = False
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int | None = None
    partitions: int | tuple[Partition, ...] | None = None
    strict: bool = False
    strict_readiness: bool = False
    resize: ResizeMode | BalanceSettings = ResizeMode.MANUAL
    quarantine: QuarantineSettings = QuarantineSettings()
    triton: tuple[TritonSettings, ...] = ()
    limits: ServerLimits = ServerLimits()
    max_body_bytes: int = 64 * _MIB
    allow_client_shm: bool = False
    cache_bytes: int = 0
    statuses: StatusSettings = TRITONS
    tls: TlsSettings | None = None
    restricted: tuple[RestrictedSettings, ...] = ()
    trace: TraceFileSettings = TraceFileSettings()
    trace_requests: int = TRACE_REQUESTS
    drain_timeout_s: float = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("http_port", "grpc_port", "metrics_port"):
            if not 0 <= (port := getattr(self, name) or 0) <= 65535:
                raise ValueError(f"{name}: expected a port from 0 (any free one) to 65535, got {port}")
        if self.max_body_bytes < 1:
            raise ValueError("expected a max_body_bytes of at least 1")
        if self.load_models and self.control is not Control.EXPLICIT:
            raise ValueError(f"load_models belongs to control explicit, not to {self.control}")
        if not 0 < self.poll_s < math.inf:
            raise ValueError("expected a finite poll_s above 0")
        if self.cache_bytes < 0:
            raise ValueError("expected a cache_bytes of at least 0")
        if isinstance(self.partitions, tuple):
            if not self.partitions and not self.triton:
                raise ValueError("partitions: expected at least one, or a triton server")
            _check_devices(self.partitions)
        Restrictions(self.restricted)
        if not 0 <= self.trace_requests <= MAX_TRACE_REQUESTS:
            raise ValueError(f"expected trace_requests from 0 to {MAX_TRACE_REQUESTS}")
        if not 0 <= self.drain_timeout_s < math.inf:
            raise ValueError("expected a finite drain_timeout_s of at least 0")

    @property
    def balance(self) -> BalanceSettings | None:
        """When partitions are lent cores; None for never."""
        if isinstance(self.resize, BalanceSettings):
            return self.resize
        return BalanceSettings() if self.resize is ResizeMode.AUTO else None

    @property
    def repositories(self) -> tuple[Path, ...]:
        """The directories of models."""
        return tuple(map(Path, (self.repository,) if isinstance(self.repository, str) else self.repository))


def read_config(path: Path) -> ServerConfig:
    """Read a configuration file; raises ConfigError, whose message starts with the file and the place in it."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    return convert_config(document, str(path))


def convert_config(document: object, path: str) -> ServerConfig:
    """A configuration from what a YAML file holds; raises as `read_config`."""
    if isinstance(document, dict) and isinstance(partitions := document.get("partitions"), list):
        converted = [_partition(each, f"{path}: partitions[{index}]") for index, each in enumerate(partitions)]
        document = document | {"partitions": converted}
    return convert_settings(document, ServerConfig, path)


def _partition(document: Any, path: str) -> Any:
    """A partition of the kind that it says, of cores if it says none, so that errors are about that kind."""
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: expected an object, got {type(document).__name__}")
    kind = document.get("kind", "cpu")
    if kind not in _KINDS:
        raise ConfigError(f"{path}: kind: expected one of {', '.join(_KINDS)}, got '{kind}'")
    return convert_settings(document, _KINDS[kind], path)


def _check_devices(partitions: tuple[Partition, ...]) -> None:
    """Raise ValueError for devices that are none, and for shares that do not fit on theirs."""
    for partition in partitions:
        if isinstance(partition, CpuPartition):
            continue
        if partition.uuid.startswith(_OLD_INSTANCE):
            raise ValueError(
                f"partition {partition.name}: expected the UUID of its instance, MIG-…, which drivers tell since 470, "
                f"got '{partition.uuid}'; sluice partitions list has it"
            )
        match = _DEVICE.fullmatch(partition.uuid)
        if match is None or (isinstance(partition, MigPartition) and match["kind"] == "GPU"):
            expected = "MIG-" if isinstance(partition, MigPartition) else "GPU- or MIG-"
            raise ValueError(f"partition {partition.name}: expected a whole UUID, {expected}…, got '{partition.uuid}'")
        if isinstance(partition, MpsPartition) and bool(partition.profile) is not partition.uuid.startswith("MIG-"):
            expected = "no profile beside the UUID of a GPU" if partition.profile else "the profile of the MIG instance"
            raise ValueError(f"partition {partition.name}: expected {expected} that it is a share of")
    try:
        check_capacity(partitions, {})
    except InfeasibleLayout as error:
        raise ValueError(str(error)) from error
