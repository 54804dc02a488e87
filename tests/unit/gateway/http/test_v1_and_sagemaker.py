"""Requests of V1 and of SageMaker over HTTP one at a time: routes, models, types of bodies, errors."""

import gzip
import json
import struct
from typing import Any

import numpy as np
import pytest

from sluice.gateway.config.json_rules import JsonNan, JsonRules
from sluice.gateway.config.restricted import ApiGroup, RestrictedSettings, Restrictions
from sluice.gateway.http.access import AccessRules
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.instant_gateway import (
    Client,
    InstantGateway,
    Reply,
    get,
    identity,
    instant_gateway,
    message,
    post,
    send,
    talk,
)

V2 = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
V1 = {"instances": [[1, 2], [3, 4]]}
PREDICT = "/v1/models/m:predict"
TARGET = "X-Amzn-SageMaker-Target-Model"
BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size="
MODEL, OTHER = (identity(name, ("x", DataType.FP32, (2,))) for name in ("m", "n"))


@pytest.fixture
def served() -> InstantGateway:
    return instant_gateway(MODEL)


@pytest.mark.parametrize("path", [PREDICT, "/v1/models/m/versions/1:predict", "/v1/models/%6d%3Apredict"])
def test_instances_are_answered_by_predictions(served: InstantGateway, path: str) -> None:
    reply = post(served, path, V1)
    assert (reply.status, reply.json) == (200, {"predictions": [[1, 2], [3, 4]]})
    assert reply.headers["content-type"] == "application/json"
    assert served.runtime.released == 1


def test_inputs_are_answered_by_outputs(served: InstantGateway) -> None:
    assert post(served, PREDICT, {"inputs": {"x": [[1, 2]]}}).json == {"outputs": [[1, 2]]}


def test_large_and_compressed_bodies_are_read(served: InstantGateway) -> None:
    body = b'{"instances": [[1, 2]' + b" " * (300 << 10) + b"]}"
    assert post(served, PREDICT, body).json == {"predictions": [[1, 2]]}
    packed = post(served, PREDICT, gzip.compress(body), headers={"Content-Encoding": "gzip"})
    assert packed.json == {"predictions": [[1, 2]]}


def test_one_connection_may_mix_protocols(served: InstantGateway) -> None:
    """The same body means something else on another path, whatever the connection knows of earlier requests."""
    body = json.dumps(V2).encode()

    async def conversation(client: Client) -> list[Reply]:
        replies = []
        for path in ("/v2/models/m/infer", PREDICT, "/invocations", "/v2/models/m/infer"):
            client.send(message("POST", path, body))
            replies.append(await client.reply())
        for path in (PREDICT, "/invocations", PREDICT):
            client.send(message("POST", path, json.dumps(V1).encode()))
            replies.append(await client.reply())
        return replies

    first, refused, second, third, *predictions = talk(served, conversation)
    assert first.json == second.json == third.json
    assert first.json["outputs"][0]["data"] == [1, 2]
    assert refused.status == 400
    assert [reply.json for reply in predictions] == [{"predictions": [[1, 2], [3, 4]]}] * 3


def test_v1_says_which_models_there_are_and_whether_they_are_ready(served: InstantGateway) -> None:
    assert get(served, "/").json == {"status": "alive"}
    assert get(served, "/v1/models").json == {"models": ["m"]}
    assert get(served, "/v1/models/m").json == {"name": "m", "ready": True}
    assert get(served, "/v1/models/m/versions/1").json == {"name": "m", "ready": True}
    assert get(served, "/v1/models/other").status == 404
    assert get(served, "/v1/models/m/versions/2").status == 404
    assert get(served, "/v1/models/broken").status == 503
    served.inventory.partition_lost("cpu0")
    reply = get(served, "/v1/models/m")
    assert (reply.status, reply.json["error"]) == (503, "'m' is not at ready state: no running worker has it loaded")


