"""Front ends of a real server: what their ends cost, and that clients see one server."""

import http.client
import json
import os
import signal
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Queue

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.support.certificates import certificate
from tests.support.gateway.processes import alive, children, front_ends, memory_files, peers, until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_mlp
from tests.support.models.timed_models import save_timed

FRONT_ENDS = 2
CONNECTIONS = 16
CONFIG: dict[str, object] = {"front_ends": FRONT_ENDS, "partitions": 1, "default_slo_ms": 60_000}
WIDE = 1 << 20


def body_of(width: int = 4, id: str = "") -> bytes:
    tensor = {"name": "x", "shape": [1, width], "datatype": "FP32", "data": [1.0] * width}
    return json.dumps({"inputs": [tensor], **({"id": id} if id else {})}).encode()


def connect(server: GatewayServer) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    connection.connect()
    return connection


def ask(connection: http.client.HTTPConnection, model: str, body: bytes) -> int:
    """The status of a request on an open connection; 0 if the connection has ended."""
    try:
        connection.request("POST", f"/v2/models/{model}/infer", body)
        response = connection.getresponse()
        response.read()
        return response.status
    except (OSError, http.client.HTTPException):
        return 0


def wait_for(server: GatewayServer, id: str) -> None:
    until(lambda: server.has_come(id))


def metrics(server: GatewayServer) -> dict[str, float]:
    lines = server.request("GET", "/metrics")[2].decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def outcomes(server: GatewayServer, pipeline: str) -> dict[str, float]:
    """The number of requests by outcome."""
    begin = 'sluice_requests_total{outcome="'
    return {
        name.removeprefix(begin).partition('"')[0]: count
        for name, count in metrics(server).items()
        if name.startswith(begin) and f'pipeline="{pipeline}"' in name and count
    }


def gone(server: GatewayServer, victim: int) -> None:
    """Wait until a front end is replaced."""
    until(lambda: not alive(victim) and len(front_ends(server.process.pid)) == FRONT_ENDS)


def input_memory(server: GatewayServer) -> int:
    return len(memory_files(server.process.pid, "sluice-front-end"))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("front-ends") / "models"
    save_timed(repository, "quick", {1: 1.0, 8: 2.0})
    save_timed(repository, "slow", {1: 1000.0, 64: 1000.0}, max_batch_size=64)
    return repository


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    with gateway_server(repository, tmp_path_factory.mktemp("server"), CONFIG) as running:
        yield running


@contextmanager
def connections(server: GatewayServer, count: int) -> Iterator[list[http.client.HTTPConnection]]:
    with ExitStack() as stack:
        opened = [connect(server) for _ in range(count)]
        for each in opened:
            stack.callback(each.close)
        yield opened


def test_the_end_of_a_front_end_ends_its_own_connections_only(server: GatewayServer) -> None:
    workers, memory = children(server.process.pid), input_memory(server)
    for round_number in range(3):
        before = outcomes(server, "slow:1")
        victim = front_ends(server.process.pid)[round_number % FRONT_ENDS]
        with connections(server, CONNECTIONS) as opened, ThreadPoolExecutor(CONNECTIONS) as pool:
            assert {ask(each, "quick", body_of()) for each in opened} == {200}
            ports = [each.sock.getsockname()[1] for each in opened]
            doomed = peers(victim, server.http_port)
            lost = [port in doomed for port in ports]
            ids = [f"{round_number}-{number}" for number in range(CONNECTIONS)]
            answers = [pool.submit(ask, each, "slow", body_of(id=id)) for each, id in zip(opened, ids, strict=True)]
            for id in ids:
                wait_for(server, id)
            os.kill(victim, signal.SIGKILL)
            assert [answer.result() == 0 for answer in answers] == lost
        gone(server, victim)
        until(lambda: metrics(server)["sluice_front_ends"] == FRONT_ENDS)
        now = outcomes(server, "slow:1")
        gained = {name: now[name] - before.get(name, 0) for name in now if now[name] != before.get(name, 0)}
        assert sum(gained.values()) == CONNECTIONS  # each has one outcome
        assert gained.get("cancelled_client", 0) == sum(lost)
    assert children(server.process.pid) == workers
    until(lambda: input_memory(server) == memory)


