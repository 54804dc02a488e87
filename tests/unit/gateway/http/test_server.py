"""Connections: clients that go away, send ahead, wait, are slow, or are too many."""

import asyncio
import json
import socket
import struct
import threading
from typing import Any

import pytest
from msgspec.structs import replace

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.config.json_rules import JsonRules
from sluice.gateway.front_door.front_door import FrontDoor
from sluice.gateway.http.exchange import THREADS
from sluice.gateway.http.server import HttpServer, http_server
from sluice.gateway.protocol.answer import Answer
from sluice.models.errors import ConfigError
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.instant_gateway import (
    ARRIVED_NS,
    TIMEOUT_S,
    Client,
    InstantGateway,
    Reply,
    identity,
    instant_gateway,
    iterations,
    message,
    serve,
    talk,
    until,
)

WIDTH = 50_000
PATH = "/v2/models/m/infer"
LIMIT = 1 << 20
HEALTH = message("GET", "/v2/health/live")


@pytest.fixture
def served() -> InstantGateway:
    widths = {"m": WIDTH, "s": 1, "two": 2}
    pipelines = [identity(name, ("x", DataType.FP32, (width,))) for name, width in widths.items()]
    return instant_gateway(*pipelines, max_body_bytes=LIMIT)


def large() -> tuple[bytes, dict[str, str]]:
    """A body and its headers."""
    tensor = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "parameters": {"binary_data_size": 4 * WIDTH}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + bytes(4 * WIDTH), {"Inference-Header-Content-Length": str(len(head))}


BODY, LENGTHS = large()
REQUEST = message("POST", PATH, BODY, headers=LENGTHS)


def small(number: int, **headers: str) -> bytes:
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [number]}
    body = json.dumps({"id": str(number), "inputs": [tensor]}).encode()
    return message("POST", "/v2/models/s/infer", body, headers=headers)


def test_a_client_that_disconnects_cancels_its_request_even_after_a_large_body(served: InstantGateway) -> None:
    served.runtime.hold = True

    async def conversation(client: Client) -> None:
        client.send(REQUEST)
        await asyncio.wait_for(served.runtime.arrived.wait(), TIMEOUT_S)
        assert served.runtime.cancelled == []
        client.close()
        await until(lambda: client.connection.half_closed)
        for second in (1, 2):  # it may only have closed its side: a sweep finds out
            client.connection.sweep(second)
        await asyncio.wait_for(served.runtime.gone.wait(), TIMEOUT_S)
        assert served.runtime.cancelled == [1]
        served.runtime.let_go()
        await asyncio.sleep(0)
        assert served.runtime.released == 1

    talk(served, conversation)


def test_the_header_of_the_client_key_tells_clients_apart() -> None:
    tensor = ("x", DataType.FP32, (1,))
    gateway = instant_gateway(replace(identity("s", tensor), client_key="x-tenant"), identity("other", tensor))
    requests = [
        small(1, **{"X-Tenant": "a"}),
        small(2, **{"x-tenant": "b"}),  # the same template
        small(3),
        small(4, **{"x-tenant": "\u00e9" + 200 * "c"}),
        small(5, **{"x-tenant": "a"}).replace(b"/models/s/", b"/models/other/"),
    ]

    async def conversation(client: Client) -> None:
        for each in requests:
            client.send(each)
            assert (await client.reply()).status == 200

    talk(gateway, conversation)
    assert [each["client"] for each in gateway.runtime.submitted] == ["a", "b", "", "\u00c3\u00a9" + 126 * "c", ""]


