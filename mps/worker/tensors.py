"""A worker's side of the shared regions: inputs as arrays over them, outputs into slots of its own region."""

import itertools

import numpy as np
import numpy.typing as npt

from sluice.models.errors import PartitionError
from sluice.models.tensors.arrays import Array, datatype_of, decode_bytes, encode_bytes, numpy_dtype
from sluice.models.tensors.spec import DataType
from sluice.mps.ipc.arena import Arena, Region
from sluice.mps.ipc.messages import InputTensor, OutputTensor

ALIGNMENT = 64
OVERFLOW_LIMIT = 64
"""Overflow regions that may exist at once before a batch whose outputs do not fit fails."""

Bytes = npt.NDArray[np.uint8]


class WorkerTensors:
    """The regions that this worker has mapped, and the arena of its output region, numbered `output_region`."""

    def __init__(self, output_region: int, output_bytes: int) -> None:
        self.output = Region.create(f"sluice-out-{output_region}", output_bytes)
        self._output_region = output_region
        self._arena = Arena(output_bytes)
        self._regions: dict[int, Region] = {output_region: self.output}
        self._bytes: dict[int, Bytes] = {output_region: np.frombuffer(self.output.view, np.uint8)}
        self._scratch: dict[str, Bytes] = {}
        self._overflows = itertools.count(1)

    def map(self, number: int, region: Region) -> None:
        """Register a region under its number; the worker owns it from now on."""
        self._regions[number] = region
        self._bytes[number] = np.frombuffer(region.view, np.uint8)

    def unmap(self, number: int) -> None:
        """Unmap a region; unknown numbers are ignored."""
        self._bytes.pop(number, None)
        if region := self._regions.pop(number, None):
            region.close()

    def free(self, slot: int) -> None:
        """Free a slot of the output region."""
        self._arena.free(slot)

    def read(self, tensor: InputTensor) -> Array:
        """Return the tensor as an array: a view if it is one segment, else a copy; BYTES are decoded.

        It is valid until the next `read` of an input of that name.
        """
        if tensor.datatype is DataType.BYTES:
            return decode_bytes(self._joined(tensor).data, tensor.shape, tensor.name)
        return self._joined(tensor).view(numpy_dtype(tensor.datatype)).reshape(tensor.shape)

    def write(self, outputs: dict[str, Array], batchable: bool) -> tuple[tuple[OutputTensor, ...], int, Region | None]:
        """Copy outputs into one slot; returns the outputs, the slot, and a new region with slot -1 if no slot was free.

        The overflow region stays mapped here until `unmap`. Raises PartitionError when there are too many of them.
        """
        # (name, datatype, shape, data, row offsets) of each output, and its offset from the slot's start.
        pieces: list[tuple[str, DataType, tuple[int, ...], Bytes, tuple[int, ...] | None]] = []
        starts: list[int] = []
        end = 0
        for name, array in outputs.items():
            datatype = datatype_of(array.dtype)
            row_offsets: tuple[int, ...] | None = None
            if datatype is DataType.BYTES:
                wire, ends = encode_bytes(array, None if batchable else 1)
                data, row_offsets = np.frombuffer(wire, np.uint8), tuple(ends.tolist())
            else:
                data = array.ravel().view(np.uint8)
            start = -(-end // ALIGNMENT) * ALIGNMENT
            pieces.append((name, datatype, array.shape, data, row_offsets))
            starts.append(start)
            end = start + data.size
        number, slot, overflow = self._place(end)
        base, memory = max(slot, 0), self._bytes[number]
        written: list[OutputTensor] = []
        for start, (name, datatype, shape, data, row_offsets) in zip(starts, pieces, strict=True):
            offset = base + start
            memory[offset : offset + data.size] = data
            written.append(OutputTensor(name, datatype, shape, number, offset, data.size, row_offsets))
        return tuple(written), slot, overflow

    def _place(self, nbytes: int) -> tuple[int, int, Region | None]:
        """Region number, slot and, where there is no room, the overflow region made for it."""
        slot = self._arena.allocate(nbytes)
        if slot is not None:
            return self._output_region, slot, None
        if sum(number < 0 for number in self._regions) >= OVERFLOW_LIMIT:
            raise PartitionError(f"no room for {nbytes} bytes of outputs: {OVERFLOW_LIMIT} overflow regions are in use")
        # The output region's number is never used twice, so neither is its combination with a counter.
        number = -((self._output_region << 32) + next(self._overflows))
        overflow = Region.create(f"sluice-overflow-{self._output_region}", nbytes)
        self.map(number, overflow)
        return number, -1, overflow

    def _joined(self, tensor: InputTensor) -> Bytes:
        parts: list[Bytes] = []
        for segment in tensor.segments:
            memory = self._bytes.get(segment.region)
            if memory is None:
                raise PartitionError(f"input {tensor.name}: region {segment.region} is not mapped here")
            parts.append(memory[segment.offset : segment.offset + segment.nbytes])
        if len(parts) == 1:
            return parts[0]
        nbytes = sum(part.size for part in parts)
        scratch = self._scratch.get(tensor.name)
        if scratch is None or scratch.size < nbytes:
            scratch = self._scratch[tensor.name] = np.empty(1 << max(nbytes - 1, 0).bit_length(), np.uint8)
        return np.concatenate(parts, out=scratch[:nbytes]) if parts else scratch[:0]
