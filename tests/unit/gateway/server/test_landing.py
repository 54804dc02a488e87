"""The landing lines of a server: its addresses as clients write them, and what it serves."""

import msgspec
import pytest

from sluice.gateway.server.landing import Landing, hosts_in_urls, landing_of
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.instant_gateway import identity

MODEL = identity("m", ("x", DataType.FP32, (2,)))
PIPELINE = msgspec.structs.replace(MODEL, name="p")
"""A pipeline with the model as its stage."""


def a_landing(*hosts: str, metrics_port: int | None = None, tls: bool = False, not_served: int = 0) -> Landing:
    return Landing(hosts, 8000, 8001, metrics_port, tls, 2, 1, not_served, 4)


@pytest.mark.parametrize(
    ("host", "hosts"),
    [
        ("127.0.0.1", ("127.0.0.1",)),
        ("models.example", ("models.example",)),
        ("0.0.0.0", ("localhost", "box")),
        ("::", ("localhost", "box")),
        ("::1", ("[::1]",)),
        ("fe80::1%eth0", ("[fe80::1%25eth0]",)),
    ],
)
def test_hosts_are_as_in_urls(host: str, hosts: tuple[str, ...]) -> None:
    assert hosts_in_urls(host, "box") == hosts


@pytest.mark.parametrize("hostname", ["", "localhost"])
def test_a_machine_without_a_name_is_the_local_host(hostname: str) -> None:
    assert hosts_in_urls("0.0.0.0", hostname) == ("localhost",)


def test_a_line_names_every_address_and_what_is_served() -> None:
    assert a_landing("localhost", "box").fields == {
        "page": "http://localhost:8000/",
        "docs": "http://localhost:8000/docs",
        "http": "http://localhost:8000",
        "grpc": "localhost:8001",
        "metrics": "http://localhost:8000/metrics",
        "also": "http://box:8000",
        "models": 2,
        "pipelines": 1,
        "not_served": 0,
        "partitions": 4,
    }


def test_people_get_short_lines() -> None:
    assert a_landing("localhost", "box", not_served=3).lines == [
        "page     http://localhost:8000/",
        "API      http://localhost:8000/docs",
        "HTTP     http://localhost:8000  http://box:8000",
        "gRPC     localhost:8001  box:8001",
        "metrics  http://localhost:8000/metrics",
        "serving  2 models and 1 pipeline on 4 partitions; 3 could not be loaded (sluice model list)",
    ]


def test_with_certificates_all_but_the_port_of_metrics_is_https() -> None:
    fields = a_landing("[::1]", metrics_port=8002, tls=True).fields
    assert fields["docs"] == "https://[::1]:8000/docs"
    assert fields["metrics"] == "http://[::1]:8002/metrics"


def test_models_alone_and_pipelines_are_counted_apart() -> None:
    address = ("127.0.0.1", 1, 2)
    found = landing_of(address, None, [MODEL, PIPELINE, MODEL], 0, 1, tls=False)
    assert (found.models, found.pipelines) == (2, 1)
    assert landing_of(address, None, [PIPELINE], 0, 1, tls=False).lines[-1] == "serving  1 pipeline on 1 partition"
    assert landing_of(address, None, [], 0, 1, tls=False).lines[-1] == "serving  0 models on 1 partition"