def test_a_client_that_goes_away_within_its_body_is_no_request(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        client.send(REQUEST[:-1])
        client.close()
        await until(client.connection.transport.is_closing)

    talk(served, conversation)
    assert served.runtime.submitted == []


def test_requests_sent_ahead_are_answered_in_order(served: InstantGateway) -> None:
    wrong = message("POST", PATH, b"{}")

    async def conversation(client: Client) -> list[Reply]:
        served.runtime.hold = True
        client.send(REQUEST + HEALTH + small(1) + wrong + wrong + HEALTH + HEALTH + small(2))
        await served.runtime.arrived.wait()
        served.runtime.let_go()
        return [await client.reply() for _ in range(8)]

    replies = talk(served, conversation)
    assert [reply.status for reply in replies] == [200, 200, 200, 400, 400, 200, 200, 200]
    assert [len(reply.body) > 4 * WIDTH for reply in replies] == [True] + 7 * [False]
    assert [replies[index].json["id"] for index in (2, 7)] == ["1", "2"]
    assert [replies[index].json for index in (1, 5, 6)] == 3 * [{"live": True}]


def test_any_number_of_bad_requests_may_wait_for_a_good_one(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        served.runtime.hold = True
        client.send(small(1) + 2000 * message("POST", PATH, b""))
        await served.runtime.arrived.wait()
        served.runtime.let_go()
        assert (await client.reply()).json["id"] == "1"
        for _ in range(2000):
            assert (await client.reply()).status == 400

    talk(served, conversation)


def large_as_json(rows: int = 2) -> bytes:
    """A request whose answer has so much JSON that a thread writes it."""
    size = 4 * WIDTH * rows
    tensor = {"name": "x", "shape": [rows, WIDTH], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [tensor]}).encode()
    return message("POST", PATH, head + bytes(size), headers={"Inference-Header-Content-Length": str(len(head))})


def test_a_large_answer_in_json_is_written_in_a_thread_and_answers_keep_their_order(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        client.send(large_as_json() + small(3))
        reply = await client.reply()
        assert (reply.status, reply.json["outputs"][0]["data"]) == (200, 2 * WIDTH * [0.0])
        assert (await client.reply()).json["id"] == "3"

    talk(served, conversation)
    assert served.runtime.released == 2


def test_a_too_large_answer_in_json_is_refused_with_the_limit(served: InstantGateway) -> None:
    served.route.json = JsonRules(answer_bytes=8 * WIDTH)

    async def conversation(client: Client) -> None:
        client.send(large_as_json(1) + large_as_json(2) + small(3))
        assert (await client.reply()).status == 200
        reply = await client.reply()
        assert (
            reply.status,
            f"output 'x': the JSON of the answer exceeds {8 * WIDTH} bytes" in reply.json["error"],
        ) == (
            400,
            True,
        )
        assert (await client.reply()).json["id"] == "3"

    talk(served, conversation)
    assert served.runtime.released == 3


def test_an_answer_that_the_buffer_never_has_room_for_is_refused_as_a_whole(served: InstantGateway) -> None:
    served.route.budget.limit = 5 * WIDTH

    async def conversation(client: Client) -> None:
        client.send(REQUEST + large_as_json(2) + small(3))
        assert (await client.reply()).status == 200
        reply = await client.reply()
        assert reply.status == 400
        assert "bytes, more than the server keeps for its clients (250000)" in reply.json["error"]
        assert (await client.reply()).json["id"] == "3"

    talk(served, conversation)
    assert served.runtime.released == 3


def test_an_answer_that_is_written_when_its_client_goes_is_dropped(served: InstantGateway) -> None:
    go_on = threading.Event()

    async def conversation(client: Client) -> None:
        for _ in range(THREADS):
            served.route.threads.submit(go_on.wait, TIMEOUT_S)
        client.send(large_as_json())
        await asyncio.wait_for(served.runtime.arrived.wait(), TIMEOUT_S)
        client.close()
        await until(lambda: client.connection.half_closed)
        for second in (1, 2):
            client.connection.sweep(second)
        await asyncio.wait_for(served.runtime.gone.wait(), TIMEOUT_S)
        assert served.runtime.released == 0
        go_on.set()
        await asyncio.wait_for(served.runtime.let_free.wait(), TIMEOUT_S)

    talk(served, conversation)
    assert served.runtime.released == 1


def test_a_large_body_may_come_in_chunks(served: InstantGateway) -> None:
    async def conversation(client: Client) -> Reply:
        parts = [BODY[start : start + 3000] for start in range(0, len(BODY), 3000)]
        client.send(message("POST", PATH, *parts, headers=LENGTHS))
        return await client.reply()

    reply = talk(served, conversation)
    assert reply.headers["content-type"] == "application/octet-stream"
    assert reply.body[int(reply.headers["inference-header-content-length"]) :] == bytes(4 * WIDTH)


@pytest.mark.parametrize(
    ("headers", "status", "problem"),
    [
        ({"Content-Length": str(LIMIT + 1)}, 400, f"the body has {LIMIT + 1} bytes, the limit is {LIMIT}"),
        ({"Content-Length": "9", "Content-Encoding": "br"}, 501, "Content-Encoding 'br' is not supported"),
    ],
)
def test_what_the_head_rules_out_is_answered_before_the_body_which_is_ignored(
    served: InstantGateway, headers: dict[str, str], status: int, problem: str
) -> None:
    async def conversation(client: Client) -> None:
        client.send(message("POST", PATH, headers=headers))
        reply = await client.reply()
        assert (reply.status, problem in reply.json["error"]) == (status, True)
        client.send(bytes(int(headers["Content-Length"])) + small(3))
        assert (await client.reply()).json["id"] == "3"

    talk(served, conversation)
    assert len(served.runtime.submitted) == 1


def test_a_client_may_wait_for_100_continue(served: InstantGateway) -> None:
    head, body = small(1, Expect="100-continue").split(b"\r\n\r\n")

    async def conversation(client: Client) -> None:
        client.send(head + b"\r\n\r\n")
        assert await client.line() == b"HTTP/1.1 100 Continue\r\n"
        assert await client.line() == b"\r\n"
        client.send(body)
        assert (await client.reply()).json["id"] == "1"
        client.send(HEALTH)
        assert (await client.reply()).status == 200

    talk(served, conversation)


def test_a_client_without_100_continue_need_not_send_its_body(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        client.send(message("POST", PATH, headers={"Expect": "100-continue", "Content-Length": str(LIMIT + 1)}))
        reply = await client.reply()
        assert (reply.status, reply.headers["connection"]) == (400, "close")
        assert await client.rest() == b""

    talk(served, conversation)


@pytest.mark.parametrize(
    "request_bytes",
    [
        small(1).replace(b"HTTP/1.1", b"HTTP/1.0"),
        small(1, Connection="keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0"),
        small(1, Connection="close"),
        message("POST", "/v2/models/other/infer", b"{}", headers={"Connection": "close"}),
    ],
)
def test_a_connection_that_is_not_kept_ends_after_the_response(served: InstantGateway, request_bytes: bytes) -> None:
    async def conversation(client: Client) -> None:
        client.send(request_bytes + small(2))
        assert (await client.reply()).headers["connection"] == "close"
        assert await client.rest() == b""

    talk(served, conversation)
    assert len(served.runtime.submitted) == (b"/other/" not in request_bytes)


@pytest.mark.parametrize(
    "path",
    [f"{PATH}?trace=1", f"http://h{PATH}", "/v2/models/%6d/%69nfer", "/v2/models/m/versions/1/infer"],
)
def test_a_path_may_be_written_in_any_way(served: InstantGateway, path: str) -> None:
    async def conversation(client: Client) -> None:
        client.send(message("POST", path, BODY, headers=LENGTHS))
        assert (await client.reply()).status == 200

    talk(served, conversation)


def test_requests_that_repeat_differ_in_numbers_and_are_checked_all_the_same(served: InstantGateway) -> None:
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
    head = json.dumps({"id": "7", "inputs": [tensor], "parameters": {"binary_data_output": True, "slo_ms": 5}}).encode()

    def repeated(data: bytes, model: str = "two") -> bytes:
        headers = {"Inference-Header-Content-Length": str(len(head))}
        return message("POST", f"/v2/models/{model}/infer", head + data, headers=headers)

    async def conversation(client: Client) -> None:
        async def values(request: bytes) -> list[float]:
            client.send(request)
            reply = await client.reply()
            length = int(reply.headers["inference-header-content-length"])
            assert json.loads(reply.body[:length])["id"] == "7"
            return list(struct.unpack("<2f", reply.body[length:]))

        async def problem(request: bytes) -> str:
            client.send(request)
            reply = await client.reply()
            assert reply.status == 400
            error: str = reply.json["error"]
            return error

        assert await values(repeated(struct.pack("<2f", 1, 2))) == [1, 2]
        assert await values(repeated(struct.pack("<2f", 3, 4))) == [3, 4]
        assert "only 7 bytes left" in await problem(repeated(bytes(7)))
        assert "1 bytes more" in await problem(repeated(bytes(9)))
        assert "unexpected shape for input 'x' for model 's'" in await problem(repeated(bytes(8), "s"))
        assert await values(repeated(struct.pack("<2f", 5, 6))) == [5, 6]

    talk(served, conversation)
    assert [given["deadline_ns"] - ARRIVED_NS for given in served.runtime.submitted] == 3 * [5_000_000]
    assert [given["inputs"]["x"].tolist() for given in served.runtime.submitted] == [[[1, 2]], [[3, 4]], [[5, 6]]]


def test_responses_that_are_not_read_hold_up_the_requests_behind_them(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        client.pause_reading()
        for _ in range(100):
            client.send(REQUEST)
        await until(lambda: client.connection.flow.write_paused)
        await iterations(100)  # in which nothing more is taken in
        assert len(served.runtime.submitted) < 50
        client.resume_reading()
        for _ in range(100):
            assert len((await client.reply()).body) > 4 * WIDTH

    talk(served, conversation)
    assert served.runtime.released == 100


def test_small_requests_wait_for_the_reader_too(served: InstantGateway) -> None:
    """Many fit into what is read at once."""
    tensor = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [0.1] * WIDTH}
    large_request = message("POST", PATH, json.dumps({"inputs": [tensor]}).encode())

    async def conversation(client: Client) -> None:
        client.pause_reading()
        client.send(3 * large_request + 50 * small(1))
        await until(lambda: client.connection.flow.write_paused)
        await iterations(100)
        assert len(served.runtime.submitted) <= 3
        client.resume_reading()
        assert [(await client.reply()).status for _ in range(53)] == [200] * 53

    talk(served, conversation)


def test_a_shutdown_lets_a_request_finish_and_ends_its_connection(served: InstantGateway) -> None:
    served.runtime.hold = True

    async def conversation(client: Client) -> None:
        client.send(small(1))
        await served.runtime.arrived.wait()
        client.connection.shutdown()
        served.runtime.let_go()
        reply = await client.reply()
        assert (reply.json["id"], reply.headers["connection"]) == ("1", "close")
        assert await client.rest() == b""

    talk(served, conversation)


def test_a_stopping_server_refuses_a_request_and_announces_the_end_of_its_connection(served: InstantGateway) -> None:
    served.runtime.answer = Answer(Outcome.REJECTED_DRAINING, "the server is stopping", 1)

    async def conversation(client: Client) -> None:
        client.send(small(1))
        assert "connection" not in (await client.reply()).headers
        served.registry.start_draining()
        client.send(small(2))
        refusal = await client.reply()
        assert (refusal.status, refusal.headers["connection"]) == (503, "close")
        assert refusal.json == {"error": "the server is stopping"}
        assert await client.rest() == b""

    talk(served, conversation)


def test_a_shutdown_ends_an_idle_connection(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        client.send(small(1))
        await client.reply()
        client.connection.shutdown()
        assert await client.rest() == b""

    talk(served, conversation)


def test_clients_beyond_the_limit_are_refused_with_the_reason(served: InstantGateway) -> None:
    served.runtime.hold = True

    async def conversation(server: HttpServer) -> None:
        first: Any = await asyncio.open_connection("127.0.0.1", server.port)
        first[1].write(small(1))
        await asyncio.wait_for(served.runtime.arrived.wait(), TIMEOUT_S)
        second, writer = await asyncio.open_connection("127.0.0.1", server.port)
        answer = await asyncio.wait_for(second.read(), TIMEOUT_S)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert answer.endswith(b'{"error":"the server has reached its limit of 1 connections"}')
        writer.close()
        served.runtime.let_go()
        assert (await first[0].readline()).startswith(b"HTTP/1.1 200")
        first[1].close()

    serve(served, FrontDoor(max_connections=1), conversation)


def test_a_client_connected_when_a_server_stops_is_answered_and_no_other_can_connect(served: InstantGateway) -> None:
    async def conversation(server: HttpServer) -> None:
        address, loop = ("127.0.0.1", server.port), asyncio.get_running_loop()
        await until(lambda: server.started)
        # The loop has no turn between, in which it would come to them.
        connected = [socket.create_connection(address) for _ in range(5)]
        stopping = asyncio.create_task(server.shutdown())
        await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        for each in connected:
            each.setblocking(False)
            await loop.sock_sendall(each, HEALTH)
        for each in connected:
            assert (await loop.sock_recv(each, 100)).startswith(b"HTTP/1.1 200")
            each.close()
        await stopping

    serve(served, FrontDoor(max_connections=16), conversation)


def test_a_port_that_is_taken_is_an_error_at_once(served: InstantGateway) -> None:
    async def conversation(server: HttpServer) -> None:
        said = f"^HTTP port 127.0.0.1:{server.port} cannot be bound: Address already in use$"
        with pytest.raises(ConfigError, match=said):
            http_server(server.config, "127.0.0.1", server.port)

    serve(served, FrontDoor(max_connections=16), conversation)
