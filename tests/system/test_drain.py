"""SIGTERM under load: what is in flight is answered, the rest refused, and nothing is left behind."""

import http.client
import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import TypeVar

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.gateway.processes import alive, children, until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_spin

T = TypeVar("T")

IN_FLIGHT = 6
CONFIG: dict[str, object] = {"max_batch_size": 1, "partitions": 1, "default_slo_ms": 120_000}
REQUEST = {
    "inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [float(index) for index in range(64)]}]
}


def infer(server: GatewayServer, id: str = "") -> tuple[int, dict[str, object]]:
    status, _, body = server.request("POST", "/v2/models/spin/infer", json.dumps({"id": id, **REQUEST}).encode())
    return status, json.loads(body)


def in_flight(server: GatewayServer, pool: ThreadPoolExecutor, count: int, ask: Callable[[str], T]) -> list[Future[T]]:
    """Requests that have all come, and are with the worker, which is stopped, or wait for it. `ask` gets their ids."""
    ids = [f"in-flight-{number}" for number in range(count)]
    answers = [pool.submit(ask, ids[0])]
    until(lambda: server.is_sent(ids[0], "spin"))
    answers += [pool.submit(ask, id) for id in ids[1:]]
    until(lambda: all(map(server.has_come, ids)))
    return answers


def named_memory(pid: int) -> set[str]:
    """The files in /dev/shm that a process has mapped or open, as far as others could find them there."""
    files = [line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    files += [os.readlink(descriptor) for descriptor in Path(f"/proc/{pid}/fd").iterdir()]
    return {name for name in files if name.startswith("/dev/shm/") and not name.endswith(" (deleted)")}


def listening(*ports: int) -> set[str]:
    """The sockets that listen on ports, by their numbers in the kernel: a port may be another server's later."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {words[9] for words in lines[1:] if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) in ports}


@pytest.mark.behaviour(
    "L0_lifecycle",
    "shutdown: what is in flight is answered, what comes is 503: the server is stopping",
    through="http grpc",
)
def test_a_drain_answers_what_is_in_flight_and_leaves_nothing_behind(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    save_spin(repository / "spin" / "1" / "model.onnx", 10, 10)
    with (
        gateway_server(repository, tmp_path, CONFIG) as server,
        ThreadPoolExecutor(IN_FLIGHT) as pool,
    ):
        (worker,) = children(server.process.pid)
        os.kill(worker, signal.SIGSTOP)
        answers = in_flight(server, pool, IN_FLIGHT, lambda id: infer(server, id))
        assert named_memory(server.process.pid) | named_memory(worker) == set()
        sockets = listening(server.http_port, server.grpc_port)
        assert sockets
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.request("GET", "/v2/health/ready")[0] != 200)
        assert server.request("GET", "/v2/health/live")[0] == 200
        status, refusal = infer(server)
        assert (status, "error" in refusal) == (503, True)
        os.kill(worker, signal.SIGCONT)
        for answer in answers:
            status, body = answer.result(60)
            assert status == 200, body
        assert server.process.wait(60) == 0
    assert not alive(worker)
    assert listening(server.http_port, server.grpc_port).isdisjoint(sockets)


def test_a_server_that_leaves_serves_on_and_then_asks_clients_to_go(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    save_spin(repository / "spin" / "1" / "model.onnx", 1, 1)
    body = json.dumps(REQUEST).encode()
    answers: list[tuple[int, str | None]] = []
    # A drain would refuse requests for the rest of the time that it has.
    config = {**CONFIG, "drain_delay_s": 6, "drain_timeout_s": 600}
    with gateway_server(repository, tmp_path, config) as server:
        kept = http.client.HTTPConnection(server.http_url, timeout=60)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.request("GET", "/v2/health/ready")[0] == 503)
        assert server.request("GET", "/v2/models/spin/ready")[0] == 503
        while not answers or answers[-1] == (200, None):
            kept.request("POST", "/v2/models/spin/infer", body)
            response = kept.getresponse()
            response.read()
            answers.append((response.status, response.getheader("connection")))
        assert answers[-1] == (200, "close"), answers
        assert server.process.wait(60) == 0
    assert "not ready from now on; still serving" in server.log.read_text()


def test_a_second_signal_ends_the_delay(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    save_spin(repository / "spin" / "1" / "model.onnx", 1, 1)
    with gateway_server(repository, tmp_path, {**CONFIG, "drain_delay_s": 500, "drain_timeout_s": 600}) as server:
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.request("GET", "/v2/health/ready")[0] == 503)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0


@pytest.mark.timed
def test_clients_over_grpc_that_ask_until_the_end_are_refused_by_the_server_itself(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    save_spin(repository / "spin" / "1" / "model.onnx", 10, 10)
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 64])
    request = service_pb2.ModelInferRequest(model_name="spin", inputs=[tensor], raw_input_contents=[bytes(256)])

    with (
        gateway_server(repository, tmp_path, CONFIG) as server,
        grpc.insecure_channel(server.grpc_url) as channel,
        ThreadPoolExecutor(IN_FLIGHT) as pool,
    ):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        asked = Queue[object]()
        asked.put(request)
        stream = stub.ModelStreamInfer(iter(asked.get, None))
        assert next(stream).error_message == ""

        def ask_twice(id: str) -> str:
            named = service_pb2.ModelInferRequest(id=id)
            named.MergeFrom(request)
            stub.ModelInfer(named)
            with pytest.raises(grpc.RpcError) as caught:
                stub.ModelInfer(request)
            return f"{caught.value.code().name}: {caught.value.details()}"

        (worker,) = children(server.process.pid)
        os.kill(worker, signal.SIGSTOP)
        asking = in_flight(server, pool, IN_FLIGHT, ask_twice)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.request("GET", "/v2/health/ready")[0] != 200)
        os.kill(worker, signal.SIGCONT)
        assert {each.result(60) for each in asking} == {"UNAVAILABLE: the server is stopping"}
        answered_s = time.monotonic()
        with pytest.raises(grpc.RpcError, match="the server is stopping") as caught:
            next(stream)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert time.monotonic() - answered_s < 10
        assert server.process.wait(60) == 0
        asked.put(None)


def test_a_second_signal_ends_it_at_once_and_every_request_gets_an_answer(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    save_spin(repository / "spin" / "1" / "model.onnx", 10, 10)
    with (
        gateway_server(repository, tmp_path, CONFIG) as server,
        ThreadPoolExecutor(3) as pool,
    ):
        (worker,) = children(server.process.pid)
        os.kill(worker, signal.SIGSTOP)
        answers = in_flight(server, pool, 3, lambda id: infer(server, id))
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.request("GET", "/v2/health/ready")[0] != 200)
        server.process.send_signal(signal.SIGTERM)
        assert {answer.result(60)[0] for answer in answers} == {503}
        assert server.process.wait(60) == 1
    assert not alive(worker)