def test_sagemaker_asks_for_health_at_ping(served: InstantGateway) -> None:
    assert get(served, "/ping").status == 200
    served.inventory.partition_lost("cpu0")
    assert get(served, "/ping").status == 400
    served.registry.start_draining()
    assert get(served, "/ping").status == 503


@pytest.mark.parametrize(
    ("path", "body", "status", "problem"),
    [
        ("/v1/models/other:predict", V1, 404, "Request for unknown model: 'other' is not found"),
        ("/v1/models/m/versions/2:predict", V1, 404, "version 2 is not found"),
        ("/v1/models/m/versions/x:predict", V1, 404, "Not Found"),
        ("/v1/models/broken:predict", V1, 503, "model.onnx is empty"),
        (PREDICT, b"", 400, "not a V1 request in JSON"),
        (PREDICT, {"instances": [[1]]}, 400, "Expected [-1,2], got [1,1]"),
        (PREDICT, {"instances": [[1, 2]] * 9}, 400, "batch-size must be <= 8"),
        (PREDICT, {**V1, "parameters": {"slo_ms": "soon"}}, 400, "slo_ms"),
        ("/v1/models/m:explain", V1, 501, "'m' has no explainer: ask it with ':predict'"),
        ("/v1/models/m:classify", V1, 405, "Method Not Allowed"),
        ("/invocations", {}, 400, "missing required field `inputs`"),
        ("/invocations", {"instances": [[1]]}, 400, "Expected [-1,2], got [1,1]"),
    ],
)
def test_errors_are_those_of_v2(served: InstantGateway, path: str, body: Any, status: int, problem: str) -> None:
    reply = post(served, path, body)
    assert reply.status == status
    assert problem in reply.json["error"]
    assert post(served, PREDICT, V1).status == 200


def test_get_does_not_infer(served: InstantGateway) -> None:
    assert get(served, "/invocations").status == 405
    assert get(served, PREDICT).status == 404


@pytest.mark.parametrize("body", [V2, V1])
def test_an_invocation_goes_to_the_only_model(served: InstantGateway, body: dict[str, Any]) -> None:
    path = "/v2/models/m/infer" if body is V2 else PREDICT
    reply = post(served, "/invocations", body, headers={"Content-Type": "application/json"})
    assert (reply.status, reply.json) == (200, post(served, path, body).json)


def test_an_invocation_names_its_model_or_goes_to_the_default() -> None:
    several = instant_gateway(MODEL, OTHER, default_model="n")
    assert post(several, "/invocations", V2).json["model_name"] == "n"
    for name in ("m", "m.tar.gz"):
        assert post(several, "/invocations", V2, headers={TARGET: name}).json["model_name"] == "m"
    reply = post(several, "/invocations", V2, headers={TARGET: "other"})
    assert (reply.status, reply.json["error"]) == (404, "Request for unknown model: 'other' is not found")
    missing = instant_gateway(MODEL, default_model="other")
    assert post(missing, "/invocations", V2).status == 404


def test_an_invocation_without_a_model_is_refused_where_there_are_several() -> None:
    reply = post(instant_gateway(MODEL, OTHER), "/invocations", V2)
    assert reply.status == 400
    assert reply.json["error"] == (
        "a request that names no model needs a server of one model, or default_model in its configuration: "
        "this one has m, n"
    )


def test_an_invocation_of_an_only_model_that_is_broken_says_why() -> None:
    reply = post(instant_gateway(), "/invocations", V2)
    assert (reply.status, reply.json["error"]) == (503, "'broken' cannot be served: model.onnx is empty")


