"""A front end's end of the socket to the gateway's process."""

import asyncio
import socket

import msgspec

from sluice.gateway.front_ends.link import ARRIVALS_A_MESSAGE, Link
from sluice.gateway.front_ends.messages import (
    Arrival,
    AskCounts,
    FromFrontEnd,
    FrontEndReady,
    LogLine,
    ToFrontEnd,
    Turn,
)
from sluice.mps.ipc.channel import MESSAGE_BYTES, Channel


def arrival(request: int) -> Arrival:
    return Arrival(request, "a", "", "a:1", (), None, 1, "", 0, 9, "", None, False, 0, 0, "", 5)


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
        for request in range(3):
            link.arrivals.append(arrival(request))
            link.flush_soon()
        link.cancelled.append(2)
        link.released.append(1)
        await turn()
        assert messages(theirs) == [Turn((arrival(0), arrival(1), arrival(2)), (2,), (1,))]
        many = ARRIVALS_A_MESSAGE + 1
        link.arrivals += [arrival(request) for request in range(many)]
        link.cancelled.append(0)
        link.flush_soon()
        await turn()
        first, second = messages(theirs)
        assert isinstance(first, Turn)
        assert (len(first.arrivals), first.cancelled) == (ARRIVALS_A_MESSAGE, ())
        assert second == Turn((arrival(many - 1),), (0,), ())
        link.close()
        theirs.close()

    asyncio.run(run())


def test_while_the_gateway_does_not_read_all_waits_and_then_comes_in_order() -> None:
    async def run() -> None:
        ours, theirs = pair()
        link = Link(ours)
        lines = 200
        for number in range(lines):
            link.send(LogLine(20, "x", "y" * 50_000, number))
        for request in range(1000):
            link.arrivals.append(arrival(request))
            link.flush_soon()
            if request % 100 == 0:
                await turn()
        got: list[FromFrontEnd] = []
        while not got or not isinstance(got[-1], Turn) or got[-1].arrivals[-1].request < 999:
            got += messages(theirs)
            await turn()
        assert [each.lost for each in got if isinstance(each, LogLine)] == list(range(lines))
        turns = [each for each in got if isinstance(each, Turn)]
        assert [one.request for each in turns for one in each.arrivals] == list(range(1000))
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
        link.arrivals += [msgspec.structs.replace(arrival(number), id="x" * size) for number, size in sizes.items()]
        link.flush_soon()
        got: list[int] = []
        while len(got) < 5:
            got += [one.request for each in messages(theirs) if isinstance(each, Turn) for one in each.arrivals]
            await asyncio.sleep(0)
        assert (got, refused) == ([1, 2, 4, 5, 6], [3])
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
