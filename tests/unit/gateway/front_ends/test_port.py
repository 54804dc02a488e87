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
    ANSWER,
    ARRIVAL,
    INLINE,
    TEMPLATES,
    Answered,
    AnswerLayout,
    Answers,
    FromFrontEnd,
    InputShape,
    OutputPlace,
    Particulars,
    PlacedTensor,
    RelayOpened,
    Template,
    ToFrontEnd,
    Turn,
)
from sluice.gateway.front_ends.outputs import RegionIndex
from sluice.gateway.front_ends.port import OWN_REGIONS, FrontEndPort
from sluice.gateway.front_ends.templates import Served
from sluice.gateway.inference.local import LocalDataPlane
from sluice.gateway.observability.traces.context import TraceContext
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.pending_answer import PendingAnswer
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.protocol.signature import Signature
from sluice.gateway.runtime.submission import Submission
from sluice.gateway.tensors.request_tensors import BatchOutputs
from sluice.models.errors import RejectedError
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.sequence_batching import SequenceStep
from sluice.models.tensors.spec import DataType, TensorSpec
from sluice.mps.ipc import channel
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.channel import Channel
from sluice.mps.ipc.messages import MapRegion, UnmapRegion
from tests.unit.gateway.front_ends.test_snapshot import pipeline

REGION_BYTES = 1 << 20
SERVED = pipeline("a")


TEXT = msgspec.structs.replace(pipeline("t"), inputs=(TensorSpec("x", DataType.BYTES, (1,)),))
"""A pipeline whose input is text."""
PAIR = msgspec.structs.replace(
    pipeline("p"), inputs=(TensorSpec("x", DataType.FP32, (4,)), TensorSpec("z", DataType.UINT8, (3,)))
)
"""A pipeline with two inputs."""


def template(number: int = 0, like: Pipeline = SERVED, **changed: Any) -> Template:
    inputs = (InputShape("x", (1, 4)),) if like is SERVED else (InputShape("x", (2, 1)),)
    made = Template(number, like.name, "", like.key, inputs, None, None, False, 0, 0)
    return msgspec.structs.replace(made, **changed)


def arrival(
    request: int, number: int = 0, region: int = 0, offset: int = 0, received_ns: int = 5, position: int = 0
) -> bytes:
    return ARRIVAL.pack(request, number, region, offset, 10**9, received_ns, position)


def apart(*starts: int) -> Particulars:
    """The particulars of a request whose inputs do not lie one after the other."""
    return Particulars("", "", (), starts)


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
        trace: TraceContext,
        received_ns: int,
        shared: BatchOutputs,
    ) -> Submission:
        if self.error is not None:
            raise self.error
        shared.references += 1
        pending = PendingAnswer(len(self.submissions), asyncio.get_running_loop())

        class Fake:
            given_id = f"sluice-{len(self.submissions)}"
            notes = ()
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
        self.serving = frozenset((SERVED.key, TEXT.key, PAIR.key))
        self._served = {each.key: Served(each, Signature(each)) for each in (SERVED, TEXT, PAIR)}
        self.port = FrontEndPort(
            "front end 0",
            self.child,
            cast(LocalDataPlane, self.plane),
            self,
            FakeRegions(self.index),
            self.index,
            lambda connection: connection.close(),
            lambda: None,
            self.exits.append,
        )
        self.channel: Channel[ToFrontEnd] = Channel(self.child.theirs, ToFrontEnd)
        self.inputs = Region.create("sluice-test", REGION_BYTES)
        self.send(MapRegion(0, REGION_BYTES), self.inputs.fd)

    def find(self, name: str, version: str, key: str) -> Served | None:
        return self._served.get(key) if key in self.serving else None

    def send(self, message: FromFrontEnd, *fds: int) -> None:
        self.channel.send(message, fds)

    def arrive(self, *requests: int, offset: int = 0, explain: bool = False) -> None:
        arrivals = b"".join(arrival(request, offset=offset) for request in requests)
        self.send(Turn((template(explain=explain),), arrivals))

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
            each.send(Turn((), b"", (), (), (7,)))
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
            each.send(Turn((), b"", (), (), (0, 1)))
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


