"""Shared memory for the inputs of batches, which workers read."""

from typing import Protocol

from sluice.batcher.scheduler.memory_shares import MemoryShares
from sluice.gateway.tensors.body_memory import ArenaPart
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


class InputSlot:
    """Memory at `offset` of region `region`, whose bytes are `view`, for a batch of `model`.

    It is `own` if the region was created for this slot.
    """

    __slots__ = ("model", "offset", "own", "region", "view")

    def __init__(self, region: int, offset: int, view: memoryview, model: str, own: bool) -> None:
        self.region = region
        self.offset = offset
        self.view = view
        self.model = model
        self.own = own


class InputSlots:
    """An arena of `nbytes` bytes. A slot that does not fit gets its own region.

    These regions take up to `nbytes` bytes for all models, and as much again is kept for them in equal parts. A model
    whose batches fill all the rest therefore leaves room for the batches of the others.
    """

    def __init__(self, regions: SharedRegions, nbytes: int) -> None:
        self._regions = regions
        self._arena = Arena(nbytes)
        self._parts = 0
        region = Region.create("sluice-inputs", nbytes)
        self._view = region.view
        self._number = regions.share_region(region)
        self._spare = MemoryShares(2 * nbytes)

    @property
    def used_bytes(self) -> int:
        """Bytes of the arena in use."""
        return self._arena.used_bytes - self._parts

    def take_part(self, nbytes: int) -> ArenaPart | None:
        """Take a part of the arena for good; None without room. It does not count in `used_bytes`."""
        offset = self._arena.allocate(nbytes)
        if offset is None:
            return None
        self._parts += nbytes
        return ArenaPart(self._number, offset, self._view[offset : offset + nbytes])

    def join(self, models: int) -> None:
        """Keep a part for that many more models."""
        self._spare.join(models)

    def leave(self, models: int) -> None:
        """Keep no part any more for that many models."""
        self._spare.leave(models)

    def allocate(self, model: str, nbytes: int) -> InputSlot:
        """A slot for a batch, of at least `nbytes` bytes, aligned to a cache line.

        Raises PartitionError if memory is short.
        """
        offset = self._arena.allocate(nbytes)
        if offset is not None:
            return InputSlot(self._number, offset, self._view, model, own=False)
        if self._spare.refusal(model, nbytes) is not None:
            raise PartitionError(
                f"a batch needs {nbytes} bytes for its inputs; of the arena's {self._arena.nbytes} bytes "
                f"{self._arena.used_bytes} are in use, and {self._spare.available(model)} may be added for its model"
            )
        try:
            region = Region.create("sluice-inputs-large", nbytes)
        except OSError as error:
            raise PartitionError(f"no memory can be shared for the {nbytes} bytes of a batch: {error}") from error
        self._spare.take(model, nbytes)
        return InputSlot(self._regions.share_region(region), 0, region.view, model, own=True)

    def free(self, slot: InputSlot) -> None:
        """Free a slot."""
        if not slot.own:
            self._arena.free(slot.offset)
        else:
            self._spare.give_back(slot.model, slot.view.nbytes)
            self._regions.drop_region(slot.region)
