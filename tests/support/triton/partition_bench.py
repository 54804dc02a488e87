"""A Triton partition in front of a fake server, for tests."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import wraps
from time import monotonic_ns
from typing import Any, cast

import grpc
import numpy as np

from sluice.batcher.interface.config import ConfidenceSpec
from sluice.batcher.interface.decisions import DispatchBatch, Member, ReleaseReason
from sluice.batcher.interface.events import AnyEvent, PartitionReady
from sluice.gateway.config.triton_settings import TritonSettings
from sluice.gateway.executors.triton.partition import TritonPartition
from sluice.gateway.partitions.inventory import NO_DETAILS, PartitionEvent, ProcessDetails
from sluice.gateway.tensors.assembly import Assembly
from sluice.gateway.tensors.input_slots import InputSlots
from sluice.gateway.tensors.pipeline_wiring import REQUEST_STAGE, PipelineWiring, StageWiring, TensorRef
from sluice.models.pipelines.memory import OutputMemory
from sluice.models.pipelines.pipeline import Confidence
from sluice.models.spec import ModelSpec
from sluice.models.tensors.arrays import WireBytes
from tests.support.gateway.assembly_bench import LocalRegions
from tests.support.gateway.inventory import summary
from tests.support.triton.fake_server import FakeTriton, M, Refusal, double, serving_fake

PLAN = PipelineWiring(
    True,
    (StageWiring({"x": TensorRef(REQUEST_STAGE, "x")}, None, "", ()),),
    {"y": (TensorRef(0, "y"),)},
    OutputMemory(0, 8),
)


class Bench:
    """A partition in front of a fake server, and a queue of its reports."""

    def __init__(self, fake: FakeTriton, port: int, specs: Mapping[str, ModelSpec], timeout_s: float) -> None:
        self.fake = fake
        self.reported: list[str] = []
        self._events: asyncio.Queue[AnyEvent] = asyncio.Queue()
        # Inputs for Triton take no slot of the arena.
        self.assembly = Assembly({f"{key}": PLAN for key in specs}, specs, InputSlots(LocalRegions(), 4096))
        settings = TritonSettings("t", f"127.0.0.1:{port}", timeout_s=timeout_s)
        verdicts = {"m:1": (ConfidenceSpec("y", Confidence.MAX),)}
        self.partition = TritonPartition(settings, specs, verdicts, self.assembly, monotonic_ns)
        self._batches = 0

    def report(self, event: AnyEvent, details: ProcessDetails = NO_DETAILS, /) -> None:
        self._events.put_nowait(event)
        if isinstance(event, PartitionEvent):
            self.reported += summary(event, details)

    async def event(self) -> AnyEvent:
        async with asyncio.timeout(60):
            return await self._events.get()

    def start(self) -> None:
        self.partition.start(self.report)

    async def ready(self) -> PartitionReady:
        self.start()
        event = await self.event()
        assert isinstance(event, PartitionReady)
        return event

    def send(self, *requests: float, model: str = "m:1") -> int:
        """Send a batch with one single-row request for each number, filled with the number."""
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
        tensors, _ = self.assembly.take_outputs(100 * batch + number)
        y = tensors["y"]
        assert not isinstance(y, WireBytes)
        return cast("list[Any]", y.tolist())


def benched(
    specs: Mapping[str, ModelSpec] | None = None, timeout_s: float = 5.0, memory: bool = False
) -> Callable[[Callable[[Bench], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Decorate a test to run with a partition in front of a fake server."""

    def decorate(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        async def main() -> None:
            fake = FakeTriton()
            fake.memory = {} if memory else None
            async with serving_fake(fake) as port:
                bench = Bench(fake, port, specs or {"m:1": M}, timeout_s)
                try:
                    await test(bench)
                finally:
                    await bench.partition.drain()

        # Without functools.wraps, with which pytest would look for a fixture named like the argument.
        def run() -> None:
            asyncio.run(main())

        return run

    return decorate


def answers(*first: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """Each function answers one batch; later batches get the right answer."""
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
