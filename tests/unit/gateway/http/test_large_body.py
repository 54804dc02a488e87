"""Large bodies, which are read straight into the memory where they stay."""

import asyncio
import gc
import json
import random
import resource
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.http.large_body import DIRECT_BYTES, HEAD_BYTES, LargeBody
from sluice.gateway.http.server import Phase
from sluice.gateway.protocol.answer import Answer
from sluice.gateway.tensors.body_memory import BodyMemory
from sluice.gateway.tensors.input_slots import InputSlots
from sluice.models.tensors.spec import DataType
from tests.support.gateway.assembly_bench import LocalRegions
from tests.unit.gateway.instant_gateway import (
    TIMEOUT_S,
    Client,
    InstantGateway,
    identity,
    instant_gateway,
    iterations,
    message,
    talk,
    until,
)

WIDTH = 250_000
PATH = "/v2/models/m/infer"
PART = 100_000
"""Bytes of a request that are sent first: less than a server reads at a time."""


ARENA_BYTES = 64 << 20


@pytest.fixture(params=["private", "shared"])
def bodies(request: pytest.FixtureRequest) -> BodyMemory | None:
    """The memory for bodies that workers can read, or none."""
    return (
        BodyMemory(ARENA_BYTES, InputSlots(LocalRegions(), ARENA_BYTES).take_part)
        if request.param == "shared"
        else None
    )


@pytest.fixture
def served(bodies: BodyMemory | None) -> InstantGateway:
    pipelines = [identity(name, ("x", DataType.FP32, (width,))) for name, width in {"m": WIDTH, "s": 1}.items()]
    return instant_gateway(*pipelines, max_body_bytes=2 << 20, bodies=bodies)


def request(values: np.ndarray, **headers: str) -> bytes:
    data = values.tobytes()
    tensor = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return message("POST", PATH, head + data, headers={"Inference-Header-Content-Length": str(len(head)), **headers})


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


def answered(served: InstantGateway) -> list[np.ndarray]:
    """The inputs of large requests that were submitted."""
    inputs = [each["inputs"]["x"] for each in served.runtime.submitted]
    return [each[0] for each in inputs if each.shape[1] == WIDTH]


