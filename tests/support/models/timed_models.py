"""Models that only sleep, and requests sent to them at given times through the real tritonclient."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from tests.support.gateway.server import GatewayServer

SYNC: Mapping[str, ModuleType] = {"http": tritonclient.http, "grpc": tritonclient.grpc}
AIO: Mapping[str, ModuleType] = {"http.aio": tritonclient.http.aio, "grpc.aio": tritonclient.grpc.aio}
CLIENTS = (*SYNC, *AIO)
"""All clients of tritonclient."""


class Sent(NamedTuple):
    """A request sent at `at_ms`; its rows are numbers from `first` on, each repeated `width` times.

    `outputs` are the requested outputs, all when empty; `id` is the request id.
    """

    at_ms: float = 0
    rows: int = 1
    model: str = "m"
    priority: int = 0
    timeout_ms: int = 0
    width: int = 1
    first: int = 0
    outputs: tuple[str, ...] = ()
    id: str = ""


class Reply(NamedTuple):
    """The reply to a request; `error` is empty for an answer, else status and message."""

    done_ms: float
    error: str
    outputs: dict[str, list[list[float]]]


def save_timed(
    repository: Path,
    name: str,
    latency_ms: Mapping[int, float],
    config: str = "",
    max_batch_size: int = 8,
    pairs: Sequence[tuple[str, str]] = (("x", "y"),),
) -> None:
    """Write a model that sleeps for `latency_ms` and echoes; `pairs` are inputs and outputs, FP32 of variable width."""
    tensors = {"datatype": "FP32", "shape": [-1]}
    file = {
        "inputs": [{"name": name, **tensors} for name, _ in pairs],
        "outputs": [{"name": name, **tensors} for _, name in pairs],
        "max_batch_size": max_batch_size,
        "latency_ms": latency_ms,
    }
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.timed.json").write_text(json.dumps(file))
    (repository / name / "config.pbtxt").write_text(f'backend: "timed" max_batch_size: {max_batch_size} {config}')


def replay(server: GatewayServer, client: str, sent: Sequence[Sent], inputs: Sequence[str] = ("x",)) -> list[Reply]:
    """Send requests to the models' `inputs` through one of `CLIENTS`; returns the replies in the same order."""
    if client in AIO:
        return asyncio.run(_replay_aio(server, client, sent, inputs))
    began = time.monotonic()
    with ThreadPoolExecutor(len(sent)) as threads:
        return list(threads.map(lambda each: _ask(server, client, each, inputs, began), sent))


async def _replay_aio(server: GatewayServer, client: str, sent: Sequence[Sent], inputs: Sequence[str]) -> list[Reply]:
    library = AIO[client]
    url = server.http_url if client == "http.aio" else server.grpc_url
    began = time.monotonic()

    async def ask(connection: Any, each: Sent) -> Reply:
        given = _arguments(library, each, inputs)
        await asyncio.sleep(max(0, began + each.at_ms / 1000 - time.monotonic()))
        try:
            return _reply(began, await connection.infer(**given))
        except InferenceServerException as error:
            return _refusal(began, error)

    async with library.InferenceServerClient(url) as connection:
        return await asyncio.gather(*(ask(connection, each) for each in sent))


def _ask(server: GatewayServer, client: str, each: Sent, inputs: Sequence[str], began: float) -> Reply:
    library = SYNC[client]
    given = _arguments(library, each, inputs)
    with library.InferenceServerClient(server.http_url if client == "http" else server.grpc_url) as connection:
        time.sleep(max(0, began + each.at_ms / 1000 - time.monotonic()))
        try:
            return _reply(began, connection.infer(**given))
        except InferenceServerException as error:
            return _refusal(began, error)


def _arguments(library: ModuleType, each: Sent, inputs: Sequence[str]) -> dict[str, Any]:
    values = np.repeat(np.arange(each.first, each.first + each.rows, dtype=np.float32)[:, None], each.width, axis=1)
    tensors = []
    for number, name in enumerate(inputs):
        tensor = library.InferInput(name, values.shape, "FP32")
        tensor.set_data_from_numpy(values + 1000 * number)
        tensors.append(tensor)
    wanted = [library.InferRequestedOutput(name) for name in each.outputs] or None
    timeout = each.timeout_ms * 1000 or None
    return {
        "model_name": each.model,
        "inputs": tensors,
        "outputs": wanted,
        "request_id": each.id,
        "priority": each.priority,
        "timeout": timeout,
    }


def _reply(began: float, result: Any) -> Reply:
    done_ms = 1000 * (time.monotonic() - began)
    response = result.get_response()
    outputs = response["outputs"] if isinstance(response, dict) else response.outputs
    names = [each["name"] if isinstance(each, dict) else each.name for each in outputs]
    return Reply(done_ms, "", {name: result.as_numpy(name).tolist() for name in names})


def _refusal(began: float, error: InferenceServerException) -> Reply:
    return Reply(1000 * (time.monotonic() - began), f"{error.status()} {error.message()}", {})


def executed(server: GatewayServer, model: str) -> dict[int, int]:
    """Number of executed batches of a model, by rows."""
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        (entry,) = client.get_inference_statistics(model)["model_stats"]
    return {each["batch_size"]: each["compute_infer"]["count"] for each in entry["batch_stats"]}


def metrics(server: GatewayServer) -> Mapping[str, float]:
    """Triton's metrics by name and labels."""
    text = server.request("GET", "/metrics")[2].decode()
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("nv_"))
    return {name: float(number) for name, number in lines}


def metric(server: GatewayServer, name: str, model: str, **labels: str) -> float:
    """The value of one metric of a model; 0 when it is missing."""
    more = "".join(f',{label}="{each}"' for label, each in labels.items())
    return metrics(server).get(f'nv_inference_{name}{{model="{model}",version="1"{more}}}', 0)