def test_the_number_of_a_request_whose_answer_waits_for_a_region_is_not_used_again() -> None:
    async def run() -> None:
        async with bench() as each:
            count = OWN_REGIONS + 1
            released: list[int] = []
            each.arrive(*range(count))
            await each.received()
            for request in range(count):
                each.answer(request, {"y": np.full((1, 10_000), request, np.float32)}, released)
            for _, fds in await each.received():
                for fd in fds:
                    os.close(fd)
            each.arrive(OWN_REGIONS)
            for _ in range(20):
                await asyncio.sleep(0)
            assert f"request {OWN_REGIONS} is open already" in each.exits[0]
            assert sorted(released) == list(range(count))

    asyncio.run(run())


@pytest.mark.parametrize("reason", ["replaced", "stopped"])
def test_a_request_that_cannot_be_submitted_goes_back_for_the_relay(reason: str) -> None:
    async def run() -> None:
        async with bench() as each:
            if reason == "replaced":
                each.serving = frozenset()
            else:
                each.plane.error = RejectedError("the server is stopping")
            each.arrive(7)
            ((message, _),) = await each.received()
            assert message == Answers((Answered(7, None),), (7,))

    asyncio.run(run())


@pytest.mark.parametrize("is_sequence", [True, False])
@pytest.mark.parametrize("fault", ["submission", "memory", "length"])
def test_a_request_of_a_sequence_is_not_relayed_once_it_may_have_run(
    monkeypatch: pytest.MonkeyPatch, fault: str, is_sequence: bool
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no memory")

    async def run() -> None:
        async with bench() as each:
            if fault == "submission":
                each.plane.error = OSError("no memory")
            elif fault == "memory":
                monkeypatch.setattr(each.port, "_in_own_region", fail)
            step = SequenceStep(5, start=True) if is_sequence else None
            each.send(Turn((template(),), arrival(7, position=1), (Particulars("", "", (), sequence=step),)))
            answers = await each.received()
            if fault == "length":
                monkeypatch.setattr(channel, "MESSAGE_BYTES", 200)
                monkeypatch.setattr(each.port.process._channel, "_limit", 200)
            if fault != "submission":
                each.answer(0, {"y" * 300: np.ones(10_000, np.float32)})
                answers += await each.received()
            (answered,) = [one for message, _ in answers if isinstance(message, Answers) for one in message.answers]
            expected = Outcome.FAILED_BACKEND if is_sequence else None
            assert (answered.request, answered.outcome) == (7, expected)
            for _, fds in answers:
                for fd in fds:
                    os.close(fd)

    asyncio.run(run())


def test_a_cancellation_reaches_the_data_plane() -> None:
    async def run() -> None:
        async with bench() as each:
            each.arrive(7)
            each.send(Turn((), b"", (), (7, 8)))
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


def test_answers_that_are_alike_are_sent_as_their_numbers_and_contents() -> None:
    async def run() -> None:
        async with bench() as each:
            named = Particulars("mine", "", ())
            each.send(Turn((template(),), arrival(7) + arrival(8, position=1) + arrival(9), (named,)))
            await each.received()
            outputs = [np.full((1, 3), number, np.float32) for number in range(3)]
            released: list[int] = []
            for request in (0, 1):
                each.answer(request, {"y": outputs[request]}, released)
            ((first, _),) = await each.received()
            assert isinstance(first, Answers)
            assert first.layouts == (AnswerLayout(0, Outcome.COMPLETED, (OutputPlace("y", (1, 3), 0),)),)
            assert list(ANSWER.iter_unpack(first.small)) == [(7, 0, 0, 0), (8, 0, 0, 16)]  # the fakes are from 0 on
            assert [first.data[begin : begin + 12] for begin in (0, 16)] == [one.tobytes() for one in outputs[:2]]
            assert (first.answers, first.freed, released) == ((), (7, 8), [0, 1])
            each.answer(2, {"y": outputs[2]})
            ((second, _),) = await each.received()
            assert isinstance(second, Answers)
            assert (second.layouts, list(ANSWER.iter_unpack(second.small))) == ((), [(9, 0, 2, 0)])

    asyncio.run(run())


def test_inputs_that_were_received_where_they_lie_are_found_there() -> None:
    inputs = InputShape("x", (1, 4)), InputShape("z", (1, 3))

    async def run() -> None:
        async with bench() as each:
            each.inputs.view[64:80] = np.arange(4, dtype=np.float32).tobytes()
            each.inputs.view[80:83] = b"abc"
            each.send(Turn((template(1, PAIR, inputs=inputs),), arrival(7, 1, offset=64, position=1), (apart(0, 16),)))
            each.send(Turn((), arrival(8, 1, offset=80, position=1), (apart(-16, 0),)))
            await each.received()
            for tensors, _, shared in each.plane.submitted:
                assert cast(Any, tensors["x"]).tolist() == [[0, 1, 2, 3]]
                assert cast(Any, tensors["z"]).tobytes() == b"abc"
                places = [(place.region, place.offset, place.nbytes) for place in shared.located.values()]
                assert places == [(11, 64, 16), (11, 80, 3)]
            assert len(each.plane.submitted) == 2

    asyncio.run(run())


def test_text_is_found_by_the_offsets_of_its_rows() -> None:
    async def run() -> None:
        async with bench() as each:
            text = b"\1\0\0\0a\2\0\0\0bc"
            each.inputs.view[64 : 64 + len(text)] = text
            offsets = Particulars("", "anna", ((0, 5, 11),))
            each.send(Turn((template(3, TEXT),), arrival(7, 3, offset=64, position=1), (offsets,)))
            await each.received()
            ((inputs, options, shared),) = each.plane.submitted
            assert bytes(cast(Any, inputs["x"]).buffer) == text
            assert (options.rows, options.memory_bytes) == (2, 11)
            assert (shared.located["x"].nbytes, shared.located["x"].row_offsets) == (11, (0, 5, 11))

    asyncio.run(run())


def test_a_template_ends_with_its_pipeline_and_may_be_replaced() -> None:
    async def run() -> None:
        async with bench() as each:
            each.arrive(1)
            await each.received()
            each.serving = frozenset((TEXT.key,))  # while the front end does not know
            each.send(Turn((), arrival(2)))
            await each.received()
            assert len(each.plane.submitted) == 1
            each.send(Turn((template(0, TEXT),), arrival(3, position=1), (Particulars("", "", ((0, 4, 8),)),)))
            await each.received()
            assert [list(one[0]) for one in each.plane.submitted] == [["x"], ["x"]]
            each.serving = frozenset((SERVED.key, TEXT.key))
            each.send(Turn((), arrival(4, position=1), (Particulars("", "", ((0, 4, 8),)),)))
            await each.received()
            assert (len(each.plane.submitted), each.exits) == (3, [])

    asyncio.run(run())


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"inputs": (InputShape("z", (1, 4)),)}, "unexpected inference input 'z'"),
        ({"inputs": (InputShape("x", (1, 400)),)}, r"Expected \[-1,4\], got \[1,400\]"),
        ({"inputs": (InputShape("x", (1, -4)),)}, "unexpected shape"),
        ({"inputs": (InputShape("x", (4,)),)}, "unexpected shape"),
        ({"inputs": (InputShape("x", (0, 4)),)}, "is a zero-size batch"),
        ({"inputs": (InputShape("x", (9, 4)),)}, "batch-size must be <= 8"),
        ({"inputs": (InputShape("x", (1 << 62, 4)),)}, "cannot be"),
        ({"inputs": ()}, "expected 1 inputs but got 0 inputs"),
        ({"outputs": ("z",)}, "unexpected inference output 'z'"),
        ({"number": TEMPLATES}, "is no message"),
        ({"number": -1}, "is no message"),
        ({"timeout_ns": -1}, "is no message"),
        ({"priority": -1}, "is no message"),
    ],
)
def test_a_template_that_no_request_can_have_ends_the_front_end(changed: dict[str, Any], reason: str) -> None:
    async def run() -> None:
        async with bench() as each:
            each.send(Turn((template(**changed),), b""))
            for _ in range(20):
                await asyncio.sleep(0)
            assert re.search(reason, each.exits[0])

    asyncio.run(run())


