"""SIGTERM under load: what is in flight is answered, the rest refused, and nothing is left behind."""

import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.onnx_models import save_spin
from tests.support.processes import alive, children
from tests.support.server import GatewayServer, gateway_server

IN_FLIGHT = 6
CONFIG: dict[str, object] = {"max_batch_size": 1, "partitions": 1, "default_slo_ms": 120_000}
BODY = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [float(index) for index in range(64)]}]}
).encode()


def infer(server: GatewayServer) -> tuple[int, dict[str, object]]:
    status, _, body = server.request("POST", "/v2/models/spin/infer", BODY)
    return status, json.loads(body)


def wait_for_requests(server: GatewayServer, count: int) -> None:
    """Until the one model's queue and its worker hold that many (one runs, one is next)."""
    give_up = time.monotonic() + 20
    while time.monotonic() < give_up:
        text = server.request("GET", "/metrics")[2].decode()
        if f'sluice_queue_requests{{model="spin:1"}} {float(count)}' in text:
            return
        time.sleep(0.01)
    raise TimeoutError(text)


def shared_memory() -> set[str]:
    """What lies in shared memory, but for that of the Triton servers of other tests, which may run at the same time."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sluice-test-")}


@pytest.mark.behaviour(
    "L0_lifecycle",
    "shutdown: what is in flight is answered, what comes is 503: the server is stopping",
    through="http grpc",
)
def test_a_drain_answers_what_is_in_flight_and_leaves_nothing_behind(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    save_spin(repository / "spin" / "1" / "model.onnx", 10, 200_000)
    shared_before = shared_memory()
    with (
        gateway_server(repository, tmp_path, CONFIG) as server,
        ThreadPoolExecutor(IN_FLIGHT) as pool,
    ):
        workers = children(server.process.pid)
        answers = [pool.submit(infer, server) for _ in range(IN_FLIGHT)]
        wait_for_requests(server, IN_FLIGHT - 1)
        server.process.send_signal(signal.SIGTERM)
        while server.request("GET", "/v2/health/ready")[0] == 200:
            time.sleep(0.005)
        assert server.request("GET", "/v2/health/live")[0] == 200
        status, refusal = infer(server)
        assert (status, "error" in refusal) == (503, True)
        for answer in answers:
            status, body = answer.result(60)
            assert status == 200, body
        assert server.process.wait(30) == 0
    assert len(workers) == 1
    assert not any(alive(worker) for worker in workers)
    assert shared_memory() == shared_before
    for port in (server.http_port, server.grpc_port):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_clients_over_grpc_that_ask_until_the_end_are_refused_by_the_server_itself(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    save_spin(repository / "spin" / "1" / "model.onnx", 10, 200_000)
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

        def ask_twice() -> str:
            stub.ModelInfer(request)
            with pytest.raises(grpc.RpcError) as caught:
                stub.ModelInfer(request)
            return f"{caught.value.code().name}: {caught.value.details()}"

        asking = [pool.submit(ask_twice) for _ in range(IN_FLIGHT)]
        wait_for_requests(server, IN_FLIGHT - 1)
        server.process.send_signal(signal.SIGTERM)
        assert {each.result(60) for each in asking} == {"UNAVAILABLE: the server is stopping"}
        answered_s = time.monotonic()
        with pytest.raises(grpc.RpcError, match="the server is stopping") as caught:
            next(stream)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert time.monotonic() - answered_s < 1.5
        assert server.process.wait(30) == 0
        asked.put(None)


def test_a_second_signal_ends_it_at_once_and_every_request_gets_an_answer(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    save_spin(repository / "spin" / "1" / "model.onnx", 10, 400_000)
    with (
        gateway_server(repository, tmp_path, CONFIG) as server,
        ThreadPoolExecutor(3) as pool,
    ):
        workers = children(server.process.pid)
        answers = [pool.submit(infer, server) for _ in range(3)]
        wait_for_requests(server, 2)
        server.process.send_signal(signal.SIGTERM)
        while server.request("GET", "/v2/health/ready")[0] == 200:
            time.sleep(0.005)
        server.process.send_signal(signal.SIGTERM)
        assert {answer.result(30)[0] for answer in answers} == {503}
        assert server.process.wait(30) == 1
    assert not any(alive(worker) for worker in workers)
