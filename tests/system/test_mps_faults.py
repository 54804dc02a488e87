"""Clients of an MPS daemon lose their contexts under load: every request is answered, and the daemon is whole again."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc.aio

from sluice.mps.daemon.channel import MpsChannel
from sluice.mps.daemon.control import ACTIVE
from sluice.mps.daemon.processes import mps_processes
from sluice.mps.daemon.protocol2 import Protocol2
from sluice.mps.isolation.mps_environment import pipe_directory
from sluice.mps.partitions.cpu import available_cores
from tests.support.gateway.processes import until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.gpu import fake_mps
from tests.support.gpu.fake_mps import OWN_GPU as GPU

PIPES = pipe_directory(GPU)
CONFIG = """
backend: "python" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
"""
MODEL = f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.support.gpu.fake_mps import FakeCuda

cuda = FakeCuda(os.environ)

def infer(inputs):
    cuda.check()
    time.sleep(0.002)
    return {{"y": inputs["x"] * 2}}
"""
CLIENTS = 8

pytestmark = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there may well be an MPS of its own here")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayServer]:
    """Two shares of a GPU, and cores that run the same model without CUDA."""
    fake_mps.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "models" / "twice" / "1").mkdir(parents=True)
    (tmp_path / "models" / "twice" / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "models" / "twice" / "1" / "model.py").write_text(MODEL)
    partitions: list[dict[str, object]] = [{"name": "cores", "cores": available_cores()[:1]}]
    partitions += [
        {"kind": "mps", "name": name, "uuid": GPU, "share_percent": 50, "memory_mb": 1000} for name in ("a", "b")
    ]
    with gateway_server(tmp_path / "models", tmp_path, {"partitions": partitions, "default_slo_ms": 30_000}) as running:
        yield running


def workers(server: GatewayServer) -> dict[str, int | None]:
    """The processes of the workers, by partition."""
    states = json.loads(server.request("GET", "/v2/sluice/partitions")[2])["partitions"]
    return {each["partition"]["name"]: each["worker"] for each in states}


async def under_load(server: GatewayServer, trouble: Callable[[], None], over: Callable[[], bool]) -> int:
    """The number of requests answered, all rightly, from before the trouble until some time after it."""
    answered = 0
    stopping = False

    async def some_more() -> None:
        enough = answered + 4 * CLIENTS
        await asyncio.to_thread(until, lambda: answered >= enough)

    async def send(client: tritonclient.grpc.aio.InferenceServerClient, value: float) -> None:
        nonlocal answered
        tensor = tritonclient.grpc.aio.InferInput("x", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.array([[value]], np.float32))
        while not stopping:
            result = await client.infer("twice", [tensor])
            assert result.as_numpy("y").item() == 2 * value
            answered += 1
            await asyncio.sleep(0.01)

    async with tritonclient.grpc.aio.InferenceServerClient(server.grpc_url) as client, asyncio.TaskGroup() as tasks:
        for number in range(CLIENTS):
            tasks.create_task(send(client, number))
        await some_more()
        trouble()
        await asyncio.to_thread(until, over)
        await some_more()
        stopping = True
    return answered


def kill_daemon() -> None:
    for pid in mps_processes(PIPES):
        with suppress(ProcessLookupError):  # it has asked what it was to ask
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("trouble", "code"), [(lambda: fake_mps.inject(PIPES, "fault"), 700), (kill_daemon, 806)], ids=["fault", "death"]
)
def test_all_clients_are_replaced_together_and_no_request_is_lost(
    server: GatewayServer, trouble: Callable[[], None], code: int
) -> None:
    before = workers(server)

    def over() -> bool:
        now = workers(server)
        return all(now[name] not in (None, before[name]) for name in ("a", "b"))

    answered = asyncio.run(under_load(server, trouble, over))
    metrics = server.request("GET", "/metrics")[2].decode()
    assert f'sluice_requests_total{{outcome="completed",pipeline="twice:1"}} {answered}.0' in metrics
    assert workers(server)["cores"] == before["cores"]
    for name, count in {"a": 1, "b": 1, "cores": 0}.items():
        assert f'sluice_worker_restarts_total{{partition="{name}"}} {count}.0' in metrics
    assert f"CUDA error {code}" in server.log.read_text()
    control = Protocol2(MpsChannel(PIPES))
    assert [each.status for each in control.servers()] == [ACTIVE]
    assert len(control.clients()) == 2
