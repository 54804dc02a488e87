"""Models in Python that see their requests and call other models, as Triton's have it, on a single partition."""

import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from sluice.models.tensors.spec import DataType
from tests.support.gateway.processes import children, until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity

CONFIG = """
backend: "python" max_batch_size: {rows}
input {{ name: "x" data_type: TYPE_FP32 dims: 1 }}
output {{ name: "y" data_type: TYPE_FP32 dims: 1 }}
output {{ name: "seen" data_type: TYPE_STRING dims: 1 }}
dynamic_batching {{ preferred_batch_size: {rows} max_queue_delay_microseconds: {delay_us} }}
"""
CALLER = """
import asyncio, json, os, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]

    {kind}def execute(self, requests):
        return [{wait}self.answer(request, len(requests)) for request in requests]

    {kind}def answer(self, request, together):
        wanted = json.loads(request.parameters())
        x = pb_utils.get_input_tensor_by_name(request, "x")
        y = x.as_numpy() + 1
        if "error" in wanted:
            error = pb_utils.TritonError(wanted["error"], pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        if wanted.get("exit"):
            os._exit(5)
        if "sleep" in wanted:
            time.sleep(wanted["sleep"])
        if "model" in wanted:
            inner = dict(wanted)
            inner["depth"] = wanted.get("depth", 1) - 1
            if not inner["depth"]:
                del inner["model"]
                inner.update(json.loads(inner.pop("inner", "{{}}")))
            shape = (1,) if wanted["model"] in ("caller", "waiter", "pooled") else (1, 1)
            given = pb_utils.Tensor("x", x.as_numpy().reshape(shape))
            calls = [
                pb_utils.InferenceRequest(
                    model_name=wanted["model"],
                    requested_output_names=["y"],
                    inputs=[given],
                    request_id=request.request_id() + ".called",
                    parameters={{key: value for key, value in inner.items() if value is not None}},
                    timeout=wanted.get("timeout", 0),
                )
                for _ in range(wanted.get("calls", 1))
            ]
            {run}
            for response in responses:
                if response.has_error():
                    return pb_utils.InferenceResponse(error=response.error())
            y = pb_utils.get_output_tensor_by_name(responses[0], "y").as_numpy() + 1
            y = y.reshape(x.shape())
        seen = json.dumps([request.request_id(), wanted, together])
        return pb_utils.InferenceResponse([
            pb_utils.Tensor("y", y.astype(np.float32)),
            pb_utils.Tensor("seen", np.full(x.shape(), seen, np.object_)),
        ])
"""
PLAIN = CALLER.format(kind="", wait="", run="responses = [call.exec() for call in calls]")
ASYNC = CALLER.format(
    kind="async ", wait="await ", run="responses = await asyncio.gather(*(call.async_exec() for call in calls))"
)
POOLED = CALLER.format(
    kind="",
    wait="",
    run="""from concurrent.futures import ThreadPoolExecutor
            with ThreadPoolExecutor(2) as threads:
                responses = list(threads.map(lambda call: call.exec(), calls))""",
)
UNBATCHED = ("caller", "waiter", "pooled")


