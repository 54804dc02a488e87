import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import wraps
from time import monotonic_ns
from typing import Any, cast

import grpc
import numpy as np
import pytest

from batcher.config import Verdict
from batcher.decisions import DispatchBatch, Member, ReleaseReason
from batcher.events import (
    AnyEvent,
    BatchCompleted,
    BatchFailed,
    BatchRevoked,
    FailureCause,
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
)
from gateway.assembly import Assembly
from gateway.executors import triton_partition
from gateway.executors.triton_partition import Breaker, TritonPartition
from gateway.executors.triton_settings import TritonSettings
from gateway.input_slots import InputSlots
from gateway.plan import OF_REQUEST, PipelinePlan, StagePlan, Wire
from models.arrays import WireBytes
from models.errors import PartitionError
from models.pipeline import Confidence
from models.pipeline_memory import OutputMemory
from models.spec import ModelSpec
from tests.support.fake_triton import NOT_HEALTHY, FakeTriton, M, N, Refusal, answer_of, double, serving_fake

PLAN = PipelinePlan(
    True, (StagePlan({"x": Wire(OF_REQUEST, "x")}, None, "", ()),), {"y": (Wire(0, "y"),)}, OutputMemory(0, 8)
)


class Bench:
    """A partition in front of a fake server, and a queue of what it reported."""

    def __init__(self, fake: FakeTriton, port: int, specs: Mapping[str, ModelSpec], timeout_s: float) -> None:
        self.fake = fake
        self.told: list[str] = []
        self._events: asyncio.Queue[AnyEvent] = asyncio.Queue()
        # What goes to Triton takes no slot of the arena.
        self.assembly = Assembly({f"{key}": PLAN for key in specs}, specs, cast("InputSlots", None))
        settings = TritonSettings("t", f"127.0.0.1:{port}", timeout_s=timeout_s)
        verdicts = {"m:1": (Verdict("y", Confidence.MAX),)}
        self.partition = TritonPartition(settings, specs, verdicts, self.assembly, self, monotonic_ns)
        self._batches = 0

    def triton_ready(self, partition: str, url: str, loaded: Sequence[str], failed: Mapping[str, str]) -> None:
        self.told.append(f"{partition} ready {','.join(loaded)}" + "".join(f"; {k}: {v}" for k, v in failed.items()))

    def triton_lost(self, partition: str, url: str, reason: str) -> None:
        self.told.append(f"{partition} lost: {reason}")

    def model_loaded(self, partition: str, model: str) -> None:
        self.told.append(f"{partition} loaded {model}")

    def model_load_failed(self, partition: str, model: str, reason: str) -> None:
        self.told.append(f"{partition} did not load {model}: {reason}")

    def model_unloaded(self, partition: str, model: str) -> None:
        self.told.append(f"{partition} unloaded {model}")

    async def event(self) -> AnyEvent:
        async with asyncio.timeout(10):
            return await self._events.get()

    async def ready(self) -> PartitionReady:
        self.partition.start(self._events.put_nowait)
        event = await self.event()
        assert isinstance(event, PartitionReady)
        return event

    def send(self, *requests: float, model: str = "m:1") -> int:
        """A batch with a request of one row for each number, whose values are that number."""
        self._batches += 1
        members = []
        for number, value in enumerate(requests):
            request = 100 * self._batches + number
            self.assembly.admit(request, model, {"x": np.full((1, 2), value, np.float32)}, 1, 8)
            members.append(Member(request, 0, 1))
        batch = DispatchBatch(self._batches, "t", model, len(members), tuple(members), ReleaseReason.IDLE)
        self.partition.run(batch)
        return self._batches

    def taken(self, batch: int, number: int = 0) -> list[Any]:
        tensors, _ = self.assembly.take(100 * batch + number)
        y = tensors["y"]
        assert not isinstance(y, WireBytes)
        return cast("list[Any]", y.tolist())


