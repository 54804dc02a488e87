"""Messages in the data of a stream."""

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.grpc.transport.call import SplitMessage
from sluice.gateway.grpc.transport.http2.messages import LARGE_BYTES, MANY_PARTS, MessageFault, MessageReader


def encoded(message: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + len(message).to_bytes(4, "big") + message


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=40)), max_size=8), st.lists(st.integers(1, 30)))
def test_messages_are_the_same_however_their_data_is_cut(messages: list[tuple[bool, bytes]], cuts: list[int]) -> None:
    data = b"".join(encoded(message, compressed) for compressed, message in messages)
    reader, found = MessageReader(40), []
    for size in cuts:
        found += reader.feed(data[:size])
        data = data[size:]
    found += reader.feed(data)
    assert found == messages
    assert not reader.is_within_message


def test_a_message_that_is_too_large_or_has_a_wrong_flag_is_refused_by_its_first_bytes() -> None:
    reader = MessageReader(1000)
    assert reader.feed(encoded(bytes(1000))[:500]) == []
    with pytest.raises(MessageFault, match=r"Received message larger than max \(1001 vs. 1000\)") as caught:
        MessageReader(1000).feed(encoded(bytes(1001))[:5])
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(MessageFault, match="expected 0 or 1 as the compressed flag of a message, got 2"):
        MessageReader(1000).feed(b"\x02\0\0\0\0")


def test_many_small_parts_are_joined() -> None:
    reader = MessageReader(1 << 20)
    reader.feed(encoded(bytes(100_000))[:5])
    for _ in range(50_000):
        assert reader.feed(b"\0") == []
        assert len(reader._parts) <= MANY_PARTS + 50
    assert len(reader.feed(bytes(50_000))) == 1


def test_a_large_message_is_put_into_memory_of_its_own_behind_its_head() -> None:
    asked: list[tuple[int, bytes]] = []

    def memory(size: int, first: bytes) -> tuple[int, memoryview] | None:
        asked.append((size, first))
        return 10, memoryview(bytearray(size - 10))

    message = bytes(range(250)) * 1000
    reader = MessageReader(1 << 20, memory)
    data = encoded(message)
    assert reader.feed(data[:25]) == []
    assert asked == [(len(message), message[:20])]
    assert reader.feed(data[25:1000]) == []
    assert reader.missing is not None
    reader.missing[:500] = data[1000:1500]
    assert reader.feed_missing(500) == []
    ((compressed, found),) = reader.feed(data[1500:])
    assert not compressed
    assert isinstance(found, SplitMessage)
    assert found.head == message[:10]
    assert (found.joined(), found.nbytes) == (message, len(message))
    assert reader.missing is None
    assert not reader.is_within_message


def test_other_messages_have_no_memory_of_their_own() -> None:
    def none(size: int, first: bytes) -> tuple[int, memoryview] | None:
        raise AssertionError("nobody asks")

    for message, flag in ((bytes(LARGE_BYTES), 0), (bytes(2 * LARGE_BYTES), 1)):
        reader = MessageReader(1 << 20, none)
        data = encoded(message, flag)
        assert reader.feed(data[:100]) == []
        assert reader.missing is None
        assert reader.feed(data[100:]) == [(bool(flag), message)]
    reader = MessageReader(1 << 20, lambda size, first: None)
    data = encoded(bytes(2 * LARGE_BYTES))
    assert reader.feed(data[:100]) == []
    assert reader.feed(data[100:]) == [(False, bytes(2 * LARGE_BYTES))]
