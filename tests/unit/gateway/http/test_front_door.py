"""Clients that send too much, too slowly, or not as HTTP asks, and clients that are too many."""

import asyncio
import contextlib
import gzip
import json
import socket
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sluice.gateway.config.front_door import FrontDoorSettings
from sluice.gateway.front_door.budget import Budget
from sluice.gateway.front_door.front_door import FrontDoor
from sluice.gateway.front_door.metrics import FrontDoorCounts, FrontDoorMetrics
from sluice.gateway.http.large_body import LargeBody
from sluice.gateway.http.server import PIECE_BYTES, TURN_PARTS, TURN_REQUESTS, HttpServer, Phase
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.instant_gateway import (
    TIMEOUT_S,
    Client,
    InstantGateway,
    Reply,
    identity,
    instant_gateway,
    iterations,
    message,
    send,
    serve,
    talk,
    until,
)

PATH = "/v2/models/s/infer"
HEALTH = message("GET", "/v2/health/live")
BODY = json.dumps({"id": "7", "inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}).encode()
REQUEST = message("POST", PATH, BODY)
KIB, MIB = 1 << 10, 1 << 20
OFFER = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQBAAAAAAIAAAAA"}


@pytest.fixture
def served() -> InstantGateway:
    return instant_gateway(identity("s", ("x", DataType.FP32, (1,))))


def last_reply(served: InstantGateway, *parts: bytes) -> Reply:
    """The answer to what is sent in these parts; the connection ends after it."""

    async def conversation(client: Client) -> Reply:
        for part in parts:
            client.send(part)
            await asyncio.sleep(0)
        reply = await client.reply()
        assert reply.headers["connection"] == "close"
        assert await client.rest() == b""
        return reply

    return talk(served, conversation)


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([b"GET /" + 70 * KIB * b"a" + b" HTTP/1.1\r\nHost: h\r\n\r\n"], 414),
        ([b"GET /", *(70 * [KIB * b"a"])], 414),
        ([b"GET /v2 HTTP/1.1\r\nHost: h\r\nx: " + 70 * KIB * b"a" + b"\r\n\r\n"], 431),
        ([b"GET /v2 HTTP/1.1\r\nHost: h\r\nx: ", *(70 * [KIB * b"a"])], 431),
        ([b"GET /v2 HTTP/1.1\r\nHost: h\r\n", *(b"x%d: %s\r\n" % (i, KIB * b"a") for i in range(70))], 431),
        ([message("GET", "/v2", headers={f"x{i}": "" for i in range(100)})], 431),
        (
            [
                b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1;",
                70 * KIB * b"x",
            ],
            400,
        ),
        ([message("POST", PATH, b"{", b"}")[:-2], *(70 * [b"t: " + KIB * b"a" + b"\r\n"])], 400),
        ([70 * KIB * b"\r\n"], 431),
    ],
    ids=[
        "target",
        "endless target",
        "header",
        "endless header",
        "headers",
        "lines",
        "chunk extension",
        "trailers",
        "empty",
    ],
)
def test_a_head_that_is_too_large_is_refused(served: InstantGateway, parts: list[bytes], status: int) -> None:
    assert last_reply(served, *parts).status == status


def test_a_large_body_and_many_requests_at_once_are_no_large_head(served: InstantGateway) -> None:
    padded = message("POST", PATH, BODY + 100 * KIB * b" ")
    count = 100 * KIB // len(HEALTH)

    async def conversation(client: Client) -> None:
        client.send(padded + count * HEALTH + REQUEST)
        assert [(await client.reply()).status for _ in range(count + 2)] == [200] * (count + 2)

    talk(served, conversation)


