"""The batching parameters of TensorFlow Serving on a real server."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.timed_models import save_timed

pytestmark = pytest.mark.timed

SETTINGS = {
    "partitions": 1,
    "statuses": {"overload": 429},
    "models": {
        "padded": {"policy": {"name": "static", "max_batch_size": 8, "allowed_batch_sizes": [4, 8]}},
        "slow": {"policy": {"name": "static", "max_batch_size": 1, "max_enqueued_batches": 2, "num_batch_threads": 1}},
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("static")
    save_timed(directory / "models", "padded", {1: 1})
    save_timed(directory / "models", "slow", {1: 1000})
    with gateway_server(directory / "models", directory, SETTINGS) as running:
        yield running


def infer(server: GatewayServer, model: str, *values: float) -> list[float]:
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        tensor = tritonclient.http.InferInput("x", [len(values), 1], "FP32")
        tensor.set_data_from_numpy(np.array(values, np.float32).reshape(-1, 1))
        found: list[float] = client.infer(model, [tensor]).as_numpy("y").ravel().tolist()
        return found


def padded_rows(server: GatewayServer) -> float:
    name = "sluice_batch_padded_rows_total"
    lines = server.request("GET", "/metrics")[2].decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and 'model="padded:1"' in line)


def test_a_request_gets_its_own_rows_of_a_batch_that_was_padded(server: GatewayServer) -> None:
    assert infer(server, "padded", 1, 2, 3) == [1, 2, 3]
    assert padded_rows(server) == 1
    assert infer(server, "padded", 1, 2, 3, 4, 5) == [1, 2, 3, 4, 5]
    assert padded_rows(server) == 4
    assert infer(server, "padded", *range(8)) == list(range(8))
    assert padded_rows(server) == 4


def test_a_full_queue_is_answered_with_429_and_over_grpc_with_resource_exhausted(server: GatewayServer) -> None:
    def over_http(value: float) -> str:
        return "OK" if infer(server, "slow", value) == [value] else "another answer"

    def over_grpc(value: float) -> str:
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            tensor = tritonclient.grpc.InferInput("x", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.array([[value]], np.float32))
            return "OK" if client.infer("slow", [tensor]).as_numpy("y").tolist() == [[value]] else "another answer"

    def status(number: int) -> str:
        try:
            return (over_http, over_grpc)[number % 2](number)
        except InferenceServerException as error:
            return str(error.status())

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(status, range(8)))
    assert found.count("OK") == 3
    assert {each for each in found[::2] if each != "OK"} == {"429"}
    assert {each for each in found[1::2] if each != "OK"} == {"StatusCode.RESOURCE_EXHAUSTED"}
