"""A gateway whose number of remote partitions follows the load: real worker servers, with a model that only sleeps."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway.processes import until
from tests.support.gateway.remote_workers import cluster
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.timed_models import save_timed

WORKERS = 3
SERVICE_MS = 100.0
"""10 requests a second on each worker."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    """Three workers, none of which is used without traffic."""
    models, directory = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("scaled")
    save_timed(models, "sleeper", {1: SERVICE_MS}, max_batch_size=1)
    with cluster(directory, WORKERS) as workers:
        config: Any = workers.config()
        config["partitions"]["remote"][0]["scale"] = {"to_zero": True, "start_s": 2}
        with gateway_server(models, directory, config | {"default_slo_ms": 20_000}) as server:
            yield server


def scaling(gateway: GatewayServer) -> dict[str, Any]:
    status, _, body = gateway.request("GET", "/v2/sluice/scaling")
    assert status == 200
    found: dict[str, Any] = json.loads(body)["classes"]["edge"]
    return found


def infer(gateway: GatewayServer) -> int:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
    return gateway.request("POST", "/v2/models/sleeper/infer", json.dumps(body).encode())[0]


def test_a_class_at_zero_is_ready_and_serves_its_first_request(gateway: GatewayServer) -> None:
    assert scaling(gateway)["wanted"] == 0
    assert gateway.request("GET", "/v2/models/sleeper/ready")[0] == 200
    assert infer(gateway) == 200
    found = scaling(gateway)
    assert (found["wanted"], found["ready"], found["min"], found["max"]) == (1, 1, 0, WORKERS)
    metrics = gateway.request("GET", "/metrics")[2].decode()
    assert 'sluice_partitions_wanted{class="edge"} 1.0' in metrics
    assert 'sluice_partitions_ready{class="edge"} 1.0' in metrics


def test_a_step_of_the_load_enters_panic_within_6_s_without_a_failed_request(gateway: GatewayServer) -> None:
    until(lambda: scaling(gateway)["ready"] == 1)
    stopping, statuses = threading.Event(), Counter[int]()

    def send() -> None:
        while not stopping.is_set():
            statuses[infer(gateway)] += 1

    threads = [threading.Thread(target=send) for _ in range(60)]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    try:
        until(lambda: scaling(gateway)["panic"])
        assert time.monotonic() - began_s < 6
        until(lambda: scaling(gateway)["ready"] == WORKERS)
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    assert statuses.keys() == {200}
