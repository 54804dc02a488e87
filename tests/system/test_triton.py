"""A real Triton server as an executor: its models are run by its Python backend, in processes of their own."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from tritonclient import grpc as tritongrpc

from sluice.models.tensors.arrays import Array
from tests.support.gateway.processes import alive, until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_fixed_batch, save_mlp
from tests.support.triton.models import add_model
from tests.support.triton.server import (
    REGION,
    TritonServer,
    children,
    command_line,
    free_ports,
    remove_memory,
    triton_server,
)
from tests.support.triton.setup import TritonUnavailable, set_up

PIPELINE = """
stages:
  first: {model: first, inputs: {x: request.x}}
  second: {model: mlp, inputs: {x: first.y}}
  third: {model: first, inputs: {x: second.y}}
outputs: {y: third.y, middle: second.y}
"""
SLO_MS = 100_000
"""More than Triton takes to start once more, on a busy machine."""


@pytest.fixture(scope="module")
def directory() -> Path:
    try:
        return set_up()
    except TritonUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    return save_mlp(tmp_path / "files" / "mlp.onnx", [64, 128, 64])


@contextmanager
def attached(
    directory: Path,
    mlp: Path,
    scratch: Path,
    repository: Path | None = None,
    *,
    by_http: bool = False,
    **settings: object,
) -> Iterator[tuple[TritonServer, GatewayServer]]:
    """A Triton with the model `mlp`, and a gateway that is attached to it."""
    add_model(scratch / "triton", "mlp", mlp)
    with triton_server(directory, scratch / "triton", scratch) as triton:
        entry = {"name": "triton", "url": triton.url, **settings}
        if by_http:
            entry["http_url"] = f"127.0.0.1:{triton.http_port}"
        config = {"partitions": 1, "triton": [entry], "default_slo_ms": SLO_MS}
        with gateway_server(repository, scratch, config) as gateway:
            until(lambda: gateway.request("GET", "/v2/models/mlp/ready")[0] == 200)
            yield triton, gateway


def rows(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(count, 64)).astype(np.float32)


def direct(path: Path, x: Array) -> Array:
    """The outputs of ONNX Runtime, a row at a time and in one thread, which is how all servers here run it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def infer(url: str, model: str, x: Array, output: str = "y") -> Array:
    with tritongrpc.InferenceServerClient(url) as client:
        tensor = tritongrpc.InferInput("x", list(x.shape), "FP32").set_data_from_numpy(x)
        answer = client.infer(model, [tensor], client_timeout=100)
        return np.asarray(answer.as_numpy(output))


def lines(gateway: GatewayServer, text: str) -> int:
    return gateway.log.read_text().count(text)


@pytest.mark.parametrize("by_http", [False, True])
def test_the_models_of_a_triton_are_served_without_a_repository(
    directory: Path, mlp: Path, tmp_path: Path, by_http: bool
) -> None:
    fixed = save_fixed_batch(tmp_path / "files" / "fixed.onnx")
    add_model(tmp_path / "triton", "fixed", fixed)
    with attached(directory, mlp, tmp_path, by_http=by_http) as (triton, gateway):
        for count in (1, 3, 8):
            x = rows(count, seed=count)
            answer = infer(gateway.grpc_url, "mlp", x)
            assert np.array_equal(answer, direct(mlp, x))
            assert np.array_equal(answer, infer(triton.url, "mlp", x))
        x = np.arange(4, dtype=np.float32).reshape(1, 4)
        assert np.array_equal(infer(gateway.grpc_url, "fixed", x), 2 * x)
        metadata = json.loads(gateway.request("GET", "/v2/models/mlp")[2])
        assert metadata["versions"] == ["1"]
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 64]}]
        assert gateway.request("GET", "/v2/models/mlp/ready")[0] == 200
        metrics = gateway.request("GET", "/metrics")[2].decode()
        assert 'sluice_partition_ready{partition="triton"} 1.0' in metrics
        assert 'sluice_triton_breaker{partition="triton",state="closed"} 1.0' in metrics


def test_stages_run_here_and_there_in_one_pipeline(directory: Path, mlp: Path, tmp_path: Path) -> None:
    first = save_mlp(tmp_path / "models" / "first" / "1" / "model.onnx", [64, 64], seed=1)
    (tmp_path / "models" / "mixed").mkdir()
    (tmp_path / "models" / "mixed" / "pipeline.yaml").write_text(PIPELINE)
    with attached(directory, mlp, tmp_path, tmp_path / "models") as (_, gateway):
        x = rows(5)
        middle = direct(mlp, direct(first, x))
        assert np.array_equal(infer(gateway.grpc_url, "mixed", x, "middle"), middle)
        assert np.array_equal(infer(gateway.grpc_url, "mixed", x), direct(first, middle))


@pytest.mark.timed
@pytest.mark.parametrize("by_http", [False, True])
def test_a_killed_model_process_costs_no_request(directory: Path, mlp: Path, tmp_path: Path, by_http: bool) -> None:
    with attached(directory, mlp, tmp_path, by_http=by_http) as (triton, gateway), ThreadPoolExecutor(4) as clients:
        x = rows(2)
        expected = direct(mlp, x)
        assert np.array_equal(infer(gateway.grpc_url, "mlp", x), expected)
        assert triton.kill_stubs("mlp") == 1
        answers = [clients.submit(infer, gateway.grpc_url, "mlp", x) for _ in range(12)]
        assert all(np.array_equal(answer.result(), expected) for answer in answers)
        assert lines(gateway, "triton lost") == 1
        assert "Stub process" in gateway.log.read_text()
        assert infer(triton.url, "mlp", x).shape == (2, 64)


