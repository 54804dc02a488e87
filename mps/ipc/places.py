"""Checks that the outputs of an answer lie in memory that the worker may use for them."""

import math
from collections.abc import Mapping

from sluice.models.errors import PartitionError
from sluice.models.tensors.arrays import numpy_dtype
from sluice.models.tensors.spec import DataType
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.messages import BatchFinished, OutputTensor, ResponseSent


def check_places(
    answer: BatchFinished | ResponseSent, regions: Mapping[int, Region], output_region: int, overflow: int | None
) -> None:
    """Raise PartitionError unless all outputs are within the output region or, without a slot, in `overflow`.

    `overflow` is the region that the worker announced for this answer. O(rows) for BYTES, else O(outputs).
    """
    number = output_region if answer.slot >= 0 else overflow
    if answer.slot < 0 and not answer.outputs and overflow is not None:
        raise PartitionError(f"batch {answer.batch} has no outputs in region {overflow}, which was made for them")
    for output in answer.outputs:
        where = f"batch {answer.batch}: output {output.name}"
        if output.region != number:
            raise PartitionError(f"{where} is in region {output.region}, expected {number}")
        if output.region not in regions:
            raise PartitionError(f"{where} is in region {output.region}, which is not shared yet")
        room = regions[output.region].nbytes
        if not 0 <= output.offset <= output.offset + output.nbytes <= room:
            raise PartitionError(
                f"{where} has {output.nbytes} bytes from {output.offset} on, expected to be within {room} bytes"
            )
        if not is_whole(output):
            raise PartitionError(
                f"{where} has {output.nbytes} bytes, which do not make up {output.datatype} of the shape "
                f"{list(output.shape)}"
            )


def is_whole(output: OutputTensor) -> bool:
    """True if the bytes of a tensor make up its shape. O(rows) for BYTES, else O(1)."""
    if min(output.shape, default=0) < 0:
        return False
    offsets = output.row_offsets
    if output.datatype is not DataType.BYTES:
        return offsets is None and output.nbytes == math.prod(output.shape) * numpy_dtype(output.datatype).itemsize
    if not offsets:
        return False
    return 0 <= offsets[0] <= offsets[-1] <= output.nbytes and list(offsets) == sorted(offsets)