@pytest.fixture(scope="module", params=[0, 2], ids=["no front ends", "front ends"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("calls")
    repository = directory / "models"
    save_identity(repository / "echo" / "1" / "model.onnx", DataType.FP32, [1])
    for name, text, rows in (
        ("caller", PLAIN, 0),
        ("waiter", ASYNC, 0),
        ("pooled", POOLED, 0),
        ("batched", PLAIN, 8),
        ("other", PLAIN, 8),
    ):
        (repository / name / "1").mkdir(parents=True)
        config = CONFIG.format(rows=rows, delay_us=50_000_000 if name == "batched" else 1000)
        (repository / name / "config.pbtxt").write_text(config if rows else config.partition("dynamic")[0])
        (repository / name / "1" / "model.py").write_text(text)
    settings = {"partitions": 1, "default_slo_ms": 60_000, "front_ends": request.param}
    with gateway_server(repository, directory, settings) as running:
        yield running


def infer(
    server: GatewayServer, name: str, value: float = 0, id: str = "", **parameters: Any
) -> tuple[float, list[Any]] | str:
    shape = [1] if name in UNBATCHED else [1, 1]
    tensor = tritonclient.http.InferInput("x", shape, "FP32")
    tensor.set_data_from_numpy(np.full(shape, value, np.float32))
    with tritonclient.http.InferenceServerClient(server.http_url, network_timeout=60) as client:
        try:
            answer = client.infer(name, [tensor], request_id=id, parameters=parameters or None)
        except InferenceServerException as error:
            return f"{error.status()}: {error.message()}"
    return float(answer.as_numpy("y").item()), json.loads(answer.as_numpy("seen").item())


@pytest.mark.behaviour("L0_backend_python", "a model sees the ids and parameters of its requests", through="http")
def test_a_model_sees_the_requests_of_a_batch(server: GatewayServer) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(infer, server, "batched", number, f"id{number}", n=number) for number in range(8)]
    seen = [each.result() for each in answers]
    assert seen == [(number + 1, [f"id{number}", {"n": number}, 8]) for number in range(8)]


@pytest.mark.behaviour("L0_backend_python", "an error of one request leaves the others of its batch", through="http")
def test_an_error_of_a_request_is_that_of_no_other(server: GatewayServer) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = [
            threads.submit(infer, server, "batched", number, **({"error": "too odd"} if number == 3 else {"n": 0}))
            for number in range(8)
        ]
    results = [each.result() for each in answers]
    assert results.pop(3) == "400: the model failed: batched:1: too odd"
    assert results == [(number + 1, ["", {"n": 0}, 8]) for number in (0, 1, 2, 4, 5, 6, 7)]


@pytest.mark.behaviour("L0_backend_python", "a model calls other models", through="http")
@pytest.mark.parametrize("caller", UNBATCHED)
def test_a_model_calls_another_one_of_its_partition(server: GatewayServer, caller: str) -> None:
    assert infer(server, caller, 4, model="echo") == (5, ["", {"model": "echo"}, 1])
    answer = infer(server, caller, 5, "me", model="caller", calls=3)
    assert answer == (7, ["me", {"model": "caller", "calls": 3}, 1])


@pytest.mark.behaviour("L0_backend_python", "a model that calls itself", through="http")
@pytest.mark.parametrize("caller", UNBATCHED)
def test_a_model_calls_itself(server: GatewayServer, caller: str) -> None:
    answer = infer(server, caller, 0, model=caller, depth=7)
    assert isinstance(answer, tuple), answer
    assert answer[0] == 8
    answer = infer(server, caller, 0, model=caller, depth=100)
    assert isinstance(answer, str)
    assert answer.endswith("calls of models within calls may be 8 deep; does a model call itself without an end?")


@pytest.mark.parametrize("caller", UNBATCHED)
def test_callers_that_all_wait_leave_room_for_what_they_wait_for(server: GatewayServer, caller: str) -> None:
    with ThreadPoolExecutor(32) as threads:
        models = [caller, "other", "waiter", "caller"] * 8
        answers = [
            threads.submit(infer, server, caller, number, model=models[number], calls=2)
            if models[number] != "other"
            else threads.submit(infer, server, "other", number, n=1)
            for number in range(32)
        ]
    for number, each in enumerate(answers):
        answer = each.result()
        assert isinstance(answer, tuple), answer
        assert answer[0] == number + (1 if models[number] == "other" else 2)


def test_a_model_that_is_not_there(server: GatewayServer) -> None:
    assert infer(server, "caller", model="nowhere") == (
        "404: the model failed: caller:1: Request for unknown model: 'nowhere' is not found"
    )


def test_a_call_has_the_time_that_is_left(server: GatewayServer) -> None:
    answer = infer(server, "caller", model="caller", sleep=3.1, slo_ms=3000)
    assert isinstance(answer, str)
    assert "model 'caller' is not called: the deadline of the request that calls it has passed" in answer


def test_a_process_that_ends_while_others_wait_in_it(server: GatewayServer) -> None:
    (worker,) = children(server.process.pid)
    answer = infer(server, "caller", model="waiter", inner='{"exit": true}')
    assert answer == (
        "500: the model failed: caller:1: the model failed: waiter:1: the process of the model exited with status 5"
    )
    assert infer(server, "waiter", 1, model="caller") == (3, ["", {"model": "caller"}, 1])
    assert children(server.process.pid) == [worker]


def test_a_worker_that_is_killed_while_models_wait(server: GatewayServer) -> None:
    (worker,) = children(server.process.pid)
    with ThreadPoolExecutor(2) as threads:
        answer = threads.submit(infer, server, "caller", 1, model="waiter", inner='{"sleep": 0.5}')
        time.sleep(0.2)
        os.kill(worker, signal.SIGKILL)
        assert answer.result()
    until(lambda: isinstance(infer(server, "waiter", 1, model="caller"), tuple))


READY = """
from pathlib import Path
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.file = Path(args["model_repository"]) / "state"
        self.family = pb_utils.MetricFamily("runs", "Batches that it has run.", pb_utils.MetricFamily.COUNTER)
        self.runs = self.family.Metric({"of": 'a "quoted" name'})
        self.sizes = pb_utils.MetricFamily("sizes", "Rows.", pb_utils.MetricFamily.HISTOGRAM).Metric(buckets=[1, 4])

    KIND def is_ready(self):
        state = self.file.read_text()
        return {"yes": True, "no": False}[state]

    def execute(self, requests):
        self.runs.increment(1)
        self.sizes.observe(len(requests))
        return [
            pb_utils.InferenceResponse([
                pb_utils.Tensor("y", request.inputs()[0].as_numpy()),
                pb_utils.Tensor("seen", request.inputs()[0].as_numpy().astype(object).astype(str).astype(object)),
            ])
            for request in requests
        ]
"""


@pytest.mark.behaviour("L0_backend_python", "is_ready and custom metrics of a model", through="http")
@pytest.mark.parametrize("kind", ["", "async "])
def test_a_model_says_whether_it_is_ready_and_has_metrics(tmp_path: Path, kind: str) -> None:
    entry = tmp_path / "models" / "own"
    (entry / "1").mkdir(parents=True)
    (entry / "config.pbtxt").write_text(CONFIG.format(rows=8, delay_us=1000))
    (entry / "1" / "model.py").write_text(READY.replace("KIND ", kind))
    (entry / "state").write_text("yes")
    with (
        gateway_server(tmp_path / "models", tmp_path, {"partitions": 2}) as server,
        tritonclient.http.InferenceServerClient(server.http_url, network_timeout=60) as client,
        tritonclient.grpc.InferenceServerClient(server.grpc_url) as grpc_client,
    ):
        for state, ready in (("yes", True), ("no", False), ("broken", False), ("yes", True)):
            (entry / "state").write_text(state)
            assert client.is_model_ready("own") is ready
            assert grpc_client.is_model_ready("own", "1") is ready
        tensor = tritonclient.http.InferInput("x", [2, 1], "FP32")
        tensor.set_data_from_numpy(np.zeros((2, 1), np.float32))
        for _ in range(3):
            client.infer("own", [tensor])
        with urllib.request.urlopen(f"http://{server.http_url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        assert lines[lines.index("# HELP runs Batches that it has run.") :] == [
            "# HELP runs Batches that it has run.",
            "# TYPE runs counter",
            'runs{of="a \\"quoted\\" name"} 3',
            "# HELP sizes Rows.",
            "# TYPE sizes histogram",
            'sizes_bucket{le="1.0"} 3',
            'sizes_bucket{le="4.0"} 3',
            'sizes_bucket{le="+Inf"} 3',
            "sizes_sum 3",
            "sizes_count 3",
        ]
