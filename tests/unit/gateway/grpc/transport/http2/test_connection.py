"""Windows, settings, pings, floods and the end of a connection."""

import pytest

from sluice.gateway.grpc.transport.http2.connection import (
    BLOCK_FRAMES,
    CONNECTION_WINDOW,
    CREDIT_BYTES,
    DIRECT_BYTES,
    IDLE_FRAMES,
    RESETS_PER_STREAM,
    SKIPPED_RANGES,
    STREAM_WINDOW,
    TURN_FRAMES,
    TURN_HEADER_BYTES,
    ConnectionLimits,
)
from sluice.gateway.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    MAX_STREAM_ID,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTING,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    frame,
    reset,
    settings_frame,
    window_update,
)
from tests.unit.gateway.grpc.transport.http2.peer import LIMITS, REQUEST, Frame, Peer, connection_error, stream_error

CALM = ErrorCode.ENHANCE_YOUR_CALM
OK = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-accept-encoding", "identity, deflate, gzip")]
MESSAGE = b"\0\0\0\0\x06answer"


def data(answer: list[Frame], stream_id: int = 1) -> bytes:
    return b"".join(each.payload for each in answer if (each.kind, each.stream_id) == (DATA, stream_id))


def test_the_server_greets_with_its_limits() -> None:
    settings, window = Peer(ConnectionLimits(streams=7, header_bytes=5000)).greeting
    assert dict(SETTING.iter_unpack(settings.payload)) == {3: 7, 4: STREAM_WINDOW, 5: 256 << 10, 6: 5000}
    assert (window.kind, window.stream_id, int.from_bytes(window.payload, "big")) == (
        WINDOW_UPDATE,
        0,
        CONNECTION_WINDOW - 65_535,
    )


# -- answers


def test_an_answer_has_headers_a_message_and_a_status_which_take_few_bytes_from_the_second_on() -> None:
    peer = Peer()
    for stream_id in (1, 3, 5):
        peer.request(stream_id)
        peer.connection.answer(peer.opened[stream_id], b"answer", b"\x00\x01x\x01y")
        headers, message, trailers = peer.taken()
        assert peer.fields(headers) == OK
        assert (message.payload, message.flags) == (MESSAGE, 0)
        assert peer.fields(trailers) == [("grpc-status", "0"), ("x", "y")]
        assert trailers.flags & END_STREAM
    assert (len(headers.payload), len(trailers.payload)) == (3, 6)
    assert peer.connection.streams == {}


def test_a_client_with_a_smaller_table_gets_fields_that_are_not_in_it() -> None:
    for early in (True, False):
        peer = Peer(settings={HEADER_TABLE_SIZE: 0} if early else {})
        if not early:
            peer.request(1)
            peer.connection.answer(peer.opened[1], b"", b"")
            for each in peer.taken():
                if each.kind == HEADERS:
                    peer.fields(each)
            peer.send(settings_frame({HEADER_TABLE_SIZE: 0}))
        peer.decoder.max_allowed_table_size = 0
        for stream_id in (3, 5):
            peer.request(stream_id)
            peer.connection.answer(peer.opened[stream_id], b"answer", b"")
            headers, _, trailers = peer.taken()
            assert (peer.fields(headers), peer.fields(trailers)) == (OK, [("grpc-status", "0")])


def test_large_trailers_are_split_into_frames_that_every_client_takes() -> None:
    peer = Peer()
    peer.request(1)
    value = b"v" * 40_000
    peer.connection.answer(peer.opened[1], b"answer", b"\x00\x01x\x7f\xc1\xb7\x02" + value)
    _, _, *parts = peer.taken()
    assert [each.kind for each in parts] == [HEADERS, CONTINUATION, CONTINUATION]
    assert [each.flags for each in parts] == [END_STREAM, 0, END_HEADERS]
    whole = Frame(HEADERS, 0, 1, b"".join(each.payload for each in parts))
    assert peer.fields(whole) == [("grpc-status", "0"), ("x", value.decode())]


