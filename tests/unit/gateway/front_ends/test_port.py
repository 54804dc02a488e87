"""The gateway's end of a front end, whose messages a test sends."""

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.front_ends.messages import (
    INLINE,
    Answered,
    Answers,
    Arrival,
    FromFrontEnd,
    PlacedTensor,
    RelayOpened,
    ToFrontEnd,
    Turn,
)
from sluice.gateway.front_ends.outputs import RegionIndex
from sluice.gateway.front_ends.port import OWN_REGIONS, FrontEndPort, Served, read_served
from sluice.gateway.inference.local import LocalDataPlane
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.pending_answer import PendingAnswer
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.protocol.signature import Signature
from sluice.gateway.runtime.submission import Submission
from sluice.gateway.tensors.request_tensors import BatchOutputs
from sluice.models.errors import RejectedError
from sluice.mps.ipc import channel
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.channel import Channel
from sluice.mps.ipc.messages import MapRegion, UnmapRegion
from tests.unit.gateway.front_ends.test_snapshot import pipeline

REGION_BYTES = 1 << 20
SERVED = pipeline("a")


INPUTS = (PlacedTensor("x", (1, 4), 0, 0, 16),)


def arrival(request: int, inputs: tuple[PlacedTensor, ...] = INPUTS, *, explain: bool = False) -> Arrival:
    return Arrival(request, "a", "", "a:1", inputs, None, 1, "", 16, 10**9, "", None, explain, 0, 0, "", 5)


class FakeChild:
    """A process that ends when it is killed."""

    pid = 1

    def __init__(self) -> None:
        self.socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ended, self._end = os.pipe()

    def fileno(self) -> int:
        return self._ended

    def kill(self) -> None:
        if self._end >= 0:
            os.close(self._end)
            self._end = -1
            self.theirs.close()

    def wait(self) -> int:
        os.close(self._ended)
        return -9


class FakeRegions:
    """Regions that no worker maps."""

    def __init__(self, index: RegionIndex) -> None:
        self.index = index
        self._last = 10

    def share_region(self, region: Region) -> int:
        self._last += 1
        self.index.region_added(self._last, region)
        return self._last

    def drop_region(self, number: int) -> None:
        self.index.region_dropped(number)


class FakePlane:
    """Keeps what is submitted; a test answers it."""

    def __init__(self) -> None:
        self.submitted: list[tuple[Mapping[str, Tensor], RequestOptions, BatchOutputs]] = []
        self.submissions: list[Any] = []
        self.cancelled: list[object] = []
        self.error: Exception | None = None

    def submit(
        self,
        signature: Signature,
        inputs: Mapping[str, Tensor],
        options: RequestOptions,
        client: str,
        received_ns: int,
        shared: BatchOutputs,
    ) -> Submission:
        if self.error is not None:
            raise self.error
        shared.references += 1
        pending = PendingAnswer(len(self.submissions), asyncio.get_running_loop())

        class Fake:
            given_id = f"sluice-{len(self.submissions)}"
            request = pending.request
            then = pending.then
            settle = pending.settle

            def explanation(self) -> list[tuple[str, str]]:
                return [("x-sluice-outcome", "completed")]

        self.submitted.append((inputs, options, shared))
        self.submissions.append(Fake())
        return cast(Submission, self.submissions[-1])

    def cancel(self, submission: object) -> None:
        self.cancelled.append(submission)


class Bench:
    """A port, and the front end's end of it."""

    def __init__(self) -> None:
        self.index = RegionIndex()
        self.plane = FakePlane()
        self.child = FakeChild()
        self.exits: list[str] = []
        self.serves = True
        self.port = FrontEndPort(
            "front end 0",
            self.child,
            cast(LocalDataPlane, self.plane),
            self._find,
            FakeRegions(self.index),
            self.index,
            lambda connection: connection.close(),
            lambda: None,
            self.exits.append,
        )
        self.channel: Channel[ToFrontEnd] = Channel(self.child.theirs, ToFrontEnd)
        self.inputs = Region.create("sluice-test", REGION_BYTES)
        self.send(MapRegion(0, REGION_BYTES), self.inputs.fd)

    def _find(self, name: str, version: str, key: str) -> Served | None:
        return read_served(SERVED, Signature(SERVED)) if self.serves and key == SERVED.key else None

    def send(self, message: FromFrontEnd, *fds: int) -> None:
        self.channel.send(message, fds)

    def arrive(self, *requests: int, offset: int = 0, explain: bool = False) -> None:
        placed = (PlacedTensor("x", (1, 4), 0, offset, 16),)
        self.send(Turn(tuple(arrival(request, placed, explain=explain) for request in requests)))

    async def received(self) -> list[tuple[ToFrontEnd, tuple[int, ...]]]:
        """The messages to the front end until there are no more for now."""
        found: list[tuple[ToFrontEnd, tuple[int, ...]]] = []
        for _ in range(20):
            await asyncio.sleep(0)
        while batch := list(self.channel.receive()):
            found += batch
            for _ in range(5):
                await asyncio.sleep(0)
        return found

    async def answers(self) -> list[Answered]:
        return [
            each for message, _ in await self.received() if isinstance(message, Answers) for each in message.answers
        ]

    def answer(self, request: int, outputs: Mapping[str, Tensor], released: list[int] | None = None) -> None:
        """Answer the request that was submitted as this one, as the runtime does."""
        shared = self.plane.submitted[request][2]
        release = None if released is None else lambda: released.append(request)
        self.plane.submissions[request].settle(Answer(Outcome.COMPLETED, outputs=outputs, release=release))
        shared.release_reference()


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    try:
        yield made
    finally:
        made.child.kill()
        for _ in range(20):
            await asyncio.sleep(0)


