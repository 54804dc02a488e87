"""Header blocks that the server encodes."""

import hpack
import pytest

from sluice.gateway.http2.header_blocks import encode_fields


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 300, 16_510, 100_000])
def test_fields_of_any_length_are_read_back(size: int) -> None:
    fields = [(b"a", b"v" * size), (b"n" * max(size, 1), b"")]
    decoder = hpack.Decoder(1 << 20)
    assert [tuple(each) for each in decoder.decode(encode_fields(fields), raw=True)] == fields
    assert not decoder.header_table.dynamic_entries