def test_the_owner_is_notified_once_until_it_takes_what_is_to_be_written() -> None:
    peer = Peer()
    before = peer.notified
    peer.request(1)
    peer.request(3)
    peer.connection.answer(peer.opened[1], b"a", b"")
    peer.connection.answer(peer.opened[3], b"b", b"")
    assert peer.notified == before + 1
    assert len(peer.taken()) == 6


# -- windows of the client


def test_a_large_answer_waits_for_the_windows_of_stream_and_connection() -> None:
    peer = Peer(settings={INITIAL_WINDOW_SIZE: 10})
    peer.request(1)
    large = bytes(range(256)) * 400
    peer.connection.answer(peer.opened[1], large, b"")
    sent = data(peer.taken())
    assert len(sent) == 10
    assert peer.connection.kept == len(large) + 5 - 10
    sent += data(peer.send(window_update(1, 1_000_000)))
    assert len(sent) == 65_535  # the window of the connection
    answer = peer.send(window_update(0, 1_000_000))
    sent += data(answer)
    assert sent == b"\0" + len(large).to_bytes(4, "big") + large
    assert max(len(each.payload) for each in answer) <= 16_384
    assert answer[-1].flags == END_HEADERS | END_STREAM
    assert (peer.connection.kept, peer.connection.unsent_bytes, peer.connection.streams) == (0, 0, {})


def test_a_change_of_the_initial_window_counts_for_open_streams_and_may_make_theirs_negative() -> None:
    peer = Peer(settings={INITIAL_WINDOW_SIZE: 20})
    peer.request(1)
    peer.connection.answer(peer.opened[1], b"a" * 95, b"")
    assert len(data(peer.taken())) == 20
    assert data(peer.send(settings_frame({INITIAL_WINDOW_SIZE: 5}))) == b""
    assert data(peer.send(window_update(1, 15))) == b""
    assert len(data(peer.send(window_update(1, 1)))) == 1
    assert len(data(peer.send(settings_frame({INITIAL_WINDOW_SIZE: 84})))) == 79


def test_streams_share_the_window_of_the_connection_in_turns() -> None:
    peer = Peer(settings={INITIAL_WINDOW_SIZE: 1 << 20, MAX_FRAME_SIZE: 1 << 20})
    for stream_id in (1, 3):
        peer.request(stream_id)
        peer.connection.answer(peer.opened[stream_id], bytes(200_000), b"")
    peer.taken()
    answer = peer.send(window_update(0, 200_000))
    assert [len(data(answer, stream_id)) for stream_id in (1, 3)] == pytest.approx([100_000] * 2, abs=66_000)


def test_while_the_transport_has_enough_answers_wait() -> None:
    peer = Peer()
    peer.request(1)
    peer.connection.writable = False
    peer.connection.answer(peer.opened[1], b"answer", b"")
    assert data(peer.taken()) == b""
    peer.connection.writable = True
    peer.connection.pump()
    assert data(peer.taken()) == MESSAGE


def test_messages_of_a_stream_follow_each_other_and_it_hears_when_they_are_sent() -> None:
    peer = Peer(settings={INITIAL_WINDOW_SIZE: 15})
    peer.request(1)
    stream = peer.opened[1]
    assert peer.connection.send_message(stream, b"answer")
    assert not peer.connection.send_message(stream, b"answer")
    peer.connection.end(stream, None, b"")
    assert data(peer.taken()) == MESSAGE + MESSAGE[:4]
    answer = peer.send(window_update(1, 100))
    assert data(answer) == MESSAGE[4:]
    assert peer.fields(Frame(HEADERS, 0, 1, answer[-1].payload))[0][0] in ("grpc-status", ":status")
    assert stream.ended


