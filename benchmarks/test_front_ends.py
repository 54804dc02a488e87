"""Front ends against a single process: processor time of a request, with a worker that only sleeps."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from benchmarks.conftest import Report
from benchmarks.support.closed_loop import drive_http, http_request
from benchmarks.support.processes import ServerProcess, gateway, process_cpu_s
from tests.support.gateway.processes import front_ends
from tests.support.models.timed_models import save_timed

FRONT_ENDS = 2
ROUNDS = 3
SECONDS = 2.0
CONFIG = "partitions: 1\nspare_worker: false\ndefault_slo_ms: 20000\nfront_ends: {}\n"
PATH = "/v2/models/echo/infer"


class Cost(NamedTuple):
    """Processor time of a request in µs: of the gateway's process, and of all front ends."""

    gateway_us: float
    front_ends_us: float


def json_request(width: int) -> bytes:
    data = [float(value) for value in np.random.default_rng(0).standard_normal(width)]
    tensor = {"name": "x", "shape": [1, width], "datatype": "FP32", "data": data}
    body = json.dumps({"inputs": [tensor]}).encode()
    return f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    repository = tmp_path_factory.mktemp("models")
    save_timed(repository, "echo", {1: 1.0, 64: 2.0}, max_batch_size=64)
    with ExitStack() as stack:
        yield [
            stack.enter_context(_served(tmp_path_factory.mktemp("server"), repository, count))
            for count in (0, FRONT_ENDS)
        ]


def _served(directory: Path, repository: Path, count: int) -> Any:
    return gateway(directory, CONFIG.format(count), None, "--repository", str(repository))


def cost(server: ServerProcess, request: bytes, clients: int) -> Cost:
    """The processor time that a request takes while some clients send it again and again."""
    ends = front_ends(server.process.pid)

    def used() -> tuple[float, float]:
        return process_cpu_s(server.process.pid), sum(map(process_cpu_s, ends))

    before = used()
    requests = drive_http(server.http_port, request, clients, SECONDS).requests * 1.1  # with those of the warm-up
    return Cost(*((after - first) / requests * 1e6 for first, after in zip(before, used(), strict=True)))


@pytest.mark.parametrize(
    ("name", "request_bytes", "clients"),
    [
        ("64 floats, binary", http_request(PATH, "x", (1, 64)), 64),
        ("64 floats, JSON", json_request(64), 64),
        ("784 floats, JSON", json_request(784), 64),
        ("600 kB, binary", http_request(PATH, "x", (1, 150_528)), 16),
    ],
)
def test_processor_time(
    benchmark: Any, servers: list[ServerProcess], report: Report, name: str, request_bytes: bytes, clients: int
) -> None:
    """Two cores serve twice what one core serves, less what it costs to pass requests on.

    The generator needs the same cores as the servers, so the rates themselves say little on a machine with two.
    """

    def rounds() -> tuple[Cost, Cost]:
        alone, apart = zip(
            *([cost(server, request_bytes, clients) for server in servers] for _ in range(ROUNDS)), strict=True
        )
        return sorted(alone)[ROUNDS // 2], sorted(apart, key=sum)[ROUNDS // 2]

    alone, apart = benchmark.pedantic(rounds, rounds=1)
    report(f"{name}: a single process, us", f"{alone.gateway_us:.0f}", "")
    report(f"{name}: gateway and front ends, us", f"{apart.gateway_us:.0f} + {apart.front_ends_us:.0f}", "")
    report(f"{name}: two cores against one", f"{2 * alone.gateway_us / sum(apart):.2f}x", ">= 1.6x")
