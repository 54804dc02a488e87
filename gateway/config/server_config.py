"""The configuration of a server: a YAML file in which every key has a default."""

import enum
import errno
import math
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Literal

from sluice.batcher.interface.planner_config import ServedPlanner
from sluice.batcher.settings.planner import planner_settings
from sluice.batcher.settings.scheduling import LimitSettings, ServingSettings, convert_settings
from sluice.gateway.config.access import MANAGEMENT, CorsSettings, check_hosts, is_loopback
from sluice.gateway.config.front_door import FrontDoorSettings, GrpcServerKind
from sluice.gateway.config.json_rules import JsonNan, JsonRules
from sluice.gateway.config.metrics_settings import MetricsSettings
from sluice.gateway.config.remote_settings import PartitionSettings, RemoteClass, check_slot_names
from sluice.gateway.config.restricted import ApiGroup, RestrictedSettings, Restrictions
from sluice.gateway.config.status_settings import TRITON_STATUSES, StatusSettings
from sluice.gateway.config.tls import TlsSettings
from sluice.gateway.config.tracing import MAX_TRACE_REQUESTS, TRACE_REQUESTS, RequestLogSettings, TraceFileSettings
from sluice.gateway.config.triton_settings import BATCH_TIMEOUT_S, TritonSettings
from sluice.models.conversion import NO_LINES
from sluice.models.errors import ConfigError, InfeasibleLayout
from sluice.models.measuring.model_loading import ModelLoadingSettings
from sluice.models.pipelines.pipeline import check_client_key
from sluice.models.sources.mirror import REPOSITORY, mirror_directory
from sluice.models.sources.source import check_url, is_url
from sluice.models.spelling import did_you_mean
from sluice.models.yaml_file import Lines, YamlDocument, load_yaml
from sluice.mps.ipc.arena import Region
from sluice.mps.partitions.balance import BalanceSettings
from sluice.mps.partitions.capacity_check import check_capacity
from sluice.mps.partitions.partition import GIVEN, CpuPartition, MigPartition, MpsPartition, Partition
from sluice.mps.supervisor.quarantine import QuarantineSettings

_MIB = 1 << 20
PARTITION_KINDS: dict[str, type[Partition]] = {"cpu": CpuPartition, "mig": MigPartition, "mps": MpsPartition}
_HEX = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_DEVICE = re.compile(rf"(?P<kind>GPU|MIG)-{_HEX}")
MAX_FRONT_ENDS = 64
MIN_INTERVAL_MS = 10
"""The shortest time between two readings of the machine."""
_OLD_INSTANCE = "MIG-GPU-"
"""The names of MIG instances before they had UUIDs of their own; NVML and CUDA no longer report them."""


class ServerLimits(LimitSettings, frozen=True, forbid_unknown_fields=True):
    """The limits of the scheduler, and the sizes of the tensor arenas in MiB."""

    input_arena_mb: int = 128
    output_arena_mb: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("input_arena_mb", "output_arena_mb"):
            if (size := getattr(self, name)) < 1:
                raise ValueError(f"{name}: expected at least 1, got {size}")


class ModelControlMode(enum.StrEnum):
    """The model control mode: models are fixed, clients load and unload them, or the repository is polled."""

    NONE = "none"
    EXPLICIT = "explicit"
    POLL = "poll"


class ResizeMode(enum.StrEnum):
    """The origin of resizes: only clients, or the server as well."""

    MANUAL = "manual"
    AUTO = "auto"


