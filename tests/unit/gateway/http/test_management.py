"""The routes that tell of a server and change how it works, and who may use them."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from sluice.batcher.interface.decisions import DispatchBatch, Member, ReleaseReason
from sluice.gateway.config.restricted import ApiGroup, RestrictedSettings, Restrictions
from sluice.gateway.observability.traces.trace import BatchTrace
from sluice.models.tensors.spec import DataType
from sluice.models.units import NS_PER_MS
from tests.unit.gateway.instant_gateway import (
    InstantGateway,
    Reply,
    get,
    identity,
    instant_gateway,
    message,
    post,
    send,
)

MODEL = identity("m", ("x", DataType.FP32, (2,)))
OTHER = identity("n", ("x", DataType.FP32, (2,)), max_batch_size=0)
INFER: dict[str, Any] = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}


@pytest.fixture
def served() -> InstantGateway:
    return instant_gateway(MODEL, OTHER)


def test_the_configuration_is_printed_as_triton_does(served: InstantGateway) -> None:
    config = get(served, "/v2/models/m/config").json
    assert config["name"] == "m"
    assert config["max_batch_size"] == 8
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    assert config["input"][0]["dims"] == [2]
    assert get(served, "/v2/models/m/versions/1/config").json == config
    assert get(served, "/v2/models/other/config").status == 404
    assert get(served, "/v2/models/m/versions/2/config").status == 404
    assert get(served, "/v2/models/broken/config").status == 503


def test_statistics_are_of_one_version_or_all_that_is_ready(served: InstantGateway) -> None:
    batch = DispatchBatch(1, "cpu0", "m:1", 3, (Member(1, 0, 1), Member(2, 0, 2)), ReleaseReason.FULL)
    run = BatchTrace(batch, dispatched_ns=10, free_ns=10, started_ns=12, ended_ns=17, reported_ns=18 * NS_PER_MS)
    served.control.statistics.of("m:1").batch_ran(run, 2, 3, ready_ns=8 + 9)
    (entry,) = get(served, "/v2/models/m/stats").json["model_stats"]
    assert entry["name"] == "m"
    assert entry["version"] == "1"
    assert (entry["inference_count"], entry["execution_count"]) == (3, 1)
    assert entry["last_inference"] == 1_700_000_000_018
    assert entry["inference_stats"]["queue"] == {"count": 2, "ns": 3}
    assert entry["inference_stats"]["compute_infer"] == {"count": 2, "ns": 10}
    assert [each["batch_size"] for each in entry["batch_stats"]] == [3]
    assert get(served, "/v2/models/m/versions/1/stats").json == {"model_stats": [entry]}
    assert [each["name"] for each in get(served, "/v2/models/stats").json["model_stats"]] == ["m", "n"]
    assert get(served, "/v2/models/other/stats").status == 404
    assert get(served, "/v2/models/m/versions/7/stats").status == 404


@pytest.mark.parametrize("body", [b"", b"{}", b'{"ready": false}', b'{"ready": null}'])
def test_the_index_lists_what_is_there_and_why_it_is_not_ready(served: InstantGateway, body: bytes) -> None:
    assert post(served, "/v2/repository/index", body).json == [
        {"name": "broken", "state": "UNAVAILABLE", "reason": "model.onnx is empty"},
        {"name": "m", "version": "1", "state": "READY"},
        {"name": "n", "version": "1", "state": "READY"},
    ]


def test_the_index_can_be_asked_for_what_is_ready(served: InstantGateway) -> None:
    ready = post(served, "/v2/repository/index", {"ready": True}).json
    assert [each["name"] for each in ready] == ["m", "n"]
    served.inventory.partition_lost("cpu0")
    assert post(served, "/v2/repository/index", {"ready": True}).json == []
    assert post(served, "/v2/repository/index").json[1] == {
        "name": "m",
        "version": "1",
        "state": "UNAVAILABLE",
        "reason": "no running worker has it loaded",
    }


@pytest.mark.parametrize(
    ("path", "body", "status", "problem"),
    [
        ("repository/index", b"[" * 250_000, 400, "failed to parse the request JSON buffer"),
        ("repository/index", b"[]", 400, "expected a JSON object, got list"),
        ("repository/index", b'{"ready": 1}', 400, "'ready' must be true or false, got 1"),
        ("repository/index", b" " * (1 << 20) + b" ", 400, "the body has 1048577 bytes, the limit is 1048576"),
        ("repository/mine/index", b"", 501, "'repository_name' specification is not supported"),
        ("repository/mine/models/m/load", b"", 501, "'repository_name' specification is not supported"),
        ("repository/models/m/load", b"{}", 503, "explicit model load / unload is not allowed if polling is enabled"),
        ("repository/models/m/unload", b'{"parameters": {"unload_dependents": true}}', 503, "is not allowed"),
        ("repository/models/m/load", b'{"parameters": 1}', 400, "'parameters' must be an object, got 1"),
        ("cudasharedmemory/region/r/register", b"", 501, "CUDA shared memory is not supported"),
        ("systemsharedmemory/region/r/register", b"{}", 400, "'key' must be the name of a shared memory object"),
        ("systemsharedmemory/region/r/register", b'{"key": "/k"}', 400, "'byte_size' must be a whole number of bytes"),
        (
            "systemsharedmemory/region/r/register",
            b'{"key": "/k", "offset": -1, "byte_size": 8}',
            400,
            "'offset' must be a whole number of bytes, got -1",
        ),
        ("trace/setting", b'{"trace_file": "/tmp/x"}', 501, "trace file location can not be updated"),
        ("models/other/trace/setting", b"{}", 400, "Request for unknown model: 'other' is not found"),
        ("models/m/versions/1/trace/setting", b"{}", 404, "Not Found"),
        ("logging", b'{"log_file": "/tmp/x"}', 501, "log file location can not be updated"),
        ("logging", b'{"log_info": 1}', 400, "log setting 'log_info' must be true or false, got 1"),
        ("logging", b'{"log_format": "tabs"}', 400, "'log_format' must be one of default, ISO8601, json, got 'tabs'"),
        ("logging", b'{"colour": true}', 400, "log setting 'colour' is unknown; expected one of log_file, log_info"),
        ("nothing/of/the/kind", b"", 404, "Not Found"),
        ("models/stats", b"", 405, "Method Not Allowed"),
        ("logging/", b"", 404, "Not Found"),
    ],
)
def test_what_cannot_be_done_is_refused_in_json(
    served: InstantGateway, path: str, body: bytes, status: int, problem: str
) -> None:
    reply = post(served, f"/v2/{path}", body)
    assert reply.status == status
    assert reply.headers["content-type"] == "application/json"
    assert problem in reply.json["error"]


def test_trace_settings_are_kept_for_all_and_for_single_models(tmp_path: Path) -> None:
    served = instant_gateway(MODEL, OTHER, trace_file=str(tmp_path / "trace.json"))
    settings = {
        "trace_level": ["OFF"],
        "trace_rate": "1000",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": str(tmp_path / "trace.json"),
        "trace_mode": "triton",
    }
    assert get(served, "/v2/trace/setting").json == settings
    changed = post(served, "/v2/models/m/trace/setting", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}).json
    assert changed == settings | {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}
    assert get(served, "/v2/models/n/trace/setting").json == settings
    assert post(served, "/v2/trace/setting", {"trace_rate": 7, "trace_count": "3"}).json["trace_rate"] == "7"
    for_model = get(served, "/v2/models/m/trace/setting").json
    assert (for_model["trace_rate"], for_model["trace_count"]) == ("1", "3")
    assert post(served, "/v2/models/m/trace/setting", {"trace_rate": None}).json["trace_rate"] == "7"
    assert "trace" in get(served, "/v2").json["extensions"]


def test_a_model_named_like_a_route_part_is_still_reached() -> None:
    served = instant_gateway(identity("setting", ("x", DataType.FP32, (2,))))
    assert get(served, "/v2/models/setting").json["name"] == "setting"


KEY = Restrictions(
    [RestrictedSettings((ApiGroup.INFERENCE, ApiGroup.STATISTICS, ApiGroup.HEALTH), "admin-key", "s3cret")]
)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v2/models/m/infer", json.dumps(INFER).encode()),
        ("POST", "/v2/models/m/versions/1/infer", json.dumps(INFER).encode()),
        ("GET", "/v2/models/stats", b""),
        ("GET", "/v2/health/live", b""),
    ],
)
def test_a_restricted_group_wants_its_key(method: str, path: str, body: bytes) -> None:
    served = instant_gateway(MODEL, restrictions=KEY)

    def reply(**headers: str) -> Reply:
        return send(served, message(method, path, body, headers=headers))

    assert reply().status == 403
    assert reply().json == {"error": "This protocol is restricted, expecting header 'admin-key'"}
    assert reply(**{"admin-key": "guess"}).status == 403
    assert reply(**{"admin-key": "s3cret"}).status == 200
    assert get(served, "/v2").status == 200


def test_the_document_describes_inference_and_all_else(served: InstantGateway) -> None:
    document = get(served, "/openapi.json").json
    paths = document["paths"]
    infer = paths["/v2/models/{name}/infer"]["post"]
    assert infer["requestBody"]["content"]["application/json"]["schema"]["required"] == ["inputs"]
    assert set(infer["responses"]["200"]["content"]) == {"application/json", "application/octet-stream"}
    assert "/v2/models/{name}/versions/{version}/infer" in paths
    assert "/v2/repository/index" in paths
    assert infer["tags"] == ["inference"]


def test_the_routes_of_settings_have_summaries_of_their_own(served: InstantGateway) -> None:
    paths = get(served, "/openapi.json").json["paths"]
    summaries = {
        path: [paths[path][method]["summary"] for method in ("get", "post")]
        for path in ("/v2/trace/setting", "/v2/models/{name}/trace/setting", "/v2/logging")
    }
    assert summaries == {
        "/v2/trace/setting": ["Show the trace settings", "Change the trace settings"],
        "/v2/models/{name}/trace/setting": [
            "Show the trace settings of a model",
            "Change the trace settings of a model",
        ],
        "/v2/logging": ["Show the log settings", "Change the log settings"],
    }
    values = paths["/v2/logging"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert [each["type"] for each in values["additionalProperties"]["anyOf"]] == ["boolean", "integer", "string"]


def test_shared_memory_is_an_extension_only_where_clients_may_use_it(served: InstantGateway) -> None:
    assert "system_shared_memory" in get(served, "/v2").json["extensions"]
    without = instant_gateway(MODEL, allow_client_shm=False)
    assert "system_shared_memory" not in get(without, "/v2").json["extensions"]
    reply = get(without, "/v2/systemsharedmemory/status")
    assert (reply.status, "--allow-client-shm" in reply.json["error"]) == (501, True)


def test_files_of_a_model_may_be_as_long_as_a_request_for_inference() -> None:
    served = instant_gateway(MODEL, max_body_bytes=4 << 20)
    body = {"parameters": {"config": "{}", "file:1/model.onnx": base64.b64encode(bytes(2 << 20)).decode()}}
    reply = post(served, "/v2/repository/models/m/load", body)
    assert reply.status == 503
    assert "explicit model load / unload is not allowed" in reply.json["error"]
    assert post(served, "/v2/repository/models/m/unload", body).status == 400
    reply = post(served, "/v2/repository/models/m/load", b" " * (4 << 20) + b" ")
    assert (reply.status, reply.json["error"]) == (400, "the body has 4194305 bytes, the limit is 4194304")
