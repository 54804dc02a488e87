"""A runtime on a virtual loop, with an executor that follows a latency table and can be made to fail."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from sluice.batcher.interface.config import (
    Limits,
    PartitionConfig,
    PipelineConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
)
from sluice.batcher.interface.decisions import AnyDecision, DispatchBatch, Member
from sluice.batcher.interface.events import AnyEvent, PartitionReady
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.observability.traces.trace import Trace
from sluice.gateway.protocol.answer import Answer, Tensor
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.runtime.driver import Runtime
from sluice.gateway.tensors.combiner import Combined
from sluice.gateway.tensors.request_tensors import BatchOutputs
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS
from tests.support.gateway.inventory import PlayedInventory
from tests.support.gateway.timed_executor import TimedExecutor
from tests.support.scheduling.services import WithoutConfidences
from tests.support.scheduling.virtual_time import VirtualAlarm, VirtualLoop

TABLE = LatencyTable.from_ms({1: 2.0, 8: 4.0})
READY = PartitionReady("cpu0", {"mlp:1": TABLE})
STAGES = {
    "mlp:1": (StageConfig("mlp", "mlp:1"),),
    "ensemble:1": (
        StageConfig("a", "mlp:1"),
        StageConfig("b", "mlp:1"),
        StageConfig("vote", None, (0, 1)),
        StageConfig("again", None, (0, 2)),
    ),
}
SPEC = SchedulerSpec(
    (ScheduledModel("mlp:1", 8, DeadlineSettings()),),
    tuple(PipelineConfig(name, stages) for name, stages in STAGES.items()),
    (PartitionConfig("cpu0", "cpu1"),),
    Limits(memory_bytes=20_000),
)


class TableService(WithoutConfidences):
    """All batches take the time of a table, and none has a verdict."""

    def __init__(self, table: LatencyTable = TABLE) -> None:
        self._table = table

    def batch_ns(self, batch: DispatchBatch) -> int:
        return self._table.latency_ns(batch.rows)


class Refusing(TimedExecutor):
    """Fails on batches of more than `limit` rows, on outputs when `torn`, and on combining `unjoined` requests."""

    limit = 8
    error: type[Exception] = MemoryError
    torn = False
    unjoined: tuple[int, ...] = ()

    def admit(
        self,
        request: int,
        pipeline: str,
        inputs: Mapping[str, Tensor],
        rows: int,
        input_bytes: int,
        shared: BatchOutputs | None = None,
    ) -> int:
        return 1000 * rows

    def run(self, batch: DispatchBatch) -> None:
        if batch.rows > self.limit:
            raise self.error("no room for the inputs")
        super().run(batch)

    def combine(self, members: Sequence[Member]) -> list[Combined | Exception]:
        error = ValueError("answers of the shapes [1, 2], [1, 3] cannot be joined")
        combined = super().combine(members)
        return [
            error if member.request in self.unjoined else result
            for member, result in zip(members, combined, strict=True)
        ]

    def take_outputs(self, request: int) -> tuple[Mapping[str, Tensor], Callable[[], None]]:
        if self.torn:
            raise KeyError("probs")
        return super().take_outputs(request)


class Steps:
    def __init__(self) -> None:
        self.steps: list[tuple[int, AnyEvent | None, list[AnyDecision]]] = []

    def record(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        self.steps.append((now_ns, event, decisions))

    def batches(self) -> list[DispatchBatch]:
        return [each for _, _, decisions in self.steps for each in decisions if isinstance(each, DispatchBatch)]


class FullDisk(Steps):
    """Fails from the third step on, as a full disk does."""

    def record(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        super().record(now_ns, event, decisions)
        if len(self.steps) > 2:
            raise OSError(28, "No space left on device")


class Bench:
    """A runtime on a virtual loop."""

    def __init__(
        self,
        loop: VirtualLoop,
        executor: type[TimedExecutor] = TimedExecutor,
        steps: type[Steps] = Steps,
        trace_requests: int = 10,
        on_ended: Callable[[Trace], None] | None = None,
    ) -> None:
        self.loop = loop
        self.steps = steps()
        self.executor = executor(TableService(), loop.clock, [READY])
        stages = {name: [stage.name for stage in stages] for name, stages in STAGES.items()}
        self.metrics = ServerMetrics(stages, ["cpu0"], queues=tuple, arena_bytes=int)
        self.inventory = PlayedInventory("cpu0")
        self.runtime = Runtime(
            Scheduler(SPEC),
            self.executor,
            clock=loop.clock,
            timer=VirtualAlarm(loop),
            metrics=self.metrics,
            inventory=self.inventory,
            observe=self.steps.record,
            trace_requests=trace_requests,
            on_ended=on_ended,
        )
        self.runtime.start()

    def submit(
        self, rows: int = 1, slo_ms: int = 1000, pipeline: str = "mlp:1", memory_bytes: int = 0
    ) -> tuple[int, asyncio.Future[Answer]]:
        options = RequestOptions((), rows, "", memory_bytes, slo_ms * NS_PER_MS)
        submission = self.runtime.submit(pipeline, {}, options)
        return submission.request, submission.future


def outcomes(bench: Bench) -> dict[Outcome, int]:
    return {outcome: count for outcome, count in bench.metrics.meters.pipeline("mlp:1").outcomes.items() if count}
