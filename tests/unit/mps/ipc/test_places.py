"""Outputs that a worker reports lie in its own memory, whole."""

from typing import Any

import msgspec
import pytest

from sluice.models.errors import PartitionError
from sluice.models.tensors.spec import DataType
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.messages import BatchFinished, OutputTensor, ResponseSent
from sluice.mps.ipc.places import check_places

OUTPUT_REGION, OVERFLOW, INPUTS = 2, -5, 1
OUTPUT = OutputTensor("y", DataType.FP32, (2, 3), OUTPUT_REGION, 8168, 24)
WORDS = OutputTensor("y", DataType.BYTES, (2, 1), OUTPUT_REGION, 0, 10, (0, 5, 10))


def check(output: OutputTensor, slot: int = 0, overflow: int | None = None, **changed: Any) -> str:
    """Check an answer with one output; returns the reason why it is refused."""
    regions = {number: Region.create("test", 8192) for number in (INPUTS, OUTPUT_REGION, OVERFLOW)}
    answer = BatchFinished(7, 0, 1, (msgspec.structs.replace(output, **changed),), slot)
    try:
        check_places(answer, regions, OUTPUT_REGION, overflow)
    except PartitionError as error:
        return str(error)
    finally:
        for region in regions.values():
            region.close()
    return ""


def test_outputs_in_the_output_region_or_in_a_new_overflow_region_are_taken() -> None:
    assert check(OUTPUT) == check(WORDS) == ""
    assert check(OUTPUT, -1, OVERFLOW, region=OVERFLOW) == ""
    assert check(OUTPUT, shape=(0, 3), nbytes=0) == ""


@pytest.mark.parametrize(
    ("slot", "overflow", "region", "expected"),
    [
        (0, None, INPUTS, OUTPUT_REGION),
        (0, None, 99, OUTPUT_REGION),
        (0, OVERFLOW, OVERFLOW, OUTPUT_REGION),
        (-1, None, INPUTS, None),
        (-1, None, OVERFLOW, None),
        (-1, OVERFLOW, OUTPUT_REGION, OVERFLOW),
    ],
)
def test_no_other_region_is_taken(slot: int, overflow: int | None, region: int, expected: int | None) -> None:
    reason = f"batch 7: output y is in region {region}, expected {expected}"
    assert check(OUTPUT, slot, overflow, region=region) == reason


def test_a_worker_that_is_not_ready_has_no_region() -> None:
    with pytest.raises(PartitionError, match="batch 7: output y is in region 2, which is not shared yet"):
        check_places(BatchFinished(7, 0, 1, (OUTPUT,), 0), {}, OUTPUT_REGION, None)


def test_a_region_is_not_made_for_no_outputs() -> None:
    check_places(BatchFinished(7, 0, 1, (), 0), {}, OUTPUT_REGION, None)
    check_places(ResponseSent(7, (), -1, is_final=True), {}, OUTPUT_REGION, None)
    with pytest.raises(PartitionError, match="batch 7 has no outputs in region -5, which was made for them"):
        check_places(ResponseSent(7, (), -1), {}, OUTPUT_REGION, -5)


@pytest.mark.parametrize("offset", [-4, 8169, 1 << 60])
def test_outputs_beyond_the_region_are_refused(offset: int) -> None:
    reason = f"batch 7: output y has 24 bytes from {offset} on, expected to be within 8192 bytes"
    assert check(OUTPUT, offset=offset) == reason


@pytest.mark.parametrize(
    ("output", "changed"),
    [
        (OUTPUT, {"shape": (2, 2)}),
        (OUTPUT, {"shape": (-2, -3)}),
        (OUTPUT, {"datatype": DataType.FP64}),
        (OUTPUT, {"row_offsets": (0, 12, 24)}),
        (WORDS, {"row_offsets": None}),
        (WORDS, {"row_offsets": ()}),
        (WORDS, {"row_offsets": (0, 5, 11)}),
        (WORDS, {"row_offsets": (-1, 5, 10)}),
        (WORDS, {"row_offsets": (5, 0, 10)}),
    ],
)
def test_outputs_whose_size_is_not_that_of_their_shape_are_refused(
    output: OutputTensor, changed: dict[str, Any]
) -> None:
    assert check(output, **changed).startswith(f"batch 7: output y has {output.nbytes} bytes, which do not make up ")
