"""Workers die or hang under load: every request still gets exactly one answer, the right one."""

import asyncio
import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc.aio
from prometheus_client.parser import text_string_to_metric_families

from sluice.mps.partitions.cpu import available_cores
from tests.support.gateway.processes import alive, children, until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_spin

CLIENTS = 16
KILLS = 6
STOPS = 4
BATCH = 16
CONFIG = f"""
backend: "python" max_batch_size: {BATCH}
input {{ name: "x" data_type: TYPE_FP32 dims: 1 }}
output {{ name: "y" data_type: TYPE_FP32 dims: 1 }}
dynamic_batching {{ preferred_batch_size: {BATCH} max_queue_delay_microseconds: 500000 }}
"""
DEADLY = """
import os, signal

def infer(inputs):
    if (inputs["x"] < 0).any():
        os.kill(os.getppid(), signal.SIGKILL)
    return {"y": inputs["x"] * 2}
"""


def counts(server: GatewayServer, metric: str, label: str) -> Mapping[str, float]:
    """The sums of a metric by one of its labels."""
    body = server.request("GET", "/metrics")[2].decode()
    sums: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(body):
        for sample in family.samples:
            if sample.name == metric:
                sums[sample.labels[label]] += sample.value
    return sums


class Load:
    """Clients that send one request after the other, with pauses of `pause_s`, until they are stopped."""

    def __init__(self, server: GatewayServer, pause_s: float = 0) -> None:
        self.server = server
        self.pause_s = pause_s
        self.answered = 0
        self.longest_s = 0.0
        self.stopping = False

    async def run(self) -> None:
        async with tritonclient.grpc.aio.InferenceServerClient(self.server.grpc_url) as client:
            await asyncio.gather(*(self._client(client, number) for number in range(CLIENTS)))

    async def _client(self, client: tritonclient.grpc.aio.InferenceServerClient, number: int) -> None:
        source = np.random.default_rng(number)
        while not self.stopping:
            sent = source.standard_normal((1, 64)).astype(np.float32)
            tensor = tritonclient.grpc.aio.InferInput("x", [1, 64], "FP32")
            tensor.set_data_from_numpy(sent)
            sent_s = time.monotonic()
            result = await client.infer("spin", [tensor])
            self.longest_s = max(self.longest_s, time.monotonic() - sent_s)
            np.testing.assert_array_equal(result.as_numpy("y"), sent)
            self.answered += 1
            await asyncio.sleep(self.pause_s)


async def kill_workers(server: GatewayServer) -> list[float]:
    """Kill one worker after the other; how many seconds each partition then was without."""
    away_s = []
    for _ in range(KILLS):
        await asyncio.sleep(0.4)
        victim = children(server.process.pid)[0]
        os.kill(victim, signal.SIGKILL)
        away_s.append(await asyncio.to_thread(seconds_away, server, victim))
    return away_s


def seconds_away(server: GatewayServer, victim: int) -> float:
    killed = time.monotonic()
    while alive(victim) or not all(counts(server, "sluice_partition_ready", "partition").values()):
        assert time.monotonic() - killed < 100
        time.sleep(0.02)
    return time.monotonic() - killed


@pytest.mark.timed
def test_no_request_is_lost_or_answered_twice_when_workers_are_killed(tmp_path: Path) -> None:
    """A worker that serves is back within 2 s, however often it is killed."""
    repository = tmp_path / "models"
    save_spin(repository / "spin" / "1" / "model.onnx", 2_000, 200)

    async def main(server: GatewayServer) -> tuple[int, list[float]]:
        load = Load(server)
        running = asyncio.create_task(load.run())
        away_s = await kill_workers(server)
        load.stopping = True
        await running
        return load.answered, away_s

    config: dict[str, object] = {"max_batch_size": 8, "default_slo_ms": 30_000}
    with gateway_server(repository, tmp_path, config) as server:
        answered, away_s = asyncio.run(main(server))
        outcomes = counts(server, "sluice_requests_total", "outcome")
        restarts = counts(server, "sluice_worker_restarts_total", "partition")
    assert answered > 0
    assert outcomes["completed"] == answered
    assert sum(outcomes.values()) == answered
    assert sum(restarts.values()) == KILLS
    assert max(away_s) < 2.0


@pytest.mark.parametrize("partitions", [1, min(2, len(available_cores()))])
def test_of_a_batch_with_a_request_that_kills_its_workers_only_that_request_fails(
    tmp_path: Path, partitions: int
) -> None:
    (tmp_path / "models" / "deadly" / "1").mkdir(parents=True)
    (tmp_path / "models" / "deadly" / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "models" / "deadly" / "1" / "model.py").write_text(DEADLY)

    def infer(value: float) -> tuple[int, object]:
        tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [value]}
        body = json.dumps({"inputs": [tensor]}).encode()
        status, _, answer = server.request("POST", "/v2/models/deadly/infer", body)
        read = json.loads(answer)
        return status, read["outputs"][0]["data"] if status == 200 else read["error"]

    values = [float(number) if number != 5 else -1.0 for number in range(BATCH)]
    with (
        gateway_server(tmp_path / "models", tmp_path, {"partitions": partitions, "default_slo_ms": 100_000}) as server,
        ThreadPoolExecutor(BATCH) as threads,
    ):
        answers = list(threads.map(infer, values))
        restarts = counts(server, "sluice_worker_restarts_total", "partition")
        quarantined = counts(server, "sluice_partition_quarantined", "partition")
    reason = "the worker was lost again, with this request alone: the worker was killed by SIGKILL"
    status, error = answers.pop(5)
    assert status == 500
    assert reason in str(error)
    assert answers == [(200, [2 * value]) for value in values if value >= 0]
    assert sum(restarts.values()) <= 1 + (BATCH - 1).bit_length()
    assert sum(quarantined.values()) == 0


