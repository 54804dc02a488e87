"""Memory shared between processes: a region is an anonymous file that all map, an arena allocates blocks of it."""

import fcntl
import mmap
import os

from sluice.models.errors import PartitionError

MIN_BLOCK_BYTES = 4096

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_EMPTY = memoryview(b"")


class Region:
    """A mapped memory file of fixed size; it disappears with the last process that has it.

    `fd` stays open until `close`, so that the region can be handed on. `view` is the writable memory.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self.view = memoryview(mmap.mmap(fd, nbytes))

    @classmethod
    def create(cls, name: str, nbytes: int) -> "Region":
        """Make a region of zeros, with its size sealed: it cannot shrink under a reader. `name` shows in /proc."""
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            return cls(fd, nbytes)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int, nbytes: int) -> "Region":
        """Map a region made elsewhere; owns `fd` from now on, also when it raises PartitionError."""
        try:
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise PartitionError("shared region: its size is not sealed")
            return cls(fd, nbytes)
        except (OSError, ValueError) as error:
            os.close(fd)
            raise PartitionError(f"shared region: cannot map {nbytes} bytes: {error}") from None
        except PartitionError:
            os.close(fd)
            raise

    def close(self) -> None:
        """Close the region; its memory is unmapped when the last view of it is gone."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            # The mapping is not unmapped explicitly: it lives exactly as long as views of it do.
            self.view = _EMPTY


class Arena:
    """A binary buddy allocator over `nbytes` bytes: blocks are powers of two, at least 4 KiB, aligned to their size.

    Knuth, TAOCP vol. 1, §2.5. Two deviations: a size that is no power of two is covered by several trees, and of each
    block size the block freed last is kept unmerged, since the next batch mostly needs the same size. Freed blocks are
    reused last in, first out, and splitting keeps the lower half: a lightly used arena touches few pages.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes = nbytes - nbytes % MIN_BLOCK_BYTES
        self.used_bytes = 0
        # By order (log2 of the size): offsets of free blocks. A dict is a stack from which any entry can be deleted.
        self._free: list[dict[int, None]] = [{} for _ in range(nbytes.bit_length())]
        # By order: the block that was freed last, if it is not merged yet.
        self._unmerged: dict[int, int] = {}
        self._orders: dict[int, int] = {}
        offset = 0
        while offset < nbytes:
            order = (nbytes - offset).bit_length() - 1
            self._free[order][offset] = None
            offset += 1 << order

    def allocate(self, nbytes: int) -> int | None:
        """Return the offset of a block of at least `nbytes` bytes, None when no free block is that large; O(log n)."""
        order = (max(nbytes, MIN_BLOCK_BYTES) - 1).bit_length()
        offset = self._unmerged.pop(order, None)
        if offset is None:
            offset = self._split_for(order)
        if offset is None and self._unmerged:
            for size, free_offset in self._unmerged.items():
                self._merge(free_offset, size)
            self._unmerged.clear()
            offset = self._split_for(order)
        if offset is not None:
            self._orders[offset] = order
            self.used_bytes += 1 << order
        return offset

    def free(self, offset: int) -> None:
        """Free a block; raises PartitionError for an offset that is not allocated. O(log n)."""
        order = self._orders.pop(offset, None)
        if order is None:
            raise PartitionError(f"arena: offset {offset} is not allocated")
        self.used_bytes -= 1 << order
        before = self._unmerged.get(order)
        self._unmerged[order] = offset
        if before is not None:
            self._merge(before, order)

    def _split_for(self, wanted: int) -> int | None:
        order = next((order for order in range(wanted, len(self._free)) if self._free[order]), None)
        if order is None:
            return None
        offset, _ = self._free[order].popitem()
        while order > wanted:
            order -= 1
            self._free[order][offset + (1 << order)] = None
        return offset

    def _merge(self, offset: int, order: int) -> None:
        while (buddy := offset ^ (1 << order)) in self._free[order]:
            del self._free[order][buddy]
            offset = min(offset, buddy)
            order += 1
        self._free[order][offset] = None
