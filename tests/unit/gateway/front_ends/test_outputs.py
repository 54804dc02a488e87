"""The places of outputs in shared memory."""

import numpy as np

from sluice.gateway.front_ends.outputs import RegionIndex, content_of
from sluice.models.tensors.arrays import WireBytes
from sluice.mps.ipc.arena import Region


def test_an_array_is_found_in_the_region_that_it_is_a_view_of() -> None:
    index = RegionIndex()
    regions = {number: Region.create("sluice-test", 1 << 16) for number in (3, -7, 5)}
    for number, region in regions.items():
        index.region_added(number, region)
    for number, region in regions.items():
        for offset in (0, 64, (1 << 16) - 16):
            assert index.find(np.frombuffer(region.view, np.float32, 4, offset)) == (number, offset)
    assert index.find(np.zeros(4, np.float32)) is None
    view = np.frombuffer(regions[5].view, np.float32)
    index.region_dropped(5)
    assert index.find(view) is None
    assert index.find(np.frombuffer(regions[3].view, np.uint8)) == (3, 0)


def test_contents_are_contiguous_and_in_wire_form() -> None:
    table = np.arange(6).reshape(2, 3)
    assert content_of(table.T).array.tobytes() == table.T.tobytes()
    assert content_of(table).array is table
    text = content_of(WireBytes(b"....\1\0\0\0a\2\0\0\0bc", (2, 1), np.array([4, 9, 15])))
    assert text.array.tobytes() == b"\1\0\0\0a\2\0\0\0bc"
    assert text.row_offsets == (0, 5, 11)
