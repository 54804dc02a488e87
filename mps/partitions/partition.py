"""Partitions: the parts of a machine that workers are bound to (types only)."""

import enum
import math
import re

import msgspec

from sluice.models.profiles.partition_kind import with_host_cores
from sluice.mps.mig.geometry import share_of_gpu

LEAST_HARD_MEMORY_MB = 96
"""Memory of a worker without models, with some margin; with less its libraries do not even load."""

GIVEN = "auto"
"""Stands for the only device that the process was given, or for the MPS daemon that it was given."""

_MIB = 1 << 20
_PROFILE = re.compile(r"[1-7]g([.+].+)?")


class ShareMode(enum.StrEnum):
    """The kind of a share under MPS.

    `hard` is a cap; `elastic` is a guarantee that may be exceeded while others are idle; `uncapped` is neither;
    `static` is a set of multiprocessors of its own.
    """

    HARD = "hard"
    ELASTIC = "elastic"
    UNCAPPED = "uncapped"
    STATIC = "static"


class CpuPartition(msgspec.Struct, frozen=True, tag="cpu", tag_field="kind", forbid_unknown_fields=True):
    """A set of CPU cores, disjoint from every other partition's.

    `slowdown` makes every batch take that many times as long (>= 1), to try unequal partitions where all cores are
    equal. `price` is the cost of an hour (None: by its part of the machine). `memory_mb` limits the models that it
    holds at a time, in MiB (None: no limit), and is used for placement; `hard_memory_mb` is enforced by the kernel: the
    worker, and each process that its models start, gets no more data than that.
    """

    name: str
    cores: tuple[int, ...]
    slowdown: float = 1.0
    price: float | None = None
    memory_mb: float | None = None
    hard_memory_mb: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.slowdown < math.inf:
            raise ValueError(f"partition {self.name}: expected a finite slowdown of at least 1, got {self.slowdown:g}")
        _check(self.name, self.price, memory_mb=self.memory_mb, hard_memory_mb=self.hard_memory_mb)
        if self.hard_memory_mb is None:
            return
        if self.hard_memory_mb < LEAST_HARD_MEMORY_MB:
            raise ValueError(
                f"partition {self.name}: expected a hard_memory_mb of at least {LEAST_HARD_MEMORY_MB}, which a worker "
                f"needs for itself, got {self.hard_memory_mb:g}"
            )
        if self.memory_mb is not None and self.memory_mb > self.hard_memory_mb:
            raise ValueError(
                f"partition {self.name}: expected a memory_mb of at most hard_memory_mb, "
                f"got {self.memory_mb:g} and {self.hard_memory_mb:g}"
            )

    @property
    def profile_kind(self) -> str:
        """The key of latency tables: partitions of the same size and slowdown are equally fast."""
        kind = f"cpu{len(self.cores)}"
        return kind if self.slowdown == 1 else f"{kind}/x{self.slowdown:g}"

    @property
    def hard_memory_bytes(self) -> int | None:
        """The enforced limit in bytes; None without one."""
        return None if self.hard_memory_mb is None else round(self.hard_memory_mb * _MIB)


class MigPartition(msgspec.Struct, frozen=True, tag="mig", tag_field="kind", forbid_unknown_fields=True):
    """A MIG instance, named by its UUID (`MIG-…`), of a profile such as `2g.20gb`.

    `price` is as for cores. `memory_mb` limits the models that it holds, and the memory that ONNX Runtime keeps for
    each. `cores` are those of the worker's own threads (none: all cores), which it may share with others; their number
    is part of its kind.
    """

    name: str
    uuid: str
    profile: str
    price: float | None = None
    memory_mb: float | None = None
    cores: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_profile(self.name, self.profile)
        _check(self.name, self.price, memory_mb=self.memory_mb)

    @property
    def profile_kind(self) -> str:
        """The key of latency tables."""
        return with_host_cores(f"mig-{self.profile}", len(self.cores))

    @property
    def gpu_share(self) -> float:
        """Its part of the whole GPU."""
        return share_of_gpu(self.profile)

    @property
    def memory_bytes(self) -> int:
        """The limit in bytes; 0 without one."""
        return 0 if self.memory_mb is None else round(self.memory_mb * _MIB)


