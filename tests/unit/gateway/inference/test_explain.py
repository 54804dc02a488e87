"""Clients ask for the explanation of their requests, and get it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.grpc.service import grpc_server
from sluice.gateway.protocol.answer import Answer
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.instant_gateway import InstantGateway, get, identity, instant_gateway, post

PATH = "/v2/models/m/infer"
ROW = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
EXPLAINED = {
    "x-sluice-outcome": "completed",
    "x-sluice-total-ms": "0.000",
    "x-sluice-deadline-ms": "1000.000",
    "x-sluice-cost": "0",
    "x-sluice-cause": "queue",
}


@pytest.fixture
def served() -> InstantGateway:
    return instant_gateway(identity("m", ("x", DataType.FP32, (2,))))


def explained(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("x-sluice-")}


def test_a_request_without_id_gets_one(served: InstantGateway) -> None:
    assert explained(post(served, PATH, ROW).headers) == {"x-sluice-request": "sluice-1"}
    assert explained(post(served, PATH, {**ROW, "id": "mine"}).headers) == {}
    assert [get(served, f"/v2/sluice/requests/{id}").json["id"] for id in ("sluice-1", "mine")] == ["sluice-1", "mine"]


@pytest.mark.parametrize(
    ("parameters", "headers", "asked"),
    [
        ({}, {"X-Sluice-Explain": "1"}, True),
        ({}, {"x-sluice-explain": "true"}, True),
        ({}, {"x-sluice-explain": "0"}, False),
        ({"sluice_explain": True}, {}, True),
        ({"sluice_explain": False}, {}, False),
        ({"sluice_explain": False}, {"x-sluice-explain": "1"}, True),
    ],
)
def test_an_explanation_is_given_on_request(
    served: InstantGateway, parameters: dict[str, bool], headers: dict[str, str], asked: bool
) -> None:
    reply = post(served, PATH, {**ROW, "parameters": parameters}, headers=headers)
    assert reply.status == 200
    assert explained(reply.headers) == {"x-sluice-request": "sluice-1"} | (EXPLAINED if asked else {})


def test_a_refusal_is_explained_as_well(served: InstantGateway) -> None:
    served.runtime.answer = Answer(Outcome.REJECTED_COST, "the least is 3e-06", 5)
    reply = post(served, PATH, {**ROW, "id": "7"}, headers={"x-sluice-explain": "1"})
    assert (reply.status, reply.json) == (
        503,
        {"error": "the request cannot be answered at that price: the least is 3e-06"},
    )
    assert explained(reply.headers) == EXPLAINED | {
        "x-sluice-outcome": "rejected_cost",
        "x-sluice-cause": "rejected_cost",
        "x-sluice-reason": "the least is 3e-06",
    }


def test_another_value_of_the_header_is_refused(served: InstantGateway) -> None:
    reply = post(served, PATH, ROW, headers={"x-sluice-explain": "yes"})
    assert (reply.status, reply.json) == (
        400,
        {"error": "header 'x-sluice-explain' must be one of 1, true, 0, false, got 'yes'"},
    )
    assert served.runtime.submitted == []


def test_what_is_known_of_a_request_can_be_got_later(served: InstantGateway) -> None:
    post(served, PATH, {**ROW, "id": "a/b c"})
    reply = get(served, "/v2/sluice/requests/a%2Fb%20c")
    assert reply.status == 200
    assert reply.json == {
        "id": "a/b c",
        "pipeline": "m:1",
        "rows": 1,
        "outcome": "completed",
        "reason": "",
        "deadline_ms": 1000.0,
        "total_ms": 0.0,
        "cost": 0,
        "max_cost": None,
        "stages": [],
        "cause": "queue",
        "sentence": reply.json["sentence"],
        "trace_id": "",
        "start_after_ms": 0.0,
    }
    reply = get(served, "/v2/sluice/requests/other")
    assert (reply.status, reply.json) == (
        404,
        {
            "error": "request 'other' is not remembered: expected one of the last 8, or of as many that were not "
            "answered in time"
        },
    )


def converse(served: InstantGateway, talk: Callable[[Any], Awaitable[None]]) -> None:
    async def run() -> None:
        server, port = grpc_server(served.dataplane, served.control, "127.0.0.1", 0, 1 << 20)
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await talk(service_pb2_grpc.GRPCInferenceServiceStub(channel))
        await server.stop(None)

    asyncio.run(run())


def request(id: str, **parameters: bool) -> Any:
    made = service_pb2.ModelInferRequest(model_name="m", id=id)
    made.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    made.raw_input_contents.append(np.array([1, 2], np.float32).tobytes())
    for name, value in parameters.items():
        made.parameters[name].bool_param = value
    return made


def test_trailing_metadata_says_the_same(served: InstantGateway) -> None:
    async def metadata(call: Any) -> dict[str, str]:
        await call
        return dict(await call.trailing_metadata())

    async def talk(stub: Any) -> None:
        assert await metadata(stub.ModelInfer(request(""))) == {"x-sluice-request": "sluice-1"}
        assert await metadata(stub.ModelInfer(request("7"))) == {}
        assert await metadata(stub.ModelInfer(request("7"), metadata=[("x-sluice-explain", "1")])) == EXPLAINED
        assert await metadata(stub.ModelInfer(request("7", sluice_explain=True))) == EXPLAINED
        with pytest.raises(grpc.aio.AioRpcError, match="header 'x-sluice-explain' must be one of 1, true, 0, false"):
            await stub.ModelInfer(request("7"), metadata=[("x-sluice-explain", "?")])
        served.runtime.answer = Answer(Outcome.REJECTED_DEADLINE, "predicted to complete in 9.0 ms", 5)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ModelInfer(request(""), metadata=[("x-sluice-explain", "1")])
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        trailing: Any = caught.value.trailing_metadata()
        assert dict(trailing) == EXPLAINED | {
            "x-sluice-request": "sluice-5",
            "x-sluice-outcome": "rejected_deadline",
            "x-sluice-cause": "rejected_deadline",
            "x-sluice-reason": "predicted to complete in 9.0 ms",
            "retry-after": "5",
        }

    converse(served, talk)
    assert json.loads(get(served, "/v2/sluice/requests/sluice-5").body)["outcome"] == "rejected_deadline"
