"""Gateways whose workers Ray places: the same answers as of local workers, and nothing lost when parts of it go."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="needs the extra ray: make cluster")

from examples.digits.demo import KNOWN_CORRECT
from tests.cluster.conftest import RayMachines
from tests.cluster.load import CASCADE, ENSEMBLE, Load, labelled_images, probabilities
from tests.support.gateway.processes import until
from tests.support.gateway.server import GatewayServer, gateway_server

WORKERS = 3
RATE = 200


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "worker.key"
    path.write_text("the secret of the workers\n")
    return path


@contextmanager
def ray_gateway(
    machines: RayMachines, repository: Path, key_file: Path, directory: Path, workers: int = WORKERS
) -> Iterator[GatewayServer]:
    """A gateway without partitions of its own; `workers` are those that it gets."""
    directory.mkdir(exist_ok=True)
    ray = {"address": machines.address, "count": WORKERS, "resources": {"CPU": 1}}
    config: dict[str, object] = {"partitions": {"ray": ray, "key_file": str(key_file)}}
    with gateway_server(repository, directory, config) as gateway:
        until(lambda: len(up(gateway)) == workers)
        yield gateway


def partitions(gateway: GatewayServer) -> list[dict[str, Any]]:
    """The report of partitions."""
    listed: list[dict[str, Any]] = json.loads(gateway.request("GET", "/v2/sluice/partitions")[2])["partitions"]
    return listed


def up(gateway: GatewayServer) -> dict[str, str]:
    """The partitions that have workers, with the nodes of these."""
    return {each["partition"]["name"]: each["node"] for each in partitions(gateway) if each["worker"] is not None}


def answered(gateway: GatewayServer, model: str) -> int:
    """The requests for a pipeline that the gateway has answered."""
    body = gateway.request("GET", f"/v2/models/{model}/stats")[2]
    count: int = json.loads(body)["model_stats"][0]["inference_stats"]["success"]["count"]
    return count


@pytest.fixture(scope="module")
def local(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The answers of a gateway with a worker of its own."""
    images, _ = labelled_images()
    with gateway_server(repository, tmp_path_factory.mktemp("local"), {"partitions": 1}) as gateway:
        return {model: probabilities(gateway.grpc_url, model, images) for model in (CASCADE, ENSEMBLE)}


@pytest.fixture(scope="module")
def gateway(
    machines: RayMachines, repository: Path, key_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayServer]:
    with ray_gateway(machines, repository, key_file, tmp_path_factory.mktemp("first")) as server:
        yield server


def test_three_nodes_give_the_answers_of_local_workers(gateway: GatewayServer, local: dict[str, Any]) -> None:
    images, labels = labelled_images()
    assert sorted(up(gateway).values()) == ["n0", "n1", "n2"]
    for model in (CASCADE, ENSEMBLE):
        found = probabilities(gateway.grpc_url, model, images)
        assert np.allclose(found, local[model], atol=1e-5)
        assert np.sum(found.argmax(1) == labels) == KNOWN_CORRECT[model]


def test_a_killed_node_costs_no_request_and_its_worker_comes_back_elsewhere(
    gateway: GatewayServer, machines: RayMachines, local: dict[str, Any]
) -> None:
    before = answered(gateway, CASCADE)
    lost, node = next(iter(up(gateway).items()))
    load = Load([gateway.grpc_url], RATE, local[CASCADE])
    with load.running():
        time.sleep(2)
        for pid in machines.processes(node):
            os.kill(pid, signal.SIGKILL)
        until(lambda: up(gateway).get(lost, node) != node)
        time.sleep(2)
    assert load.failed == []
    assert len(load.answered_s) == load.sent == answered(gateway, CASCADE) - before
    assert load.longest_gap_s < 3
    assert len(up(gateway)) == WORKERS


def test_all_workers_are_replaced_without_a_failed_request(
    gateway: GatewayServer, machines: RayMachines, local: dict[str, Any]
) -> None:
    urls = {each["url"] for each in partitions(gateway)}
    load = Load([gateway.grpc_url], RATE / 2, local[CASCADE])
    command = [sys.executable, "-m", "sluice.gateway.cli.main", "ray", "replace", "--address", machines.address]
    with load.running():
        done = subprocess.run([*command, "--url", f"http://{gateway.http_url}"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert load.failed == []
    assert len(load.answered_s) == load.sent
    assert urls.isdisjoint(each["url"] for each in partitions(gateway))


def test_a_gateway_takes_over_the_workers_of_another_that_was_killed(
    gateway: GatewayServer,
    machines: RayMachines,
    repository: Path,
    key_file: Path,
    local: dict[str, Any],
    tmp_path: Path,
) -> None:
    with ray_gateway(machines, repository, key_file, tmp_path / "second", workers=1) as second:
        until(lambda: len(up(gateway)) == WORKERS - 1)
        load = Load([second.grpc_url, gateway.grpc_url], RATE / 2, local[CASCADE])
        with load.running():
            time.sleep(1)
            second.process.kill()
            killed_s = time.monotonic()
            until(lambda: len(leased(machines, gateway)) == WORKERS)
            assert time.monotonic() - killed_s < 5
            until(lambda: len(up(gateway)) == WORKERS)
            time.sleep(1)
    assert load.moved > 0
    assert load.failed == []
    assert len(load.answered_s) == load.sent


def leased(machines: RayMachines, gateway: GatewayServer) -> list[str]:
    """The partitions that the keeper of leases has given to a gateway."""
    from sluice.gateway.cluster.ray.ask import report

    rows = json.loads(report(machines.address, "sluice"))["partitions"]
    return [each["partition"] for each in rows if f":{gateway.process.pid}:" in each["gateway"]]


def test_serving_goes_on_without_the_head_of_ray_and_its_nodes(
    gateway: GatewayServer, machines: RayMachines, local: dict[str, Any]
) -> None:
    nodes = machines.raylets()
    load = Load([gateway.grpc_url], RATE / 2, local[CASCADE])
    with load.running(), machines.all_ended():
        time.sleep(1)
        os.kill(machines.head_process, signal.SIGKILL)
        until(lambda: not any(map(is_running, nodes)))  # they give up, and all actors end
        time.sleep(3)
        assert len(up(gateway)) == WORKERS
    assert load.failed == []
    assert len(load.answered_s) == load.sent


def is_running(pid: int) -> bool:
    """True while a process runs; one that has ended may not have been waited for."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"