def test_requests_with_the_same_head_need_no_parser(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        for seed in range(4):
            sent = request(values(seed))
            client.send(sent[:PART])
            await is_direct(client)
            client.send(sent[PART:])
            assert (await client.reply()).body.endswith(values(seed).tobytes())
            if not seed:
                parser = client.connection.parser
        assert client.connection.parser is parser
        assert client.connection.budget.used == 0

    talk(served, conversation)
    assert all(map(np.array_equal, answered(served), map(values, range(4))))


@pytest.mark.parametrize("first", [1, 40, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 1])
def test_a_head_after_a_large_body_may_come_in_parts_and_be_another(served: InstantGateway, first: int) -> None:
    async def conversation(client: Client) -> None:
        client.send(request(values(0)))
        await client.reply()
        for seed, headers in enumerate(({}, {"X-More": "1"}, {"X-More": "1"}), 1):
            sent = request(values(seed), **headers)
            client.send(sent[:first])
            await until(lambda: client.connection.read_bytes() > 0 or client.connection.phase() is Phase.HEAD)
            client.send(sent[first:])
            assert (await client.reply()).body.endswith(values(seed).tobytes())

    talk(served, conversation)
    assert all(map(np.array_equal, answered(served), map(values, range(4))))


def test_large_and_small_requests_may_be_sent_at_once(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        for _ in range(2):
            client.send(request(values(0)) + request(values(1)) + small(5) + request(values(2)))
            for seed in range(2):
                assert (await client.reply()).body.endswith(values(seed).tobytes())
            assert json.loads((await client.reply()).body)["id"] == "5"
            assert (await client.reply()).body.endswith(values(2).tobytes())

    talk(served, conversation)


def test_a_small_request_of_several_reads_may_follow_a_large_body(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        for _ in range(2):
            client.send(request(values(0)))
            await client.reply()
            padded = {"id": "p" * 100, "parameters": {"filling": "f" * 3 * HEAD_BYTES}}
            tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}
            client.send(message("POST", "/v2/models/s/infer", json.dumps({**padded, "inputs": [tensor]}).encode()))
            assert json.loads((await client.reply()).body)["id"] == "p" * 100

    talk(served, conversation)


def test_what_is_no_request_after_a_large_body_is_refused(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        client.send(request(values(0)))
        await client.reply()
        client.send(b"no request\r\n\r\n")
        assert (await client.reply()).status == 400
        assert await client.rest() == b""

    talk(served, conversation)


@pytest.mark.parametrize("repeated", [False, True])
def test_bodies_are_read_where_workers_read_them_and_their_memory_is_free_afterwards(repeated: bool) -> None:
    bodies = BodyMemory(ARENA_BYTES, InputSlots(LocalRegions(), ARENA_BYTES).take_part)
    served = instant_gateway(identity("m", ("x", DataType.FP32, (WIDTH,))), max_body_bytes=2 << 20, bodies=bodies)

    async def conversation(client: Client) -> None:
        if repeated:
            client.send(request(values(0)))
            await client.reply()
            served.runtime.submitted.clear()
            served.runtime.shared.clear()
        sent = request(values(1))
        client.send(sent[:PART])
        await until(lambda: bodies.used_bytes == 4 * WIDTH)
        client.send(sent[PART:])
        await client.reply()
        (shared,) = served.runtime.shared
        assert shared is not None
        assert shared.located["x"].nbytes == 4 * WIDTH
        assert bodies.used_bytes == 4 * WIDTH
        del shared
        served.runtime.submitted.clear()
        served.runtime.shared.clear()
        assert bodies.used_bytes == 0
        client.send(sent[: 2 * PART])
        await until(lambda: client.connection.read_bytes() > PART)
        assert bodies.used_bytes == 4 * WIDTH
        client.close()
        await until(client.connection.transport.is_closing)
        await until(lambda: bodies.used_bytes == 0)

    gc.disable()
    try:
        talk(served, conversation)
    finally:
        gc.enable()


def test_a_large_answer_is_whole_though_its_client_reads_slowly(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        client.pause_reading()
        for seed in range(6):
            client.send(request(values(seed)))
        await until(lambda: client.connection.flow.write_paused)
        await iterations(100)
        client.resume_reading()
        for seed in range(6):
            assert (await client.reply()).body.endswith(values(seed).tobytes())
        assert client.connection.budget.used == 0

    talk(served, conversation)
    assert served.runtime.released == 6


def test_large_outputs_of_any_kind_are_sent_whole() -> None:
    pipeline = identity(
        "k", ("x", DataType.FP32, (-1,)), ("bits", DataType.BOOL, (-1, 3)), ("none", DataType.FP64, (0,))
    )
    served = instant_gateway(pipeline, max_body_bytes=2 << 20)
    arrays = {
        "x": np.arange(30_000, dtype=np.float32).reshape(1, -1),
        "bits": np.arange(60_000).reshape(1, -1, 3) % 2 == 0,
        "none": np.zeros((1, 0)),
    }
    served.runtime.answer = Answer(Outcome.COMPLETED, outputs=arrays)
    tensors = [
        {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]},
        {"name": "bits", "shape": [1, 1, 3], "datatype": "BOOL", "data": [True, False, True]},
        {"name": "none", "shape": [1, 0], "datatype": "FP64", "data": []},
    ]
    asked = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()

    async def conversation(client: Client) -> None:
        client.send(message("POST", "/v2/models/k/infer", asked))
        answer = await client.reply()
        assert answer.status == 200, answer.body
        assert answer.body.endswith(b"".join(each.tobytes() for each in arrays.values()))

    talk(served, conversation)


@pytest.mark.parametrize("cut", ["head", "within the JSON", "JSON"])
@pytest.mark.parametrize("kind", ["private", "shared"])
def test_the_json_before_large_data_may_come_in_any_parts(kind: str, cut: str) -> None:
    bodies = BodyMemory(ARENA_BYTES, InputSlots(LocalRegions(), ARENA_BYTES).take_part) if kind == "shared" else None
    served = instant_gateway(identity("m", ("x", DataType.FP32, (WIDTH,))), max_body_bytes=2 << 20, bodies=bodies)

    async def conversation(client: Client) -> None:
        for seed in range(3):
            sent = request(values(seed))
            head = sent.index(b"\r\n\r\n") + 4
            first = {"head": head, "within the JSON": head + 20, "JSON": len(sent) - 4 * WIDTH}[cut]
            client.send(sent[:first])
            await until(lambda: client.connection.phase() is Phase.BODY)
            await iterations(3)
            client.send(sent[first:])
            assert (await client.reply()).body.endswith(values(seed).tobytes())
        assert client.connection.budget.used == 0

    talk(served, conversation)
    if kind == "shared":
        assert [None if each is None else list(each.located) for each in served.runtime.shared] == 3 * [["x"]]


def test_a_body_that_is_hardly_large_may_follow_one_of_the_same_head() -> None:
    width = (DIRECT_BYTES + 500) // 4
    served = instant_gateway(identity("m", ("x", DataType.FP32, (width,))))
    data = np.arange(width, dtype=np.float32).tobytes()

    async def conversation(client: Client) -> None:
        sent = message("POST", PATH, data, headers={"Inference-Header-Content-Length": "0"})
        begin = len(sent) - len(data) + 10
        for first in (begin, len(sent), begin, begin + 1000):
            client.send(sent[:first])
            await iterations(10)
            client.send(sent[first:])
            assert (await client.reply()).body.endswith(data)

    talk(served, conversation)


@pytest.mark.parametrize("seed", range(12))
def test_any_requests_cut_anywhere_get_their_answers_in_order(seed: int) -> None:
    bodies = BodyMemory(ARENA_BYTES, InputSlots(LocalRegions(), ARENA_BYTES).take_part)
    pipelines = [identity(name, ("x", DataType.FP32, (width,))) for name, width in {"m": WIDTH, "s": 1}.items()]
    served = instant_gateway(*pipelines, max_body_bytes=2 << 20, bodies=bodies)
    source = random.Random(seed)
    numbers = [source.choice((0, 1, 2, 3, -1, -2)) for _ in range(8)]
    kinds = [small(-each) if each < 0 else request(values(each), **{"X-Kind": str(each % 2)}) for each in numbers]
    sent = b"".join(kinds)
    cuts = sorted(source.randrange(len(sent)) for _ in range(source.choice((0, 3, 30))))

    async def conversation(client: Client) -> None:
        for begin, end in pairwise([0, *cuts, len(sent)]):
            client.send(sent[begin:end])
            await iterations(source.randrange(6))
        for each in numbers:
            answer = await client.reply()
            assert answer.status == 200
            if each < 0:
                assert answer.json["id"] == str(-each)
            else:
                assert answer.body.endswith(values(each).tobytes())
        await until(lambda: client.connection.budget.used == 0)

    talk(served, conversation)
    served.runtime.submitted.clear()
    served.runtime.shared.clear()
    assert bodies.used_bytes == 0
