"""Compressed bodies, raw bodies, and tensors in shared memory, on connections of the HTTP server."""

import asyncio
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.models.tensors.spec import DataType
from tests.unit.gateway.instant_gateway import (
    Client,
    InstantGateway,
    Reply,
    identity,
    instant_gateway,
    message,
    post,
    talk,
)

KEY = f"/test-extensions-{os.getpid()}"
WIDTH = 1000
LIMIT = 100_000


@pytest.fixture
def served() -> InstantGateway:
    pipelines = [
        identity("m", ("x", DataType.FP32, (2,))),
        identity("wide", ("x", DataType.FP32, (WIDTH,))),
        identity("text", ("x", DataType.BYTES, (1,))),
        identity("bf16", ("x", DataType.BF16, (2,))),
    ]
    return instant_gateway(*pipelines, max_body_bytes=LIMIT)


@pytest.fixture
def memory() -> Iterator[Path]:
    path = Path(f"/dev/shm{KEY}")
    path.write_bytes(np.arange(16, dtype=np.float32).tobytes())
    yield path
    path.unlink()


def wide(data: list[float], **fields: Any) -> bytes:
    tensor = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": data}
    return json.dumps({"inputs": [tensor], **fields}).encode()


WIDE = wide([0.5] * WIDTH)
PATH = "/v2/models/wide/infer"


@pytest.mark.parametrize(
    ("encoding", "encode", "decode"),
    [("gzip", gzip.compress, gzip.decompress), ("deflate", zlib.compress, zlib.decompress)],
)
def test_bodies_may_be_compressed_both_ways(
    served: InstantGateway, encoding: str, encode: Callable[[bytes], bytes], decode: Callable[[bytes], bytes]
) -> None:
    binary = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "parameters": {"binary_data_size": 4 * WIDTH}}
    head = json.dumps({"inputs": [binary], "parameters": {"binary_data_output": True}}).encode()
    data = np.arange(WIDTH, dtype=np.float32).tobytes()
    headers = {
        "Content-Encoding": encoding,
        "Accept-Encoding": encoding,
        "Inference-Header-Content-Length": str(len(head)),
    }

    async def conversation(client: Client) -> tuple[Reply, Reply]:
        client.send(message("POST", PATH, encode(head + data), headers=headers))
        client.send(message("POST", PATH, encode(WIDE)[:20], encode(WIDE)[20:], headers={"Content-Encoding": encoding}))
        return await client.reply(), await client.reply()

    compressed, plain = talk(served, conversation)
    assert compressed.headers["content-encoding"] == encoding
    body = decode(compressed.body)
    assert body[int(compressed.headers["inference-header-content-length"]) :] == data
    assert "content-encoding" not in plain.headers
    assert plain.json["outputs"][0]["data"] == [0.5] * WIDTH
    assert served.runtime.released == 2


def test_a_small_response_and_an_error_are_not_compressed(served: InstantGateway) -> None:
    body = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
    for path, status in (("/v2/models/m/infer", 200), ("/v2/models/other/infer", 404)):
        reply = post(served, path, body, headers={"Accept-Encoding": "gzip"})
        assert (reply.status, "content-encoding" in reply.headers) == (status, False)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (gzip.compress(bytes(100 * LIMIT)), f"the decompressed body exceeds the limit of {LIMIT} bytes"),
        (gzip.compress(WIDE)[:-4], "it is truncated"),
        (b"plain", "cannot be decompressed"),
    ],
)
def test_compressed_bodies_that_are_bad_are_reported_and_the_next_request_is_answered(
    served: InstantGateway, body: bytes, problem: str
) -> None:
    async def conversation(client: Client) -> tuple[Reply, Reply]:
        client.send(message("POST", PATH, body, headers={"Content-Encoding": "gzip"}))
        client.send(message("POST", PATH, WIDE))
        return await client.reply(), await client.reply()

    bad, good = talk(served, conversation)
    assert (bad.status, problem in bad.json["error"], good.status) == (400, True, 200)


def test_an_unsupported_encoding_is_reported_with_those_that_are(served: InstantGateway) -> None:
    reply = post(served, PATH, b"", headers={"Content-Encoding": "br"})
    assert (reply.status, reply.headers["accept-encoding"]) == (501, "gzip, deflate")


