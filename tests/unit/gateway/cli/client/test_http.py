"""Answers of servers, and the lack of one, as `sluice why` prints them."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import msgspec
import pytest

from sluice.gateway.cli.client import http as http_client
from sluice.gateway.cli.client.http import ServerAddress
from sluice.gateway.cli.why import fetch
from sluice.gateway.observability.traces.explanation import Explanation
from sluice.models.errors import NotFoundError, ServingError

EXPLANATION = Explanation("7", "m:1", 1, "completed", "", 40.0, 1.5, 1e-6, None, (), "compute", "It was in time.")


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """The URL of a server that gives one answer, whatever is asked; None: never any."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65_536)
                if answer is None:
                    connection.recv(1)  # until the client gives up
                else:
                    connection.sendall(answer)

        thread = Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(10)


def http(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


def printed(answer: bytes | None) -> str:
    """The sentence for an answer, without the URL; it is not that the request is not known."""
    with answering(answer) as url, pytest.raises(ServingError) as raised:
        fetch(ServerAddress(url), "7")
    assert not isinstance(raised.value, NotFoundError)
    assert str(raised.value).startswith(f"{url}: ")
    return str(raised.value).removeprefix(f"{url}: ")


def test_what_is_known_is_decoded() -> None:
    body = msgspec.json.encode(EXPLANATION)
    with answering(http("200 OK", body)) as url:
        assert fetch(ServerAddress(url), "7") == (body.decode(), EXPLANATION)


def test_a_request_that_is_not_known_is_not_found() -> None:
    with (
        answering(http("404 Not Found", b'{"error": "there is no request 7"}')) as url,
        pytest.raises(NotFoundError, match=f"^{url}: there is no request 7$"),
    ):
        fetch(ServerAddress(url), "7")


def test_a_server_that_fails_is_said_to_fail() -> None:
    answer = http("503 Service Unavailable", b'{"error": "the server is stopping"}')
    assert printed(answer) == "it answered 503 Service Unavailable: the server is stopping"


def test_an_answer_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_BODY_BYTES", 1 << 20)
    assert printed(http("200 OK", b" " * ((1 << 20) + 1))) == "the answer exceeds 1 MiB"


@pytest.mark.parametrize("body", [b"<html>", b'{"detail": "Not Found"}', b""])
def test_another_server_that_has_no_such_page_is_no_server_of_ours(body: bytes) -> None:
    assert printed(http("404 Not Found", body)) == "not a Sluice server: it answered 404 Not Found"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<html>", "JSON is malformed: invalid character (byte 0)"),
        (b'{"id": "7"}', "Object missing required field `pipeline`"),
    ],
)
def test_an_answer_that_is_no_explanation_is_no_answer_of_ours(body: bytes, reason: str) -> None:
    assert printed(http("200 OK", body)) == f"not a Sluice server: {reason}"


def test_what_does_not_speak_http_is_said_so() -> None:
    assert printed(b"220 mail.example.org ESMTP\r\n") == "expected an answer in HTTP, got 220 mail.example.org ESMTP"


def test_a_server_that_is_not_there_cannot_be_reached() -> None:
    with socket.socket() as unused:  # bound, so that nobody else listens there
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ServingError, match=rf"^{url}: cannot be reached: \[Errno 111\] Connection refused$"):
            fetch(ServerAddress(url), "7")


def test_a_server_that_does_not_answer_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "TIMEOUT_S", 0.05)
    assert printed(None) == "no answer within 0.05 s"


def test_another_url_is_refused() -> None:
    with pytest.raises(ServingError, match=r"^file:///etc: expected the URL of a server, such as http://127\.0\.0\.1"):
        fetch(ServerAddress("file:///etc"), "7")