def test_calls_over_grpc_end_with_their_front_end_and_the_others_go_on(server: GatewayServer) -> None:
    before = outcomes(server, "slow:1").get("cancelled_client", 0)
    request = service_pb2.ModelInferRequest(model_name="slow")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(bytes(16))
    with ExitStack() as stack:
        # A subchannel of its own each, or all would share one connection.
        channels = [
            stack.enter_context(grpc.insecure_channel(server.grpc_url, [("grpc.use_local_subchannel_pool", 1)]))
            for _ in range(8)
        ]
        stubs = [service_pb2_grpc.GRPCInferenceServiceStub(channel) for channel in channels]
        assert all(stub.ServerReady(service_pb2.ServerReadyRequest()).ready for stub in stubs)
        victim = front_ends(server.process.pid)[0]
        lost = len(peers(victim, server.grpc_port))
        answers = []
        for number, stub in enumerate(stubs):
            request.id = f"call-{number}"
            answers.append(stub.ModelInfer.future(request))
        for number in range(len(stubs)):
            wait_for(server, f"call-{number}")
        os.kill(victim, signal.SIGKILL)
        codes = [answer.code() for answer in answers]
        assert codes.count(grpc.StatusCode.OK) == 8 - lost
        assert codes.count(grpc.StatusCode.UNAVAILABLE) == lost
        gone(server, victim)
        assert stubs[0].ModelInfer(request, wait_for_ready=True).outputs[0].name == "y"
    until(lambda: outcomes(server, "slow:1").get("cancelled_client", 0) == before + lost)


def test_a_call_over_grpc_that_is_cancelled_or_late_cancels_its_request(server: GatewayServer) -> None:
    before = outcomes(server, "slow:1").get("cancelled_client", 0)
    request = service_pb2.ModelInferRequest(model_name="slow")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(bytes(16))
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request.id = "cancelled"
        call = stub.ModelInfer.future(request)
        wait_for(server, "cancelled")
        call.cancel()
        until(lambda: outcomes(server, "slow:1").get("cancelled_client", 0) == before + 1)


def test_what_a_call_over_grpc_changes_is_seen_over_http_and_the_reverse(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    save_mlp(repository / "mlp" / "1" / "model.onnx", [64, 10])
    with gateway_server(repository, tmp_path, {**CONFIG, "control": "explicit"}) as server:
        calls = tritonclient.grpc.InferenceServerClient(server.grpc_url)
        web = tritonclient.http.InferenceServerClient(server.http_url)
        given = tritonclient.grpc.InferInput("x", [1, 64], "FP32")
        given.set_data_from_numpy(np.ones((1, 64), np.float32))
        for _ in range(3):
            calls.load_model("mlp")
            with connections(server, 4) as opened:
                assert {ask(each, "mlp", body_of(64)) for each in opened} == {200}
            assert calls.infer("mlp", [given]).as_numpy("y").shape == (1, 10)
            web.unload_model("mlp")
            until(lambda: not calls.is_model_ready("mlp"))
            with pytest.raises(InferenceServerException, match="NOT_FOUND"):
                calls.infer("mlp", [given])
            answers: Queue[tuple[object, InferenceServerException | None]] = Queue()
            calls.start_stream(lambda result, error, put=answers.put: put((result, error)))
            calls.async_stream_infer("mlp", [given])
            error = answers.get(timeout=30)[1]
            assert error is not None
            assert "has no available versions" in error.message()
            calls.stop_stream()
        calls.close()
        web.close()


def test_a_front_end_that_ends_again_and_again_leaves_the_server_ready(server: GatewayServer) -> None:
    for _ in range(3):
        (first, *_rest) = front_ends(server.process.pid)
        os.kill(first, signal.SIGKILL)
        gone(server, first)
        assert server.request("GET", "/v2/health/ready")[0] == 200
    until(lambda: metrics(server)["sluice_front_ends"] == FRONT_ENDS, 30)
    assert metrics(server)["sluice_front_end_losses_total"] >= 3


def test_nothing_is_left_when_the_gateway_is_killed(repository: Path, tmp_path: Path) -> None:
    with gateway_server(repository, tmp_path, CONFIG) as server:
        left = [*front_ends(server.process.pid), *children(server.process.pid)]
        assert len(left) == FRONT_ENDS + 1
        with connections(server, 4) as opened, ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(ask, each, "slow", body_of()) for each in opened]
            until(lambda: sum(outcomes(server, "slow:1").values()) >= 0)
            server.process.kill()
            assert {answer.result() for answer in answers} <= {0, 200}
        until(lambda: not any(map(alive, left)))
        with pytest.raises(OSError, match="refused"):
            connect(server)


