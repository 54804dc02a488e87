"""The settings of partitions on other machines: classes of equal ones, where their workers are, and who may reach them.

A class has slots, `<class>-0`, `<class>-1` and so on. Each slot is a partition of the server from the start, which is
down while no worker is placed there.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from sluice.batcher.interface.scaling_config import ScaledClass
from sluice.batcher.settings.scaling import ScaleSettings
from sluice.batcher.settings.scheduling import PriceSettings
from sluice.gateway.config.ray_settings import MAX_SLOTS, RaySettings, worker_kind
from sluice.models.profiles.partition_kind import PartitionKind, parse_kind
from sluice.mps.mig.geometry import share_of_gpu
from sluice.mps.partitions.partition import Partition

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_MIB = 1 << 20
_SECONDS_PER_HOUR = 3600


class DnsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Workers behind the addresses of a name in DNS: those of `name` at `port`, of which at most `max` are used."""

    name: str
    port: int
    max: int

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError("dns.name: expected a host name such as workers.example, got ''")
        if not 1 <= self.port <= 65535:
            raise ValueError(f"dns.port: expected a port from 1 to 65535, got {self.port}")
        _check_slots("dns.max", self.max)


class RemoteClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Equal remote partitions: each has one worker (`sluice worker`) of the `kind`, which keys latency tables.

    Exactly one of `urls`, `dns` and `ray` says where the workers are. `price` is the cost of an hour of one (None: by
    its kind). `memory_mb` limits the models that each holds at a time (None: no limit). With `scale` their number
    follows the load (None: all are wanted, but of Ray's with `min` and `max`).
    """

    name: str
    kind: str = ""
    urls: tuple[str, ...] | None = None
    dns: DnsSettings | None = None
    ray: RaySettings | None = None
    price: float | None = None
    memory_mb: float | None = None
    scale: ScaleSettings | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"name: expected up to 63 letters, digits, '-', '_' and '.', the first a letter or digit, "
                f"got '{self.name}'"
            )
        given = [name for name in ("urls", "dns", "ray") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"remote partitions {self.name}: expected exactly one of urls, dns and ray, "
                f"got {' and '.join(given) or 'none'}"
            )
        if not self.kind and self.ray is None:
            raise ValueError(f"remote partitions {self.name}: expected a kind such as cpu1, mig-1g.10gb or mps-25")
        if self.kind and parse_kind(self.kind) is None:
            raise ValueError(
                f"remote partitions {self.name}: expected a kind such as cpu1, cpu2/x3, mig-1g.10gb or mps-25, "
                f"got '{self.kind}'"
            )
        if self.ray is not None and (kind := parse_kind(self.kind)) is not None and kind.host_cores:
            raise ValueError(
                f"remote partitions {self.name}: expected a kind without host cores, since workers on GPUs in Ray may "
                f"use all, got '{self.kind}'"
            )
        if self.urls is not None:
            self._check_urls(self.urls)
        if self.price is not None and not 0 <= self.price < math.inf:
            raise ValueError(
                f"remote partitions {self.name}: expected a finite price of at least 0, got {self.price:g}"
            )
        if self.memory_mb is not None and not 0 < self.memory_mb < math.inf:
            raise ValueError(
                f"remote partitions {self.name}: expected a finite memory_mb above 0, got {self.memory_mb:g}"
            )

        if self.scale is not None:
            self._check_scale(self.scale)

    def _check_scale(self, scale: ScaleSettings) -> None:
        if self.ray is not None and self.ray.min is not None:
            raise ValueError(f"remote partitions {self.name}: expected min and max in scale or in ray, got both")
        if self.slots:
            try:
                scale.check(len(self.slots))
            except ValueError as error:
                raise ValueError(f"remote partitions {self.name}: scale.{error}") from error

    def _check_urls(self, urls: tuple[str, ...]) -> None:
        _check_slots(f"remote partitions {self.name}: urls", len(urls))
        for url in urls:
            if not is_address(url):
                raise ValueError(
                    f"remote partitions {self.name}: expected urls such as 10.0.0.5:9001 or [::1]:9001, got '{url}'"
                )
        if len(set(urls)) < len(urls):
            raise ValueError(f"remote partitions {self.name}: expected each url once, got {', '.join(urls)}")

    @property
    def profile_kind(self) -> str:
        """The key of latency tables; "" if it follows from a Ray cluster that was not asked yet."""
        if self.kind or self.ray is None or not self.ray.resources:
            return self.kind
        return worker_kind(self.ray.resources)

    @property
    def is_cpu(self) -> bool:
        """True for partitions of cores, False for those of GPUs."""
        kind = parse_kind(self.profile_kind)
        return kind is None or bool(kind.cores)

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of its partitions; none if their number follows from a Ray cluster that was not asked yet."""
        if self.urls is not None:
            count = len(self.urls)
        elif self.dns is not None:
            count = self.dns.max
        else:
            assert self.ray is not None
            count = self.ray.most or 0
        return tuple(f"{self.name}-{number}" for number in range(count))

    @property
    def scaled(self) -> ScaledClass | None:
        """The class for autoscaling; None if all its slots are wanted."""
        if self.scale is not None:
            return self.scale.scaled(self.name, self.slots)
        if self.ray is not None and self.ray.count is None and self.ray.max is not None:
            least = self.ray.min or 0
            return ScaleSettings(least, self.ray.max, to_zero=not least).scaled(self.name, self.slots)
        return None

    @property
    def memory_bytes(self) -> int:
        """The limit of the models that each holds; 0 without one."""
        return 0 if self.memory_mb is None else max(round(self.memory_mb * _MIB), 1)

    def price_per_second(self, prices: PriceSettings) -> float:
        """The price of a second of one partition."""
        if self.price is not None:
            return self.price / _SECONDS_PER_HOUR
        kind = parse_kind(self.profile_kind) or PartitionKind()
        hour = prices.core_hour * (kind.cores + kind.host_cores)
        if kind.profile:
            hour += prices.gpu_hour * share_of_gpu(kind.profile)
        elif kind.percent:
            hour += prices.gpu_hour * kind.percent / 100
        return hour / _SECONDS_PER_HOUR


class RemoteTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PEM files for connections to workers: the authority of the workers, and the certificate and key of the gateway.

    The workers ask for the certificate, and the gateway for theirs. `server_name` is the name in the certificates of
    workers, where it is not the host of their addresses ("").
    """

    ca: str
    certificate: str
    private_key: str
    server_name: str = ""


class PartitionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Partitions of this machine and of others.

    `local` are those of this machine, as `partitions` names them where it is no mapping; there are none without it.
    `ray` is short for a class of the name `ray`. `key_file` has the key that the gateway shares with the workers, and
    `tls` encrypts the connections to them.
    """

    local: int | Literal["auto"] | tuple[Partition, ...] | None = None
    remote: tuple[RemoteClass, ...] = ()
    ray: RaySettings | None = None
    key_file: str | None = None
    tls: RemoteTls | None = None

    def __post_init__(self) -> None:
        names = [each.name for each in self.classes]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"remote: expected each name of a class once, got {name} twice")
        if sum(len(each.slots) for each in self.classes) > MAX_SLOTS:
            raise ValueError(f"remote: expected at most {MAX_SLOTS} slots in all")
        if self.local in (None, ()) and not self.classes:
            raise ValueError("expected local partitions, remote ones, or ray, got none")

    @property
    def classes(self) -> tuple[RemoteClass, ...]:
        """All classes of remote partitions."""
        return self.remote if self.ray is None else (*self.remote, RemoteClass("ray", ray=self.ray))


def is_address(text: str) -> bool:
    """Return whether a text is a host and a port."""
    host, _, port = text.rpartition(":")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return False
    return bool(host.strip("[]")) and "/" not in host and port.isascii() and port.isdecimal() and 0 < int(port) <= 65535


def check_slot_names(classes: Iterable[RemoteClass], others: Mapping[str, str]) -> None:
    """Raise ValueError for a slot that has the name of another partition; `others` maps names to what they are."""
    for name, slot in _slots(classes):
        if (what := others.get(slot)) is not None:
            raise ValueError(f"remote partitions {name}: {slot} is the name of {what} already; give the class another")


def _slots(classes: Iterable[RemoteClass]) -> Iterator[tuple[str, str]]:
    for each in classes:
        for slot in each.slots:
            yield each.name, slot


def _check_slots(what: str, count: int) -> None:
    if not 1 <= count <= MAX_SLOTS:
        raise ValueError(f"{what}: expected 1 to {MAX_SLOTS}, got {count}")
