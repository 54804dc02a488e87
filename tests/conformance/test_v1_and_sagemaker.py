"""V1 and SageMaker on a real server: what their clients send, over plain sockets, and the limits that V2 has."""

import json
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.http

from sluice.models.tensors.spec import DataType
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity, save_mlp
from tests.support.models.timed_models import save_timed

SAGEMAKER, V1 = "L0_sagemaker", "KServe V1"
BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size="
TARGET = "X-Amzn-SageMaker-Target-Model"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("dialects")
    repository = directory / "models"
    save_identity(repository / "m" / "1" / "model.onnx", DataType.FP32, [2])
    save_identity(repository / "text" / "1" / "model.onnx", DataType.BYTES, [1])
    save_mlp(repository / "mlp" / "1" / "model.onnx", [4, 3])
    save_timed(repository, "slow", {1: 50})
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    config = {"partitions": 1, "max_batch_size": 8, "default_model": "m", "json_nan": "string"}
    with gateway_server(repository, directory, config) as running:
        yield running


def post(
    server: GatewayServer, path: str, body: object, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return server.request("POST", path, data, {**JSON, **(headers or {})})


def predict(server: GatewayServer, model: str, body: object) -> tuple[int, object]:
    status, _, answer = post(server, f"/v1/models/{model}:predict", body)
    return status, json.loads(answer)


@pytest.mark.behaviour(V1, "instances give predictions, inputs give outputs", through="socket")
def test_predictions_are_the_outputs_of_v2(server: GatewayServer) -> None:
    rows = np.random.default_rng(0).random((3, 4), np.float32)
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        tensor = tritonclient.http.InferInput("x", [3, 4], "FP32")
        tensor.set_data_from_numpy(rows)
        (expected,) = (
            answer.as_numpy(output["name"]).tolist()
            for answer in [client.infer("mlp", [tensor])]
            for output in answer.get_response()["outputs"]
        )
    (name,) = [each["name"] for each in json.loads(server.request("GET", "/v2/models/mlp")[2])["inputs"]]
    assert name == "x"
    for body, member in (
        ({"instances": rows.tolist()}, "predictions"),
        ({"instances": [{"x": row} for row in rows.tolist()]}, "predictions"),
        ({"inputs": rows.tolist()}, "outputs"),
        ({"inputs": {"x": rows.tolist()}}, "outputs"),
    ):
        status, answer = predict(server, "mlp", body)
        assert (status, list(answer)) == (200, [member])  # type: ignore[call-overload]
        assert np.allclose(answer[member], expected, atol=1e-6)  # type: ignore[index]


@pytest.mark.behaviour(V1, "strings, also in base 64", through="socket")
def test_strings(server: GatewayServer) -> None:
    body = {"instances": ["a", "ä", {"b64": "YWI="}]}
    assert predict(server, "text", body) == (200, {"predictions": [["a"], ["ä"], ["ab"]]})


@pytest.mark.behaviour(V1, "models are listed, and ready or not", through="socket")
def test_models_and_health(server: GatewayServer) -> None:
    def get(path: str) -> tuple[int, object]:
        status, _, body = server.request("GET", path)
        return status, json.loads(body)

    assert get("/") == (200, {"status": "alive"})
    assert get("/v1/models") == (200, {"models": ["m", "mlp", "slow", "text"]})
    assert get("/v1/models/m") == get("/v1/models/m/versions/1") == (200, {"name": "m", "ready": True})
    assert get("/v1/models/other")[0] == get("/v1/models/m/versions/2")[0] == 404
    assert get("/v1/models/broken")[0] == 503
    assert get("/ping") == (200, {"ready": True})


@pytest.mark.behaviour(V1, "a request has the errors and limits of V2: {problem}", through="socket")
@pytest.mark.parametrize(
    ("model", "body", "status", "problem"),
    [
        ("m", {"instances": [[1]]}, 400, "unexpected shape for input 'x'"),
        ("m", {"instances": [[1, 2]] * 9}, 400, "batch-size must be <= 8"),
        ("m", b'{"instances": ' + b"[" * 100_000, 400, "not a V1 request in JSON"),
        ("m", {"instances": [[1, 2]], "parameters": {"slo_ms": -1}}, 400, "slo_ms"),
        ("slow", {"instances": [[1]], "parameters": {"slo_ms": 1}}, 503, "cannot be answered by its deadline"),
        ("other", {"instances": [[1, 2]]}, 404, "unknown model"),
        ("broken", {"instances": [[1, 2]]}, 503, "broken"),
    ],
)
def test_errors(server: GatewayServer, model: str, body: object, status: int, problem: str) -> None:
    assert predict(server, "slow", {"instances": [[1]]})[0] == 200  # so that its latency is known
    answered, answer = predict(server, model, body)
    assert answered == status
    assert problem in answer["error"]  # type: ignore[index]


@pytest.mark.behaviour(V1, "requests share batches with those of V2", through="socket")
def test_requests_of_all_protocols_share_batches(server: GatewayServer) -> None:
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    sent: list[tuple[str, object, dict[str, str]]] = [
        ("/v2/models/slow/infer", {"inputs": [tensor]}, {}),
        ("/v1/models/slow:predict", {"instances": [[1]]}, {}),
        ("/invocations", {"instances": [[1]]}, {TARGET: "slow"}),
        ("/invocations", {"inputs": [tensor]}, {TARGET: "slow"}),
    ] * 2

    def executions() -> tuple[int, int]:
        (stats,) = json.loads(server.request("GET", "/v2/models/slow/stats")[2])["model_stats"]
        return stats["inference_count"], stats["execution_count"]

    rows, batches = executions()
    with ThreadPoolExecutor(len(sent)) as threads:
        statuses = list(threads.map(lambda each: post(server, *each)[0], sent))
    assert statuses == [200] * len(sent)
    more_rows, more_batches = executions()
    assert more_rows - rows == len(sent)
    assert more_batches - batches < len(sent)


@pytest.mark.behaviour(SAGEMAKER, "/invocations takes JSON and binary tensors", through="socket")
def test_invocations_are_answered_in_their_form(server: GatewayServer) -> None:
    wire = {"name": "x", "shape": [1, 2], "datatype": "FP32"}
    status, headers, body = post(server, "/invocations", {"inputs": [{**wire, "data": [1, 2]}]})
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(body)["outputs"][0]["data"] == [1, 2]
    binary, length = tritonclient.http.InferenceServerClient.generate_request_body([_tensor()])
    status, headers, body = post(server, "/invocations", binary, {"Content-Type": f"{BINARY}{length}"})
    kind, _, size = headers["content-type"].rpartition("=")
    assert (status, f"{kind}=") == (200, BINARY)
    result = tritonclient.http.InferenceServerClient.parse_response_body(body, header_length=int(size))
    assert result.as_numpy("y").tolist() == [[1, 2]]


@pytest.mark.behaviour(SAGEMAKER, "a header names the model, else it is the default", through="socket")
def test_the_model_of_an_invocation(server: GatewayServer) -> None:
    body = {"instances": [["a"]]}
    assert json.loads(post(server, "/invocations", body, {TARGET: "text"})[2]) == {"predictions": [["a"]]}
    assert json.loads(post(server, "/invocations", {"instances": [[1, 2]]})[2]) == {"predictions": [[1, 2]]}
    status, _, answer = post(server, "/invocations", body, {TARGET: "other"})
    assert (status, json.loads(answer)["error"]) == (404, "Request for unknown model: 'other' is not found")


@pytest.mark.behaviour(SAGEMAKER, "a wrong binary type is refused", through="socket")
def test_a_wrong_binary_type_is_refused(server: GatewayServer) -> None:
    data = struct.pack("<2f", 1, 2)
    for size in ("", "x", "100"):
        status, _, answer = post(server, "/invocations", data, {"Content-Type": f"{BINARY}{size}"})
        assert status == 400
        assert "json-header-size" in json.loads(answer)["error"] or "has only 8 bytes" in json.loads(answer)["error"]
    assert post(server, "/invocations", data, {"Content-Type": f"{BINARY}0"})[0] == 200


@pytest.mark.behaviour(
    "L0_nan_inf", "NaN and infinities in JSON answers, as configured", through="socket", triton="literals only"
)
def test_nan_and_infinities_are_strings_where_configured(server: GatewayServer) -> None:
    body = b'{"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [NaN, 1, Infinity, -Infinity]}]}'
    (output,) = json.loads(post(server, "/v2/models/m/infer", body)[2])["outputs"]
    assert output["data"] == ["NaN", 1, "Infinity", "-Infinity"]
    expected = {"predictions": [["NaN", "-Infinity"]]}
    assert predict(server, "m", b'{"instances": [[NaN, -Infinity]]}') == (200, expected)


def _tensor() -> tritonclient.http.InferInput:
    tensor = tritonclient.http.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.array([[1, 2]], np.float32))
    return tensor
