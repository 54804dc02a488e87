"""A gateway over real worker servers: the same answers as on its own cores, and nothing lost when workers go."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.http as client
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from examples.digits.build import build_repository, load_digits
from sluice.models.tensors.arrays import Array
from tests.support.gateway.processes import until
from tests.support.gateway.remote_workers import Cluster, cluster
from tests.support.gateway.server import GatewayServer, gateway_server

CASCADE, ENSEMBLE = "digits-cascade", "digits-ensemble"
CLIENTS, RATE = 8, 60
DIGITS = load_digits()
IMAGES, LABELS = DIGITS.test_raw[:300], DIGITS.test_labels[:300]


class Served(NamedTuple):
    """A gateway without partitions of its own, and its workers."""

    gateway: GatewayServer
    workers: Cluster
    expected: npt.NDArray[np.float32]
    """The answers of the cascade to `IMAGES`."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    build_repository(models, wide=False)
    for pipeline in models.glob("*/pipeline.yaml"):  # deadlines are not what is tested here
        lines = pipeline.read_text().splitlines(keepends=True)
        pipeline.write_text("".join(line for line in lines if not line.startswith("slo_ms")))
    return models


@pytest.fixture(scope="module")
def served(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two workers behind a gateway, which have a key in common."""
    directory = tmp_path_factory.mktemp("remote")
    key = directory / "key"
    key.write_text("open-sesame\n")
    with cluster(directory, arguments=["--key-file", str(key)]) as workers:
        config = {**workers.config(key_file=str(key)), "default_slo_ms": 60_000}
        with gateway_server(repository, directory, config) as gateway:
            wait_up(gateway, 2)
            yield Served(gateway, workers, probabilities(gateway, CASCADE, IMAGES))


def partitions(gateway: GatewayServer) -> dict[str, dict[str, object]]:
    """The report of partitions by name."""
    status, _, body = gateway.request("GET", "/v2/sluice/partitions")
    assert status == 200
    return {each["partition"]["name"]: each for each in json.loads(body)["partitions"]}


def samples(gateway: GatewayServer, name: str) -> list[Sample]:
    """The samples of a metric."""
    families = text_string_to_metric_families(gateway.request("GET", "/metrics")[2].decode())
    return [sample for family in families for sample in family.samples if sample.name == name]


def wait_up(gateway: GatewayServer, count: int) -> None:
    """Wait until that number of partitions have workers."""
    until(lambda: sum(each["worker"] is not None for each in partitions(gateway).values()) == count)


def probabilities(gateway: GatewayServer, model: str, images: Array) -> npt.NDArray[np.float32]:
    server = client.InferenceServerClient(f"127.0.0.1:{gateway.http_port}")
    rows = []
    for first in range(0, len(images), 30):
        part = images[first : first + 30].astype(np.uint8).reshape(-1, 1, 8, 8)
        tensor = client.InferInput("raw", list(part.shape), "UINT8")
        tensor.set_data_from_numpy(part)
        rows.append(server.infer(model, [tensor]).as_numpy("probs"))
    server.close()
    return np.concatenate(rows)


def test_documents_name_the_nodes(served: Served) -> None:
    found = partitions(served.gateway)
    for number, url in enumerate(served.workers.urls):
        each = found[f"edge-{number}"]
        assert (each["node"], each["url"], each["enforcement"]) == (f"n{number}", url, "enforced")
        until(lambda name=f"edge-{number}": partitions(served.gateway)[name]["link"] is not None)  # type: ignore[misc]
    found_nodes = samples(served.gateway, "sluice_partition_node")
    assert {each.labels["partition"]: each.labels["node"] for each in found_nodes} == {"edge-0": "n0", "edge-1": "n1"}
    round_trips = samples(served.gateway, "sluice_node_round_trip_seconds")
    assert {each.labels["node"] for each in round_trips} == {"n0", "n1"}
    now = json.loads(served.gateway.request("GET", "/v2/sluice/now")[2])
    assert [(each["name"], each["node"]) for each in now["partitions"]] == [("edge-0", "n0"), ("edge-1", "n1")]


class Load:
    """Steady traffic of single images; all answers are checked."""

    def __init__(self, served: Served) -> None:
        self.sent = 0
        self.wrong: list[str] = []
        self._gateway = served.gateway
        self._images = IMAGES.astype(np.uint8).reshape(-1, 1, 8, 8)
        self._expected = served.expected
        self._stopping = threading.Event()
        self._lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._run, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()

    def _run(self, number: int) -> None:
        server = client.InferenceServerClient(f"127.0.0.1:{self._gateway.http_port}")
        index = number
        while not self._stopping.wait(CLIENTS / RATE):
            index = (index + CLIENTS) % len(self._images)
            tensor = client.InferInput("raw", [1, 1, 8, 8], "UINT8")
            tensor.set_data_from_numpy(self._images[index : index + 1])
            try:
                answer = server.infer(CASCADE, [tensor]).as_numpy("probs")
                wrong = "" if np.allclose(answer[0], self._expected[index], atol=1e-5) else f"image {index}: {answer}"
            except Exception as error:  # whatever a client would see
                wrong = str(error)
            with self._lock:
                self.sent += 1
                self.wrong += [wrong] if wrong else []
        server.close()


def answered(gateway: GatewayServer) -> dict[str, float]:
    """The requests to the cascade by their outcomes."""
    return {
        each.labels["outcome"]: each.value
        for each in samples(gateway, "sluice_requests_total")
        if each.labels["pipeline"] == f"{CASCADE}:1" and each.value
    }


def test_no_request_is_lost_or_answered_twice_when_a_worker_is_killed(served: Served) -> None:
    load = Load(served)
    before = sum(answered(served.gateway).values())
    with load.running():
        until(lambda: load.sent > 30)
        served.workers.kill(0)
        until(lambda: partitions(served.gateway)["edge-0"]["worker"] is None)
        lost = partitions(served.gateway)["edge-0"]["lost"]
        already = load.sent
        until(lambda: load.sent > already + 60)
        served.workers.start(0)
        wait_up(served.gateway, 2)
    assert load.wrong == []
    outcomes = answered(served.gateway)
    assert sum(outcomes.values()) - before == load.sent
    assert outcomes.keys() <= {"completed", "completed_late"}
    assert served.workers.urls[0] in str(lost)


def test_no_request_fails_while_all_workers_are_replaced_one_by_one(served: Served) -> None:
    load = Load(served)
    with load.running():
        until(lambda: load.sent > 20)
        for number, worker in enumerate(served.workers.workers[:]):
            worker.process.send_signal(signal.SIGTERM)
            assert worker.process.wait(60) == 0
            served.workers.start(number)
            wait_up(served.gateway, 2)
    assert load.wrong == []


def test_a_gateway_that_was_paused_finds_its_sessions_closed_and_answers_what_is_in_time(served: Served) -> None:
    load = Load(served)
    with load.running():
        until(lambda: load.sent > 20)
        served.gateway.process.send_signal(signal.SIGSTOP)
        time.sleep(4)  # the leases last 2.2 s
        served.gateway.process.send_signal(signal.SIGCONT)
        already = load.sent
        until(lambda: load.sent > already + 30)
        wait_up(served.gateway, 2)
    assert load.wrong == []
    assert "worker lost" in served.gateway.log.read_text()


def test_workers_that_a_gateway_may_not_have_are_named_and_its_own_partition_gives_the_same_answers(
    served: Served, repository: Path, tmp_path: Path
) -> None:
    """A worker of another kind, and one with another key, are left alone by a gateway that has a partition as well."""
    (tmp_path / "key").write_text("another")
    with cluster(tmp_path, 1) as open_to_all:
        classes = [
            {"name": "big", "kind": "cpu2", "urls": open_to_all.urls},
            {"name": "keyed", "kind": "cpu1", "urls": served.workers.urls[:1]},
        ]
        config: dict[str, object] = {"partitions": {"local": 1, "remote": classes, "key_file": str(tmp_path / "key")}}
        with gateway_server(repository, tmp_path, config) as gateway:
            until(lambda: all(partitions(gateway)[slot]["lost"] for slot in ("big-0", "keyed-0")))
            lost = {name: str(each["lost"]) for name, each in partitions(gateway).items()}
            remote = {CASCADE: served.expected, ENSEMBLE: probabilities(served.gateway, ENSEMBLE, IMAGES)}
            for model, answers in remote.items():
                np.testing.assert_allclose(answers, probabilities(gateway, model, IMAGES), atol=1e-5)
                assert np.mean(answers.argmax(1) == LABELS) > 0.97
    assert "cpu1" in lost["big-0"]
    assert "cpu2" in lost["big-0"]
    assert open_to_all.urls[0] in lost["big-0"]
    assert "key" in lost["keyed-0"]
    assert served.workers.urls[0] in lost["keyed-0"]