@pytest.mark.parametrize("signalled", ["the gateway", "all processes"])
def test_a_drain_answers_open_requests_and_ends_all_processes(signalled: str, repository: Path, tmp_path: Path) -> None:
    with gateway_server(repository, tmp_path, CONFIG) as server:
        left = [*front_ends(server.process.pid), *children(server.process.pid)]
        with connections(server, 8) as opened, ThreadPoolExecutor(8) as pool:
            ids = [f"drain-{number}" for number in range(8)]
            answers = [pool.submit(ask, each, "slow", body_of(id=id)) for each, id in zip(opened, ids, strict=True)]
            for id in ids:
                wait_for(server, id)
            for pid in left if signalled == "all processes" else ():
                os.kill(pid, signal.SIGTERM)
            server.process.send_signal(signal.SIGTERM)
            assert {answer.result() for answer in answers} == {200}
        assert server.process.wait(30) == 0
        assert not any(map(alive, left))


def test_a_client_that_leaves_cancels_its_request(server: GatewayServer) -> None:
    before = outcomes(server, "slow:1").get("cancelled_client", 0)
    connection = connect(server)
    connection.request("POST", "/v2/models/slow/infer", body_of(id="leaves"))
    wait_for(server, "leaves")
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
    connection.close()
    until(lambda: outcomes(server, "slow:1").get("cancelled_client", 0) == before + 1)


def wide_request() -> tuple[bytes, bytes]:
    """The JSON and the binary data of a large request."""
    data = np.ones(WIDE, np.float32).tobytes()
    tensor = {"name": "x", "shape": [1, WIDE], "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}
    return json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode(), data


def test_inputs_that_do_not_fit_in_the_arena_leave_no_memory_behind(repository: Path, tmp_path: Path) -> None:
    text, data = wide_request()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    with gateway_server(repository, tmp_path, {**CONFIG, "limits": {"input_arena_mb": 1}}) as server:
        for _ in range(4):
            assert server.request("POST", "/v2/models/quick/infer", text + data, headers)[0] == 200
        for pid in (server.process.pid, *front_ends(server.process.pid), *children(server.process.pid)):
            until(lambda pid=pid: not memory_files(pid, "sluice-front-end-large"))  # type: ignore[misc]


def test_clients_that_do_not_read_hold_up_nobody(server: GatewayServer) -> None:
    text, data = wide_request()
    head = (
        f"POST /v2/models/quick/infer HTTP/1.1\r\nHost: localhost\r\nInference-Header-Content-Length: {len(text)}\r\n"
        f"Content-Length: {len(text) + len(data)}\r\n\r\n"
    ).encode()
    with ExitStack() as stack:
        for _ in range(6):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", server.http_port)))
            slow.sendall(head + text + data)
        with connections(server, 4) as opened:
            assert [ask(each, "quick", body_of()) for each in opened for _ in range(5)] == [200] * 20
        # The rest of an answer comes when it is read.
        answer = bytearray()
        while len(answer) < len(data):
            answer += slow.recv(1 << 20)
        assert answer.startswith(b"HTTP/1.1 200 OK")
    until(lambda: metrics(server)["sluice_buffer_used_bytes"] == 0)


def test_a_client_cannot_say_whom_it_has_reached(repository: Path, tmp_path: Path) -> None:
    with gateway_server(repository, tmp_path, CONFIG) as server:
        claim = {"Host": "192.0.2.1", "x-sluice-relayed": '[["127.0.0.1", 1], ["192.0.2.1", 80]]'}
        assert server.request("GET", "/v2", headers=claim)[0] == 421
        assert server.request("POST", "/v2/models/quick/infer", body_of(), claim)[0] == 421
        assert server.request("GET", "/v2", headers={"Host": "localhost"})[0] == 200


def test_a_client_of_http_1_0_need_not_name_a_host(server: GatewayServer) -> None:
    for head in (b"GET /v2 HTTP/1.0\r\n\r\n", b"POST /v2/models/nope/infer HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}"):
        with socket.create_connection(("127.0.0.1", server.http_port)) as client:
            client.sendall(head)
            answer = client.makefile("rb").read()
        assert answer.split(b" ")[1] == (b"200" if head.startswith(b"GET") else b"404")


def test_two_servers_cannot_have_one_port(server: GatewayServer, repository: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="cannot be bound"),
        gateway_server(repository, tmp_path, CONFIG, ["--http-port", str(server.http_port)]),
    ):
        pass


