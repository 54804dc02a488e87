"""Partitions: the shares of a machine that workers are pinned to (types only)."""

import msgspec


class CpuPartition(msgspec.Struct, frozen=True, tag="cpu", tag_field="kind", forbid_unknown_fields=True):
    """A set of CPU cores, disjoint from every other partition's."""

    name: str
    cores: tuple[int, ...]

    @property
    def profile_kind(self) -> str:
        """What latency tables are keyed by: partitions of one kind and size are equally fast."""
        return f"cpu{len(self.cores)}"


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
