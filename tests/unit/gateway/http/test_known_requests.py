"""Requests whose head the client repeats: they are answered as the first one, without being parsed again."""

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sluice.models.tensors.spec import DataType
from tests.unit.gateway.instant_gateway import (
    Client,
    InstantGateway,
    Reply,
    identity,
    instant_gateway,
    iterations,
    message,
    talk,
)


@pytest.fixture
def served() -> InstantGateway:
    return gateway()


def gateway() -> InstantGateway:
    return instant_gateway(
        *(identity(name, ("x", DataType.FP32, (width,))) for name, width in {"m": 2, "w": 3}.items()),
        replace(identity("keyed", ("x", DataType.FP32, (2,))), client_key="x-tenant"),
    )


def request(values: list[float], model: str = "m", id: str = "", **headers: str) -> bytes:
    data = np.array(values, np.float32).tobytes()
    tensor = {
        "name": "x",
        "shape": [1, len(values)],
        "datatype": "FP32",
        "parameters": {"binary_data_size": len(data)},
    }
    parts: dict[str, Any] = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    head = json.dumps(parts | ({"id": id} if id else {})).encode()
    lengths = {"Inference-Header-Content-Length": str(len(head))}
    return message("POST", f"/v2/models/{model}/infer", head + data, headers=lengths | headers)


def values(reply: Reply) -> list[float]:
    length = int(reply.headers["inference-header-content-length"])
    answer: list[float] = np.frombuffer(reply.body[length:], np.float32).tolist()
    return answer


def test_a_repeated_head_is_not_parsed_and_the_body_is_checked_all_the_same(served: InstantGateway) -> None:
    wrong = request([0, 0]).replace(b'"shape": [1, 2]', b'"shape": [2, 1]')

    async def conversation(client: Client) -> None:
        client.send(request([1, 2]))
        first = await client.reply()
        connection: Any = client.connection
        parser, connection.parser = connection.parser, None
        for numbers in ([3, 4], [5, 6]):
            client.send(request(numbers))  # type: ignore[arg-type]
            again = await client.reply()
            assert values(again) == numbers
            without = {"x-sluice-request"}
            assert {name for name in again.headers if again.headers[name] != first.headers[name]} == without
        client.send(wrong)
        refused = await client.reply()
        assert (refused.status, b"shape" in refused.body) == (400, True)
        connection.parser = parser
        client.send(request([7, 8], "keyed"))
        assert values(await client.reply()) == [7, 8]

    talk(served, conversation)


def test_what_a_head_says_holds_for_its_own_requests_alone(served: InstantGateway) -> None:
    requests = [request([1, 2], "keyed", **{"X-Tenant": tenant}) for tenant in ("a", "b", "b", "a")]
    closing = request([9, 9], Connection="close")

    async def conversation(client: Client) -> None:
        for each in requests:
            client.send(each)
            assert (await client.reply()).status == 200
        client.send(request([3, 4], **{"x-sluice-explain": "1"}))
        assert "x-sluice-outcome" in (await client.reply()).headers
        client.send(request([3, 4]))
        assert "x-sluice-outcome" not in (await client.reply()).headers
        client.send(closing)
        assert (await client.reply()).headers["connection"] == "close"
        assert await client.rest() == b""

    talk(served, conversation)
    assert [each["client"] for each in served.runtime.submitted] == ["a", "b", "b", "a", "", "", ""]


def raw(values: list[float]) -> bytes:
    """A request whose body is the numbers alone, so that any other bytes are another answer."""
    data = np.array(values, np.float32).tobytes()
    return message("POST", "/v2/models/m/infer", data, headers={"Inference-Header-Content-Length": "0"})


