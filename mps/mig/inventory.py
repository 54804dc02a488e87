"""The GPUs of a machine as a driver reports them (types only)."""

import msgspec

from sluice.mps.mig.geometry import Geometry
from sluice.mps.mig.placements import Layout, Placement


class Instance(msgspec.Struct, frozen=True):
    """A MIG instance; `users` are the processes on it, as `python (pid 4242)`.

    `uuid` is that of its MIG device, empty while it has no compute instance.
    """

    placement: Placement
    uuid: str
    users: tuple[str, ...] = ()


class Gpu(msgspec.Struct, frozen=True):
    """A GPU. `mig` is its mode, None where it has none; `users` are the processes on the GPU while it is whole.

    `geometry` is None without MIG, and where only root may see it and no table has it. `unplaced` are the UUIDs of MIG
    devices whose placements only root may see; there are no `instances` then. A GPU that is `lost`, for the reason
    given, has nothing but its index.
    """

    index: int
    uuid: str
    name: str
    memory_mib: int
    mig: bool | None
    geometry: Geometry | None = None
    instances: tuple[Instance, ...] = ()
    users: tuple[str, ...] = ()
    unplaced: tuple[str, ...] = ()
    lost: str = ""

    @property
    def layout(self) -> Layout:
        """The placements of its instances."""
        return frozenset(each.placement for each in self.instances)

    @property
    def present(self) -> dict[Placement, tuple[str, ...]]:
        """The users of each instance."""
        return {each.placement: each.users for each in self.instances}

    @property
    def unusable(self) -> Layout:
        """The instances without a compute instance."""
        return frozenset(each.placement for each in self.instances if not each.uuid)

    def is_named(self, device: int | str) -> bool:
        """Return whether `device` is its index, or its UUID or the beginning of it, with or without the prefix."""
        if isinstance(device, int):
            return device == self.index
        return bool(device) and (self.uuid.startswith(device) or self.uuid.removeprefix("GPU-").startswith(device))
