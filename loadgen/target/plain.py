"""A target over HTTP that does not speak V2: prepared bodies, posted to one path."""

from collections.abc import Iterable

from sluice.loadgen.records.bodies import BODY
from sluice.loadgen.records.samples import TargetModel
from sluice.loadgen.target.base import MAX_OUTSTANDING, TargetRequest
from sluice.loadgen.target.http import HttpTarget
from sluice.loadgen.target.v2 import EncodedRequest
from sluice.models.client_tls import NO_TLS, ClientTls
from sluice.models.errors import ConfigError


class PlainTarget(HttpTarget):
    """A server at a URL of `HttpTarget` that takes a POST of each sample's bytes to `path`.

    An answer with status 200 is one; its content is not read. Raises `ConfigError` for a path that no request can have.
    """

    def __init__(
        self,
        url: str,
        path: str,
        connections: int,
        headers: Iterable[tuple[str, str]] = (),
        tls: ClientTls = NO_TLS,
        max_outstanding: int = MAX_OUTSTANDING,
    ) -> None:
        if not (path.startswith("/") and path.isascii() and path.isprintable() and " " not in path):
            raise ConfigError(f"--path: expected a path such as /predict, percent-encoded, got {path!r}")
        super().__init__(url, connections, headers, tls, max_outstanding, explain_every=0)
        lines = "".join(f"{name}: {value}\r\n" for name, value in self._headers)
        self._head = f"POST {path} HTTP/1.1\r\nHost: {self._address.authority}\r\n{lines}"

    async def metadata(self, model: str) -> TargetModel:
        """One input, the body; the server is not asked."""
        return TargetModel((BODY,), (BODY,))

    def encode(self, request: TargetRequest) -> EncodedRequest:
        """The bytes of a request."""
        body: bytes = request.tensors[BODY.name][0]
        head = f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode("ascii")
        return EncodedRequest(head + body, head, len(head))