def test_an_empty_line_behind_a_request_is_no_part_of_its_body(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        for sent in ([1, 2], [1, 3], [1, 4]):
            client.send(raw(sent) + b"\r\n")  # type: ignore[arg-type]
            assert values(await client.reply()) == sent

    talk(served, conversation)


REQUESTS = [
    request([1, 2]),
    request([3, 4]),
    request([5, 6, 7], "w"),
    request([5, 6], "w"),
    request([8, 9], id="mine"),
    request([1, 2], "missing"),
    message("GET", "/v2/health/live"),
    message("POST", "/v2/models/m/infer", b"{", b"}"),
    raw([1, 2]),
    raw([3, 4]) + b"\r\n",
    b"\r\n" + raw([5, 6]),
    raw([7, 8]).replace(b"Host", b"host"),
]


def comparable(reply: Reply) -> tuple[int, dict[str, str], bytes]:
    """A reply without the numbers that the server gives to requests."""
    return reply.status, {name: text for name, text in reply.headers.items() if name != "x-sluice-request"}, reply.body


@cache
def alone(number: int) -> tuple[int, dict[str, str], bytes]:
    """The answer to a request that is the only one of its connection."""

    async def conversation(client: Client) -> tuple[int, dict[str, str], bytes]:
        client.send(REQUESTS[number])
        return comparable(await client.reply())

    return talk(gateway(), conversation)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(REQUESTS) - 1), st.booleans()), min_size=1, max_size=12),
    st.lists(st.integers(1, 600), max_size=6),
)
def test_answers_depend_neither_on_earlier_requests_nor_on_the_pieces_in_which_they_come(
    sent: list[tuple[int, bool]], cuts: list[int]
) -> None:
    """`sent` are numbers of requests, and whether to wait for all answers before the next one."""

    async def conversation(client: Client) -> list[tuple[int, dict[str, str], bytes]]:
        replies, open_requests, lengths = [], 0, iter(cuts)
        for number, waits in sent:
            rest = REQUESTS[number]
            while (cut := next(lengths, len(rest))) < len(rest):
                client.send(rest[:cut])
                rest = rest[cut:]
                await iterations(3)
            client.send(rest)
            open_requests += 1
            if waits:
                replies += [comparable(await client.reply()) for _ in range(open_requests)]
                open_requests = 0
        return replies + [comparable(await client.reply()) for _ in range(open_requests)]

    assert talk(gateway(), conversation) == [alone(number) for number, _ in sent]


def traceparent(number: int, flags: str = "01") -> str:
    return f"00-{number:032x}-{number:016x}-{flags}"


def test_a_head_that_differs_in_the_ids_of_its_trace_is_not_parsed_again(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        client.send(request([1, 2], traceparent=traceparent(1), tracestate="a=b"))
        await client.reply()
        connection: Any = client.connection
        connection.parser = None
        for number in (2, 3):
            client.send(request([3, 4], traceparent=traceparent(number, "00"), tracestate="a=b"))
            assert values(await client.reply()) == [3, 4]

    talk(served, conversation)
    assert [(each.trace_id, each.parent_id, each.sampled) for each in served.runtime.contexts] == [
        (f"{number:032x}", f"{number:016x}", number == 1) for number in (1, 2, 3)
    ]
    assert {(each.state, each.transport) for each in served.runtime.contexts} == {("a=b", "http")}


@pytest.mark.parametrize(
    ("value", "trace_id"),
    [
        ("00-" + "0" * 32 + "-" + "1" * 16 + "-01", ""),
        ("ff-" + "1" * 32 + "-" + "1" * 16 + "-01", ""),
        ("00-" + "1" * 32 + "-" + "1" * 16 + "-0g", ""),
        ("01-" + "1" * 32 + "-" + "1" * 16 + "-01", "1" * 32),
        ("00-1\r\nx-sluice-explain: 1\r\nother: " + "1" * 21, ""),
    ],
)
def test_other_values_of_that_length_are_read_as_any_head(served: InstantGateway, value: str, trace_id: str) -> None:
    assert len(value) == 55

    async def conversation(client: Client) -> None:
        client.send(request([1, 2], traceparent=traceparent(1)))
        await client.reply()
        client.send(request([3, 4], traceparent=value))
        reply = await client.reply()
        assert values(reply) == [3, 4]
        assert ("x-sluice-outcome" in reply.headers) is ("explain" in value)

    talk(served, conversation)
    assert served.runtime.contexts[1].trace_id == trace_id


def test_two_traces_in_one_head_are_none(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        for number in (1, 2):
            client.send(request([1, 2], traceparent=traceparent(number), Traceparent=traceparent(7)))
            await client.reply()

    talk(served, conversation)
    assert [each.trace_id for each in served.runtime.contexts] == ["", ""]