def test_a_client_with_many_small_parts_of_a_body_leaves_others_their_turns(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        flow = client.connection.flow
        paused: list[None] = []
        pause = flow.pause_reading
        flow.pause_reading = lambda: paused.append(pause())  # type: ignore[method-assign]
        for size, pauses in ((len(BODY), False), (2 * TURN_PARTS, True)):
            client.send(message("POST", PATH, *(bytes((each,)) for each in BODY.ljust(size))))
            assert (await client.reply()).status == 200
            assert bool(paused) is pauses
        assert not flow.read_paused

    talk(served, conversation)


@pytest.mark.parametrize("kind", ["parts", "requests"])
def test_one_read_with_many_small_parts_or_requests_takes_several_turns(served: InstantGateway, kind: str) -> None:
    parts = [bytes((each,)) for each in BODY.ljust(30 * KIB)]
    sent = message("POST", PATH, *parts) if kind == "parts" else 1000 * HEALTH
    assert len(sent) < 256 * KIB, "it is read at once"

    async def conversation(client: Client) -> None:
        connection = client.connection
        client.send(sent[:-1])
        taken = [0]
        for _ in range(500):
            await iterations(1)
            taken.append(connection.read_bytes() if kind == "parts" else len(connection.pipeline))
        # A turn ends with the piece in which it has enough.
        most = 3 * TURN_PARTS if kind == "parts" else PIECE_BYTES // len(HEALTH) + TURN_REQUESTS
        assert 0 < max(after - before for before, after in pairwise(taken)) <= most
        client.send(sent[-1:] + REQUEST)
        for _ in range(sent.count(b"HTTP/1.1") + 1):
            assert (await client.reply()).status == 200
        assert connection.budget.used == 0
        assert not connection.flow.read_paused

    talk(served, conversation)


def test_parts_do_not_overtake_others_though_an_application_asks_for_more_at_any_time(served: InstantGateway) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
            await asyncio.to_thread(bool)  # asks again after, and not before, the next turn of the connection
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    parts = [b"%06d" % number for number in range(60_000)]

    async def conversation(client: Client) -> None:
        client.send(message("POST", "/other", *parts))
        reply = await client.reply()
        assert (reply.status, reply.body) == (200, b"".join(parts))

    talk(served._replace(make_app=cast(Any, lambda: application)), conversation)


def test_what_a_client_left_unparsed_is_forgotten_with_it(served: InstantGateway) -> None:
    parts = [bytes((each,)) for each in BODY.ljust(30 * KIB)]

    async def conversation(client: Client) -> None:
        client.send(message("POST", PATH, *parts))
        await until(lambda: client.connection.budget.used > 100 * KIB)
        client.connection.abort()
        await until(lambda: client.connection.budget.used == 0)

    talk(served, conversation)
    assert served.runtime.submitted == []


@pytest.mark.parametrize("hosts", [b"", b"Host: a\r\nHost: a\r\n", b"Host: a\r\nhost: b\r\n"])
def test_a_request_has_one_host(served: InstantGateway, hosts: bytes) -> None:
    for head in (b"GET /v2/health/live", b"POST " + PATH.encode()):
        reply = last_reply(served, head + b" HTTP/1.1\r\n" + hosts + b"Content-Length: 0\r\n\r\n")
        assert (reply.status, "expected one Host header" in reply.json["error"]) == (400, True)


def test_http_1_0_needs_no_host(served: InstantGateway) -> None:
    assert last_reply(served, b"GET /v2 HTTP/1.0\r\n\r\n").status == 200


@pytest.mark.parametrize("chunks", [[BODY], [BODY[:9], BODY[9:]]], ids=["length", "chunked"])
def test_an_offer_of_another_protocol_is_ignored(served: InstantGateway, chunks: list[bytes]) -> None:
    index = message("POST", "/v2/repository/index", b'{"ready":', b"true}", headers=OFFER)
    offered = message("POST", PATH, *chunks, headers=OFFER)

    async def conversation(client: Client) -> None:
        client.send(offered + index + message("GET", "/v2/health/live", headers=OFFER) + REQUEST + offered[:-5])
        replies = [await client.reply() for _ in range(4)]
        client.send(offered[-5:])
        replies.append(await client.reply())
        assert [reply.status for reply in replies] == 5 * [200]
        assert replies[0].json["id"] == replies[3].json["id"] == replies[4].json["id"] == "7"
        assert [each["state"] for each in replies[1].json] == ["READY"]

    talk(served, conversation)


def test_a_tunnel_is_refused(served: InstantGateway) -> None:
    assert last_reply(served, b"CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n\r\nabc").status in (400, 405)


def test_a_fault_is_answered_after_the_requests_before_it(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        served.runtime.hold = True
        client.send(REQUEST + HEALTH + b"nonsense\r\n\r\n")
        await served.runtime.arrived.wait()
        served.runtime.let_go()
        assert [(await client.reply()).status for _ in range(3)] == [200, 200, 400]
        assert await client.rest() == b""

    talk(served, conversation)


def test_a_client_that_closes_its_side_is_answered(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        served.runtime.hold = True
        client.send(REQUEST + HEALTH)
        client.send_eof()
        await served.runtime.arrived.wait()
        served.runtime.let_go()
        assert [(await client.reply()).status for _ in range(2)] == [200, 200]
        assert await client.rest() == b""

    talk(served, conversation)


def test_a_client_that_waits_with_its_side_closed_is_asked_once_whether_it_is_there(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        served.runtime.hold = True
        client.send(REQUEST)
        client.send_eof()
        await until(lambda: client.connection.half_closed)
        for second in range(1, 5):
            client.connection.sweep(second)
        assert await client.line() == b"HTTP/1.1 100 Continue\r\n"
        assert await client.line() == b"\r\n"
        served.runtime.let_go()
        assert (await client.reply()).status == 200
        assert served.runtime.cancelled == []

    talk(served, conversation)


def test_a_client_of_http_1_0_is_not_asked_whether_it_is_there() -> None:
    served = instant_gateway(identity("l", ("x", DataType.UINT8, (100_000,))))
    lines = {"Inference-Header-Content-Length": "0"}
    sent = message("POST", "/v2/models/l/infer", bytes(100_000), headers=lines).replace(b"HTTP/1.1", b"HTTP/1.0")

    async def conversation(client: Client) -> None:
        served.runtime.hold = True
        client.send(sent[:1000])
        await until(lambda: isinstance(client.connection.transport.get_protocol(), LargeBody))
        client.send(sent[1000:])
        client.send_eof()
        await until(lambda: client.connection.half_closed)
        for second in range(1, 5):
            client.connection.sweep(second)
        served.runtime.let_go()
        assert (await client.reply()).status == 200

    talk(served, conversation)


@pytest.mark.parametrize("part", [REQUEST[:20], REQUEST[:-1]], ids=["head", "body"])
def test_half_a_request_and_no_more_is_an_error(served: InstantGateway, part: bytes) -> None:
    async def conversation(client: Client) -> None:
        client.send(part)
        client.send_eof()
        assert (await client.reply()).status == 400
        assert await client.rest() == b""

    talk(served, conversation)
    assert served.runtime.submitted == []


@pytest.mark.parametrize(
    ("sent", "phase", "kept_s", "status"),
    [
        (b"", Phase.IDLE, 59, 0),
        (REQUEST[:20], Phase.HEAD, 9, 408),
        (REQUEST[:-1], Phase.BODY, 9, 408),
        (message("POST", "/v2/repository/index", b"{}")[:-1], Phase.BODY, 9, 408),
    ],
    ids=["nothing", "head", "body", "body for the application"],
)
def test_a_client_that_stops_sending_is_left(
    served: InstantGateway, sent: bytes, phase: Phase, kept_s: int, status: int
) -> None:
    async def conversation(client: Client) -> None:
        client.send(sent)
        await until(lambda: client.connection.phase() is phase)
        for second in range(1, kept_s + 2):
            client.connection.sweep(second)
            assert not client.connection.transport.is_closing()
        client.connection.sweep(kept_s + 2)
        if status:
            assert (await client.reply()).status == status
        assert await client.rest() == b""

    talk(served, conversation)
    assert served.runtime.submitted == []


def test_the_time_between_requests_is_bounded(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        for begin in (100, 150):
            client.send(REQUEST)
            assert (await client.reply()).status == 200
            client.connection.sweep(begin)
        client.connection.sweep(150 + 74)
        assert not client.connection.transport.is_closing()
        client.connection.sweep(150 + 75)
        assert await client.rest() == b""

    talk(served, conversation)


def test_a_body_that_comes_slowly_but_steadily_is_read_and_one_that_drips_is_not(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        client.send(message("POST", PATH, 90 * KIB * b" ")[: -90 * KIB])
        for second in range(1, 62):
            client.send(KIB * b" ")
            await until(lambda second=second: client.connection.read_bytes() == second * KIB)  # type: ignore[misc]
            client.connection.sweep(second)
        for second in range(62, 72):
            client.send(b" ")
            await asyncio.sleep(0)
            client.connection.sweep(second)
        assert (await client.reply()).status == 408

    talk(served, conversation)


def test_a_client_that_does_not_read_is_left(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        client.pause_reading()
        while not client.connection.flow.write_paused:
            client.send(100 * message("GET", "/openapi.json"))
            await asyncio.sleep(0)
        used = client.connection.budget.used
        assert used > 64 * KIB
        for second in range(1, 12):
            client.connection.sweep(second)
        await until(lambda: client.connection.budget.used == 0)

    talk(served, conversation)


@pytest.mark.parametrize("name", ["a" * 256, 128 * "\u00e9"])
def test_an_id_has_a_bound(served: InstantGateway, name: str) -> None:
    body = json.loads(BODY)
    for id, status in ((name, 200), (name + "b", 400)):
        reply = send(served, message("POST", PATH, json.dumps(body | {"id": id}).encode()))
        assert reply.status == status
    assert "expected an id of at most 256 bytes, got 'a" in reply.json["error"] or name[0] != "a"
    assert len(served.runtime.submitted) == 1


@pytest.mark.parametrize("encode", [bytes, zlib.compress])
def test_json_has_a_bound_and_binary_data_has_not(encode: Callable[[bytes], bytes]) -> None:
    width = 2 * MIB
    served = instant_gateway(identity("s", ("x", DataType.FP32, (width,))), max_body_bytes=16 * MIB)
    tensor = {"name": "x", "shape": [1, width], "datatype": "FP32", "parameters": {"binary_data_size": 4 * width}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {} if encode is bytes else {"Content-Encoding": "deflate"}
    for padding, status in ((0, 200), (4 * MIB, 400)):
        json_part = head + padding * b" "
        lengths = {"Inference-Header-Content-Length": str(len(json_part)), **headers}
        reply = send(served, message("POST", PATH, encode(json_part + bytes(4 * width)), headers=lengths))
        assert (reply.status, status == 400 and "exceeds 4194304 bytes" in reply.json["error"]) == (
            status,
            status == 400,
        )
    for whole in ([encode(5 * MIB * b" ")], [encode(5 * MIB * b" "), b""]):
        assert "exceeds 4194304 bytes" in send(served, message("POST", PATH, *whole, headers=headers)).json["error"]


def test_large_json_is_parsed_beside_the_loop(served: InstantGateway) -> None:
    padded = message("POST", PATH, BODY + 512 * KIB * b" ")
    wrong = message("POST", PATH, 512 * KIB * b"[")

    async def conversation(client: Client) -> None:
        client.send(padded + wrong + padded + REQUEST)
        assert [(await client.reply()).status for _ in range(4)] == [200, 400, 200, 200]
        assert client.connection.budget.used == 0
        client.send(padded)
        await until(lambda: client.connection.phase() is Phase.ANSWER)
        client.close()
        await until(client.connection.transport.is_closing)

    talk(served, conversation)


def test_a_body_that_grows_beyond_the_buffer_is_refused() -> None:
    served = instant_gateway(identity("s", ("x", DataType.FP32, (1,))), max_body_bytes=8 * MIB)
    served.route.budget = Budget(MIB)
    reply = send(served, message("POST", PATH, gzip.compress(4 * MIB * b" "), headers={"Content-Encoding": "gzip"}))
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    small = message("POST", PATH, gzip.compress(BODY), headers={"Content-Encoding": "gzip"})
    assert send(served, small).status == 200
    assert served.route.budget.limit == MIB


def test_an_upload_has_a_bound_of_values() -> None:
    served = instant_gateway(identity("s", ("x", DataType.FP32, (1,))), max_body_bytes=8 * MIB)
    body = b'{"parameters": {"a": [' + MIB * b"[]," + b"[]]}}"
    reply = send(served, message("POST", "/v2/repository/models/s/load", body))
    assert (reply.status, reply.json["error"]) == (400, "the body has too many values, the limit is 100000")


def test_a_client_that_goes_away_during_an_upload_leaves_no_traceback(
    served: InstantGateway, caplog: pytest.LogCaptureFixture
) -> None:
    async def conversation(client: Client) -> None:
        client.send(message("POST", "/v2/repository/models/s/load", b"{}")[:-1])
        await until(lambda: client.connection.phase() is Phase.BODY)
        client.close()
        await until(client.connection.transport.is_closing)

    talk(served, conversation)
    assert not [record for record in caplog.records if record.exc_info]


async def connect(server: HttpServer, data: bytes = b"", **options: Any) -> Any:
    connection = await asyncio.open_connection("127.0.0.1", server.port, **options)
    connection[1].write(data)
    return connection


async def status(connection: Any) -> int:
    line = await asyncio.wait_for(connection[0].readline(), TIMEOUT_S)
    connection[1].close()
    return int(line.split()[1])


def test_idle_clients_make_room_and_busy_ones_leave_room_for_health(served: InstantGateway) -> None:
    door = FrontDoor(max_connections=32)
    served.runtime.hold = True

    async def conversation(server: HttpServer) -> None:
        idle = [await connect(server) for _ in range(30)]
        await until(lambda: len(door.connections) == 30)
        busy = [await connect(server, REQUEST) for _ in range(30)]
        await until(lambda: len(served.runtime.submitted) == 30)
        for each in idle:
            assert await asyncio.wait_for(each[0].read(), TIMEOUT_S) == b""
        assert await status(await connect(server, HEALTH)) == 200
        assert await status(await connect(server, REQUEST)) == 503
        assert await status(await connect(server, message("GET", "/metrics"))) == 200
        served.runtime.let_go()
        assert [await status(each) for each in busy] == 30 * [200]
        assert await status(await connect(server, REQUEST)) == 200
        for each in idle:
            each[1].close()

    serve(served, door, conversation, KIB)


def test_one_address_may_have_a_limit(served: InstantGateway) -> None:
    door = FrontDoor(FrontDoorSettings(max_connections_per_address=2))

    async def conversation(server: HttpServer) -> None:
        first, second = [await connect(server) for _ in range(2)]
        await until(lambda: len(door.connections) == 2)
        third = await connect(server)
        assert await status(third) == 503
        other = await connect(server, HEALTH, local_addr=("127.0.0.2", 0))
        assert await status(other) == 200
        first[1].close()
        await until(lambda: len(door.connections) == 1)
        assert await status(await connect(server, HEALTH)) == 200
        second[1].close()

    serve(served, door, conversation, KIB)


def test_large_bodies_wait_for_room_and_the_largest_is_given_up(served: InstantGateway) -> None:
    door = FrontDoor(budget=Budget(1 << 20))
    head = message("POST", PATH, headers={"Content-Length": str(1 << 20)})

    async def conversation(server: HttpServer) -> None:
        clients = [await connect(server, head + size * KIB * b" ") for size in (500, 400, 300)]
        await until(lambda: bool(door.paused))
        assert door.budget.used < 1.3 * (1 << 20)
        assert await status(await connect(server, REQUEST)) == 200  # it is small
        door.sweep(1)
        door.sweep(2)
        assert await status(clients[0]) == 503
        await until(lambda: door.budget.used == 700 * KIB)
        assert not door.paused
        for each in clients:
            each[1].close()
        await until(lambda: not door.connections)
        assert door.budget.used == 0

    serve(served, door, conversation, 1 << 20)


def test_parts_of_heads_and_answers_that_nobody_reads_count_as_well(served: InstantGateway) -> None:
    door = FrontDoor(budget=Budget(64 * MIB))

    async def conversation(server: HttpServer) -> None:
        slow = [await connect(server, b"GET /v2 HTTP/1.1\r\nHost: h\r\nx: " + 40 * KIB * b"a") for _ in range(5)]
        await until(lambda: door.budget.used > 200 * KIB)
        deaf = socket.create_connection(("127.0.0.1", server.port))
        deaf.setblocking(False)
        connection: Any = None
        while connection is None:
            with contextlib.suppress(BlockingIOError):
                deaf.send(10 * message("GET", "/openapi.json"))
            await asyncio.sleep(0)
            connection = next((each for each in door.connections if cast(Any, each).flow.write_paused), None)
        assert door.budget.used > 264 * KIB
        door.budget.limit = 250 * KIB
        door.sweep(1)
        assert 200 * KIB < door.budget.used <= 250 * KIB
        door.budget.limit = 150 * KIB
        door.sweep(1)
        assert 100 * KIB < door.budget.used <= 150 * KIB
        assert door.faults.counts["no_memory"] == 3
        deaf.close()
        for each in slow:
            each[1].close()
        await until(lambda: not door.connections)
        assert door.budget.used == 0

    serve(served, door, conversation, KIB)


def test_faults_of_clients_are_counted_and_logged_together(
    served: InstantGateway, caplog: pytest.LogCaptureFixture
) -> None:
    door = FrontDoor()

    async def conversation(server: HttpServer) -> None:
        for _ in range(50):
            assert await status(await connect(server, b"nonsense\r\n\r\n")) == 400
        assert +door.faults.counts == {"malformed": 50}
        exposed = generate_latest(
            cast(
                CollectorRegistry, FrontDoorMetrics(lambda: FrontDoorCounts(7, 3, door.budget.used, door.faults.counts))
            )
        ).decode()
        assert 'sluice_client_faults_total{reason="malformed"} 50.0' in exposed
        assert "sluice_http_connections 7.0" in exposed
        assert "sluice_grpc_connections 3.0" in exposed
        caplog.clear()
        for second in (100, 101, 102):
            door.faults.report(second)
        assert [record.message for record in caplog.records] == ["faults of clients"]
        door.faults.counts["malformed"] += 1
        door.faults.report(111)
        assert [record.fields for record in caplog.records] == [{"malformed": 50}, {"malformed": 1}]  # type: ignore[attr-defined]

    serve(served, door, conversation, KIB)


def test_a_client_that_sends_on_after_its_refusal_is_cut_off(served: InstantGateway) -> None:
    async def conversation(server: HttpServer) -> None:
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.setblocking(False)
            sent = 0
            with contextlib.suppress(ConnectionError):
                while sent < 64 << 20:
                    await asyncio.wait_for(loop.sock_sendall(client, 64 * KIB * b"a"), TIMEOUT_S)
                    sent += 64 * KIB
            assert sent < 64 << 20

    serve(served, FrontDoor(), conversation, KIB)