def test_a_triton_that_is_started_again_is_found(directory: Path, mlp: Path, tmp_path: Path) -> None:
    with attached(directory, mlp, tmp_path) as (triton, gateway), ThreadPoolExecutor(1) as client:
        x = rows(2)
        triton.process.terminate()
        triton.process.wait()
        # By this the gateway notices; whether it is answered depends on how soon Triton is back.
        client.submit(infer, gateway.grpc_url, "mlp", x)
        until(lambda: lines(gateway, "triton lost") == 1)
        with triton_server(directory, tmp_path / "triton", tmp_path, grpc_port=triton.grpc_port):
            until(lambda: lines(gateway, "triton ready") == 2)
            assert np.array_equal(infer(gateway.grpc_url, "mlp", x), direct(mlp, x))


def test_the_batch_of_a_triton_that_hangs_runs_elsewhere(directory: Path, mlp: Path, tmp_path: Path) -> None:
    save_mlp(tmp_path / "models" / "mlp" / "1" / "model.onnx", [64, 128, 64])
    settings = {"partitions": 1, "max_batch_size": 8, "default_slo_ms": SLO_MS}
    add_model(tmp_path / "triton", "mlp", mlp)
    with triton_server(directory, tmp_path / "triton", tmp_path) as triton:
        # Cheaper than our own core, so that it gets the batches as long as it is there.
        entry = {"name": "triton", "url": triton.url, "timeout_s": 0.5, "price": 0}
        with gateway_server(tmp_path / "models", tmp_path, {**settings, "triton": [entry]}) as gateway:
            x = rows(2)
            os.kill(triton.process.pid, signal.SIGSTOP)
            try:
                with ThreadPoolExecutor(8) as clients:
                    answers = [clients.submit(infer, gateway.grpc_url, "mlp", x) for _ in range(40)]
                    assert all(np.array_equal(answer.result(), direct(mlp, x)) for answer in answers)
            finally:
                os.kill(triton.process.pid, signal.SIGCONT)
            until(lambda: (log := gateway.log.read_text()).rfind("triton ready") > log.rfind("triton lost"))


def test_a_triton_is_launched_started_again_when_it_dies_and_ended(directory: Path, mlp: Path, tmp_path: Path) -> None:
    add_model(tmp_path / "triton", "mlp", mlp)
    (port,) = free_ports(1)
    command, needed = command_line(directory, tmp_path / "triton", port)
    core = max(os.sched_getaffinity(0))
    entry = {
        "name": "triton",
        "url": f"127.0.0.1:{port}",
        "command": command,
        "cores": [core],
        "environment": {name: needed[name] for name in ("LD_LIBRARY_PATH", "PATH")},
    }
    with gateway_server(None, tmp_path, {"partitions": 1, "triton": [entry], "default_slo_ms": SLO_MS}) as gateway:
        x = rows(2)
        assert np.array_equal(infer(gateway.grpc_url, "mlp", x), direct(mlp, x))
        (first,) = tritons(gateway)
        assert os.sched_getaffinity(first) == {core}
        os.kill(first, signal.SIGKILL)
        # What is asked for meanwhile is refused if it takes long.
        until(lambda: lines(gateway, "triton ready") == 2)
        assert "the process was killed by SIGKILL" in gateway.log.read_text()
        assert np.array_equal(infer(gateway.grpc_url, "mlp", x), direct(mlp, x))
        (second,) = tritons(gateway)
        assert second != first
        left = [second, *(pid for pid, _ in children(second))]
        assert len(left) > 1
    until(lambda: not any(map(alive, left)))  # a signal takes its time
    remove_memory(port)


def tritons(gateway: GatewayServer) -> list[int]:
    """The servers that a gateway has launched."""
    return [pid for pid, line in children(gateway.process.pid) if "tritonserver" in line.partition(" ")[0]]


def test_a_triton_that_does_not_start_is_reported_with_its_output(directory: Path, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    command, _ = command_line(directory, tmp_path / "nowhere", port)
    settings = tmp_path / "sluice.yaml"
    entry = {"name": "triton", "url": f"127.0.0.1:{port}", "command": command}
    settings.write_text(json.dumps({"partitions": 1, "triton": [entry]}))
    serve = [sys.executable, "-m", "sluice.gateway.cli.main", "serve", "--config", str(settings)]
    ended = subprocess.run(serve, check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert "sluice: no model can be served" in ended.stderr
    assert "triton could not be asked for its models partition=triton" in ended.stderr
    assert "the process exited with status 1; its output:" in ended.stderr
    assert "failed to stat file" in ended.stderr


def test_a_local_triton_shares_memory_until_the_gateway_stops(directory: Path, mlp: Path, tmp_path: Path) -> None:
    add_model(tmp_path / "triton", "mlp", mlp)
    with (
        triton_server(directory, tmp_path / "triton", tmp_path) as triton,
        tritongrpc.InferenceServerClient(triton.url) as client,
    ):
        entry = {"name": "triton", "url": triton.url}
        with gateway_server(None, tmp_path, {"partitions": 1, "triton": [entry]}) as gateway:
            for count in (1, 8, 5):
                x = rows(count, seed=count)
                assert np.array_equal(infer(gateway.grpc_url, "mlp", x), direct(mlp, x))
            assert len(client.get_system_shared_memory_status().regions) == 4
        assert not client.get_system_shared_memory_status().regions
    ours = re.compile(rf"sluice-.*-{gateway.process.pid}-\d+")
    assert not [name for name in os.listdir("/dev/shm") if ours.fullmatch(name) and not name.startswith(REGION)]