def test_binary_tensors_have_sagemakers_type(served: InstantGateway) -> None:
    wire = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
    head = json.dumps({"inputs": [wire], "parameters": {"binary_data_output": True}}).encode()
    body = head + struct.pack("<2f", 3, 4)
    # Only the type counts: SageMaker does not pass the header of V2 on.
    other = {"Inference-Header-Content-Length": "1"}
    for _ in range(2):  # the second answer has the JSON of the first
        reply = post(served, "/invocations", body, headers={"Content-Type": f"{BINARY}{len(head)}", **other})
        assert reply.status == 200
        kind, _, length = reply.headers["content-type"].rpartition("=")
        assert f"{kind}=" == BINARY
        assert "inference-header-content-length" not in reply.headers
        assert json.loads(reply.body[: int(length)])["outputs"][0]["parameters"] == {"binary_data_size": 8}
        assert np.frombuffer(reply.body[int(length) :], np.float32).tolist() == [3, 4]


def test_a_body_may_be_all_data(served: InstantGateway) -> None:
    reply = post(served, "/invocations", struct.pack("<2f", 3, 4), headers={"Content-Type": f"{BINARY}0"})
    assert (reply.status, reply.body[-8:]) == (200, struct.pack("<2f", 3, 4))


@pytest.mark.parametrize(
    ("size", "problem"),
    [("", "must have json-header-size=N"), ("x", "must have json-header-size=N"), ("9", "but the body has only 2")],
)
def test_a_wrong_length_of_json_is_refused(served: InstantGateway, size: str, problem: str) -> None:
    reply = post(served, "/invocations", b"{}", headers={"Content-Type": f"{BINARY}{size}"})
    assert reply.status == 400
    assert problem in reply.json["error"]


@pytest.mark.parametrize(("nan", "values"), [(JsonNan.STRING, ["NaN", "-Infinity"]), (JsonNan.NULL, [None, None])])
def test_nan_and_infinities_are_answered_as_configured(nan: JsonNan, values: list[object]) -> None:
    served = instant_gateway(MODEL, json_rules=JsonRules(nan=nan))
    body = b'{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [NaN, -Infinity]}]}'
    assert post(served, "/v2/models/m/infer", body).json["outputs"][0]["data"] == values
    assert post(served, PREDICT, b'{"instances": [[NaN, -Infinity]]}').json == {"predictions": [values]}


def test_nan_and_infinities_are_literals_by_default(served: InstantGateway) -> None:
    body = b'{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [NaN, -Infinity]}]}'
    assert post(served, "/v2/models/m/infer", body).body.endswith(b'"data":[NaN,-Infinity]}]}')
    assert post(served, PREDICT, b'{"instances": [[NaN, -Infinity]]}').body == b'{"predictions":[[NaN,-Infinity]]}'
    assert post(served, "/v2/models/m/infer", body.replace(b"NaN", b'"NaN"')).status == 400


def test_a_restricted_group_covers_its_routes_of_every_protocol() -> None:
    keys = [
        RestrictedSettings((ApiGroup.INFERENCE, ApiGroup.HEALTH, ApiGroup.METADATA), "x-key", "secret"),
    ]
    served = instant_gateway(MODEL, restrictions=Restrictions(keys))
    key = {"x-key": "secret"}
    for path in (PREDICT, "/invocations", "/v1/models/m/versions/1:predict", "/v1/models/m:explain"):
        assert post(served, path, V1).status == 403
    assert post(served, PREDICT, V1, headers=key).status == post(served, "/invocations", V1, headers=key).status == 200
    for path in ("/", "/ping", "/v1/models", "/v1/models/m"):
        assert get(served, path).status == 403
        assert send(served, message("GET", path, headers=key)).status == 200


@pytest.mark.parametrize("path", [PREDICT, "/invocations"])
def test_rules_about_pages_and_names_are_those_of_inference(path: str) -> None:
    served = instant_gateway(MODEL, access=AccessRules(frozenset((b"here",)), ("https://app.example",)))
    page = {"Host": "here", "Origin": "https://app.example", "Content-Type": "text/plain"}
    reply = post(served, path, V1, headers=page)
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, "https://app.example")
    assert post(served, path, V1, headers={**page, "Origin": "https://evil.example"}).status == 403
    assert post(served, path, V1, headers={"Host": "evil.example"}).status == 421
