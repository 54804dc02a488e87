"""The landing lines: where a server that is ready can be reached, and what it serves."""

import ipaddress
import socket
from collections.abc import Iterable
from typing import NamedTuple

from sluice.gateway.overview.shape import kind_of
from sluice.models.pipelines.pipeline import Pipeline

_LABEL_WIDTH = 9


class Landing(NamedTuple):
    """The addresses of a server and the number of what it serves. Of several hosts, the first is this machine's name.

    `not_served` counts the models and pipelines that could not be loaded. Metrics on a port of their own have no TLS.
    """

    hosts: tuple[str, ...]
    http_port: int
    grpc_port: int
    metrics_port: int | None
    tls: bool
    models: int
    pipelines: int
    not_served: int
    partitions: int

    @property
    def fields(self) -> dict[str, object]:
        """The values of one log line."""
        fields: dict[str, object] = {
            "page": f"{self._http[0]}/",
            "docs": f"{self._http[0]}/docs",
            "http": self._http[0],
            "grpc": self._grpc[0],
            "metrics": self._metrics,
        }
        if self.hosts[1:]:
            fields["also"] = " ".join(self._http[1:])
        counts = {"models": self.models, "pipelines": self.pipelines, "not_served": self.not_served}
        return {**fields, **counts, "partitions": self.partitions}

    @property
    def lines(self) -> list[str]:
        """The same for people, in a line each."""
        what = [_count(self.models, "model")] if self.models or not self.pipelines else []
        if self.pipelines:
            what.append(_count(self.pipelines, "pipeline"))
        serving = f"{' and '.join(what)} on {_count(self.partitions, 'partition')}"
        if self.not_served:
            serving += f"; {self.not_served} could not be loaded (sluice model list)"
        rows = [
            ("page", f"{self._http[0]}/"),
            ("API", f"{self._http[0]}/docs"),
            ("HTTP", "  ".join(self._http)),
            ("gRPC", "  ".join(self._grpc)),
            ("metrics", self._metrics),
            ("serving", serving),
        ]
        return [f"{label:<{_LABEL_WIDTH}}{text}" for label, text in rows]

    @property
    def _http(self) -> list[str]:
        scheme = "https" if self.tls else "http"
        return [f"{scheme}://{host}:{self.http_port}" for host in self.hosts]

    @property
    def _grpc(self) -> list[str]:
        return [f"{host}:{self.grpc_port}" for host in self.hosts]

    @property
    def _metrics(self) -> str:
        if self.metrics_port is None:
            return f"{self._http[0]}/metrics"
        return f"http://{self.hosts[0]}:{self.metrics_port}/metrics"


def hosts_in_urls(host: str, hostname: str) -> tuple[str, ...]:
    """The names in URLs of a server that listens on `host`: of all addresses, `localhost` and the machine's name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return (host,)
    if address.is_unspecified:
        return ("localhost",) if hostname in {"", "localhost"} else ("localhost", hostname)
    if address.version == 6:
        return (f"[{host.replace('%', '%25')}]",)  # RFC 6874: a zone follows an escaped percent sign
    return (host,)


def landing_of(
    address: tuple[str, int, int],
    metrics_port: int | None,
    served: Iterable[Pipeline],
    not_served: int,
    partitions: int,
    *,
    tls: bool,
) -> Landing:
    """The landing of a server; `address` is (host, HTTP port, gRPC port), `served` has one version of each name."""
    host, http_port, grpc_port = address
    alone = [kind_of(pipeline) == "model" for pipeline in served]
    return Landing(
        hosts_in_urls(host, socket.gethostname()),
        http_port,
        grpc_port,
        metrics_port,
        tls,
        models=sum(alone),
        pipelines=len(alone) - sum(alone),
        not_served=not_served,
        partitions=partitions,
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