def test_a_client_that_goes_while_its_body_is_decompressed_is_no_request(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        client.send(message("POST", PATH, gzip.compress(WIDE), headers={"Content-Encoding": "gzip"}))
        client.close()
        await asyncio.get_running_loop().shutdown_default_executor()

    talk(served, conversation)
    assert len(served.runtime.submitted) <= 1  # the thread may have been faster


def test_a_body_may_be_the_one_input_by_itself(served: InstantGateway) -> None:
    raw = {"Inference-Header-Content-Length": "0"}
    data = np.array([1, 2], np.float32).tobytes()
    for path, body, answered in (("m", data, data), ("text", b"hello", b"\x05\0\0\0hello"), ("bf16", b"abcd", b"abcd")):
        reply = post(served, f"/v2/models/{path}/infer", body, headers=raw)
        length = int(reply.headers["inference-header-content-length"])
        assert json.loads(reply.body[:length])["outputs"][0]["shape"] == [1, 1 if path == "text" else 2]
        assert reply.body[length:] == answered
    short = post(served, "/v2/models/m/infer", data[:-1], headers=raw)
    assert (short.status, "'x' has 7 bytes of data, but its shape [1,2]" in short.json["error"]) == (400, True)


def shared(offset: int, byte_size: int = 8) -> dict[str, Any]:
    return {"shared_memory_region": "r", "shared_memory_byte_size": byte_size, "shared_memory_offset": offset}


def through_memory(served: InstantGateway, input_offset: int, output_offset: int, output_size: int = 8) -> Reply:
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": shared(input_offset)}
    output = {"name": "x", "parameters": shared(output_offset, output_size)}
    return post(served, "/v2/models/m/infer", {"inputs": [tensor], "outputs": [output]})


def test_tensors_go_through_shared_memory(served: InstantGateway, memory: Path) -> None:
    served.dataplane.shared_memory.register("r", KEY, 8, 56)
    reply = through_memory(served, 8, 40, 16)
    assert reply.json["outputs"] == [{"name": "x", "datatype": "FP32", "shape": [1, 2]}]
    assert np.frombuffer(memory.read_bytes(), np.float32)[12:14].tolist() == [4, 5]


def test_a_request_goes_on_with_a_region_that_is_unregistered_meanwhile(served: InstantGateway, memory: Path) -> None:
    served.dataplane.shared_memory.register("r", KEY, 0, 64)
    served.runtime.hold = True
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": shared(0)}
    body = json.dumps({"inputs": [tensor], "outputs": [{"name": "x", "parameters": shared(56)}]}).encode()

    async def conversation(client: Client) -> tuple[Reply, Reply]:
        request = message("POST", "/v2/models/m/infer", body)
        client.send(request)
        await served.runtime.arrived.wait()
        served.dataplane.shared_memory.unregister("r")
        served.runtime.let_go()
        first = await client.reply()
        client.send(request)
        return first, await client.reply()

    first, second = talk(served, conversation)
    assert (first.status, second.status) == (200, 404)
    assert np.frombuffer(memory.read_bytes(), np.float32)[14:].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("input_offset", "output_offset", "output_size", "problem"),
    [
        (60, 0, 8, "Invalid offset + byte size"),
        (0, 65, 8, "Invalid offset"),
        (0, 0, 65, "Invalid offset + byte size"),
        (0, 8, 4, "output 'x' (4 bytes) should be at least 8 bytes to hold the results"),
    ],
)
def test_places_that_do_not_fit_are_refused(
    served: InstantGateway, memory: Path, input_offset: int, output_offset: int, output_size: int, problem: str
) -> None:
    served.dataplane.shared_memory.register("r", KEY, 0, 64)
    reply = through_memory(served, input_offset, output_offset, output_size)
    assert (reply.status, problem in reply.json["error"]) == (400, True)
    assert memory.read_bytes() == np.arange(16, dtype=np.float32).tobytes()


def test_outputs_may_be_reported_as_classes(served: InstantGateway) -> None:
    tensor = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 4, 3]}
    output = {"name": "x", "parameters": {"classification": 1}}
    reply = post(served, "/v2/models/m/infer", {"inputs": [tensor], "outputs": [output]})
    assert reply.json["outputs"] == [
        {"name": "x", "datatype": "BYTES", "shape": [2, 1], "data": ["2.000000:1", "4.000000:0"]}
    ]
