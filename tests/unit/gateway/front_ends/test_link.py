"""A front end's end of the socket to the gateway's process."""

import asyncio
import socket

import numpy as np

from sluice.gateway.front_ends.link import Arrival, Link
from sluice.gateway.front_ends.messages import (
    ARRIVAL,
    ARRIVALS_A_MESSAGE,
    TEMPLATES,
    AskCounts,
    FromFrontEnd,
    FrontEndReady,
    LogLine,
    Particulars,
    ToFrontEnd,
    Turn,
)
from sluice.gateway.front_ends.templates import SentTemplate, SentTemplates
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.protocol.signature import Signature
from sluice.mps.ipc.channel import MESSAGE_BYTES, Channel
from tests.unit.gateway.front_ends.test_snapshot import pipeline

SIGNATURE = Signature(pipeline("a"))


def template(timeout_ns: int = 0) -> SentTemplate:
    options = RequestOptions(SIGNATURE.output_names, 1, "", 16, 9, timeout_ns=timeout_ns)
    return SentTemplate(SIGNATURE, "", {"x": np.zeros((1, 4), np.float32)}, options)


def arrival(request: int, like: SentTemplate, id: str = "") -> Arrival:
    particulars = Particulars(id, "", ()) if id else None
    return Arrival(request, like, 0, 64, 9, 5, particulars)


def requests(turn: Turn) -> list[int]:
    return [record[0] for record in ARRIVAL.iter_unpack(turn.arrivals)]


def pair() -> tuple[Channel[ToFrontEnd], Channel[FromFrontEnd]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(ours, ToFrontEnd), Channel(theirs, FromFrontEnd)


def messages(channel: Channel[FromFrontEnd]) -> list[FromFrontEnd]:
    return [message for message, _ in channel.receive()]


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_turn_is_one_message_and_a_cancellation_follows_its_arrival() -> None:
    async def run() -> None:
        ours, theirs = pair()
        link = Link(ours)
        like = template()
        for request in range(3):
            link.arrivals.append(arrival(request, like))
            link.flush_soon()
        link.cancelled.append(2)
        link.released.append(1)
        await turn()
        records = b"".join(ARRIVAL.pack(request, 0, 0, 64, 9, 5, 0) for request in range(3))
        assert messages(theirs) == [Turn((like.message(),), records, (), (2,), (1,))]
        many = ARRIVALS_A_MESSAGE + 1
        link.arrivals += [arrival(request, like) for request in range(many)]
        link.cancelled.append(0)
        link.flush_soon()
        await turn()
        first, second = messages(theirs)
        assert isinstance(first, Turn)
        assert (first.templates, requests(first), first.cancelled) == ((), list(range(ARRIVALS_A_MESSAGE)), ())
        assert second == Turn((), ARRIVAL.pack(many - 1, 0, 0, 64, 9, 5, 0), (), (0,), ())
        link.close()
        theirs.close()

    asyncio.run(run())


def test_while_the_gateway_does_not_read_all_waits_and_then_comes_in_order() -> None:
    async def run() -> None:
        ours, theirs = pair()
        link = Link(ours)
        like = template()
        lines = 200
        for number in range(lines):
            link.send(LogLine(20, "x", "y" * 50_000, number))
        for request in range(1000):
            link.arrivals.append(arrival(request, like))
            link.flush_soon()
            if request % 100 == 0:
                await turn()
        got: list[FromFrontEnd] = []
        while not got or not isinstance(got[-1], Turn) or requests(got[-1])[-1] < 999:
            got += messages(theirs)
            await turn()
        assert [each.lost for each in got if isinstance(each, LogLine)] == list(range(lines))
        turns = [each for each in got if isinstance(each, Turn)]
        assert [one for each in turns for one in requests(each)] == list(range(1000))
        assert len(turns) == -(-1000 // ARRIVALS_A_MESSAGE)
        link.close()
        theirs.close()

    asyncio.run(run())


def test_a_message_that_would_be_too_long_is_divided_and_a_request_that_is_goes_back() -> None:
    async def run() -> None:
        ours, theirs = pair()
        link = Link(ours)
        refused: list[int] = []
        link.on_too_long = refused.append
        sizes = {1: 100, 2: 7 << 20, 3: MESSAGE_BYTES + 1, 4: 7 << 20, 5: 7 << 20, 6: 100}
        link.arrivals += [arrival(number, template(number), "x" * size) for number, size in sizes.items()]
        link.flush_soon()
        got: list[int] = []
        timeouts: list[int] = []
        known: dict[int, int] = {}
        while len(got) < 5:
            for each in messages(theirs):
                assert isinstance(each, Turn)
                known |= {one.number: one.timeout_ns for one in each.templates}
                got += requests(each)
                timeouts += [known[record[1]] for record in ARRIVAL.iter_unpack(each.arrivals)]
            await asyncio.sleep(0)
        assert (got, timeouts, refused) == ([1, 2, 4, 5, 6], [1, 2, 4, 5, 6], [3])
        link.close()
        theirs.close()

    asyncio.run(run())


def test_each_arrival_has_its_template_though_there_are_more_than_numbers() -> None:
    async def run() -> None:
        ours, theirs = pair()
        link = Link(ours)
        made = [template(number) for number in range(3 * TEMPLATES)]
        order = [*range(3 * TEMPLATES), *range(TEMPLATES), 0, 1, 0]
        link.arrivals += [arrival(request, made[number]) for request, number in enumerate(order)]
        link.flush_soon()
        known: dict[int, int] = {}
        got: list[int] = []
        sent = 0
        while len(got) < len(order):
            for each in messages(theirs):
                assert isinstance(each, Turn)
                known |= {one.number: one.timeout_ns for one in each.templates}
                sent += len(each.templates)
                got += [known[record[1]] for record in ARRIVAL.iter_unpack(each.arrivals)]
            await asyncio.sleep(0)
        assert got == order
        assert (sent, len(known)) == (4 * TEMPLATES, TEMPLATES)
        link.close()
        theirs.close()

    asyncio.run(run())


def test_messages_are_delivered_and_the_end_is_reported() -> None:
    async def run() -> None:
        ours, theirs = pair()
        link = Link(ours)
        got: list[ToFrontEnd] = []
        ended: list[bool] = []
        link.start(lambda message, fds: got.append(message), lambda: ended.append(True))
        theirs.send(AskCounts())
        await asyncio.sleep(0.01)
        assert (got, ended) == ([AskCounts()], [])
        theirs.close()
        await asyncio.sleep(0.01)
        assert ended == [True]
        link.send(FrontEndReady())  # to nobody

    asyncio.run(run())


def test_requests_that_begin_at_other_times_after_their_arrival_are_not_alike() -> None:
    templates = SentTemplates()
    inputs = {"x": np.zeros((1, 4), np.float32)}
    found = []
    for start_after_ns in (0, 7, 7):
        options = RequestOptions(SIGNATURE.output_names, 1, "", 16, 9, start_after_ns=start_after_ns)
        found.append(templates.find(SIGNATURE, "", inputs, options))
    assert found[0] is not found[1] is found[2]
    assert [each.message().start_after_ns for each in found] == [0, 7, 7]
