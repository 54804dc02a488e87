"""A real `sluice worker`: sessions of gateways, plain V2 clients, and clients that mean no good."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import numpy as np
import pytest

from sluice.gateway.worker_protocol.client import Credentials
from sluice.gateway.worker_protocol.messages import (
    RemoteModel,
)
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec
from tests.support.gateway.worker_server import WorkerProcess, gateway_session, worker_server
from tests.support.models.onnx_models import save_identity

KEY = "open-sesame"
KNOWN = Credentials(KEY)
WIDTH = 600_000
"""Items of a row whose batch is sent in several chunks."""
SLEEP = """
import time

def infer(inputs):
    time.sleep(float(inputs["x"][0, 0]))
    return {"y": inputs["x"]}
"""
DYING = """
import os, signal

def infer(inputs):
    if (inputs["x"] < 0).any():
        os.kill(os.getppid(), signal.SIGKILL)
    return {"y": inputs["x"]}
"""
CONFIG = """
backend: "python" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
"""


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RemoteModel]:
    """Models that answer with their inputs: one in ONNX of any width, and Python models of one number a row."""
    root = tmp_path_factory.mktemp("models")
    same = TensorSpec("x", DataType.FP32, (-1,)), TensorSpec("y", DataType.FP32, (-1,))
    spec = ModelSpec("same", 1, same[:1], same[1:], 8)
    path = save_identity(root / "same" / "1" / "model.onnx", DataType.FP32, ("n",))
    return {"same": RemoteModel("same:1", str(path), "onnxruntime", (1, 8), True, declared=spec.declared)}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """A worker server with a key."""
    directory = tmp_path_factory.mktemp("worker")
    (directory / "key").write_text(f"{KEY}\n")
    with worker_server(directory, ["--name", "w0", "--node", "n1", "--key-file", str(directory / "key")]) as server:
        yield server


def test_a_batch_of_several_chunks_comes_back_as_it_was(worker: WorkerProcess, models: dict[str, RemoteModel]) -> None:
    async def go() -> None:
        async with gateway_session(worker.url, KNOWN) as gateway:
            welcome = gateway.session.welcome
            assert (welcome.name, welcome.node, welcome.kind) == ("w0", "n1", "cpu1")
            loaded = await gateway.load(models["same"])
            assert loaded.table is not None
            assert loaded.table.latency_ns(1) > 0
            rows = [np.random.default_rng(n).random((n, WIDTH), np.float32) for n in (1, 3, 2)]
            numbers = [gateway.run("same:1", x=x) for x in rows]
            for number, sent in zip(numbers, rows, strict=True):
                finished, outputs = await gateway.outputs()
                assert finished.batch == number
                assert finished.ran_ns > 0
                np.testing.assert_array_equal(outputs["y"], sent)

    run(go())
