"""The settings of a worker server."""

import math
import socket
from pathlib import Path

import msgspec

from sluice.gateway.config.server_config import convert_partition, read_document
from sluice.gateway.config.triton_settings import BATCH_TIMEOUT_S
from sluice.gateway.worker_protocol.address import split_address
from sluice.models.conversion import convert
from sluice.models.errors import ConfigError, PartitionError
from sluice.models.measuring.model_loading import ModelLoadingSettings
from sluice.mps.nvidia.given_devices import on_given_device
from sluice.mps.partitions.partition import MpsPartition, Partition
from sluice.mps.supervisor.quarantine import QuarantineSettings


class ArenaLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sizes of the arenas for tensors in MiB. All inputs of one batch have at most the first."""

    input_arena_mb: int = 128
    output_arena_mb: int = 64

    def __post_init__(self) -> None:
        for name in ("input_arena_mb", "output_arena_mb"):
            if (size := getattr(self, name)) < 1:
                raise ValueError(f"{name}: expected at least 1, got {size}")


class WorkerTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PEM files: the authority of all certificates, and the certificate of the worker server.

    `server_name` is the name in the certificates of other worker servers, where it is not the host of their addresses
    ("").
    """

    ca: str
    certificate: str
    private_key: str
    server_name: str = ""


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of `sluice worker`.

    `listen` is HOST:PORT, with port 0 for a free one, and `advertise` the host at which gateways reach it (None: that
    on which it listens). Without `name` it has that of its partition, and without `node` that of its machine. Others
    than this machine reach it with a key or a certificate only.
    """

    partition: Partition
    name: str = ""
    node: str = msgspec.field(default_factory=socket.gethostname)
    listen: str = "127.0.0.1:0"
    advertise: str | None = None
    key_file: str | None = None
    tls: WorkerTls | None = None
    cache: str | None = None
    cache_mb: int = 10_240
    limits: ArenaLimits = ArenaLimits()
    batch_timeout_s: float = BATCH_TIMEOUT_S
    quarantine: QuarantineSettings = QuarantineSettings()
    model_loading: ModelLoadingSettings = ModelLoadingSettings()
    drain_s: float = 30.0

    def __post_init__(self) -> None:
        try:
            split_address(self.listen, least_port=0)
        except PartitionError as error:
            raise ValueError(f"listen: {error}") from error
        for name in ("drain_s", "batch_timeout_s"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name}: expected a finite time of at least 0, got {value:g}")
        if self.cache_mb < 1:
            raise ValueError(f"cache_mb: expected at least 1, got {self.cache_mb}")

    @property
    def label(self) -> str:
        """The name of the worker server."""
        return self.name or self.partition.name


def worker_settings(file: Path | None, given: dict[str, object]) -> WorkerSettings:
    """The settings of a file in YAML, with others in place of some of them. Raises ConfigError."""
    place = "command line" if file is None else str(file)
    settings: dict[str, object] = {}
    if file is not None:
        document, lines = read_document(file)
        if not isinstance(document, dict):
            raise ConfigError(f"{file}: expected the settings of a worker, got {type(document).__name__}")
        settings = dict(document)
        if "partition" in settings and "partition" not in given:
            settings["partition"] = convert_partition(settings["partition"], place, "partition", lines)
        settings |= given
        if "partition" not in settings:
            raise ConfigError(f"{file}: expected a partition, or --cores or --gpu")
        return _on_given_device(convert(settings, WorkerSettings, place, lines=lines))
    if "partition" not in given:
        raise ConfigError("expected --config with a partition, --cores or --gpu")
    return convert(given, WorkerSettings, place)


def _on_given_device(settings: WorkerSettings) -> WorkerSettings:
    """The settings with the device, and the MPS daemon, that the process was given. Raises PartitionError."""
    if not isinstance(settings.partition, MpsPartition):
        return settings
    return msgspec.structs.replace(settings, partition=on_given_device(settings.partition))