class ServerConfig(ServingSettings, frozen=True, forbid_unknown_fields=True):
    """All settings of a server; docs/reference/configuration.md describes each key."""

    repository: str | tuple[str, ...] = ()
    control: ModelControlMode = ModelControlMode.NONE
    load_models: tuple[str, ...] = ()
    source_cache: str | None = None
    poll_s: float = 15
    recycle: bool = False
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    grpc_server: GrpcServerKind = GrpcServerKind.SLUICE
    metrics_port: int | None = None
    metrics_interval_ms: float = 2000
    metrics_config: MetricsSettings = MetricsSettings()
    front_ends: int | Literal["auto"] = 0
    partitions: int | Literal["auto"] | tuple[Partition, ...] | PartitionSettings | None = None
    strict: bool = False
    strict_readiness: bool = False
    resize: ResizeMode | BalanceSettings = ResizeMode.MANUAL
    batch_timeout_s: float = BATCH_TIMEOUT_S
    quarantine: QuarantineSettings = QuarantineSettings()
    spare_worker: bool = True
    model_loading: ModelLoadingSettings = ModelLoadingSettings()
    triton: tuple[TritonSettings, ...] = ()
    limits: ServerLimits = ServerLimits()
    max_body_bytes: int = 64 * _MIB
    front_door: FrontDoorSettings = FrontDoorSettings()
    allow_client_shm: bool = False
    client_shm_prefix: str | None = None
    allow_upload: bool = False
    cache_bytes: int = 0
    statuses: StatusSettings = TRITON_STATUSES
    tls: TlsSettings | None = None
    restricted: tuple[RestrictedSettings, ...] = ()
    open_groups: tuple[ApiGroup, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    cors: CorsSettings = CorsSettings()
    trace: TraceFileSettings = TraceFileSettings()
    trace_requests: int = TRACE_REQUESTS
    request_log: RequestLogSettings = RequestLogSettings()
    client_key: str | None = None
    default_model: str | None = None
    json_nan: JsonNan | None = JsonNan.LITERAL
    drain_delay_s: float = 0
    drain_timeout_s: float = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("http_port", "grpc_port", "metrics_port"):
            if not 0 <= (port := getattr(self, name) or 0) <= 65535:
                raise ValueError(f"{name}: expected a port from 0 (any free one) to 65535, got {port}")
        if isinstance(self.front_ends, int) and not 0 <= self.front_ends <= MAX_FRONT_ENDS:
            raise ValueError(f"front_ends: expected 0 to {MAX_FRONT_ENDS}, or auto, got {self.front_ends}")
        if self.max_body_bytes < 1:
            raise ValueError(f"max_body_bytes: expected at least 1, got {self.max_body_bytes}")
        self.front_door.buffer_bytes(self.limits.memory_mb, self.max_body_bytes)
        if self.load_models and self.control is not ModelControlMode.EXPLICIT:
            raise ValueError(f"load_models requires control explicit, got control {self.control}")
        for url in self.sources:
            check_url(url)
        if self.cache_bytes < 0:
            raise ValueError(f"cache_bytes: expected at least 0, got {self.cache_bytes}")
        if isinstance(self.local_partitions, tuple):
            if not self.local_partitions and not self.triton and not self.remote_classes:
                raise ValueError("partitions: expected at least one, or a triton server")
            _check_devices(self.local_partitions)
        _check_slots(self)
        _check_planner(self)
        _check_access(self)
        if not 0 <= self.trace_requests <= MAX_TRACE_REQUESTS:
            raise ValueError(f"trace_requests: expected 0 to {MAX_TRACE_REQUESTS}, got {self.trace_requests}")
        _check_seconds(self)
        if self.client_key is not None:
            try:
                check_client_key(self.client_key)
            except ValueError as error:
                raise ValueError(f"client_key: {error}") from error

    @property
    def local_partitions(self) -> int | Literal["auto"] | tuple[Partition, ...] | None:
        """The partitions of this machine; None: one for each core."""
        if isinstance(self.partitions, PartitionSettings):
            return () if self.partitions.local is None else self.partitions.local
        return self.partitions

    @property
    def remote_classes(self) -> tuple[RemoteClass, ...]:
        """The classes of partitions whose workers are elsewhere."""
        return self.partitions.classes if isinstance(self.partitions, PartitionSettings) else ()

    @property
    def balance(self) -> BalanceSettings | None:
        """The settings of automatic resizing; None if it is off."""
        if isinstance(self.resize, BalanceSettings):
            return self.resize
        return BalanceSettings() if self.resize is ResizeMode.AUTO else None

    @property
    def json_rules(self) -> JsonRules:
        """The rules for the JSON of requests and answers."""
        nan = self.json_nan or JsonNan.NULL  # YAML reads null as None
        return JsonRules(self.front_door.json_bytes, self.front_door.answer_json_bytes, nan)

    @property
    def restrictions(self) -> Restrictions:
        """The keys of groups, and the groups that are closed because others than this machine reach the server."""
        closed = () if is_loopback(self.host) else set(MANAGEMENT) - set(self.open_groups)
        return Restrictions(self.restricted, closed)

    @property
    def shm_prefix(self) -> str | None:
        """The beginning of the names of shared memory that clients may register; None if they may register none."""
        if self.client_shm_prefix is None:
            return "" if self.allow_client_shm and is_loopback(self.host) else None
        return self.client_shm_prefix.removeprefix("/")

    @property
    def repositories(self) -> tuple[Path, ...]:
        """The directories of models; those of sources by URL are copies."""
        return tuple(
            source_directory(place, self.source_cache) / REPOSITORY if is_url(place) else Path(place)
            for place in self._places
        )

    @property
    def copies(self) -> dict[Path, str]:
        """The copies of sources by URL, with their URLs."""
        return {source_directory(url, self.source_cache) / REPOSITORY: url for url in self.sources}

    @property
    def directories(self) -> tuple[Path, ...]:
        """The repositories that are directories of their own."""
        return tuple(Path(place) for place in self._places if not is_url(place))

    @property
    def sources(self) -> tuple[str, ...]:
        """The repositories that are URLs."""
        return tuple(filter(is_url, self._places))

    @property
    def _places(self) -> tuple[str, ...]:
        return (self.repository,) if isinstance(self.repository, str) else self.repository


def source_directory(url: str, source_cache: str | None) -> Path:
    """The directory of the copy of a source: below `source_cache`, by default in the user's folder for caches."""
    if source_cache is None:
        home = os.environ.get("HOME") or tempfile.gettempdir()
        source_cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache", "sluice", "sources")
    return mirror_directory(url, Path(source_cache))


def check_arenas(limits: ServerLimits) -> None:
    """Raise ConfigError, which names the setting, for an arena that cannot be created; frees all memory again."""
    for name in ("input_arena_mb", "output_arena_mb"):
        size = getattr(limits, name)
        try:
            Region.create("sluice-trial", size << 20).close()
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "beyond the address space"
            allows = "the limits of this process (ulimit -f)" if _is_file_limit(error) else "the memory of this machine"
            raise ConfigError(f"limits: {name}: too large for {allows}, got {size}: {reason}") from error


def _is_file_limit(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EFBIG


def read_config(path: Path) -> ServerConfig:
    """Read a configuration file. Raises ConfigError, whose message starts with the file, the line and the place."""
    value, lines = read_document(path)
    return convert_config(value, str(path), lines)


def read_document(path: Path) -> YamlDocument:
    """Read a YAML file; raises as `read_config`."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return load_yaml(text, str(path))


def convert_config(document: object, path: str, lines: Lines = NO_LINES) -> ServerConfig:
    """Convert the contents of a YAML file to a configuration; raises as `read_config`."""
    if isinstance(document, dict) and isinstance(partitions := document.get("partitions"), list | dict):
        document = document | {"partitions": _partitions(partitions, path, lines)}
    return convert_settings(document, ServerConfig, path, lines=lines)


def _partitions(partitions: Any, path: str, lines: Lines) -> Any:
    """Convert a list of partitions, or a mapping for those of this machine and of others, so that errors name keys."""
    if isinstance(partitions, list):
        return _listed(partitions, path, "partitions", lines)
    if isinstance(local := partitions.get("local"), list):
        partitions = partitions | {"local": _listed(local, path, "partitions.local", lines)}
    if isinstance(remote := partitions.get("remote"), list):
        classes = [
            convert_settings(each, RemoteClass, path, at=f"partitions.remote[{index}]", lines=lines)
            for index, each in enumerate(remote)
        ]
        partitions = partitions | {"remote": classes}
    return convert_settings(partitions, PartitionSettings, path, at="partitions", lines=lines)


def _listed(partitions: list[Any], path: str, at: str, lines: Lines) -> list[Any]:
    return [convert_partition(each, path, f"{at}[{index}]", lines) for index, each in enumerate(partitions)]


def convert_partition(document: Any, path: str, at: str, lines: Lines) -> Any:
    """Convert a partition of the given kind, `cpu` by default, so that errors name the keys of that kind.

    Raises ConfigError.
    """
    if not isinstance(document, dict):
        place = lines.place(path, at)
        raise ConfigError(f"{place} expected an object, got {type(document).__name__}")
    kind = document.get("kind", "cpu")
    if not isinstance(kind, str) or kind not in PARTITION_KINDS:
        what = f"kind: expected one of {', '.join(PARTITION_KINDS)}, got '{kind}'"
        raise lines.error(path, at, f"{what}{did_you_mean(str(kind), PARTITION_KINDS)}")
    return convert_settings(document, PARTITION_KINDS[kind], path, at=at, lines=lines)


def _check_access(config: ServerConfig) -> None:
    """Raise ValueError for settings of who may do what that contradict each other or open too much."""
    keyed = Restrictions(config.restricted).keyed
    for group in config.open_groups:
        if group not in MANAGEMENT:
            raise ValueError(f"open_groups: expected some of {', '.join(MANAGEMENT)}, got '{group}'")
        if group in keyed:
            raise ValueError(f"open_groups: expected groups without a key in restricted, got '{group}'")
    check_hosts(config.allowed_hosts)
    prefix = config.client_shm_prefix
    if prefix is not None and (not prefix.strip("/") or "/" in prefix[1:] or not prefix.isprintable()):
        raise ValueError(f"client_shm_prefix: expected the beginning of names such as 'tensors_', got '{prefix}'")
    if config.allow_upload and ApiGroup.MODEL_REPOSITORY not in keyed and not is_loopback(config.host):
        raise ValueError(
            f"allow_upload: expected a key in restricted for the group {ApiGroup.MODEL_REPOSITORY}, since host is "
            f"'{config.host}' and not the loopback, got none"
        )


def _check_planner(config: ServerConfig) -> None:
    """Raise ValueError for a planner that needs the shares of partitions where some have none."""
    name = planner_settings(config.planner).name
    without = [f"triton server '{each.name}'" for each in config.triton]
    without += [f"remote class '{each.name}'" for each in config.remote_classes]
    if name.by_share and without:
        expected = f"{ServedPlanner.EXACT} or {ServedPlanner.ESG}, since {without[0]} has no share of a machine"
        raise ValueError(f"planner: expected {expected}, got {name}, which compares partitions by share")


def _check_seconds(config: ServerConfig) -> None:
    """Raise ValueError for times that are out of range."""
    for name in ("poll_s", "batch_timeout_s"):
        if not 0 < (seconds := getattr(config, name)) < math.inf:
            raise ValueError(f"{name}: expected a finite number above 0, got {seconds:g}")
    if not MIN_INTERVAL_MS <= config.metrics_interval_ms < math.inf:
        raise ValueError(
            f"metrics_interval_ms: expected a finite number of at least {MIN_INTERVAL_MS}, "
            f"got {config.metrics_interval_ms:g}"
        )
    if not 0 <= config.drain_timeout_s < math.inf:
        raise ValueError(f"drain_timeout_s: expected a finite number of at least 0, got {config.drain_timeout_s:g}")
    if not 0 <= config.drain_delay_s < math.inf:
        raise ValueError(f"drain_delay_s: expected a finite number of at least 0, got {config.drain_delay_s:g}")
    if config.drain_delay_s and config.drain_delay_s >= config.drain_timeout_s:
        raise ValueError(
            f"drain_delay_s: expected less than drain_timeout_s, {config.drain_timeout_s:g}, which it is a part of, "
            f"got {config.drain_delay_s:g}"
        )


def _check_slots(config: ServerConfig) -> None:
    """Raise ValueError for a slot of a remote partition that has the name of another partition."""
    others = {server.name: "a triton server" for server in config.triton}
    if isinstance(config.local_partitions, tuple):
        others |= {each.name: "a local partition" for each in config.local_partitions}
    check_slot_names(config.remote_classes, others)


def _check_devices(partitions: tuple[Partition, ...]) -> None:
    """Raise ValueError for malformed device names and for shares that exceed their device."""
    for partition in partitions:
        if isinstance(partition, CpuPartition):
            continue
        if isinstance(partition, MpsPartition) and partition.uuid == GIVEN:
            if partition.profile:
                raise ValueError(f"partition {partition.name}: expected no profile beside uuid: {GIVEN}")
            continue
        if partition.uuid.startswith(_OLD_INSTANCE):
            raise ValueError(
                f"partition {partition.name}: expected the UUID of its instance, MIG-…, as drivers report it "
                f"since version 470, got '{partition.uuid}'; `sluice partitions list` prints it"
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