def test_a_request_is_submitted_with_inputs_where_they_lie() -> None:
    async def run() -> None:
        async with bench() as each:
            each.inputs.view[64:80] = np.arange(4, dtype=np.float32).tobytes()
            each.arrive(7, offset=64)
            assert await each.received() == []
            ((inputs, options, shared),) = each.plane.submitted
            assert cast(Any, inputs["x"]).tolist() == [[0, 1, 2, 3]]
            assert (options.rows, options.budget_ns, options.names) == (1, 10**9, ("y",))
            located = shared.located["x"]
            assert (located.region, located.offset, located.nbytes) == (11, 64, 16)

    asyncio.run(run())


def test_a_small_answer_travels_itself_and_is_released_at_once() -> None:
    async def run() -> None:
        async with bench() as each:
            each.arrive(7, explain=True)
            await each.received()
            released: list[int] = []
            output = np.ones((1, 2), np.float32)
            each.answer(0, {"y": output}, released)
            ((message, _),) = await each.received()
            assert isinstance(message, Answers)
            assert message.freed == (7,)
            (answer,) = message.answers
            assert (answer.request, answer.outcome, answer.given_id) == (7, Outcome.COMPLETED, "sluice-0")
            assert answer.explanation == (("x-sluice-outcome", "completed"),)
            assert answer.outputs == (PlacedTensor("y", (1, 2), INLINE, 0, 8, None, output.tobytes()),)
            assert released == [0]

    asyncio.run(run())


def test_an_output_of_a_worker_is_read_where_it_lies_and_held_until_the_front_end_releases_it() -> None:
    async def run() -> None:
        async with bench() as each:
            region = Region.create("sluice-test", REGION_BYTES)
            each.index.region_added(2, region)
            each.arrive(7)
            await each.received()
            released: list[int] = []
            each.answer(0, {"y": np.frombuffer(region.view, np.float32, 1000, 4096).reshape(1, 1000)}, released)
            (mapped, fds), (message, _) = await each.received()
            os.close(fds[0])
            assert mapped == MapRegion(2, REGION_BYTES)
            assert isinstance(message, Answers)
            assert message.answers[0].outputs == (PlacedTensor("y", (1, 1000), 2, 4096, 4000),)
            assert released == []
            each.send(Turn((), (), (7,)))
            await each.received()
            assert released == [0]
            each.port.region_dropped(2)
            assert await each.received() == [(UnmapRegion(2), ())]

    asyncio.run(run())


def test_outputs_of_this_process_alone_get_regions_of_which_there_are_not_too_many() -> None:
    async def run() -> None:
        async with bench() as each:
            count = OWN_REGIONS + 3
            each.arrive(*range(count))
            await each.received()
            for request in range(count):
                each.answer(request, {"y": np.full((1, 10_000), request, np.float32)})
            messages = await each.received()
            mapped = {message.region: fds[0] for message, fds in messages if isinstance(message, MapRegion)}
            answers = [one for message, _ in messages if isinstance(message, Answers) for one in message.answers]
            assert len(mapped) == len(answers) == OWN_REGIONS
            first = answers[0].outputs[0]
            region = Region.attach(mapped.pop(first.region), first.nbytes)
            assert np.frombuffer(region.view, np.float32).tolist() == [0.0] * 10_000
            each.send(Turn((), (), (0, 1)))
            messages = await each.received()
            assert [message for message, _ in messages if isinstance(message, UnmapRegion)] == [
                UnmapRegion(first.region),
                UnmapRegion(answers[1].outputs[0].region),
            ]
            later = [one.request for message, _ in messages if isinstance(message, Answers) for one in message.answers]
            assert later == [OWN_REGIONS, OWN_REGIONS + 1]
            for fd in (*mapped.values(), *(fds[0] for _, fds in messages if fds)):
                os.close(fd)

    asyncio.run(run())


@pytest.mark.parametrize("reason", ["replaced", "stopped"])
def test_a_request_that_cannot_be_submitted_goes_back_for_the_relay(reason: str) -> None:
    async def run() -> None:
        async with bench() as each:
            if reason == "replaced":
                each.serves = False
            else:
                each.plane.error = RejectedError("the server is stopping")
            each.arrive(7)
            ((message, _),) = await each.received()
            assert message == Answers((Answered(7, None),), (7,))

    asyncio.run(run())