@pytest.mark.timed
@pytest.mark.skipif(len(available_cores()) < 2, reason="two partitions need two cores")
def test_requests_of_a_worker_that_hangs_are_answered_by_another_and_it_is_replaced(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    save_spin(repository / "spin" / "1" / "model.onnx", 2_000, 200)

    async def main(server: GatewayServer) -> tuple[int, float]:
        load = Load(server, pause_s=0.05)
        running = asyncio.create_task(load.run())
        await asyncio.to_thread(until, lambda: load.answered > 0)
        victim = children(server.process.pid)[0]
        os.kill(victim, signal.SIGSTOP)
        away_s = await asyncio.to_thread(seconds_away, server, victim)
        load.stopping = True
        await running
        return load.answered, away_s

    config: dict[str, object] = {
        "partitions": 2,
        "max_batch_size": 8,
        "default_slo_ms": 100_000,
        "batch_timeout_s": 3,
    }
    with gateway_server(repository, tmp_path, config) as server:
        answered, away_s = asyncio.run(main(server))
        outcomes = counts(server, "sluice_requests_total", "outcome")
        restarts = counts(server, "sluice_worker_restarts_total", "partition")
        assert "did not end within 3 s" in server.log.read_text()
    assert 2.5 < away_s < 8.0
    assert outcomes["completed"] == answered
    assert sum(outcomes.values()) == answered
    assert sum(restarts.values()) == 1


@pytest.mark.timed
@pytest.mark.skipif(len(available_cores()) < 2, reason="two partitions need two cores")
def test_requests_of_a_stopped_worker_are_answered_in_time_by_another_and_it_serves_again_when_it_goes_on(
    tmp_path: Path,
) -> None:
    repository = tmp_path / "models"
    save_spin(repository / "spin" / "1" / "model.onnx", 2_000, 200)

    async def main(server: GatewayServer) -> Load:
        load = Load(server, pause_s=0.05)
        running = asyncio.create_task(load.run())
        await asyncio.to_thread(until, lambda: load.answered > 100)
        workers = children(server.process.pid)[:2]
        for number in range(STOPS):
            os.kill(workers[number % 2], signal.SIGSTOP)
            await asyncio.sleep(1.5)
            os.kill(workers[number % 2], signal.SIGCONT)
            await asyncio.sleep(0.5)
        load.stopping = True
        await running
        return load

    config: dict[str, object] = {"partitions": 2, "max_batch_size": 8, "default_slo_ms": 1_000}
    with gateway_server(repository, tmp_path, config) as server:
        load = asyncio.run(main(server))
        outcomes = counts(server, "sluice_requests_total", "outcome")
        restarts = counts(server, "sluice_worker_restarts_total", "partition")
        batches = counts(server, "sluice_batches_total", "partition")
    assert {outcome: count for outcome, count in outcomes.items() if count} == {"completed": load.answered}
    assert load.longest_s < 1.0
    assert sum(restarts.values()) == 0
    assert min(batches.values()) > 0


@pytest.mark.skipif(len(available_cores()) < 2, reason="two partitions need two cores")
def test_a_partition_whose_worker_is_lost_again_and_again_is_left_alone_while_the_other_serves(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    save_spin(repository / "spin" / "1" / "model.onnx", 2_000, 200)

    def worker() -> int | None:
        states = json.loads(server.request("GET", "/v2/sluice/partitions")[2])["partitions"]
        found: int | None = states[0]["worker"]
        return found

    def kill() -> None:
        victim = worker()
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        until(lambda: worker() != victim)

    def quarantined() -> list[float]:
        return list(counts(server, "sluice_partition_quarantined", "partition").values())

    async def main() -> int:
        load = Load(server, pause_s=0.05)
        running = asyncio.create_task(load.run())
        await asyncio.to_thread(kill)
        await asyncio.to_thread(until, lambda: worker() is not None)
        await asyncio.to_thread(kill)
        assert quarantined() == [1, 0]
        (state, _) = json.loads(server.request("GET", "/v2/sluice/partitions")[2])["partitions"]
        assert "the partition is in quarantine for 8 s: its worker was lost 2 times within 300 s" in state["lost"]
        served = [load.answered]

        def back() -> bool:
            answered = load.answered
            if worker() is not None:
                return True
            served.append(answered)
            return False

        await asyncio.to_thread(until, back)
        assert served[-1] > served[0] + CLIENTS, "the other one serves"
        load.stopping = True
        await running
        return load.answered

    quarantine = {"faults": 2, "within_s": 300, "first_s": 8, "last_s": 16}
    config = {"partitions": 2, "max_batch_size": 8, "default_slo_ms": 100_000, "quarantine": quarantine}
    with gateway_server(repository, tmp_path, config) as server:
        answered = asyncio.run(main())
        assert quarantined() == [0, 0]
        outcomes = counts(server, "sluice_requests_total", "outcome")
    assert outcomes["completed"] == answered
    assert sum(outcomes.values()) == answered
