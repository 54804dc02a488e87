"""Shared memory for the inputs of batches, which workers read."""

from typing import NamedTuple, Protocol

from sluice.models.errors import PartitionError
from sluice.mps.ipc.arena import Arena, Region


class SharedRegions(Protocol):
    """Shares memory regions with all workers (a `sluice.mps.supervisor.supervisor.Supervisor`)."""

    def share_region(self, region: Region) -> int:
        """Take ownership of a region, map it in every worker, and return its number."""
        ...

    def drop_region(self, number: int) -> None:
        """Unmap a region everywhere."""
        ...


class InputSlot(NamedTuple):
    """Memory at `offset` of region `region`, whose bytes are `view`; `own` if the region was created for this slot."""

    region: int
    offset: int
    view: memoryview
    own: bool


class InputSlots:
    """An arena of `nbytes` bytes. A slot that does not fit gets its own region, up to `nbytes` bytes in total."""

    def __init__(self, regions: SharedRegions, nbytes: int) -> None:
        self._regions = regions
        self._arena = Arena(nbytes)
        region = Region.create("sluice-inputs", nbytes)
        self._view = region.view
        self._number = regions.share_region(region)
        self._spare_bytes = nbytes

    @property
    def used_bytes(self) -> int:
        """Bytes of the arena in use."""
        return self._arena.used_bytes

    def allocate(self, nbytes: int) -> InputSlot:
        """A slot of at least `nbytes` bytes, aligned to a cache line; raises PartitionError if memory is short."""
        offset = self._arena.allocate(nbytes)
        if offset is not None:
            return InputSlot(self._number, offset, self._view, own=False)
        if nbytes > self._spare_bytes:
            raise PartitionError(
                f"a batch needs {nbytes} bytes for its inputs; of the arena's {self._arena.nbytes} bytes "
                f"{self._arena.used_bytes} are in use, and {self._spare_bytes} may be added"
            )
        try:
            region = Region.create("sluice-inputs-large", nbytes)
        except OSError as error:
            raise PartitionError(f"no memory can be shared for the {nbytes} bytes of a batch: {error}") from error
        self._spare_bytes -= nbytes
        return InputSlot(self._regions.share_region(region), 0, region.view, own=True)

    def free(self, slot: InputSlot) -> None:
        """Free a slot."""
        if not slot.own:
            self._arena.free(slot.offset)
        else:
            self._spare_bytes += slot.view.nbytes
            self._regions.drop_region(slot.region)
