"""The headers of calls, and the header blocks of statuses."""

import grpc
import hpack
import pytest

from sluice.gateway.grpc.transport.http2.call_head import CallHead, http_block, metadata_block, status_block
from sluice.gateway.http2.frames import StreamFault

POST = [(b":method", b"POST"), (b":path", b"/s/M"), (b"content-type", b"application/grpc+proto")]


def head(*fields: tuple[bytes, bytes]) -> CallHead:
    return CallHead([*POST, *fields])


def decoded(block: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in hpack.Decoder().decode(block, raw=True)]


def test_metadata_is_what_is_not_of_the_protocol() -> None:
    found = head(
        (b"te", b"trailers"),
        (b"user-agent", b"x"),
        (b"key", b"one"),
        (b"key", "ä".encode()),
        (b"old", b"\xe4"),
        (b"trace-bin", b"AAEC,/w"),
        (b"grpc-timeout", b"1S"),
        (b"grpc-accept-encoding", b"gzip"),
    )
    assert found.method == "/s/M"
    assert found.metadata == (
        ("user-agent", "x"),
        ("key", "one"),
        ("key", "ä"),
        ("old", "ä"),
        ("trace-bin", b"\0\1\2"),
        ("trace-bin", b"\xff"),
    )
    assert (found.http_status, found.refusal, found.content_length) == (0, None, -1)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2H", 7200), ("3M", 180), ("4S", 4), ("500m", 0.5), ("7u", 7e-6), ("99999999n", 0.099999999), ("0S", 0)],
)
def test_timeouts(text: str, seconds: float) -> None:
    assert head((b"grpc-timeout", text.encode())).timeout_s == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "S", "1", "1h", "123456789S", "-1S", "1.5S", " 1S"])
def test_a_timeout_that_is_none_is_named(text: str) -> None:
    found = head((b"grpc-timeout", text.encode()))
    assert found.refusal is not None
    assert found.refusal[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert f"got '{text}'" in found.refusal[1]


def test_an_unknown_encoding_is_refused_with_those_that_are_known() -> None:
    assert head((b"grpc-encoding", b"gzip")).encoding == "gzip"
    assert head((b"grpc-encoding", b"snappy")).refusal == (
        grpc.StatusCode.UNIMPLEMENTED,
        "grpc-encoding: expected one of identity, deflate, gzip, got 'snappy'",
    )


def test_requests_that_are_none_of_grpc_get_a_status_of_http() -> None:
    assert CallHead([(b":method", b"GET"), (b":path", b"/")]).http_status == 405
    for content_type in (b"", b"text/html", b"application/grpcx", b"application/json"):
        assert CallHead([(b":method", b"POST"), (b":path", b"/"), (b"content-type", content_type)]).http_status == 415
    assert decoded(http_block(415)) == [(b":status", b"415"), (b"content-length", b"0")]


@pytest.mark.parametrize(
    "fields", [[(b"content-length", b"x")], [(b"content-length", b"1"), (b"content-length", b"2")]]
)
def test_a_wrong_content_length_is_a_fault(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(StreamFault, match="expected one content-length"):
        head(*fields)


def test_binary_metadata_that_is_not_base64_is_a_fault() -> None:
    with pytest.raises(StreamFault, match="expected Base64"):
        head((b"x-bin", b"***"))


def test_messages_of_statuses_are_percent_encoded_and_cut() -> None:
    block = decoded(status_block(grpc.StatusCode.NOT_FOUND, "no 100% 'ä'\n~!"))
    assert block == [(b"grpc-status", b"5"), (b"grpc-message", b"no 100%25 '%C3%A4'%0A~!")]
    assert decoded(status_block(grpc.StatusCode.CANCELLED, "")) == [(b"grpc-status", b"1")]
    ((_, _), (_, message)) = decoded(status_block(grpc.StatusCode.INTERNAL, "a" * 5000))
    assert message == b"a" * 4096 + b"%E2%80%A6"
    ((_, _), (_, message)) = decoded(status_block(grpc.StatusCode.INTERNAL, "aä" * 4000))
    assert message == b"a%C3%A4" * 585 + b"a%E2%80%A6"


def test_trailing_metadata_is_made_fit_for_clients() -> None:
    block = metadata_block([("X-Id", "r1"), ("text", "a b\r\nc: ä "), ("raw-bin", b"\xff\0")])
    assert decoded(block) == [(b"x-id", b"r1"), (b"text", b"a b??c: ??"), (b"raw-bin", b"/wA")]