@pytest.mark.parametrize(
    ("arrivals", "particulars", "reason"),
    [
        (arrival(8, offset=REGION_BYTES - 8), (), "are not within their region"),
        (arrival(8, offset=-16), (), "are not within their region"),
        (arrival(8, region=9), (), "are in no region that is shared"),
        (arrival(8, 2), (), "template 2 was not sent"),
        (arrival(8, received_ns=-1), (), "request 8 has the times"),
        (arrival(8, received_ns=(1 << 62) + 1), (), "request 8 has the times"),
        (arrival(8, position=1), (), "request 8 has particulars 1 of 0"),
        (arrival(8, position=-1), (), "request 8 has particulars -1 of 0"),
        (arrival(7), (), "request 7 is open already"),
        (arrival(8)[:-1], (), "arrivals of 55 bytes cannot be"),
        (arrival(8) * 129, (), "is no message"),
        (arrival(8, 1), (), "has no offsets of 2 rows"),
        (arrival(8, 1, position=1), (Particulars("", "", ((0, 8),)),), "has no offsets of 2 rows"),
        (arrival(8, 1, position=1), (Particulars("", "", ((0, 8, 4),)),), "has no offsets of 2 rows"),
        (arrival(8, 1, position=1), (Particulars("", "", ((-1, 4, 8),)),), "has no offsets of 2 rows"),
        (arrival(8, 1, position=1), (Particulars("", "", ((0, 4, REGION_BYTES + 1),)),), "not within their region"),
        (arrival(8, 1, offset=-1, position=1), (Particulars("", "", ((0, 4, 8),)),), "not within their region"),
        (arrival(8, 1, position=1), (apart(4),), "cannot begin at 1 places"),
        (arrival(8, position=1), (apart(4, 4),), "cannot begin at 2 places"),
        (arrival(8, position=1), (apart(-1),), "not within their region"),
        (arrival(8, offset=REGION_BYTES - 16, position=1), (apart(1),), "not within their region"),
    ],
)
def test_arrivals_that_cannot_be_end_the_front_end(
    arrivals: bytes, particulars: tuple[Particulars, ...], reason: str
) -> None:
    async def run() -> None:
        async with bench() as each:
            each.arrive(7)
            await each.received()
            each.send(Turn((template(1, TEXT),), arrivals, particulars))
            for _ in range(20):
                await asyncio.sleep(0)
            assert re.search(reason, each.exits[0])
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
            answers = [message for message, _ in messages if isinstance(message, Answers)]
            assert [(one.request, one.outcome) for each in answers for one in each.answers] == [(7, None)]
            assert [record[0] for each in answers for record in ANSWER.iter_unpack(each.small)] == [8]
            assert released == [0]
            for _, fds in messages:
                for fd in fds:
                    os.close(fd)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("sequence", "outcome"), [(None, None), (SequenceStep(1, start=True), Outcome.FAILED_BACKEND)], ids=["alone", "seq"]
)
def test_without_memory_for_its_answer_a_request_runs_again_unless_it_is_of_a_sequence(
    sequence: SequenceStep | None, outcome: Outcome | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, nbytes: int) -> Region:
        raise OSError(28, "No space left on device")

    async def run() -> None:
        async with bench() as each:
            particulars = Particulars("id", "", (), (), sequence=sequence)
            each.send(Turn((template(),), arrival(7, position=1), (particulars,)))
            await each.received()
            monkeypatch.setattr(Region, "create", refuse)
            released: list[int] = []
            each.answer(0, {"y": np.ones((1, 1 << 20), np.float32)}, released)
            ((message, _),) = await each.received()
            assert isinstance(message, Answers)
            assert [(answer.request, answer.outcome) for answer in message.answers] == [(7, outcome)]
            assert released == [0]

    asyncio.run(run())
