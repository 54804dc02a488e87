"""Large requests to a real server: the rows arrive whole, whatever becomes of the requests beside them."""

import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.grpc

from sluice.models.tensors.spec import DataType
from tests.support.gateway.processes import children, front_ends, until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_model, value

WIDTH = 50_000
ODD = 70_001
CLIENTS = 6
ROUNDS = 12
DOUBLED = f"""
backend: "python" max_batch_size: 8
input {{ name: "x" data_type: TYPE_FP32 dims: {WIDTH} }}
output {{ name: "y" data_type: TYPE_FP32 dims: {WIDTH} }}
"""
DOUBLED_MODEL = """
import os, signal

def infer(inputs):
    x = inputs["x"]
    if (x < 0).any():
        os.kill(os.getpid(), signal.SIGKILL)
    return {"y": 2 * x}
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that answer with their inputs, which are one or two; one in Python doubles its input."""
    root = tmp_path_factory.mktemp("models")
    for name, tensors in {
        "same": {"x": (DataType.FP32, WIDTH)},
        "pair": {"bits": (DataType.UINT8, ODD), "x": (DataType.FP32, WIDTH)},
    }.items():
        nodes = [onnx.helper.make_node("Identity", [each], [f"{each}_same"]) for each in tensors]
        inputs = [value(each, kind, ["N", width]) for each, (kind, width) in tensors.items()]
        outputs = [value(f"{each}_same", kind, ["N", width]) for each, (kind, width) in tensors.items()]
        (root / name / "1").mkdir(parents=True)
        save_model(root / name / "1" / "model.onnx", nodes, inputs, outputs)
    (root / "doubled" / "1").mkdir(parents=True)
    (root / "doubled" / "config.pbtxt").write_text(DOUBLED)
    (root / "doubled" / "1" / "model.py").write_text(DOUBLED_MODEL)
    return root


@pytest.fixture(scope="module", params=[0, 2], ids=["alone", "front ends"])
def server(
    request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayServer]:
    config = {"front_ends": request.param, "partitions": 1, "max_batch_size": 8, "default_slo_ms": 60_000}
    with gateway_server(repository, tmp_path_factory.mktemp("server"), config) as server:
        yield server


def rows(seed: int, width: int = WIDTH) -> np.ndarray:
    return np.random.default_rng(seed).random((1, width), np.float32)


def message(model: str, **tensors: np.ndarray) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of a request with binary tensors."""
    names = {"float32": "FP32", "uint8": "UINT8"}
    inputs = [
        {
            "name": name,
            "shape": each.shape,
            "datatype": names[each.dtype.name],
            "parameters": {"binary_data_size": each.nbytes},
        }
        for name, each in tensors.items()
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return head + b"".join(each.tobytes() for each in tensors.values()), headers


class HttpClient:
    """One connection."""

    def __init__(self, server: GatewayServer) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)

    def infer(self, model: str, **tensors: np.ndarray) -> bytes:
        """The binary data of an answer."""
        body, headers = message(model, **tensors)
        self._connection.request("POST", f"/v2/models/{model}/infer", body, headers)
        response = self._connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer
        return answer[int(response.headers["inference-header-content-length"]) :]

    def close(self) -> None:
        self._connection.close()


class GrpcClient:
    """One channel."""

    def __init__(self, server: GatewayServer) -> None:
        self._client = tritonclient.grpc.InferenceServerClient(server.grpc_url)

    def infer(self, model: str, **tensors: np.ndarray) -> bytes:
        names = {"float32": "FP32", "uint8": "UINT8"}
        inputs = []
        for name, each in tensors.items():
            inputs.append(tritonclient.grpc.InferInput(name, list(each.shape), names[each.dtype.name]))
            inputs[-1].set_data_from_numpy(each)
        answer = self._client.infer(model, inputs)
        return b"".join(answer.as_numpy(output.name).tobytes() for output in answer.get_response().outputs)

    def close(self) -> None:
        self._client.close()


CLIENT: dict[str, type[HttpClient] | type[GrpcClient]] = {"http": HttpClient, "grpc": GrpcClient}


def work(server: GatewayServer, kind: str, number: int, model: str = "same") -> None:
    """Check the answers to some requests of one client."""
    with closing(CLIENT[kind](server)) as client:
        for turn in range(ROUNDS):
            sent = rows(number * ROUNDS + turn)
            expected = 2 * sent if model == "doubled" else sent
            assert client.infer(model, x=sent) == expected.tobytes()


@pytest.mark.parametrize("model", ["same", "doubled"])
def test_every_client_gets_the_answer_to_its_own_rows(server: GatewayServer, model: str) -> None:
    with ThreadPoolExecutor(2 * CLIENTS) as clients:
        kinds = CLIENTS * ["http", "grpc"]
        for each in [clients.submit(work, server, kind, number, model) for number, kind in enumerate(kinds)]:
            each.result()


@pytest.mark.parametrize("kind", CLIENT)
def test_tensors_of_one_request_may_lie_at_any_place(server: GatewayServer, kind: str) -> None:
    with closing(CLIENT[kind](server)) as client:
        for seed in range(4):
            bits = np.random.default_rng(seed).integers(0, 256, (1, ODD), np.uint8)
            x = rows(seed)
            assert client.infer("pair", bits=bits, x=x) == bits.tobytes() + x.tobytes()
            assert client.infer("pair", x=x, bits=bits) == bits.tobytes() + x.tobytes()


def test_clients_that_hang_up_within_a_body_or_before_the_answer_disturb_no_others(server: GatewayServer) -> None:
    body, headers = message("same", x=rows(0))
    lines = {"Host": "h", "Content-Length": str(len(body)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    sent = f"POST /v2/models/same/infer HTTP/1.1\r\n{head}\r\n".encode() + body
    with ThreadPoolExecutor(1) as clients:
        other = clients.submit(work, server, "http", 100)
        for number in range(40):
            with socket.create_connection(("127.0.0.1", server.http_port)) as leaving:
                for _ in range(number % 2):
                    leaving.sendall(sent)
                    leaving.recv(1)
                leaving.sendall(sent[: len(sent) * (number + 1) // 40])
        other.result()
    if not front_ends(server.process.pid):
        until(lambda: b"\nsluice_arena_used_bytes 0.0\n" in server.request("GET", "/metrics")[2])


def test_rows_outlive_the_worker_that_ran_them(server: GatewayServer) -> None:
    with ThreadPoolExecutor(CLIENTS) as clients:
        kinds = CLIENTS // 2 * ["http", "grpc"]
        working = [clients.submit(work, server, kind, number) for number, kind in enumerate(kinds, 200)]
        os.kill(children(server.process.pid)[0], signal.SIGKILL)
        for each in working:
            each.result()


def test_a_request_that_ends_its_model_is_alone_in_that(server: GatewayServer) -> None:
    with ThreadPoolExecutor(CLIENTS) as clients:
        working = [clients.submit(work, server, "http", number, "doubled") for number in range(300, 300 + CLIENTS)]
        body, headers = message("doubled", x=-rows(0))
        status, _, answer = server.request("POST", "/v2/models/doubled/infer", body, headers)
        assert status == 500, answer
        for each in working:
            each.result()
