"""Encodings of bodies, in bounded memory."""

import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import pytest

from sluice.gateway.front_door.decompression import DecompressedTooLarge, decompress
from sluice.gateway.http.compression import UnsupportedEncoding, accepted_encoding, compress, is_encoded
from sluice.models.errors import RequestError


@pytest.mark.parametrize(
    ("value", "encoded"), [(b"gzip", True), (b" Deflate", True), (b"identity", False), (b"", False)]
)
def test_known_encodings(value: bytes, encoded: bool) -> None:
    assert is_encoded(value) is encoded


@pytest.mark.parametrize("value", [b"br", b"gzip, gzip", b"zstd", b"\xff"])
def test_other_encodings_are_unsupported(value: bytes) -> None:
    with pytest.raises(UnsupportedEncoding, match="is not supported; expected gzip, deflate or none"):
        is_encoded(value)


@pytest.mark.parametrize(
    ("value", "encoding"),
    [
        (b"", b""),
        (b"gzip", b"gzip"),
        (b"gzip, deflate, br", b"gzip"),
        (b"deflate, gzip", b"deflate"),
        (b"br, GZIP ; q=0.5, deflate;q=0.8", b"deflate"),
        (b"gzip;q=0, identity", b""),
        (b"gzip;q=.., deflate;q=-1, ;;;,", b""),
        (b"*", b""),
    ],
)
def test_the_response_has_the_encoding_of_the_greatest_weight(value: bytes, encoding: bytes) -> None:
    assert accepted_encoding(value) == encoding


@pytest.mark.parametrize(("encoding", "decode"), [(b"gzip", gzip.decompress), (b"deflate", zlib.decompress)])
def test_what_is_compressed_comes_back(encoding: bytes, decode: Callable[[bytes], bytes]) -> None:
    body = compress(encoding, b"a" * 1000)
    assert decode(body) == b"a" * 1000
    assert decompress(body, 1000) == b"a" * 1000


@pytest.mark.parametrize("more", [1, 100_000])
def test_data_after_the_end_of_a_large_body_ends_its_decompression(more: int) -> None:
    """The rest of the input that zlib reports stays the same after the end, and must not be fed to it again."""
    with pytest.raises(RequestError, match="there is data after its end"):
        decompress(gzip.compress(bytes(300_000)) + bytes(more), 1_000_000)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "it is truncated"),
        (gzip.compress(b"a" * 100, mtime=0)[:-1], "it is truncated"),
        (gzip.compress(b"a", mtime=0) + b"b", "there is data after its end"),
        (gzip.compress(b"a", mtime=0) * 2, "there is data after its end"),
        (b"no gzip", "cannot be decompressed: Error"),
        (gzip.compress(b"a" * 1001, mtime=0), "the decompressed body exceeds the limit of 1000 bytes"),
    ],
)
def test_bad_bodies_are_refused(body: bytes, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        decompress(body, 1000)


def test_a_bomb_takes_no_more_memory_than_the_limit() -> None:
    limit = 1 << 20
    bomb = zlib.compress(bytes(200 << 20), 9)
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="the decompressed body exceeds the limit of 1048576 bytes"):
            decompress(bomb, limit)
        assert tracemalloc.get_traced_memory()[1] < 4 * limit
    finally:
        tracemalloc.stop()


def test_an_error_that_is_kept_keeps_nothing_of_what_was_decoded() -> None:
    body = gzip.compress(bytes(20_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(DecompressedTooLarge) as kept:
            decompress(body, 10_000_000)
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    assert kept.value.__traceback__ is not None