class MpsPartition(msgspec.Struct, frozen=True, tag="mps", tag_field="kind", forbid_unknown_fields=True):
    """A share of the multiprocessors of a GPU, or of a MIG instance of the `profile`, under MPS.

    `memory_mb` is all device memory that its worker may take (None: no limit), and limits the models that it holds.
    A `uuid` of `auto` is that of the only device that the server was given; the profile follows from it.
    Only a `hard` share is a cap, and a `static` one, whose multiprocessors no other process uses; an `uncapped` share
    is not guaranteed either, but counts in full for its price. `price` and `cores` are as for a MIG instance. `pipes`
    is the pipe directory of a daemon that belongs to another program (`auto`: that of the environment, "": the server
    has a daemon of its own).
    """

    name: str
    uuid: str
    share_percent: int
    memory_mb: float | None = None
    mode: ShareMode = ShareMode.HARD
    price: float | None = None
    cores: tuple[int, ...] = ()
    profile: str = ""
    pipes: str = ""

    def __post_init__(self) -> None:
        if self.profile:
            _check_profile(self.name, self.profile)
        if self.pipes and self.mode is not ShareMode.HARD:
            raise ValueError(
                f"partition {self.name}: expected the mode hard beside pipes, since the daemon sets the limits, "
                f"got {self.mode}"
            )
        if self.pipes and self.pipes != GIVEN and not self.pipes.startswith("/"):
            raise ValueError(f"partition {self.name}: expected an absolute path in pipes, or auto, got '{self.pipes}'")
        if not 1 <= self.share_percent <= 100:
            raise ValueError(f"partition {self.name}: expected a share_percent from 1 to 100, got {self.share_percent}")
        _check(self.name, self.price, memory_mb=self.memory_mb)
        if self.memory_mb is not None and self.memory_mb < 1:
            raise ValueError(f"partition {self.name}: expected a memory_mb of at least 1, got {self.memory_mb:g}")

    @property
    def profile_kind(self) -> str:
        """The key of latency tables; an elastic share is as fast as a hard one while others are busy."""
        kind = "mps-100" if self.mode is ShareMode.UNCAPPED else f"mps-{self.share_percent}"
        return with_host_cores(f"{kind}/{self.profile}" if self.profile else kind, len(self.cores))

    @property
    def gpu_share(self) -> float:
        """Its part of the whole GPU."""
        return self.share_percent / 100 * (share_of_gpu(self.profile) if self.profile else 1)

    @property
    def memory_bytes(self) -> int:
        """The limit in bytes; 0 without one."""
        return 0 if self.memory_mb is None else round(self.memory_mb * _MIB)

    @property
    def cap_percent(self) -> int:
        """The largest part of all multiprocessors that it can use."""
        return self.share_percent if self.mode in (ShareMode.HARD, ShareMode.STATIC) else 100

    @property
    def guaranteed_percent(self) -> int:
        """The part that it can always use."""
        return 0 if self.mode is ShareMode.UNCAPPED else self.share_percent


Partition = CpuPartition | MigPartition | MpsPartition
GpuPartition = MigPartition | MpsPartition


def _check_profile(name: str, profile: str) -> None:
    if not _PROFILE.fullmatch(profile):
        raise ValueError(f"partition {name}: expected a profile such as 2g or 2g.20gb, got '{profile}'")


def _check(name: str, price: float | None, **sizes: float | None) -> None:
    if price is not None and not 0 <= price < math.inf:
        raise ValueError(f"partition {name}: expected a finite price of at least 0, got {price:g}")
    for field, size in sizes.items():
        if size is not None and not 0 < size < math.inf:
            raise ValueError(f"partition {name}: expected a finite {field} above 0, got {size:g}")