def test_a_cancellation_reaches_the_data_plane() -> None:
    async def run() -> None:
        async with bench() as each:
            each.arrive(7)
            each.send(Turn((), (7, 8), ()))
            await each.received()
            assert each.plane.cancelled == each.plane.submissions

    asyncio.run(run())


def test_the_end_of_a_front_end_cancels_its_requests_and_returns_its_memory() -> None:
    async def run() -> None:
        async with bench() as each:
            region = Region.create("sluice-test", REGION_BYTES)
            each.index.region_added(2, region)
            each.arrive(1, 2)
            await each.received()
            released: list[int] = []
            each.answer(0, {"y": np.frombuffer(region.view, np.float32, 1000).reshape(1, 1000)}, released)
            for message, fds in await each.received():
                assert isinstance(message, Answers | MapRegion)
                for fd in fds:
                    os.close(fd)
            each.child.kill()
            for _ in range(20):
                await asyncio.sleep(0)
            assert each.exits == ["the front end was killed by SIGKILL"]
            assert released == [0]
            assert each.plane.cancelled == each.plane.submissions[1:]
            assert set(each.index.regions) == {2, 11}  # a batch may still read the inputs
            each.answer(1, {})
            assert set(each.index.regions) == {2}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("placed", "reason"),
    [
        (PlacedTensor("x", (1, 4), 0, REGION_BYTES - 8, 16), "is not within its region"),
        (PlacedTensor("x", (1, 4), 0, -16, 16), "is not within its region"),
        (PlacedTensor("x", (1, 4), 9, 0, 16), "is in no region that is shared"),
        (PlacedTensor("z", (1, 4), 0, 0, 16), "is in no region that is shared"),
        (PlacedTensor("x", (1, 400), 0, 0, 16), "do not make up 1 rows"),
        (PlacedTensor("x", (1, -4), 0, 0, 16), "do not make up 1 rows"),
        (PlacedTensor("x", (2, 2), 0, 0, 16), "do not make up 1 rows"),
        (PlacedTensor("x", (1, 4), 0, 0, 16, (0, 16)), "do not make up 1 rows"),
        (None, r"has the inputs \[\] alone"),
    ],
)
def test_places_that_cannot_be_end_the_front_end(placed: PlacedTensor | None, reason: str) -> None:
    async def run() -> None:
        async with bench() as each:
            inputs = () if placed is None else (placed,)
            each.send(Turn((arrival(1, inputs),)))
            for _ in range(20):
                await asyncio.sleep(0)
            assert re.search(reason, each.exits[0])
            assert each.plane.submitted == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"rows": 0}, "has 0 rows, expected 1 to 8"),
        ({"rows": 9}, "has 9 rows, expected 1 to 8"),
        ({"rows": -1}, "is no message"),
        ({"memory_bytes": -1}, "is no message"),
        ({"received_ns": 1 << 63}, "is no message"),
        ({"request": 7}, "request 7 is open already"),
    ],
)
def test_numbers_that_cannot_be_end_the_front_end(changed: dict[str, int], reason: str) -> None:
    async def run() -> None:
        async with bench() as each:
            each.arrive(7)
            await each.received()
            each.send(Turn((msgspec.structs.replace(arrival(8), **changed),)))
            for _ in range(20):
                await asyncio.sleep(0)
            assert reason in each.exits[0]
            assert len(each.plane.submitted) == 1

    asyncio.run(run())


def test_a_connection_of_the_relay_that_is_no_socket_ends_the_front_end() -> None:
    async def run() -> None:
        async with bench() as each:
            each.send(RelayOpened(), each.inputs.fd)
            for _ in range(20):
                await asyncio.sleep(0)
            assert "is no socket" in each.exits[0]

    asyncio.run(run())


def test_an_answer_that_is_too_long_for_a_message_goes_back_for_the_relay_and_is_not_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        async with bench() as each:
            region = Region.create("sluice-test", REGION_BYTES)
            each.index.region_added(2, region)
            each.arrive(7, 8)
            await each.received()
            released: list[int] = []
            monkeypatch.setattr(channel, "MESSAGE_BYTES", 100)
            monkeypatch.setattr(each.port.process._channel, "_limit", 100)
            each.answer(0, {"y": np.frombuffer(region.view, np.float32, 1000).reshape((1,) * 60 + (1000,))}, released)
            each.answer(1, {"y": np.ones((1, 2), np.float32)})
            messages = await each.received()
            answers = [one for message, _ in messages if isinstance(message, Answers) for one in message.answers]
            assert [(one.request, one.outcome) for one in answers] == [(7, None), (8, Outcome.COMPLETED)]
            assert released == [0]
            for _, fds in messages:
                for fd in fds:
                    os.close(fd)

    asyncio.run(run())
