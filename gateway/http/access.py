"""Access over HTTP: which hosts and web pages may ask, and answers to HEAD, OPTIONS and preflights."""

import re
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.routing import Match

HEAD_ONLY = "sluice.head_only"
"""Is in the scope of a request for the head of an answer: one that goes on without an end is to end at once."""
SAFE = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing."""
PREFLIGHT_S = 600
"""The time for which a browser remembers the answer to a preflight."""

_READS = re.compile(r"/v2/repository/(?:[^/]+/)?index")
"""Routes that change nothing although their method is POST."""
_INFERENCE = re.compile(r"/v2/models/.*/(infer|generate|generate_stream)|/v1/models/.*:predict|/invocations", re.DOTALL)
_JSON = b"application/json"
_BODIES = (_JSON, b"application/octet-stream")
"""The types of JSON bodies: Triton's asyncio client says the second. A page cannot send either without a preflight."""
_TRITON_CLIENT = b"libcurl-agent/1.0"
"""The agent of Triton's C++ client, which sends JSON as a form; a web page cannot send this header unasked."""
_FORM = b"application/x-www-form-urlencoded"

_Address = tuple[str, int | None] | None


class AccessRules:
    """Decides by the head of a request whether it is served.

    `hosts` are the names of the server that requests may use, beside the address that the client has connected to; None
    for any name. Pages of `origins` may read and ask for inference, those of the server itself may do everything, and
    other ones can change nothing.
    """

    def __init__(
        self, hosts: frozenset[bytes] | None = None, origins: tuple[str, ...] = (), *, tls: bool = False
    ) -> None:
        self._hosts = hosts
        self._origins = frozenset(origin.lower().encode() for origin in origins)
        self._last_host: bytes | None = None
        self._schemes = (b"https",) if tls else (b"http", b"https")

    def inference_lines(self, headers: list[tuple[bytes, bytes]], address: _Address) -> bytes | None:
        """The header lines that the answer to an inference request gets; None if the application must refuse it.

        `address` is the server's end of the connection.
        """
        head = dict(headers)
        host, origin = head.get(b"host"), head.get(b"origin")
        if host != self._last_host:  # most requests name the same one
            if not self.knows_host(host, address):
                return None
            self._last_host = host
        if origin is None:
            return b""
        if not self._allows(origin):
            return b"" if self._is_own(origin, host) else None
        return b"".join(b"%s: %s\r\n" % line for line in _cors(origin))

    def knows_host(self, host: bytes | None, address: _Address) -> bool:
        """True if the value of the header `Host` is one of the server's names, with any port.

        A name without a dot belongs to a local network: nobody else can let it stand for an address.
        """
        if self._hosts is None or host is None:
            return True
        name = _name(host)
        if name in self._hosts or (address is not None and name == _in_header(address[0])):
            return True
        return b"." not in name and b":" not in name

    def refusal(self, method: str, path: str, head: dict[bytes, bytes], address: _Address) -> tuple[int, str] | None:
        """The status and the reason to refuse a request; None if it is served."""
        host, origin = head.get(b"host"), head.get(b"origin")
        if not self.knows_host(host, address):
            return 421, f"'{_text(host)}' is no name of this server: expected one of allowed_hosts (--allowed-host)"
        reads = method in SAFE or _READS.fullmatch(path) is not None
        infers = _INFERENCE.fullmatch(path) is not None
        if origin is not None and not reads and not self._is_own(origin, host):
            if not infers:
                return 403, f"a page of '{_text(origin)}' may not change this server: expected a page of its own"
            if not self._allows(origin):
                expected = "expected one of cors: origins (--cors-origin)"
                return 403, f"a page of '{_text(origin)}' may not ask this server: {expected}"
        if not (reads or infers or _is_json(head)):
            kind = _text(head[b"content-type"])
            return 415, f"a body of type '{kind}' is not read here: expected application/json"
        return None

    def preflight(self, path: str, methods: list[str], head: dict[bytes, bytes]) -> list[tuple[bytes, bytes]] | None:
        """The headers that let a page of another origin ask; None if it may not."""
        origin, method = head[b"origin"], head[b"access-control-request-method"].decode("latin-1")
        harmless = method in SAFE or _READS.fullmatch(path) is not None or _INFERENCE.fullmatch(path) is not None
        if not self._is_own(origin, head.get(b"host")) and not (harmless and self._allows(origin)):
            return None
        return [
            *_cors(origin),
            (b"access-control-allow-methods", ", ".join(methods).encode()),
            (b"access-control-allow-headers", head.get(b"access-control-request-headers", b"content-type")),
            (b"access-control-max-age", b"%d" % PREFLIGHT_S),
        ]

    def answer_headers(self, head: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        """The headers that let a page of another origin read an answer; none if it may not."""
        origin = head.get(b"origin")
        return [] if origin is None or not self._allows(origin) else _cors(origin)

    def _allows(self, origin: bytes) -> bool:
        return b"*" in self._origins or origin.lower() in self._origins

    def _is_own(self, origin: bytes, host: bytes | None) -> bool:
        scheme, _, rest = origin.partition(b"://")
        return host is not None and scheme in self._schemes and rest.lower() == host.lower()


class AccessControl:
    """The ASGI application behind rules of access; it also answers HEAD as GET, and OPTIONS."""

    def __init__(self, app: Starlette, access: AccessRules) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request, or refuse it."""
        access, method, path = self._access, scope["method"], scope["path"]
        head = dict(scope["headers"])
        refused = access.refusal(method, path, head, scope["server"])
        if refused and refused[0] == 415 and not self._serves(scope, method):
            refused = None  # the application says that there is no such route
        if refused:
            await _send(send, refused[0], [], refused[1])
            return
        if method == "OPTIONS":
            await self._options(scope, head, send)
            return
        if method == "HEAD":  # the server sends no body for it
            scope = {**scope, "method": "GET", HEAD_ONLY: True}
        if added := access.answer_headers(head):
            answer = send

            async def send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    message = {**message, "headers": [*message["headers"], *added]}
                await answer(message)

        await self._app(scope, receive, send)

    async def _options(self, scope: Any, head: dict[bytes, bytes], send: Any) -> None:
        methods = ["GET", "HEAD", "POST", "OPTIONS"]
        if scope["path"] != "*":
            found = [method for method in ("GET", "POST") if self._serves(scope, method)]
            if not found:
                await _send(send, 404, [], "Not Found")
                return
            methods = [*found, *(["HEAD"] if "GET" in found else []), "OPTIONS"]
        headers = [(b"allow", ", ".join(methods).encode())]
        if b"origin" in head and b"access-control-request-method" in head:
            allowed = self._access.preflight(scope["path"], methods, head)
            if allowed is None:
                await _send(send, 403, headers, f"a page of '{_text(head[b'origin'])}' may not ask this server")
                return
            headers += allowed
        await _send(send, 200, headers)

    def _serves(self, scope: Any, method: str) -> bool:
        asked = {**scope, "method": method}
        return any(route.matches(asked)[0] is Match.FULL for route in self._app.routes)


async def _send(send: Any, status: int, headers: list[tuple[bytes, bytes]], error: str = "") -> None:
    body = orjson.dumps({"error": error}) if error else b""
    kind = [(b"content-type", _JSON)] if error else []
    headers = [*kind, (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _cors(origin: bytes) -> list[tuple[bytes, bytes]]:
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"*"),
        (b"vary", b"origin"),
    ]


def _is_json(head: dict[bytes, bytes]) -> bool:
    """True unless the head says that the body is something else, such as a form."""
    kind = head.get(b"content-type", _JSON).partition(b";")[0].strip().lower()
    return kind in _BODIES or (kind == _FORM and b"origin" not in head and head.get(b"user-agent") == _TRITON_CLIENT)


def _name(host: bytes) -> bytes:
    """The name in a value of the header `Host`, without the port, in lower case."""
    name, _, port = host.rpartition(b":")
    return (name if port.isdigit() else host).lower()


def _in_header(address: str) -> bytes:
    """An address as it is in the header `Host`."""
    address = address.partition("%")[0]
    if "." in address:
        return address.rpartition(":")[2].encode()
    return f"[{address}]".encode() if ":" in address else address.encode()


def _text(value: bytes | None) -> str:
    return (value or b"")[:80].decode("latin-1")
