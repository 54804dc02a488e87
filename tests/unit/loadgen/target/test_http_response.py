import pytest

from sluice.loadgen.target.http_response import MAX_HEAD_BYTES, Head, ProtocolError, Response, ResponseReader

JSON = b'{"outputs":[]}'
ANSWER = (
    b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 14\r\nContent-Length: 18\r\nX-Other: 1\r\n\r\n"
    + JSON
    + b"\0\1\2\3"
)


def test_a_response_in_one_piece() -> None:
    response = ResponseReader(keep_bodies=True).feed(ANSWER)
    assert response is not None
    assert response.head == Head(200, 18, 14, close=False)
    assert response.body == JSON + b"\0\1\2\3"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_pieces_of_any_size_give_the_same_response(size: int) -> None:
    reader = ResponseReader(keep_bodies=True)
    found = [reader.feed(ANSWER[start : start + size]) for start in range(0, len(ANSWER), size)]
    assert found[:-1] == [None] * (len(found) - 1)
    assert found[-1] == ResponseReader(keep_bodies=True).feed(ANSWER)


def test_the_times_of_stages_are_read_from_the_head() -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length:0\r\nX-Sluice-Stages: first;batch=1;queue=0.038\r\n\r\n"
    response = ResponseReader(keep_bodies=False).feed(answer)
    assert response is not None
    assert response.head.stages == "first;batch=1;queue=0.038"


def test_ids_of_requests_make_no_difference() -> None:
    reader = ResponseReader(keep_bodies=True)
    for number, ends in ((1, b"content-length: 2\r\n\r\nok"), (22, b"content-length: 2\r\nx: y\r\n\r\nok")):
        response = reader.feed(b"HTTP/1.1 200 OK\r\nx-sluice-request: sluice-%d\r\n" % number + ends)
        assert response == Response(Head(200, 2, -1, close=False), b"ok")


def test_one_reader_reads_one_response_after_another() -> None:
    reader = ResponseReader(keep_bodies=False)
    for _ in range(3):
        assert reader.feed(ANSWER[:40]) is None
        response = reader.feed(ANSWER[40:])
        assert response is not None
        assert response.body == b""


def test_the_body_of_an_error_is_kept_in_any_case() -> None:
    response = ResponseReader(keep_bodies=False).feed(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length:2\r\n\r\nno")
    assert response == Response(Head(503, 2, -1, False), b"no")


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 500])
def test_a_body_may_come_in_chunks(size: int) -> None:
    answer = CHUNKED + b"3\r\nabc\r\nA;name=value\r\n0123\r\n6789\r\n0\r\nX-Sum: 1\r\n\r\n"
    reader = ResponseReader(keep_bodies=True)
    for _ in range(2):
        found = [reader.feed(answer[start : start + size]) for start in range(0, len(answer), size)]
        assert found[:-1] == [None] * (len(found) - 1)
        assert found[-1] == Response(Head(200, -1, -1, close=False), b"abc0123\r\n6789")


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        (b"-1\r\n", "expected the length of a chunk, got b'-1"),
        (b"2\r\nabc\r\n", "a chunk longer than its length"),
        (b"0\r\n\r\nmore", "bytes after its end"),
        (b"7fffffff\r\n", "response body: longer than 1073741824 bytes"),
        (b"1;" + b"x" * 2000, "a chunk's first line is longer than 1024 bytes"),
        (b"0\r\nX: " + b"x" * MAX_HEAD_BYTES, "response trailers: longer than"),
    ],
)
def test_chunks_that_break_the_rules_are_refused(chunks: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        ResponseReader(keep_bodies=False).feed(CHUNKED + chunks)


@pytest.mark.parametrize(
    ("first", "second", "closes"),
    [
        (b"HTTP/1.1 200 OK", b"X: y", False),
        (b"HTTP/1.1 200 OK", b"Connection: close", True),
        (b"HTTP/1.0 200 OK", b"X: y", True),
        (b"HTTP/1.0 200 OK", b"Connection: Keep-Alive", False),
    ],
)
def test_a_server_closes_by_the_rule_of_its_version(first: bytes, second: bytes, closes: bool) -> None:
    response = ResponseReader(keep_bodies=False).feed(first + b"\r\n" + second + b"\r\nContent-Length: 0\r\n\r\n")
    assert response is not None
    assert response.head.close is closes


def test_the_length_of_the_json_is_not_taken_for_that_of_the_body() -> None:
    head = b"HTTP/1.1 200 OK\r\ninference-header-content-length: 3\r\ncontent-length: 5\r\n\r\n"
    response = ResponseReader(keep_bodies=True).feed(head + b"12345")
    assert response is not None
    assert (response.head.body_bytes, response.head.json_bytes) == (5, 3)


def test_an_empty_body_completes_with_the_head() -> None:
    response = ResponseReader(keep_bodies=True).feed(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n")
    assert response == Response(Head(204, 0, -1, False), b"")


def test_a_closing_server_is_noticed() -> None:
    response = ResponseReader(False).feed(b"HTTP/1.0 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n")
    assert response is not None
    assert response.head.close


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "expected an HTTP/1.1 status line"),
        (b"HTTP/2 200\r\nContent-Length: 0\r\n\r\n", "expected an HTTP/1.1 status line"),
        (b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 3\r\n\r\n", "neither a valid Content-Length nor chunks"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n", "neither a valid Content-Length nor chunks"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0x10\r\n\r\n", "neither a valid Content-Length nor chunks"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999\r\n\r\n", "response body: longer than"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab", "bytes after its end"),
        (
            b"HTTP/1.1 500 Oops\r\nContent-Length: 1048577\r\n\r\n",
            "response body: longer than 1048576 bytes, with status",
        ),
        (b"x" * (MAX_HEAD_BYTES + 1), "response head: longer than"),
    ],
)
def test_what_is_no_response_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        ResponseReader(keep_bodies=True).feed(data)
