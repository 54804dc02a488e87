"""The live target at a URL."""

from collections.abc import Iterable

from sluice.loadgen.target.address import EXPECTED
from sluice.loadgen.target.base import EXPLAIN_EVERY, MAX_OUTSTANDING, Target
from sluice.loadgen.target.http import HttpTarget
from sluice.loadgen.target.inproc import InProcessTarget
from sluice.loadgen.target.plain import PlainTarget
from sluice.models.client_tls import NO_TLS, ClientTls
from sluice.models.errors import ConfigError


def open_target(
    url: str,
    *,
    connections: int,
    headers: Iterable[tuple[str, str]] = (),
    tls: ClientTls = NO_TLS,
    max_outstanding: int = MAX_OUTSTANDING,
    explain_every: int = EXPLAIN_EVERY,
    path: str = "",
) -> Target:
    """The live target at a URL, not connected yet; raises `ConfigError` for settings that it cannot have.

    At most `connections` requests are in flight over HTTP, and `max_outstanding` queries in all. One of `explain_every`
    queries asks for the server's times by stage; none does with 0. With a `path` the samples are bodies, which
    are posted there.
    """
    scheme = url.partition(":")[0]
    if (tls.cacert or tls.cert) and scheme not in ("https", "grpcs"):
        raise ConfigError(f"--cacert and --cert: require a target {scheme}s://host:port, got {url}")
    if connections < 1:
        raise ConfigError(f"--connections: expected at least 1, got {connections}")
    if max_outstanding < 1:
        raise ConfigError(f"--max-outstanding: expected at least 1, got {max_outstanding}")
    over_http = scheme in ("http", "https", "unix", "http+unix")
    if path and not over_http:
        raise ConfigError(f"--path: requires a target over HTTP, got {url}")
    if path:
        return PlainTarget(url, path, connections, headers, tls, max_outstanding)
    if scheme == "inproc":
        if tuple(headers):
            raise ConfigError(f"--header: requires a target with a server behind a socket, got {url}")
        return InProcessTarget(url, max_outstanding, explain_every)
    if over_http:
        return HttpTarget(url, connections, headers, tls, max_outstanding, explain_every)
    if scheme in ("grpc", "grpcs", "grpc+unix"):
        from sluice.loadgen.target.grpc import GrpcTarget

        return GrpcTarget(url, headers, tls, max_outstanding, explain_every)
    raise ConfigError(f"--target: expected {EXPECTED}, got {url}")
