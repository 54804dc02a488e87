"""The framing of messages and tensors."""

import msgspec
import numpy as np
import pytest

from sluice.gateway.worker_protocol.address import join_address, split_address
from sluice.gateway.worker_protocol.framing import (
    MessageDecoder,
    check_tensors,
    head_of,
    offsets_of,
    read_tensor,
    views_of,
)
from sluice.gateway.worker_protocol.messages import (
    FromGateway,
    FromWorkerServer,
    Ping,
    RemoteRun,
    SessionTensor,
    Withdraw,
)
from sluice.models.errors import BadTensor, PartitionError
from sluice.models.tensors.arrays import WireBytes
from sluice.models.tensors.spec import DataType

X = SessionTensor("x", DataType.FP32, (2, 3), 24)
decode = MessageDecoder(FromGateway).decode


@pytest.mark.parametrize(
    ("message", "encoded"),
    [
        (Ping(1, 5), b"\x08\0\0\0\x93\xa4Ping\x01\x05"),
        (Withdraw(300), b"\x0d\0\0\0\x92\xa8Withdraw\xcd\x01\x2c"),
        (RemoteRun(7, "m:1", (X,)), b"\x1a\0\0\0\x97\xa3Run\x07\xa3m:1\x91\x94\xa1x\xa4FP32\x92\x02\x03\x18\0\x90\x90"),
    ],
)
def test_messages_have_these_bytes(message: msgspec.Struct, encoded: bytes) -> None:
    assert head_of(message) == encoded
    assert decode(encoded[4:]) == message


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (b"", "Input data was truncated"),
        (b"\x91\xa7Goodbye", "Invalid value 'Goodbye'"),
        (b"\x93\xa4Ping\xa1a\x05", "Expected `int`, got `str` - at `$[1]`"),
        (b"\x92\xa4Ping\x01", "Expected `array` of at least length 3, got 2"),
        (b"\x97\xa3Run\x07\xa3m:1\x91\x94\xa1x\xa4FP33\x92\x02\x03\x18\0\x90\x90", "Invalid enum value 'FP33'"),
    ],
)
def test_what_is_no_message_is_refused_with_its_place(encoded: bytes, reason: str) -> None:
    with pytest.raises(PartitionError) as refused:
        decode(encoded)
    assert str(refused.value).startswith("a message cannot be read: ")
    assert reason in str(refused.value)


def test_a_latency_table_that_is_none_is_refused() -> None:
    encoded = msgspec.msgpack.encode(["Loaded", ["m:1", {"cells": [[1, -1]]}]])
    with pytest.raises(PartitionError, match="a message cannot be read: latency table: expected latencies above 0"):
        MessageDecoder(FromWorkerServer).decode(encoded)


def test_a_message_that_is_too_large_is_not_sent() -> None:
    with pytest.raises(PartitionError, match="a Run has 16777231 bytes, expected at most 16777216"):
        head_of(RemoteRun(1, "m" * (16 << 20), ()))


def test_tensors_begin_at_multiples_of_64() -> None:
    tensors = [X, SessionTensor("n", DataType.INT64, (8,), 64), SessionTensor("z", DataType.INT8, (0,), 0), X]
    assert offsets_of(tensors) == [0, 64, 128, 128, 152]
    assert check_tensors(tensors[:3], 1000) == 128
    body = memoryview(bytes(range(152)))
    assert [bytes(view[:1]) for view in views_of(tensors, body)] == [b"\0", b"\x40", b"", b"\x80"]
    assert offsets_of([]) == [0]


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ((X, X), "tensors come twice: x, x"),
        (
            (SessionTensor("x", DataType.FP32, (2, 3), 25),),
            "which do not make up FP32 of the shape [2, 3]",
        ),
        ((SessionTensor("x", DataType.FP32, (-2, -3), 24),), "expected no dimension below 0, got [-2, -3]"),
        ((SessionTensor("x", DataType.BYTES, (3,), 11),), "it has 11 bytes, which do not make up BYTES"),
        ((SessionTensor("x", DataType.INT8, (-1,), -1),), "expected no dimension below 0"),
        ((SessionTensor("x", DataType.INT8, (101,), 101),), "a batch have 101 bytes, expected at most 100"),
    ],
)
def test_tensors_of_wrong_sizes_are_refused(tensors: tuple[SessionTensor, ...], reason: str) -> None:
    with pytest.raises(PartitionError) as refused:
        check_tensors(tensors, 100)
    assert reason in str(refused.value)


def test_tensors_are_read_over_their_bytes() -> None:
    data = np.arange(6, dtype=np.float32).view(np.uint8).data
    array = read_tensor(X, data, 2)
    assert isinstance(array, np.ndarray)
    np.testing.assert_array_equal(array, [[0, 1, 2], [3, 4, 5]])
    assert np.shares_memory(array, np.frombuffer(data, np.float32))
    texts = SessionTensor("t", DataType.BYTES, (2, 1), 11)
    read = read_tensor(texts, memoryview(b"\x01\0\0\0a\x02\0\0\0bc"), 2)
    assert isinstance(read, WireBytes)
    assert read.row_offsets.tolist() == [0, 5, 11]
    with pytest.raises(BadTensor, match="t: element 1 runs to byte 12"):
        read_tensor(texts, memoryview(b"\x01\0\0\0a\x03\0\0\0bc"), 2)


@pytest.mark.parametrize(("address", "parts"), [("10.0.0.5:9001", ("10.0.0.5", 9001)), ("[::1]:1", ("::1", 1))])
def test_addresses(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts
    assert join_address(*parts) == address


@pytest.mark.parametrize("address", ["", "a", ":1", "a:", "a:b", "a:0", "a:65536", "::1:5", "[a]:5", "a:٣"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(PartitionError, match="expected an address HOST:PORT"):
        split_address(address)
