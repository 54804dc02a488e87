"""Partitions: the shares of a machine that workers are pinned to (types only)."""

import math

import msgspec


class CpuPartition(msgspec.Struct, frozen=True, tag="cpu", tag_field="kind", forbid_unknown_fields=True):
    """A set of CPU cores, disjoint from every other partition's.

    `slowdown` makes every batch take that many times as long (>= 1), to try unequal partitions where all cores are
    equal. `price` is what an hour of it costs (None: by its share of the machine). `memory_mb` bounds the models that
    it holds at a time, in MiB (None: no bound).
    """

    name: str
    cores: tuple[int, ...]
    slowdown: float = 1.0
    price: float | None = None
    memory_mb: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.slowdown < math.inf:
            raise ValueError(f"partition {self.name}: expected a finite slowdown of at least 1, got {self.slowdown:g}")
        if self.price is not None and not 0 <= self.price < math.inf:
            raise ValueError(f"partition {self.name}: expected a finite price of at least 0, got {self.price:g}")
        if self.memory_mb is not None and not 0 < self.memory_mb < math.inf:
            raise ValueError(f"partition {self.name}: expected a finite memory_mb above 0, got {self.memory_mb:g}")

    @property
    def profile_kind(self) -> str:
        """What latency tables are keyed by: partitions of one kind, size and slowdown are equally fast."""
        kind = f"cpu{len(self.cores)}"
        return kind if self.slowdown == 1 else f"{kind}/x{self.slowdown:g}"


class MigPartition(msgspec.Struct, frozen=True, tag="mig", tag_field="kind", forbid_unknown_fields=True):
    """A MIG instance, named by its UUID (`MIG-…`)."""

    name: str
    uuid: str
    profile: str

    @property
    def profile_kind(self) -> str:
        """What latency tables are keyed by."""
        return f"mig-{self.profile}"


class MpsPartition(msgspec.Struct, frozen=True, tag="mps", tag_field="kind", forbid_unknown_fields=True):
    """A share of a GPU's multiprocessors under MPS, with a memory limit."""

    name: str
    uuid: str
    share_percent: int
    memory_bytes: int

    @property
    def profile_kind(self) -> str:
        """What latency tables are keyed by."""
        return f"mps-{self.share_percent}"


Partition = CpuPartition | MigPartition | MpsPartition
