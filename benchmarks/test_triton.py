"""Batches forwarded to a real Triton, against Triton directly: servers on one core, client on another."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from benchmarks.conftest import Report
from benchmarks.support.closed_loop import Closed, drive_grpc, drive_http, grpc_request, http_request
from benchmarks.support.processes import ServerProcess, alternate, gateway, pinned
from tests.support.models.onnx_models import save_mlp
from tests.support.triton.models import add_model
from tests.support.triton.server import TritonServer, triton_server
from tests.support.triton.setup import TritonUnavailable, set_up

SERVER_CORE, CLIENT_CORE = 0, 1
ROUNDS = 5
SECONDS = 2.0
SHAPE = (1, 64)
FORWARDED, DIRECT = "forwarded", "direct"
"""The same network twice: Sluice batches the first, and Triton batches the second."""

Drive = Callable[[int, float], Closed]
"""drive(concurrency, seconds)"""


class Servers(NamedTuple):
    """A gateway, and the Triton that it forwards to."""

    sluice: ServerProcess
    triton: TritonServer


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    try:
        directory = set_up()
    except TritonUnavailable as reason:
        pytest.skip(str(reason))
    scratch = tmp_path_factory.mktemp("triton")
    model = save_mlp(scratch / "mlp.onnx", [64, 128, 128, 10])
    add_model(scratch / "models", FORWARDED, model, 64)
    add_model(scratch / "models", DIRECT, model, 64, "dynamic_batching { }")
    with (
        pinned(SERVER_CORE),  # started processes inherit the core
        triton_server(directory, scratch / "models", scratch) as triton,
        gateway(scratch, _config(triton), SERVER_CORE) as sluice,
        pinned(CLIENT_CORE),
    ):
        yield Servers(sluice, triton)


def _config(triton: TritonServer) -> str:
    server = f"{{name: t, url: '{triton.url}', http_url: '127.0.0.1:{triton.http_port}', models: [{FORWARDED}]}}"
    return f"partitions: []\nmax_batch_size: 64\ntriton: [{server}]\n"


def test_http(benchmark: Any, servers: Servers, report: Report) -> None:
    """Over HTTP: rate at concurrency 64, and added latency at concurrency 1."""
    sluice, triton = servers
    ours, theirs = (http_request(f"/v2/models/{model}/infer", "x", SHAPE) for model in (FORWARDED, DIRECT))
    _compare(
        benchmark,
        report,
        "HTTP",
        lambda concurrency, seconds: drive_http(sluice.http_port, ours, concurrency, seconds),
        lambda concurrency, seconds: drive_http(triton.http_port, theirs, concurrency, seconds),
    )


def test_grpc(benchmark: Any, servers: Servers, report: Report) -> None:
    """The same over gRPC."""
    sluice, triton = servers
    ours, theirs = (grpc_request(model, "x", SHAPE) for model in (FORWARDED, DIRECT))
    _compare(
        benchmark,
        report,
        "gRPC",
        lambda concurrency, seconds: drive_grpc(sluice.grpc_port, ours, concurrency, seconds),
        lambda concurrency, seconds: drive_grpc(triton.grpc_port, theirs, concurrency, seconds),
    )


def _compare(benchmark: Any, report: Report, protocol: str, ours: Drive, theirs: Drive) -> None:
    def compare() -> list[float]:
        rates = alternate(ROUNDS, lambda: ours(64, SECONDS).rate, lambda: theirs(64, SECONDS).rate)
        lone = alternate(ROUNDS, lambda: ours(1, SECONDS / 2).p50_ms, lambda: theirs(1, SECONDS / 2).p50_ms)
        return [*rates, *lone]

    rate, direct, latency, alone = benchmark.pedantic(compare, rounds=1)
    report(f"forwarded to Triton, {protocol}, concurrency 64, requests/s", f"{rate:,.0f}", "")
    report(f"that Triton directly, {protocol}, requests/s", f"{direct:,.0f}", "")
    report(f"forwarded against direct, {protocol}", f"{rate / direct:.2f}x", ">= 1.0x")
    report(f"forwarded, {protocol}, concurrency 1, p50 added, ms", f"{latency - alone:.3f}", "<= 0.5")
