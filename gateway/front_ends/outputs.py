"""The places of outputs in shared memory, from where front ends encode them."""

from bisect import bisect_right, insort
from typing import NamedTuple

import numpy as np

from sluice.gateway.protocol.answer import Tensor
from sluice.models.tensors.arrays import Array, WireBytes
from sluice.mps.ipc.arena import Region


class Content(NamedTuple):
    """The bytes of a tensor as an array, and the offsets of the rows of BYTES."""

    array: Array
    row_offsets: tuple[int, ...] | None


def content_of(tensor: Tensor) -> Content:
    """The contents of a tensor; a copy only if they are not contiguous."""
    if isinstance(tensor, WireBytes):
        first, end = int(tensor.row_offsets[0]), int(tensor.row_offsets[-1])
        whole = np.frombuffer(tensor.buffer, np.uint8)
        return Content(whole[first:end], tuple((tensor.row_offsets - first).tolist()))
    return Content(tensor if tensor.flags.c_contiguous else tensor.copy(), None)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class RegionIndex:
    """Finds the region in which memory lies: arrays are views on regions, so their addresses say where."""

    def __init__(self) -> None:
        self.regions: dict[int, Region] = {}
        self._begins: list[tuple[int, int, int]] = []  # (first address, one past the last, number), ascending

    def region_added(self, number: int, region: Region) -> None:
        """Take a region."""
        self.regions[number] = region
        begin = _address(np.frombuffer(region.view, np.uint8))
        insort(self._begins, (begin, begin + region.nbytes, number))

    def region_dropped(self, number: int) -> None:
        """Forget a region."""
        del self.regions[number]
        self._begins = [each for each in self._begins if each[2] != number]

    def find(self, array: Array) -> tuple[int, int] | None:
        """The region in which an array lies, and its offset there; None if it is in memory of this process alone."""
        address = _address(array)
        position = bisect_right(self._begins, (address + 1,)) - 1
        if position < 0:
            return None
        begin, end, number = self._begins[position]
        return (number, address - begin) if address + array.nbytes <= end else None
