"""Requests over HTTP one at a time: routes, errors, bounds."""

import json
import struct

import numpy as np
import pytest

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.protocol.answer import Answer
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.instant_gateway import InstantGateway, get, identity, instant_gateway, post

REQUEST = {"id": "7", "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
PATH = "/v2/models/m/infer"


@pytest.fixture
def served() -> InstantGateway:
    return instant_gateway(identity("m", ("x", DataType.FP32, (2,))), max_body_bytes=1000)


def test_inference_in_json(served: InstantGateway) -> None:
    reply = post(served, PATH, REQUEST)
    assert reply.status == 200
    assert reply.headers == {
        "content-type": "application/json",
        "content-length": str(len(reply.body)),
        "date": "today",
    }
    assert reply.json == {
        "model_name": "m",
        "model_version": "1",
        "id": "7",
        "outputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}],
    }
    assert served.runtime.released == 1


def test_binary_inference_in_chunks_of_a_versioned_model(served: InstantGateway) -> None:
    wire = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
    head = json.dumps({"inputs": [wire], "parameters": {"binary_data_output": True}}).encode()
    body = head + struct.pack("<2f", 3, 4)
    length = {"Inference-Header-Content-Length": str(len(head))}
    reply = post(served, "/v2/models/m/versions/1/infer", body[:40], body[40:-3], body[-3:], headers=length)
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/octet-stream"
    json_length = int(reply.headers["inference-header-content-length"])
    assert json.loads(reply.body[:json_length])["outputs"][0]["parameters"] == {"binary_data_size": 8}
    assert np.frombuffer(reply.body[json_length:], np.float32).tolist() == [3, 4]


@pytest.mark.parametrize(
    ("path", "status", "names"),
    [
        ("/v2/models/other/infer", 404, "other"),
        ("/v2/models/m/versions/2/infer", 404, "2"),
        ("/v2/models/broken/infer", 503, "model.onnx is empty"),
        ("/v2/models/m/versions/x/infer", 404, "Not Found"),
        ("/v2/models/m/versions/-1/infer", 404, "Not Found"),
        (f"/v2/models/m/versions/{'1' * 5000}/infer", 404, "Not Found"),
        ("/v2/models//infer", 404, "no"),
        ("/v2/models/m/nothing/infer", 404, "Not Found"),
        ("/v2/health/live", 405, "Method Not Allowed"),
    ],
)
def test_what_is_not_there_is_an_error_in_json(served: InstantGateway, path: str, status: int, names: str) -> None:
    reply = post(served, path, REQUEST)
    assert reply.status == status
    assert reply.headers["content-type"] == "application/json"
    assert names.lower() in reply.json["error"].lower()
    assert ("retry-after" in reply.headers) == (status == 503)


def test_the_verb_of_inference_is_post(served: InstantGateway) -> None:
    reply = get(served, PATH)
    assert (reply.status, reply.json) == (405, {"error": "Method Not Allowed"})
    assert get(served, "/v2/models/m/versions/1/infer").status == 405


@pytest.mark.parametrize(
    ("headers", "body", "status", "problem"),
    [
        ({"Content-Length": "1001"}, b"", 400, "the body has 1001 bytes, the limit is 1000"),
        ({"Inference-Header-Content-Length": "x"}, b"{}", 400, "must be a number of bytes, got 'x'"),
        ({"Inference-Header-Content-Length": "-1"}, b"{}", 400, "must be a number of bytes, got '-1'"),
        ({"Inference-Header-Content-Length": "9" * 5000}, b"{}", 400, "must be a number of bytes, got '999"),
        ({"Inference-Header-Content-Length": "3"}, b"{}", 400, "is 3, but the body has only 2 bytes"),
        ({"Content-Encoding": "gzip"}, b"{}", 400, "the body cannot be decompressed"),
        (
            {"Content-Encoding": "br"},
            b"{}",
            501,
            "Content-Encoding 'br' is not supported; expected gzip, deflate or none",
        ),
        ({}, b'{"inputs": "\\ud800"}', 400, "not an inference request"),
        ({}, b'{"inputs": [{"name": "\\ud800", "shape": [], "datatype": "", "data": [NaN]}]}', 400, "surrogates"),
        (
            {},
            b'{"id": "\\ud800", "inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [NaN]}]}',
            400,
            "surr",
        ),
        (
            {},
            b'{"inputs": [{"name": "x", "shape": [2], "datatype": "BYTES", "data": ["\\uDC00"]}, NaN]}',
            400,
            "surrogates",
        ),
        ({}, b'{"inputs": [{"name": "x", "shape": [NaN], "datatype": "FP32", "data": [NaN]}]}', 400, "Expected `int`"),
        ({}, b'{"parameters": {"timeout": NaN}, "inputs": []}', 400, "timeout"),
    ],
)
def test_bad_requests_are_refused_in_json(
    served: InstantGateway, headers: dict[str, str], body: bytes, status: int, problem: str
) -> None:
    reply = post(served, PATH, body, headers=headers)
    assert reply.status == status
    assert problem in reply.json["error"]
    assert served.runtime.submitted == []
    assert post(served, PATH, REQUEST).status == 200


def test_a_chunked_body_is_read_no_further_than_the_limit(served: InstantGateway) -> None:
    reply = post(served, PATH, *[b" " * 400] * 1000)
    assert (reply.status, reply.json) == (400, {"error": "the body exceeds the limit of 1000 bytes"})


def test_overload_says_when_to_try_again(served: InstantGateway) -> None:
    served.runtime.answer = Answer(Outcome.REJECTED_QUEUE_FULL, "8 requests wait", 5)
    reply = post(served, PATH, REQUEST)
    assert (reply.status, reply.headers["retry-after"]) == (503, "5")
    assert reply.json == {"error": "Exceeds maximum queue size: 8 requests wait"}


def test_a_fault_of_the_server_is_500_and_kept_in_the_log(
    served: InstantGateway, caplog: pytest.LogCaptureFixture
) -> None:
    served.runtime.answer = Answer(Outcome.COMPLETED)
    reply = post(served, PATH, REQUEST)
    assert (reply.status, reply.json) == (500, {"error": "internal error: see the log of the server"})
    assert "KeyError" in caplog.text


def test_metadata(served: InstantGateway) -> None:
    assert get(served, "/v2").json == {
        "name": "sluice",
        "version": "1.2.3",
        "extensions": [
            "classification",
            "sequence",
            "sequence(string_id)",
            "schedule_policy",
            "model_configuration",
            "system_shared_memory",
            "binary_tensor_data",
            "parameters",
            "statistics",
            "logging",
        ],
    }
    model = {
        "name": "m",
        "versions": ["1"],
        "platform": "sluice_pipeline",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
        "outputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
    }
    assert get(served, "/v2/models/m").json == model
    assert get(served, "/v2/models/m/versions/1").json == model
    assert get(served, "/v2/models/m/versions/2").status == 404
    assert get(served, "/v2/models/m/versions/x").json == {"error": "Not Found"}
    broken = get(served, "/v2/models/broken")
    assert broken.status == 503
    assert "model.onnx is empty" in broken.json["error"]


def test_health_is_in_the_status_and_in_the_body_and_tells_loading_from_draining(served: InstantGateway) -> None:
    def answers() -> list[tuple[int, object]]:
        replies = [get(served, f"/v2/{path}") for path in ("health/live", "health/ready", "models/m/ready")]
        return [(reply.status, {"error": ...} if "error" in reply.json else reply.json) for reply in replies]

    live, not_there = (200, {"live": True}), (503, {"error": ...})
    assert answers() == [live, (200, {"ready": True}), (200, {"name": "m", "ready": True})]
    assert get(served, "/v2/models/m/versions/1/ready").json == {"name": "m", "ready": True}
    assert get(served, "/v2/models/other/ready").status == 404
    assert get(served, "/v2/models/broken/ready").status == 503
    served.inventory.partition_lost("cpu0")
    assert answers() == [live, (400, {"ready": False}), not_there]
    served.registry.start_draining()
    assert answers() == [live, (503, {"ready": False}), not_there]


def test_metrics_are_exposed_as_text(served: InstantGateway) -> None:
    reply = get(served, "/metrics")
    assert reply.body == b"sluice_requests_total 3\n"
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
