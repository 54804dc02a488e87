"""The time that traces take in the gateway's own thread, per request, against the same server without traces."""

import contextlib
import http.client
import itertools
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.conftest import Report
from benchmarks.support.closed_loop import http_request
from benchmarks.support.processes import ServerProcess, alternate, gateway, pinned
from tests.support.otel.collector import grpc_collector

SERVER_CORE, CLIENT_CORE = 0, 1
ROUNDS = 25
BURSTS, BURST = 20, 16
PAUSE_S = 0.005
"""The time after each burst: the exporter, which has less of the processor than others, is to keep up."""
CONFIG = f"partitions: [{{name: cpu0, cores: [{SERVER_CORE}]}}]\nmax_batch_size: 64\n"
REQUEST = http_request("/v2/models/mlp/infer", "x", (1, 64))


def gateway_us(server: ServerProcess, requests: Iterator[bytes]) -> float:
    """The time of the gateway's main thread for a request, in bursts on connections that are kept."""
    with contextlib.ExitStack() as stack:
        address = "127.0.0.1", server.http_port
        connections = [stack.enter_context(socket.create_connection(address)) for _ in range(BURST)]
        _burst(connections, requests)
        before_ns = _thread_ns(server.process.pid)
        for _ in range(BURSTS):
            _burst(connections, requests)
            time.sleep(PAUSE_S)
        return (_thread_ns(server.process.pid) - before_ns) / (BURSTS * BURST) / 1000


def _burst(connections: list[socket.socket], requests: Iterator[bytes]) -> None:
    for connection in connections:
        connection.sendall(next(requests))
    for connection in connections:
        answer = connection.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]


def _thread_ns(pid: int) -> int:
    """The time that the main thread of a process has run."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def traced(flags: str, numbers: Iterator[int]) -> Iterator[bytes]:
    """The request with another trace context each time."""
    head, _, rest = REQUEST.partition(b"\r\n")
    for number in numbers:
        yield b"%b\r\ntraceparent: 00-%032x-00f067aa0ba902b7-%b\r\n%b" % (head, number, flags.encode(), rest)


def exporter(server: ServerProcess) -> int:
    """The process id of the exporter."""
    (pid,) = [
        pid for pid in server.pids() if b"sluice.gateway.tracing.main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return pid


def dropped(server: ServerProcess) -> float:
    """The requests' spans that the exporter could not be given."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    (line,) = [each for each in lines if each.startswith('sluice_trace_spans_dropped_total{reason="exporter"}')]
    return float(line.rsplit(" ", 1)[1])


def test_gateway_time(benchmark: Any, repository: Path, tmp_path: Path, report: Report) -> None:
    """Requests in bursts, in turns: without traces, untraced with a collector, unsampled contexts, and traced."""
    model = tmp_path / "mlp.onnx"
    model.write_bytes((repository / "mlp" / "1" / "model.onnx").read_bytes())
    for name in ("plain", "again", "otel"):
        (tmp_path / name).mkdir()
    with grpc_collector() as collector:
        settings = f"{{endpoint: '{collector.endpoint}', protocol: grpc}}"
        trace = f"trace: {{mode: opentelemetry, rate: 0, opentelemetry: {settings}}}\n"
        with (
            gateway(tmp_path / "plain", CONFIG, SERVER_CORE, str(model)) as plain,
            gateway(tmp_path / "again", CONFIG, SERVER_CORE, str(model)) as again,
            gateway(tmp_path / "otel", CONFIG + trace, SERVER_CORE, str(model)) as otel,
            pinned(CLIENT_CORE),
        ):
            os.sched_setaffinity(exporter(otel), {CLIENT_CORE})
            numbers = itertools.count(1)
            measures = (
                lambda: gateway_us(plain, itertools.repeat(REQUEST)),
                lambda: gateway_us(again, itertools.repeat(REQUEST)),
                lambda: gateway_us(otel, itertools.repeat(REQUEST)),
                lambda: gateway_us(otel, traced("00", numbers)),
                lambda: gateway_us(otel, traced("01", numbers)),
            )
            without, same, untraced, unsampled, sampled = benchmark.pedantic(
                alternate, args=(ROUNDS, *measures), rounds=1
            )
            report("gateway time of a request without traces, us", f"{without:.1f}", "")
            report("more of it in another server without traces, us", f"{same - without:+.1f}", "0: the noise")
            report("more of it for an untraced one with a collector, us", f"{untraced - without:+.1f}", "<= 2")
            report("for one whose caller does not record, us", f"{unsampled - without:+.1f}", "")
            report("for a traced one, us", f"{sampled - without:+.1f}", "<= 25")
            report("spans that the exporter was not given", f"{dropped(otel):.0f}", "0")
            report("spans that the collector got", f"{len(collector.spans):,}", "")