def benched(
    specs: Mapping[str, ModelSpec] | None = None, timeout_s: float = 5.0
) -> Callable[[Callable[[Bench], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Run a test in front of a fake server."""

    def decorate(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        async def main() -> None:
            fake = FakeTriton()
            async with serving_fake(fake) as port:
                bench = Bench(fake, port, specs or {"m:1": M}, timeout_s)
                try:
                    await test(bench)
                finally:
                    await bench.partition.drain()

        # Not functools.wraps: pytest would look for a fixture of the name of the argument.
        def run() -> None:
            asyncio.run(main())

        return run

    return decorate


def answers(*first: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """Each of these answers one batch; then all is well."""
    waiting = list(first)

    @wraps(double)
    async def answer(request: Any) -> Any:
        return await (waiting.pop(0) if waiting else double)(request)

    return answer


def refusing(code: grpc.StatusCode, words: str) -> Callable[[Any], Awaitable[Any]]:
    async def refuse(request: Any) -> Any:
        raise Refusal(code, words)

    return refuse


def saying(answer: Any) -> Callable[[Any], Awaitable[Any]]:
    async def say(request: Any) -> Any:
        return answer

    return say


async def hang(request: Any) -> Any:
    await asyncio.Event().wait()


@benched()
async def test_a_server_is_ready_with_a_table_of_every_batch_size(bench: Bench) -> None:
    ready = await bench.ready()
    assert [size for size, _ in ready.tables["m:1"].cells] == [1, 2, 4]
    assert bench.told == ["t ready m:1"]
    assert bench.partition.breaker is Breaker.CLOSED
    assert bench.fake.calls == []


@benched()
async def test_a_model_that_the_server_does_not_hold_is_loaded(bench: Bench) -> None:
    bench.fake.ready.clear()
    await bench.ready()
    assert bench.fake.calls == ["load m"]


@benched()
async def test_a_batch_is_one_call_with_the_rows_side_by_side(bench: Bench) -> None:
    await bench.ready()
    bench.fake.batches.clear()
    batch = bench.send(0.25, 0.5)
    event = await bench.event()
    assert isinstance(event, BatchCompleted)
    assert (event.batch, event.verdicts, event.batch_key) == (batch, ((0.5, 1.0),), "")
    assert event.started_ns < event.ended_ns
    assert (bench.taken(batch), bench.taken(batch, 1)) == ([[0.5, 0.5]], [[1.0, 1.0]])
    (request,) = bench.fake.batches
    assert (request.model_name, request.model_version) == ("m", "1")
    assert [(each.name, each.datatype, list(each.shape)) for each in request.inputs] == [("x", "FP32", [2, 2])]
    assert [each.name for each in request.outputs] == ["y"]


@benched()
async def test_what_the_model_refuses_fails_the_batch_and_nothing_else(bench: Bench) -> None:
    await bench.ready()
    bench.fake.answer = answers(refusing(grpc.StatusCode.INVALID_ARGUMENT, "bad row"))
    batch = bench.send(1)
    assert await bench.event() == BatchFailed(batch, FailureCause.BACKEND, "m:1: bad row")
    batch = bench.send(1)
    assert isinstance(await bench.event(), BatchCompleted)


@benched(timeout_s=0.1)
async def test_a_batch_that_is_not_answered_opens_the_breaker_until_the_server_is_well(bench: Bench) -> None:
    await bench.ready()
    bench.fake.answer = answers(hang)
    batch = bench.send(1)
    reason = "no answer within 0.1 s"
    assert await bench.event() == PartitionLost("t", reason)
    assert await bench.event() == BatchFailed(batch, FailureCause.WORKER_LOST, reason)
    with pytest.raises(PartitionError, match="t is not in service"):
        bench.send(1)
    assert isinstance(await bench.event(), PartitionReady)
    assert bench.told == ["t ready m:1", f"t lost: {reason}", "t ready m:1"]


@benched()
async def test_an_answer_that_makes_no_sense_opens_the_breaker(bench: Bench) -> None:
    await bench.ready()
    bench.fake.answer = answers(saying(answer_of(np.zeros(2, np.float32), [1, 2], "z")))
    batch = bench.send(1)
    assert await bench.event() == PartitionLost("t", "m:1: the answer has no output 'y'")
    assert await bench.event() == BatchFailed(batch, FailureCause.WORKER_LOST, "m:1: the answer has no output 'y'")
    assert isinstance(await bench.event(), PartitionReady)


@benched()
async def test_all_batches_of_a_lost_server_fail_in_their_order(bench: Bench) -> None:
    await bench.ready()
    bench.fake.answer = answers(hang, refusing(grpc.StatusCode.UNAVAILABLE, "Socket closed"))
    first, second = bench.send(1), bench.send(1)
    assert await bench.event() == PartitionLost("t", "Socket closed")
    failed = [await bench.event(), await bench.event()]
    assert failed == [BatchFailed(batch, FailureCause.WORKER_LOST, "Socket closed") for batch in (first, second)]


@benched()
async def test_a_model_that_died_is_unloaded_and_loaded(bench: Bench) -> None:
    await bench.ready()
    bench.fake.answer = answers(refusing(grpc.StatusCode.INTERNAL, NOT_HEALTHY))
    batch = bench.send(1)
    assert await bench.event() == PartitionLost("t", f"m:1: {NOT_HEALTHY}")
    assert await bench.event() == BatchFailed(batch, FailureCause.WORKER_LOST, f"m:1: {NOT_HEALTHY}")
    assert isinstance(await bench.event(), PartitionReady)
    assert bench.fake.calls == ["unload m", "load m"]


@benched()
async def test_a_model_that_is_dead_already_is_found_when_it_is_tried(bench: Bench) -> None:
    bench.fake.answer = answers(refusing(grpc.StatusCode.INTERNAL, NOT_HEALTHY))
    await bench.ready()
    assert bench.fake.calls == ["unload m", "load m"]


@benched({"m:1": M, "n:1": N})
async def test_a_model_that_does_not_come_up_leaves_the_rest_alone_and_is_tried_again(bench: Bench) -> None:
    bench.fake.load_refusal = Refusal(grpc.StatusCode.INTERNAL, "failed to load 'n', no such file")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_partition, "FIRST_RETRY_S", 0.01)
        ready = await bench.ready()
        assert list(ready.tables) == ["m:1"]
        assert bench.told == ["t ready m:1; n:1: failed to load 'n', no such file"]
        bench.fake.load_refusal = None
        event = await bench.event()
    assert isinstance(event, ModelLoaded)
    assert (event.partition, event.model) == ("t", "n:1")


@benched()
async def test_models_are_loaded_and_unloaded_as_ordered(bench: Bench) -> None:
    await bench.ready()
    bench.partition.unload("m:1")
    assert await bench.event() == ModelUnloaded("t", "m:1")
    bench.fake.load_refusal = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "no room")
    bench.partition.load("m:1")
    assert await bench.event() == ModelLoadFailed("t", "m:1", "no room")
    bench.fake.load_refusal = None
    bench.partition.load("m:1")
    assert isinstance(await bench.event(), ModelLoaded)
    assert bench.fake.calls == ["unload m", "load m", "load m"]


@benched()
async def test_only_a_batch_that_waits_behind_another_is_taken_back(bench: Bench) -> None:
    await bench.ready()
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(request: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await double(request)

    bench.fake.answer = answers(wait, hang)
    first, second = bench.send(1), bench.send(1)
    await begun.wait()
    bench.partition.revoke(first)
    bench.partition.revoke(second)
    assert await bench.event() == BatchRevoked(second)
    go_on.set()
    event = await bench.event()
    assert isinstance(event, BatchCompleted)
    assert event.batch == first


def test_a_server_that_is_not_there_is_reported_once_and_found_when_it_comes() -> None:
    async def main() -> None:
        fake = FakeTriton()
        async with serving_fake(fake) as port:
            pass
        bench = Bench(fake, port, {"m:1": M}, 5.0)
        events: asyncio.Queue[AnyEvent] = asyncio.Queue()
        tried = asyncio.Event()
        tries = [0]
        check = bench.partition._client.check_server

        async def counted() -> None:
            tries[0] += 1
            if tries[0] == 3:
                tried.set()
            await check()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bench.partition._client, "check_server", counted)
            patch.setattr(triton_partition, "LAST_PROBE_S", 0.05)
            bench.partition.start(events.put_nowait)
            async with asyncio.timeout(10):
                assert isinstance(await events.get(), PartitionLost)
                await tried.wait()
                assert events.empty()
                assert bench.partition.breaker is not Breaker.CLOSED
                async with serving_fake(fake, port):
                    assert isinstance(await events.get(), PartitionReady)
                    await bench.partition.drain()

    asyncio.run(main())