def test_tls_ends_in_the_front_end(repository: Path, tmp_path: Path) -> None:
    certificate(tmp_path, "server")
    tls = {"certificate": str(tmp_path / "server.pem"), "key": str(tmp_path / "server.key")}
    with gateway_server(repository, tmp_path, {**CONFIG, "tls": tls}) as server:
        context = ssl.create_default_context(cafile=tls["certificate"])
        connection = http.client.HTTPSConnection("127.0.0.1", server.http_port, timeout=60, context=context)
        assert ask(connection, "quick", body_of()) == 200
        connection.request("GET", "/v2/health/ready")
        assert connection.getresponse().status == 200
        connection.close()
        credentials = grpc.ssl_channel_credentials(Path(tls["certificate"]).read_bytes())
        with grpc.secure_channel(server.grpc_url, credentials) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert stub.ServerReady(service_pb2.ServerReadyRequest()).ready


def test_models_change_under_traffic(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    for version in ("1", "2"):
        save_mlp(repository / "mlp" / version / "model.onnx", [64, 10])
    save_timed(repository, "quick", {1: 1.0, 8: 2.0})
    config = {**CONFIG, "control": "explicit", "load_models": ["quick"]}
    with gateway_server(repository, tmp_path, config) as server, connections(server, 8) as opened:
        stop = threading.Event()
        seen: list[int] = []

        def traffic(connection: http.client.HTTPConnection) -> None:
            while not stop.is_set():
                seen.append(ask(connection, "quick", body_of()))

        threads = [threading.Thread(target=traffic, args=(each,)) for each in opened[:4]]
        for thread in threads:
            thread.start()
        client = tritonclient.http.InferenceServerClient(server.http_url)
        try:
            for _ in range(3):
                # What one connection has changed, all others see at once.
                client.load_model("mlp")
                assert {ask(each, "mlp", body_of(64)) for each in opened[4:]} == {200}
                client.load_model("quick")  # another revision
                client.unload_model("mlp")
                until(lambda: not client.is_model_ready("mlp"))
                assert {ask(each, "mlp", body_of(64)) for each in opened[4:]} == {404}
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            client.close()
        assert set(seen) == {200}


def test_a_spare_process_takes_the_place_of_a_front_end(repository: Path, tmp_path: Path) -> None:
    with gateway_server(repository, tmp_path, {**CONFIG, "spare_worker": True}) as server:
        until(lambda: len(front_ends(server.process.pid)) == FRONT_ENDS + 1)
        before = front_ends(server.process.pid)
        with connections(server, 8) as opened:
            assert {ask(each, "quick", body_of()) for each in opened} == {200}  # both are of use
        os.kill(before[0], signal.SIGKILL)
        until(lambda: not alive(before[0]) and metrics(server)["sluice_front_ends"] == FRONT_ENDS)
        assert set(before[1:]) <= set(front_ends(server.process.pid))
        until(lambda: len(front_ends(server.process.pid)) == FRONT_ENDS + 1)
        left = front_ends(server.process.pid)
    assert not any(map(alive, left))


def test_large_answers_that_the_gateway_has_put_together_arrive_whole(tmp_path: Path) -> None:
    """The mean of two models lies in the memory of the gateway's process: in pieces, in regions, and many at once."""
    repository = tmp_path / "models"
    for name in ("a", "b"):
        save_mlp(repository / name / "1" / "model.onnx", [16, 40_000], seed=ord(name))
    pipeline = {
        "stages": {
            "a": {"model": "a", "inputs": {"x": "request.x"}},
            "b": {"model": "b", "inputs": {"x": "request.x"}},
            "mean": {"combine": "mean", "of": ["a.y", "b.y"]},
        },
        "outputs": {"y": "mean.y"},
    }
    (repository / "both").mkdir()
    (repository / "both" / "pipeline.yaml").write_text(json.dumps(pipeline))
    with gateway_server(repository, tmp_path, CONFIG) as server, ThreadPoolExecutor(CONNECTIONS) as pool:

        def infer(number: int, model: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
            client = tritonclient.http.InferenceServerClient(server.http_url)
            given = tritonclient.http.InferInput("x", [1, 16], "FP32")
            given.set_data_from_numpy(np.full((1, 16), number, np.float32))
            answer: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = client.infer(model, [given]).as_numpy("y")
            client.close()
            return answer

        numbers = range(1, 81)
        for number, answer in zip(numbers, pool.map(lambda each: infer(each, "both"), numbers), strict=True):
            assert answer.shape == (1, 40_000)
            if number % 20 == 0:
                expected = (infer(number, "a") + infer(number, "b")) / 2
                np.testing.assert_allclose(answer, expected, rtol=1e-5)
        assert memory_files(server.process.pid, "sluice-answer") == []
