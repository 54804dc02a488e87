"""Requests of commands to a running server over HTTP, and the errors of such requests."""

import argparse
import http
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from sluice.models.client_tls import NO_TLS, ClientTls, connection_hint
from sluice.models.command_line import add_connection_options
from sluice.models.errors import NotFoundError, ServingError

Headers = Iterable[tuple[str, str]]
"""Names and values."""

TIMEOUT_S = 10
"""Time for a server to answer a question."""
MAX_BODY_BYTES = 16 << 20

_T = TypeVar("_T")

_SETTINGS = "\x04"
"""The type of the first HTTP/2 frame, after the three bytes of its length; a gRPC server sends it at once."""


class _ErrorBody(msgspec.Struct):
    error: str


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the server is and which key it demands."""
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="URL of the server (default %(default)s)")
    add_connection_options(parser)


class Refused(ServingError):
    """The server did not do what it was asked, and said why."""


class HttpAnswer(NamedTuple):
    """An answer with status 200; the names of `headers` are in lower case."""

    body: bytes
    headers: Mapping[str, str]


class ServerAddress(NamedTuple):
    """A server that commands talk to: its URL, the headers of every request, and the TLS of the client."""

    url: str
    headers: Headers = ()
    tls: ClientTls = NO_TLS

    @classmethod
    def of(cls, options: argparse.Namespace) -> "ServerAddress":
        """The server that the options of `add_server_arguments` describe."""
        return cls(options.url, options.header, ClientTls(options.cacert, options.cert, options.key))


def request(
    server: ServerAddress,
    path: str,
    *,
    body: object | None = None,
    timeout_s: float | None = None,
    shows_status: bool = False,
) -> bytes:
    """Send a POST with `body` as JSON, or a GET without one, to a server; returns the body of the answer.

    Raises as `exchange`.
    """
    data = None if body is None else json.dumps(body).encode()
    kind = {} if data is None else {"Content-Type": "application/json"}
    return exchange(server, path, data, kind, timeout_s=timeout_s, shows_status=shows_status).body


def exchange(
    server: ServerAddress,
    path: str,
    data: bytes | None,
    headers: Mapping[str, str],
    *,
    timeout_s: float | None = None,
    shows_status: bool = False,
    most_bytes: int | None = None,
) -> HttpAnswer:
    """Send a POST with a body, or a GET without one, to a server.

    Raises NotFoundError for an answer 404 of a Sluice server, Refused for its other errors, and ServingError for every
    other failure. With `shows_status`, the errors of the server other than 404 begin with their status.
    """
    url = server.url
    if not url.startswith(("http://", "https://")):
        raise ServingError(f"{url}: expected the URL of a server, such as http://127.0.0.1:8000 or https://host:8000")
    if url.startswith("http://") and (server.tls.cacert or server.tls.cert):
        raise ServingError(f"{url}: --cacert and --cert require a URL that begins with https://")
    timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
    most_bytes = MAX_BODY_BYTES if most_bytes is None else most_bytes
    try:
        message = urllib.request.Request(url.rstrip("/") + path, data, {**headers, **dict(server.headers)})
        with _open_url(server, message, timeout_s) as response:
            answer: bytes = response.read(most_bytes + 1)
            answered = {name.lower(): value for name, value in response.headers.items()}
    except urllib.error.HTTPError as error:
        with error:
            raise _error_answer(url, error, shows_status) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _unreachable(url, error, timeout_s) from error
    if len(answer) > most_bytes:
        raise ServingError(f"{url}: the answer exceeds {most_bytes >> 20} MiB")
    return HttpAnswer(answer, answered)


def decode(url: str, body: bytes, type: type[_T]) -> _T:
    """Decode the answer of the server at `url`; raises ServingError for an answer that Sluice would not give."""
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ServingError(f"{url}: not a Sluice server: {error}") from error


def _open_url(server: ServerAddress, message: urllib.request.Request, timeout_s: float) -> Any:
    """Send a request without a proxy, which could not reach a server on this machine."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if server.url.startswith("https://"):
        handlers.append(urllib.request.HTTPSHandler(context=server.tls.context()))
    return urllib.request.build_opener(*handlers).open(message, timeout=timeout_s)


def _error_answer(url: str, answer: urllib.error.HTTPError, shows_status: bool) -> ServingError:
    try:
        message = msgspec.json.decode(answer.read(MAX_BODY_BYTES), type=_ErrorBody).error
    except (OSError, http.client.HTTPException, ValueError):
        return ServingError(f"{url}: not a Sluice server: it answered {answer.code} {answer.reason}")
    if answer.code == http.HTTPStatus.NOT_FOUND:
        return NotFoundError(f"{url}: {message}")
    status = f"it answered {answer.code} {answer.reason}: " if shows_status else ""
    return Refused(f"{url}: {status}{message}")


def _unreachable(url: str, error: OSError | http.client.HTTPException | ValueError, timeout_s: float) -> ServingError:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return ServingError(f"{url}: no answer within {timeout_s:g} s")
    if isinstance(reason, http.client.BadStatusLine) and str(reason)[3:4] == _SETTINGS:
        return ServingError(f"{url}: this is a gRPC port; expected the server's HTTP port, which is 8000 by default")
    if isinstance(reason, OSError | str):
        hint = connection_hint(reason, url.startswith("https://"))
        return ServingError(f"{url}: cannot be reached: {reason}{hint}")
    said = "".join(each if each.isprintable() else "?" for each in str(reason).strip()) or type(reason).__name__
    return ServingError(f"{url}: expected an answer in HTTP, got {said:.200}")
