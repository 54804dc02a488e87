"""A server whose counters, scheduler and time are played by a test, for the overview of it."""

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from sluice.batcher.interface.config import (
    PartitionConfig,
    PipelineConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
    WhenConfig,
)
from sluice.batcher.interface.decisions import DispatchBatch, ReleaseReason
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.planner_config import PlannerConfig
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.gateway.deployment.registry import ModelRegistry
from sluice.gateway.observability.meters import Meters
from sluice.gateway.observability.traces.trace import BatchTrace, RecentTraces
from sluice.gateway.overview.document import Overview, Question, Reply
from sluice.gateway.overview.pieces import at_once
from sluice.gateway.overview.sources import Sources
from sluice.models.pipelines.pipeline import REQUEST, Pipeline
from sluice.models.repository.scan import BrokenEntry
from sluice.models.units import NS_PER_MS, NS_PER_S, ms_to_ns
from sluice.mps.supervisor.quarantine import Quarantined
from tests.support.gateway.inventory import PlayedInventory

DAY_NS = 1_700_000_000 * NS_PER_S
"""The time of day at 0 of the clock."""


def overview_sources(registry: ModelRegistry, inventory: PlayedInventory, **parts: Any) -> Sources:
    """Sources of an overview, with an empty scheduler and a clock that stands unless `parts` say otherwise."""
    spec = SchedulerSpec((), (), tuple(PartitionConfig(name, "cpu1") for name in inventory.names))
    scheduler: Scheduler = parts.pop("scheduler", None) or Scheduler(spec)
    defaults: dict[str, Any] = {
        "meters": Meters({}, inventory.names),
        "traces": RecentTraces(8),
        "in_flight": lambda: 0,
        "headrooms": dict,
        "has_failed": lambda: False,
        "quarantined": dict,
        "watch_batches": lambda watch: None,
        "clock": lambda: 0,
        "time_of_day": lambda: DAY_NS,
    }
    return Sources(registry, inventory, scheduler, **{**defaults, **parts})


class PlayedServer:
    """Pipelines on partitions that hold all their models; time stands at `now_ns` until `tick`.

    Those that are `remote` have no workers yet.
    """

    def __init__(
        self,
        *pipelines: Pipeline,
        partitions: Sequence[str] = ("cpu0",),
        broken: Sequence[BrokenEntry] = (),
        remote: Sequence[str] = (),
        planner: PlannerConfig | None = None,
    ) -> None:
        models = list(dict.fromkeys(key for each in pipelines for stage in each.stages for key in stage.models))
        self.inventory = PlayedInventory(*partitions, remote=remote)
        self.registry = ModelRegistry("1.2.3", pipelines, broken, self.inventory)
        for name in partitions:
            if name not in remote:
                self.inventory.partition_ready(name, models)
        spec = SchedulerSpec(
            tuple(ScheduledModel(key, 8, DeadlineSettings()) for key in models),
            tuple(map(scheduled, pipelines)),
            tuple(PartitionConfig(name, "cpu1", memory_bytes=1000) for name in partitions),
            planner=planner or PlannerConfig(),
        )
        self.scheduler = Scheduler(spec, LivePlanner())
        self.meters = Meters(
            {pipeline.key: [stage.name for stage in pipeline.stages] for pipeline in pipelines}, partitions
        )
        self.traces = RecentTraces(100)
        self.quarantined: dict[str, Quarantined] = {}
        self.headrooms: dict[str, float] = {}
        self.now_ns = 0
        self.day_ns = DAY_NS
        self.watched: Callable[[BatchTrace], None] | None = None
        self.sources = overview_sources(
            self.registry,
            self.inventory,
            scheduler=self.scheduler,
            meters=self.meters,
            traces=self.traces,
            in_flight=lambda: 3,
            headrooms=lambda: self.headrooms,
            quarantined=lambda: self.quarantined,
            watch_batches=self._watch,
            clock=lambda: self.now_ns,
            time_of_day=lambda: self.day_ns + self.now_ns,
        )
        self.overview = Overview(self.sources, DAY_NS)
        at_once(self.overview.begin(self.now_ns, DAY_NS))

    def end(self, pipeline: str, outcome: Outcome, count: int = 1, *, ms: float = 1.0) -> None:
        """Let requests of a pipeline end."""
        for _ in range(count):
            self.meters.pipelines[pipeline].request_ended(outcome, ms_to_ns(ms))

    def run(self, model: str, rows: int, *, at_ms: float, ms: float, partition: str = "cpu0", number: int = 0) -> None:
        """Let a batch complete that started at a time of the clock."""
        batch = DispatchBatch(number, partition, model, rows, (), ReleaseReason.IDLE)
        self.meters.batch_completed(batch, ms_to_ns(ms))
        run = BatchTrace(batch, ms_to_ns(at_ms), started_ns=ms_to_ns(at_ms), ended_ns=ms_to_ns(at_ms + ms))
        self.overview.timeline.batch_ended(run)

    def tick(self, seconds: int = 1) -> None:
        """Let seconds pass, with a tick after each."""
        for _ in range(seconds):
            self.now_ns += NS_PER_S
            at_once(self.overview.tick(self.now_ns, self.day_ns + self.now_ns))

    def reply(self, question: Question) -> Reply:
        """The reply to a question."""
        return at_once(self.overview.reply(question))

    def document(self, pipeline: str = "", since_s: float | None = None, bars_since: int | None = None) -> Any:
        """The document, read."""
        return orjson.loads(self.reply(Question(pipeline, since_s, bars_since)).body)

    def _watch(self, watch: Callable[[BatchTrace], None] | None) -> None:
        self.watched = watch


def scheduled(pipeline: Pipeline) -> PipelineConfig:
    """A pipeline as the scheduler knows it, without its confidences."""
    index = {stage.name: number for number, stage in enumerate(pipeline.stages)}
    stages = [
        StageConfig(
            stage.name,
            stage.model,
            tuple(index[each.stage] for each in stage.inputs.values() if each.stage != REQUEST),
            None if stage.when is None else WhenConfig(index[stage.when.stage], 0, stage.when.below),
        )
        for stage in pipeline.stages
    ]
    return PipelineConfig(pipeline.key, tuple(stages), slo_ns=round((pipeline.slo_ms or 0) * NS_PER_MS))
