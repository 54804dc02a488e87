"""A partition with a wall of memory: batches that do not fit run in halves, and the sessions survive."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from sluice.mps.partitions.cpu import available_cores
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_wide

WIDTH = 1 << 19
"""Numbers a row, which are 2 MiB: 128 rows take 256 MiB, and as much as all smaller batches have taken before."""
WALL_MB = 500
CONFIG = """
max_batch_size: 128
dynamic_batching { preferred_batch_size: [ 128 ] max_queue_delay_microseconds: 10000000 }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("memory")
    repository = directory / "models"
    save_wide(repository / "wide" / "1" / "model.onnx", WIDTH)
    (repository / "wide" / "config.pbtxt").write_text(CONFIG)
    partition = {"name": "small", "cores": [available_cores()[0]], "hard_memory_mb": WALL_MB}
    with gateway_server(repository, directory, {"partitions": [partition], "default_slo_ms": 60_000}) as running:
        yield running


def infer(server: GatewayServer, rows: int, value: float) -> list[float]:
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        tensor = tritonclient.grpc.InferInput("x", [rows, 1], "FP32")
        tensor.set_data_from_numpy(np.full((rows, 1), value, np.float32))
        found: list[float] = client.infer("wide", [tensor]).as_numpy("y").ravel().tolist()
        return found


def together(server: GatewayServer, count: int, rows: int) -> None:
    """Requests that fill one batch of 128 rows all get their own answers."""
    with ThreadPoolExecutor(count) as threads:
        futures = {value: threads.submit(infer, server, rows, value) for value in range(1, count + 1)}
    for value, future in futures.items():
        assert future.result() == [float(value * WIDTH)] * rows


def samples(server: GatewayServer) -> dict[tuple[str, ...], float]:
    """The values of all metrics by name and labels, these in the order of their own names."""
    body = server.request("GET", "/metrics")[2].decode()
    samples = [each for family in text_string_to_metric_families(body) for each in family.samples]
    return {(each.name, *(label for _, label in sorted(each.labels.items()))): each.value for each in samples}


def test_a_batch_without_memory_runs_in_halves_and_the_next_are_smaller(server: GatewayServer) -> None:
    together(server, 4, 32)
    found = samples(server)
    assert found["sluice_batch_failures_total", "out_of_memory", "wide:1", "small"] == 1
    assert found["sluice_batch_ceiling_rows", "cpu1", "wide:1"] == 64
    together(server, 8, 16)
    found = samples(server)
    assert found["sluice_batch_failures_total", "out_of_memory", "wide:1", "small"] == 1
    assert found["sluice_worker_restarts_total", "small"] == 0
    assert found["sluice_requests_total", "completed", "wide:1"] == 12
    log = server.log.read_text()
    assert log.count("batch ran out of memory") == 1
    assert "Failed to allocate memory for requested buffer of size 268435456" in log


def test_a_request_that_does_not_fit_alone_fails_and_says_why(server: GatewayServer) -> None:
    with pytest.raises(InferenceServerException, match="partition small has no memory for this request alone") as error:
        infer(server, 128, 1)
    assert "(128 rows)" in str(error.value)
    assert error.value.status() == "StatusCode.INTERNAL"
    assert infer(server, 64, 3) == [3.0 * WIDTH] * 64
    assert samples(server)["sluice_worker_restarts_total", "small"] == 0
