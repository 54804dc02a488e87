"""Large bodies, which are read straight into the memory where they stay."""

import asyncio
import json
import resource
from pathlib import Path

import numpy as np
import pytest

from sluice.gateway.http.large_body import LargeBody
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.instant_gateway import (
    TIMEOUT_S,
    Client,
    InstantGateway,
    identity,
    instant_gateway,
    message,
    talk,
    until,
)

WIDTH = 250_000
PATH = "/v2/models/m/infer"
PART = 100_000
"""Bytes of a request that are sent first: less than a server reads at a time."""


@pytest.fixture
def served() -> InstantGateway:
    pipelines = [identity(name, ("x", DataType.FP32, (width,))) for name, width in {"m": WIDTH, "s": 1}.items()]
    return instant_gateway(*pipelines, max_body_bytes=2 << 20)


def request(values: np.ndarray) -> bytes:
    data = values.tobytes()
    tensor = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return message("POST", PATH, head + data, headers={"Inference-Header-Content-Length": str(len(head))})


def small(number: int) -> bytes:
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [number]}
    return message("POST", "/v2/models/s/infer", json.dumps({"id": str(number), "inputs": [tensor]}).encode())


def values(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(WIDTH).astype(np.float32)


def resident_bytes() -> int:
    """The memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def is_direct(client: Client) -> None:
    """Wait until the body is read past the parser."""
    await until(lambda: isinstance(client.connection.transport.get_protocol(), LargeBody))


def test_each_large_body_arrives_whole_and_requests_behind_it_are_answered(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        for seed in range(3):
            sent = request(values(seed))
            client.send(sent[:PART])
            await is_direct(client)
            client.send(sent[PART:] + small(seed) + small(seed + 10))
            answer = await client.reply()
            assert answer.status == 200
            assert answer.body.endswith(values(seed).tobytes())
            assert [json.loads((await client.reply()).body)["id"] for _ in range(2)] == [str(seed), str(seed + 10)]

    talk(served, conversation)
    assert [len(each["inputs"]) for each in served.runtime.submitted] == 9 * [1]
    for seed in range(3):
        assert np.array_equal(served.runtime.submitted[3 * seed]["inputs"]["x"][0], values(seed))


def test_a_body_that_is_only_announced_takes_no_memory() -> None:
    served = instant_gateway(identity("m", ("x", DataType.FP32, (WIDTH,))), max_body_bytes=1 << 30)
    length = 512 << 20

    async def conversation(client: Client) -> None:
        before = resident_bytes()
        headers = {"Inference-Header-Content-Length": "0", "Content-Length": str(length)}
        client.send(message("POST", PATH, headers=headers))
        await is_direct(client)
        assert resident_bytes() - before < length / 4

    talk(served, conversation)


def test_a_large_json_body_is_parsed_as_any_other() -> None:
    served = instant_gateway(identity("j", ("x", DataType.FP32, (50_000,))), max_body_bytes=2 << 20)
    tensor = {"name": "x", "shape": [1, 50_000], "datatype": "FP32", "data": list(range(50_000))}

    async def conversation(client: Client) -> None:
        for id in ("", "", "mine"):
            sent = message("POST", "/v2/models/j/infer", json.dumps({"id": id, "inputs": [tensor]}).encode())
            client.send(sent[:1000])
            await is_direct(client)
            client.send(sent[1000:])
            assert json.loads((await client.reply()).body)["outputs"][0]["data"] == tensor["data"]

    talk(served, conversation)


def test_a_large_body_may_wait_for_an_earlier_request(served: InstantGateway) -> None:
    served.runtime.hold = True

    async def conversation(client: Client) -> None:
        sent = request(values(1))
        client.send(small(7) + sent[:PART])
        await asyncio.wait_for(served.runtime.arrived.wait(), TIMEOUT_S)
        client.send(sent[PART:])
        served.runtime.let_go()
        served.runtime.hold = False
        assert json.loads((await client.reply()).body)["id"] == "7"
        assert (await client.reply()).body.endswith(values(1).tobytes())

    talk(served, conversation)


def test_what_counts_in_the_buffer_is_released_when_a_large_body_is_answered(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        budget = client.connection.budget
        sent = request(values(1))
        client.send(sent[:PART])
        await is_direct(client)
        client.send(sent[PART : 5 * PART])
        await until(lambda: budget.used > 4 * PART)
        client.send(sent[5 * PART :])
        await client.reply()
        assert budget.used == 0

    talk(served, conversation)


def test_a_client_that_goes_away_within_a_large_body_is_no_request(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        client.send(request(values(1))[: 2 * PART])
        await is_direct(client)
        client.close()
        await until(client.connection.transport.is_closing)
        await until(lambda: client.connection.budget.used == 0)

    talk(served, conversation)
    assert served.runtime.submitted == []


def test_a_large_body_is_refused_while_it_is_read_when_memory_runs_out(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        sent = request(values(1))
        client.send(sent[:PART])
        await is_direct(client)
        client.connection.give_up()
        client.send(sent[PART : 3 * PART])  # is read and dropped
        answer = await client.reply()
        assert (answer.status, json.loads(answer.body)) == (
            503,
            {"error": "the server has no memory left to read the request"},
        )
        assert await client.rest() == b""
        assert client.connection.budget.used == 0

    talk(served, conversation)
    assert served.runtime.submitted == []


def test_a_large_body_with_wrong_lengths_is_refused_as_any_other(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        sent = request(values(1)).replace(b'"shape": [1, 250000]', b'"shape": [1, 250001]')
        client.send(sent[:PART])
        await is_direct(client)
        client.send(sent[PART:] + small(1))
        answer = await client.reply()
        assert answer.status == 400
        assert b"x" in answer.body
        assert (await client.reply()).status == 200

    talk(served, conversation)
