"""One repository as it was written for Triton, served by Triton and by Sluice: equal requests get equal answers."""

import json
import shutil
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.gateway.server import gateway_server
from tests.support.models.onnx_models import save_mlp
from tests.support.triton.server import triton_server
from tests.support.triton.setup import TritonUnavailable, set_up

REPOSITORY = Path(__file__).parents[1] / "support" / "triton" / "repository"
PIXELS = np.random.default_rng(5).integers(0, 256, (8, 4), np.uint8)
VALUES = np.random.default_rng(6).normal(size=(8, 4)).astype(np.float32)


class Ports(NamedTuple):
    http: int
    grpc: int


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ports, Ports]]:
    """Triton and Sluice, on the same directory."""
    try:
        directory = set_up()
    except TritonUnavailable as reason:
        pytest.skip(str(reason))
    scratch = tmp_path_factory.mktemp("equality")
    repository = scratch / "models"
    shutil.copytree(REPOSITORY, repository)
    save_mlp(repository / "network" / "1" / "model.onnx", [4, 3])
    with triton_server(directory, repository, scratch) as triton, gateway_server(repository, scratch) as sluice:
        yield Ports(triton.http_port, triton.grpc_port), Ports(sluice.http_port, sluice.grpc_port)


def tensor(name: str, array: Any) -> dict[str, object]:
    datatype = "UINT8" if array.dtype == np.uint8 else "FP32"
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": array.ravel().tolist()}


JSON_REQUESTS = {
    "a row": ("classify", {"id": "7", "inputs": [tensor("PIXELS", PIXELS[:1])]}),
    "the largest batch": ("classify", {"inputs": [tensor("PIXELS", PIXELS)]}),
    "some of the outputs": (
        "classify",
        {"inputs": [tensor("PIXELS", PIXELS[:3])], "outputs": [{"name": "LABEL"}, {"name": "SCORES"}]},
    ),
    "classification": (
        "network",
        {"inputs": [tensor("x", VALUES[:2])], "outputs": [{"name": "y", "parameters": {"classification": 2}}]},
    ),
    "a step by itself": ("network", {"inputs": [tensor("x", VALUES[:5])]}),
    "text": ("label", {"inputs": [tensor("SCORES", VALUES[:4, :3])]}),
}


def post(port: int, model: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, int]:
    """Status and body of an answer, and how long its JSON part is."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", body, headers)
        response = connection.getresponse()
        content = response.read()
        return response.status, content, int(response.headers.get("Inference-Header-Content-Length", len(content)))
    finally:
        connection.close()


def by_name(outputs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {output["name"]: output for output in outputs}


@pytest.mark.behaviour("L0_infer", "the answer of a real Triton, bit for bit, in JSON: {name}", through="http")
@pytest.mark.parametrize("name", JSON_REQUESTS)
def test_answers_in_json_are_equal(servers: tuple[Ports, Ports], name: str) -> None:
    model, request = JSON_REQUESTS[name]
    answers = []
    for server in servers:
        status, body, _ = post(server.http, model, json.dumps(request).encode(), {})
        assert status == 200, body
        answer = json.loads(body)
        for output in answer["outputs"]:
            if output["datatype"] == "FP32":
                # Triton prints digits that the number does not have.
                output["data"] = np.array(output["data"], np.float32).tobytes()
        answers.append((answer["model_name"], answer["model_version"], answer.get("id"), by_name(answer["outputs"])))
    assert answers[0] == answers[1]


@pytest.mark.behaviour("L0_infer", "the answer of a real Triton, bit for bit, of {rows} rows", through="http")
@pytest.mark.parametrize("rows", [1, 8])
def test_answers_in_binary_are_equal(servers: tuple[Ports, Ports], rows: int) -> None:
    data = PIXELS[:rows].tobytes()
    about = {
        "name": "PIXELS",
        "datatype": "UINT8",
        "shape": [rows, 4],
        "parameters": {"binary_data_size": len(data)},
    }
    head = json.dumps({"inputs": [about], "parameters": {"binary_data_output": True}}).encode()
    answers = []
    for server in servers:
        status, body, length = post(
            server.http, "classify", head + data, {"Inference-Header-Content-Length": str(len(head))}
        )
        assert status == 200, body
        contents, rest = {}, body[length:]
        for output in json.loads(body[:length])["outputs"]:
            size = output["parameters"]["binary_data_size"]
            contents[output["name"]] = output["datatype"], output["shape"], rest[:size]
            rest = rest[size:]
        assert rest == b""
        answers.append(contents)
    assert answers[0] == answers[1]
    assert set(answers[0]) == {"SCORES", "CLASS", "LABEL"}


@pytest.mark.behaviour("L0_infer", "the answer of a real Triton, bit for bit, from {model}", through="grpc")
@pytest.mark.parametrize(
    ("model", "name", "array"),
    [("classify", "PIXELS", PIXELS), ("network", "x", VALUES), ("normalise", "PIXELS", PIXELS)],
)
def test_answers_over_grpc_are_equal(servers: tuple[Ports, Ports], model: str, name: str, array: Any) -> None:
    request = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[array.tobytes()])
    datatype = "UINT8" if array.dtype == np.uint8 else "FP32"
    request.inputs.add(name=name, datatype=datatype, shape=array.shape)
    answers = []
    for server in servers:
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
            answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=30)
        outputs = zip(answer.outputs, answer.raw_output_contents, strict=True)
        contents = {output.name: (output.datatype, list(output.shape), raw) for output, raw in outputs}
        answers.append((answer.model_name, answer.model_version, contents))
    assert answers[0] == answers[1]


@pytest.mark.behaviour("L0_server_status", "the metadata of a real Triton: {model}", through="http")
@pytest.mark.parametrize("model", ["classify", "normalise", "network", "label"])
def test_the_metadata_are_equal(servers: tuple[Ports, Ports], model: str) -> None:
    answers = []
    for server in servers:
        connection = HTTPConnection("127.0.0.1", server.http, timeout=30)
        connection.request("GET", f"/v2/models/{model}")
        metadata = json.loads(connection.getresponse().read())
        connection.close()
        answers.append(
            {key: metadata[key] for key in ("name", "versions", "platform")}
            | {key: by_name(metadata[key]) for key in ("inputs", "outputs")}
        )
    assert answers[0] == answers[1]


@pytest.mark.behaviour("L0_input_validation", "what a real Triton refuses is refused", through="http grpc")
def test_the_same_requests_are_refused(servers: tuple[Ports, Ports]) -> None:
    requests = [
        {"inputs": [tensor("PIXELS", np.zeros((9, 4), np.uint8))]},
        {"inputs": [tensor("PIXELS", np.zeros((1, 5), np.uint8))]},
        {"inputs": [tensor("pixels", np.zeros((1, 4), np.uint8))]},
        {"inputs": [tensor("PIXELS", np.zeros((1, 4), np.float32))]},
        {"inputs": []},
    ]
    for request in requests:
        statuses = [post(server.http, "classify", json.dumps(request).encode(), {})[0] for server in servers]
        assert statuses == [400, 400], request