def test_a_stream_that_the_client_resets_is_cancelled_with_all_that_is_unsent() -> None:
    peer = Peer(settings={INITIAL_WINDOW_SIZE: 0})
    peer.request(1)
    peer.connection.send_message(peer.opened[1], bytes(1000))
    peer.taken()
    assert peer.connection.kept == 1005
    assert peer.send(reset(1, ErrorCode.CANCEL), window_update(0, 9)) == []
    assert (peer.opened[1].cancelled, peer.connection.kept, peer.connection.streams) == (True, 0, {})


# -- windows of the server


def test_windows_grow_again_as_data_comes() -> None:
    peer = Peer()
    peer.send(peer.headers(1))
    chunk = bytes(CREDIT_BYTES)
    for _ in range(40):
        answer = peer.send(frame(DATA, 0, 1, chunk))
        grown = {each.stream_id: int.from_bytes(each.payload, "big") for each in answer if each.kind == WINDOW_UPDATE}
        assert grown == {0: CREDIT_BYTES, 1: CREDIT_BYTES}
    assert len(peer.opened[1].data) == 40 * CREDIT_BYTES


def test_a_stream_that_wants_no_data_is_not_given_more_window_than_it_has() -> None:
    peer = Peer()
    peer.send(peer.headers(1))
    peer.opened[1].wants = False
    for _ in range(4):
        answer = peer.send(frame(DATA, 0, 1, bytes(STREAM_WINDOW // 4)))
        assert all(each.stream_id == 0 for each in answer)
    assert stream_error(peer.send(frame(DATA, 0, 1, b"x"))) is ErrorCode.FLOW_CONTROL_ERROR
    peer.send(peer.headers(3))
    peer.opened[3].wants = False
    peer.send(frame(DATA, 0, 3, bytes(1000)))
    peer.opened[3].wants = True
    peer.connection.credit(peer.opened[3])
    assert peer.taken() == [Frame(WINDOW_UPDATE, 0, 3, (1000).to_bytes(4, "big"))]


def test_data_beyond_the_window_of_the_connection_ends_it() -> None:
    peer = Peer(ConnectionLimits(streams=100))
    peer.connection._receive_window = 1000
    peer.send(peer.headers(1))
    assert connection_error(peer.send(frame(DATA, 0, 1, bytes(1001)))) is ErrorCode.FLOW_CONTROL_ERROR


# -- limits


def test_more_streams_than_the_limit_are_refused_and_others_go_on() -> None:
    peer = Peer(ConnectionLimits(streams=2))
    peer.send(peer.headers(1), peer.headers(3))
    assert stream_error(peer.send(peer.headers(5)), 5) is ErrorCode.REFUSED_STREAM
    assert peer.send(frame(DATA, END_STREAM, 1, b"x")) == []
    peer.connection.answer(peer.opened[1], b"", b"")
    peer.taken()
    assert peer.request(7) == []
    assert 7 in peer.opened


def test_a_header_list_that_is_too_large_ends_its_stream_or_the_connection() -> None:
    peer = Peer(ConnectionLimits(header_bytes=2000))
    peer.encoder.huffman_coder = None  # type: ignore[assignment]
    values = [("x", "v" * 900), ("y", "v" * 900)]
    block = b"".join(b"\x00\x01%s\x7f\x85\x06" % name.encode() + value.encode() for name, value in values)
    repeated = frame(HEADERS, END_HEADERS, 1, b"\x40\x01x\x7f\x85\x06" + b"v" * 900 + b"\xbe" * 2)
    assert stream_error(peer.send(repeated)) is CALM
    assert connection_error(peer.send(frame(HEADERS, END_HEADERS, 3, b"\xbe" * 1000))) is CALM
    assert (
        connection_error(Peer(ConnectionLimits(header_bytes=1000)).send(frame(HEADERS, END_HEADERS, 1, block))) is CALM
    )


def test_too_many_header_fields_end_their_stream_and_soon_the_connection() -> None:
    peer = Peer(ConnectionLimits(header_fields=10))
    many = [*REQUEST, *((f"x{number}", "") for number in range(5))]
    for stream_id in range(1, 39, 2):
        assert stream_error(peer.send(peer.headers(stream_id, many)), stream_id) is CALM
    assert connection_error(peer.send(peer.headers(39, many))) is CALM


def test_a_flood_of_continuations_ends_the_connection() -> None:
    peer = Peer()
    parts = [frame(HEADERS, 0, 1)] + [frame(CONTINUATION, 0, 1)] * BLOCK_FRAMES
    assert connection_error(peer.send(*parts)) is CALM
    peer = Peer(ConnectionLimits(header_bytes=10_000))
    assert connection_error(peer.send(frame(HEADERS, 0, 1), *[frame(CONTINUATION, 0, 1, bytes(6000))] * 2)) is CALM


@pytest.mark.parametrize(
    "idle",
    [
        frame(SETTINGS, 0, 0),
        frame(SETTINGS, ACK, 0),
        frame(PRIORITY, 0, 3, bytes(5)),
        frame(DATA, 0, 1),
        frame(PING, ACK, 0, bytes(8)),
        frame(0x77, 0, 0),
        frame(GOAWAY, 0, 0, bytes(8)),
    ],
)
def test_a_flood_of_frames_that_ask_for_nothing_ends_the_connection(idle: bytes) -> None:
    peer = Peer()
    peer.send(peer.headers(1))
    for _ in range(3):
        peer.send(idle * (IDLE_FRAMES - 10))
        assert not peer.connection.over
        peer.connection.forgive()
    assert connection_error(peer.send(idle * (IDLE_FRAMES + 2))) is CALM
    assert peer.opened[1].cancelled


def test_a_client_may_reset_as_many_streams_as_are_answered_and_a_few_times_its_limit_more() -> None:
    peer = Peer(ConnectionLimits(streams=2))
    last = 1

    def rapid(count: int) -> list[Frame]:
        nonlocal last
        answer: list[Frame] = []
        for _ in range(count):
            answer += peer.send(peer.headers(last), reset(last, ErrorCode.CANCEL))
            last += 2
        return answer

    assert rapid(2 * RESETS_PER_STREAM) == []
    peer.connection.forgive()
    assert rapid(2 * RESETS_PER_STREAM) == []
    peer.connection.forgive()
    for _ in range(5):
        peer.request(last)
        peer.connection.answer(peer.opened[last], b"", b"")
        last += 2
    peer.taken()
    assert rapid(2 * RESETS_PER_STREAM + 5) == []
    assert connection_error(rapid(1)) is CALM


def test_faults_that_make_the_server_reset_streams_count_as_resets() -> None:
    peer = Peer(ConnectionLimits(streams=1))
    parts = [peer.headers(2 * number + 1, [(":method", "GET")]) for number in range(RESETS_PER_STREAM + 1)]
    assert connection_error(peer.send(*parts)) is CALM


def test_any_number_of_ids_may_be_left_out() -> None:
    peer = Peer()
    ids = range(5, 5 + 8 * (SKIPPED_RANGES + 10), 8)
    assert peer.send(*(peer.headers(stream_id) for stream_id in ids)) == []
    assert connection_error(peer.send(frame(DATA, 0, ids[-1] - 2))) is ErrorCode.PROTOCOL_ERROR


def test_changes_of_the_windows_of_many_streams_are_soon_a_flood() -> None:
    change = settings_frame({INITIAL_WINDOW_SIZE: 1000})
    peer = Peer()
    peer.send(*(peer.headers(stream_id) for stream_id in range(1, 1025, 2)))
    answer = peer.send(change * (IDLE_FRAMES // 10))
    assert connection_error(answer) is CALM
    assert len(answer) - 1 < IDLE_FRAMES // 16
    peer = Peer()
    peer.send(peer.headers(1))
    assert len(peer.send(change * (IDLE_FRAMES // 10))) == IDLE_FRAMES // 10


@pytest.mark.parametrize("flags", [END_HEADERS, END_HEADERS | END_STREAM], ids=["of a closed stream", "trailers"])
def test_large_headers_that_open_no_stream_are_soon_a_flood(flags: int) -> None:
    peer = Peer()
    many = peer.encoder.encode([("x", "")] * (LIMITS.header_fields + 1))
    if not flags & END_STREAM:
        peer.send(peer.headers(1))
        peer.connection.refuse(1, ErrorCode.CANCEL)
        del peer.connection.streams[1]
    ids = [1 if not flags & END_STREAM else 2 * number + 1 for number in range(IDLE_FRAMES // 40)]
    parts = [(peer.headers(each) if flags & END_STREAM else b"") + frame(HEADERS, flags, each, many) for each in ids]
    assert connection_error(peer.send(*parts)) is CALM


def test_headers_of_a_stream_that_the_server_has_reset_are_a_flood_at_last() -> None:
    peer = Peer()
    peer.send(peer.headers(1))
    peer.connection.refuse(1, ErrorCode.CANCEL)
    del peer.connection.streams[1]
    again = frame(HEADERS, END_HEADERS | END_STREAM, 1, peer.encoder.encode([("x", "y")]))
    assert connection_error(peer.send(again * (IDLE_FRAMES + 1))) is CALM


def test_headers_take_turns_by_their_bytes() -> None:
    peer = Peer()
    connection = peer.connection
    fields = [*REQUEST, *((f"x{number}", str(number) * 50) for number in range(90))]
    block = peer.encoder.encode(fields)
    connection.receive(b"".join(frame(HEADERS, END_HEADERS, stream_id, block) for stream_id in range(1, 201, 2)))
    turns = 1
    while connection.is_behind:
        turns += 1
        connection.receive(b"")
    assert len(peer.opened) == 100
    assert turns > len(block) * 100 / (2 * TURN_HEADER_BYTES * TURN_FRAMES)


def test_the_rest_of_large_messages_that_are_refused_is_no_flood() -> None:
    peer = Peer()
    ids = range(1, 201, 2)
    peer.send(*(peer.headers(stream_id) for stream_id in ids))
    for stream_id in ids:
        peer.connection.send_block(peer.opened[stream_id], b"")
    peer.taken()
    under_way = b"".join(frame(DATA, 0, stream_id, bytes(1 << 14)) * 12 for stream_id in ids)
    for begin in range(0, len(under_way), CONNECTION_WINDOW):
        answer = peer.send(under_way[begin : begin + CONNECTION_WINDOW])
        assert {each.kind for each in answer} == {WINDOW_UPDATE}
    assert connection_error(peer.send(frame(DATA, 0, 1, b"x") * (IDLE_FRAMES + 1))) is CALM


# -- pings


def test_pings_are_answered_and_too_many_end_the_connection() -> None:
    peer = Peer(ConnectionLimits(ping_s=10))
    for _ in range(5):
        assert peer.send(frame(PING, 0, 0, b"12345678")) == [Frame(PING, ACK, 0, b"12345678")]
        peer.now_s += 10
    assert len(peer.send(frame(PING, 0, 0, bytes(8)) * 3)) == 3
    answer = peer.send(frame(PING, 0, 0, bytes(8)))
    assert connection_error(answer) is CALM
    assert answer[-1].payload[8:] == b"too_many_pings"


def test_pings_that_follow_answers_are_never_too_many() -> None:
    peer = Peer(ConnectionLimits(ping_s=10))
    for stream_id in range(1, 41, 2):
        peer.request(stream_id)
        peer.connection.answer(peer.opened[stream_id], b"", b"")
        peer.taken()
        assert peer.send(frame(PING, 0, 0, bytes(8))) == [Frame(PING, ACK, 0, bytes(8))]


def test_the_server_pings_and_hears_the_answer() -> None:
    peer = Peer()
    peer.connection.ping()
    (ping,) = peer.taken()
    assert (ping.kind, ping.flags, peer.connection.awaits_ping) == (PING, 0, True)
    peer.send(frame(PING, ACK, 0, b"else wise"[:8]))
    assert peer.connection.awaits_ping
    peer.send(frame(PING, ACK, 0, ping.payload))
    assert not peer.connection.awaits_ping


# -- the end


def test_a_graceful_end_takes_what_the_client_sent_before_it_knew() -> None:
    peer = Peer()
    peer.request(1)
    peer.connection.drain()
    notice, ping = peer.taken()
    assert (notice.kind, int.from_bytes(notice.payload[:4], "big")) == (GOAWAY, MAX_STREAM_ID)
    assert peer.request(3) == []  # crosses the notice
    (last,) = peer.send(frame(PING, ACK, 0, ping.payload))
    assert (last.kind, int.from_bytes(last.payload[:4], "big"), last.payload[4:8]) == (GOAWAY, 3, bytes(4))
    assert peer.send(peer.headers(5), frame(DATA, END_STREAM, 5, b"x"), window_update(5, 1), reset(5, CALM)) == []
    assert list(peer.opened) == [1, 3]
    for stream_id in (1, 3):
        assert not peer.connection.is_done
        peer.connection.answer(peer.opened[stream_id], b"answer", b"")
    assert peer.connection.is_done
    assert [each.kind for each in peer.taken()].count(DATA) == 2


def test_an_end_by_force_cancels_what_is_open() -> None:
    peer = Peer()
    peer.request(1)
    peer.connection.end_with(ErrorCode.NO_ERROR, "bye")
    assert connection_error(peer.taken()) is ErrorCode.NO_ERROR
    assert peer.opened[1].cancelled
    peer.connection.answer(peer.opened[1], b"late", b"")
    assert peer.taken() == []


def test_what_the_client_owes_is_known_apart() -> None:
    peer = Peer(greets=False)
    assert peer.connection.waits_for == ("settings", 0)
    peer = Peer()
    assert peer.connection.waits_for is None
    peer.send(peer.headers(1, flags=0))
    assert peer.connection.waits_for == ("block", 1)
    peer.send(frame(CONTINUATION, END_HEADERS, 1))
    part = frame(PING, 0, 0, bytes(8))
    peer.send(part[:5])
    first = peer.connection.waits_for
    peer.send(part[5:7])
    assert peer.connection.waits_for == first is not None
    peer.send(part[7:] + part[:5])
    assert peer.connection.waits_for not in (None, first)


def test_blocks_of_the_same_bytes_have_the_fields_of_the_table_that_they_are_for() -> None:
    """A block that is remembered is forgotten when the table changes."""
    peer = Peer()
    block = b"\xbe" + b"\x83\x86\x84"  # the newest entry, which must be a pseudo-header field to come first

    def adding(host: bytes) -> bytes:
        return b"\x41" + bytes((len(host),)) + host + b"\x83\x86\x84"

    seen = []
    for number, host in enumerate((b"one", b"two")):
        first = 6 * number + 1
        peer.send(frame(HEADERS, END_HEADERS, first, adding(host)))
        for stream_id in (first + 2, first + 4):
            peer.send(frame(HEADERS, END_HEADERS, stream_id, block))
            seen.append(peer.opened[stream_id].fields[0])
    assert seen == [(b":authority", b"one")] * 2 + [(b":authority", b"two")] * 2
    peer.send(frame(HEADERS, END_HEADERS, 13, b"\x20" + b"\x83\x86\x84"))  # empties the table
    assert connection_error(peer.send(frame(HEADERS, END_HEADERS, 15, block))) is ErrorCode.COMPRESSION_ERROR


def test_requests_with_the_same_headers_are_interpreted_once() -> None:
    peer = Peer()
    peer.send(peer.headers(1))
    peer.send(peer.headers(3), peer.headers(5), peer.headers(7, [*REQUEST, ("x", "1")]), peer.headers(9))
    assert peer.opened[3].fields is peer.opened[5].fields
    assert peer.opened[9].fields == peer.opened[5].fields
    assert (RST_STREAM, HEADERS) == (3, 1)


# -- large frames


SIZE = 3 * DIRECT_BYTES
CONTENT = bytes(range(256)) * (SIZE // 256)


def begun(*parts: bytes, fields: list[tuple[str, str]] | None = None, room: int = SIZE) -> Peer:
    """A peer that has sent a request and these parts of a frame, for a stream that has memory of its own."""
    peer = Peer()
    peer.send(peer.headers(1, fields))
    peer.opened[1].room = memoryview(bytearray(room))
    peer.send(*parts)
    return peer


def receive(peer: Peer, content: bytes) -> int:
    """Have the server receive bytes directly; returns how many it takes at once."""
    memory = peer.connection.direct_memory()
    assert memory is not None
    size = min(len(memory), len(content))
    memory[:size] = content[:size]
    peer.connection.receive_direct(size)
    return size


def test_the_rest_of_a_large_frame_is_received_into_the_memory_of_its_stream() -> None:
    peer = begun(frame(DATA, END_STREAM, 1, CONTENT)[:109])
    stream = peer.opened[1]
    assert receive(peer, CONTENT[100:1000]) == 900
    assert not stream.has_ended
    assert receive(peer, CONTENT[1000:] + b"next") == SIZE - 1000
    assert stream.data == CONTENT
    assert stream.has_ended
    assert stream.remote_ended
    assert peer.connection.direct_memory() is None
    assert stream.receive_window == STREAM_WINDOW - SIZE
    peer.request(3)
    assert peer.opened[3].has_ended


def test_what_follows_a_frame_is_no_part_of_it_and_neither_is_padding() -> None:
    padded = frame(DATA, 0x8, 1, b"\x07" + CONTENT + bytes(7))
    peer = begun(padded[:50])
    stream = peer.opened[1]
    sent = 40
    while peer.connection.direct_memory() is not None:
        sent += receive(peer, CONTENT[sent:])
    assert sent == SIZE
    peer.send(bytes(7) + frame(DATA, END_STREAM, 1, b"end"))
    assert stream.data == CONTENT + b"end"
    assert stream.has_ended


def test_the_last_part_of_a_frame_is_received_with_what_follows() -> None:
    peer = begun(frame(DATA, 0, 1, CONTENT)[:9])
    receive(peer, CONTENT[: SIZE - DIRECT_BYTES + 1])
    assert peer.connection.direct_memory() is None
    peer.send(CONTENT[SIZE - DIRECT_BYTES + 1 :] + frame(DATA, END_STREAM, 1))
    assert peer.opened[1].data == CONTENT
    assert peer.opened[1].has_ended


def test_small_frames_and_streams_without_memory_take_bytes() -> None:
    assert begun(frame(DATA, 0, 1, bytes(DIRECT_BYTES - 1))[:9]).connection.direct_memory() is None
    peer = begun(frame(DATA, 0, 1, CONTENT)[:9])
    peer.opened[1].room = None
    assert peer.connection.direct_memory() is None
    peer = begun(frame(DATA, 0, 1, CONTENT)[:9])
    peer.opened[1].ended = True
    assert peer.connection.direct_memory() is None
    peer = begun(frame(DATA, 0, 1, CONTENT)[:9])
    peer.connection.lose()
    assert peer.connection.direct_memory() is None


def test_bytes_that_are_received_directly_count_as_declared_ones() -> None:
    peer = begun(frame(DATA, 0, 1, CONTENT)[:9], fields=[*REQUEST, ("content-length", "1000")])
    receive(peer, CONTENT)
    assert stream_error(peer.taken()) is ErrorCode.PROTOCOL_ERROR
    assert peer.opened[1].cancelled
    peer = begun(frame(DATA, END_STREAM, 1, CONTENT)[:9], fields=[*REQUEST, ("content-length", str(SIZE))])
    receive(peer, CONTENT)
    assert peer.opened[1].data == CONTENT
