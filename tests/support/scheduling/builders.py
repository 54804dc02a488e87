"""Builders for tests of the scheduler: short specs, events, decisions, and one step of a driver."""

from collections.abc import Mapping, Sequence

import msgspec

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.interface.config import (
    ConfidenceSpec,
    Limits,
    PartitionConfig,
    PipelineConfig,
    PolicyConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
    WhenConfig,
)
from sluice.batcher.interface.decisions import AnyDecision, BuildPlan, DispatchBatch, Member, ReleaseReason
from sluice.batcher.interface.events import (
    AnyEvent,
    BatchCompleted,
    PartitionReady,
    PlanBuilt,
    RequestArrived,
)
from sluice.batcher.interface.plan_data import CostToGo, PipelinePlan, Plan, StagePlan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Confidence, Late
from sluice.models.profiles.latency_table import LatencyTable

US = 1_000
MS = 1_000_000
S = 1_000_000_000

ONE = LatencyTable.from_ms({1: 1})
"""1 ms for every batch size."""
GAINING = LatencyTable.from_ms({1: 1, 2: 1.1, 4: 1.2, 8: 1.4})
"""A model that gains from batching up to 8 rows."""
CERTAINTY = ConfidenceSpec("probs", Confidence.MAX)


def model(
    key: str, max_batch: int = 8, policy: PolicyConfig | None = None, *, confidences: tuple[ConfidenceSpec, ...] = ()
) -> ScheduledModel:
    return ScheduledModel(key, max_batch, policy or DeadlineSettings(), confidences)


def single(
    key: str, late: Late = Late.SERVE, *, name: str = "", keyed: bool = False, weight: float = 1.0
) -> PipelineConfig:
    """A pipeline of a single model, named after the model unless `name` is given."""
    stage = StageConfig(key.partition(":")[0], key, request_keyed=keyed)
    return PipelineConfig(name or key, (stage,), late, weight=weight)


def cascade(*keys: str, name: str = "cascade:1", below: float = 0.9, late: Late = Late.SERVE) -> PipelineConfig:
    """A cascade: each model runs for the rows with a low confidence of the model before."""
    stages = [
        StageConfig(key, key, when=WhenConfig(index - 1, 0, below) if index else None) for index, key in enumerate(keys)
    ]
    return PipelineConfig(name, tuple(stages), late)


def chain(*keys: str, name: str = "chain:1", slo_ns: int = 0) -> PipelineConfig:
    """A chain: each model runs on the outputs of the model before, for all rows."""
    stages = [StageConfig(f"{key}#{index}", key, (index - 1,) if index else ()) for index, key in enumerate(keys)]
    return PipelineConfig(name, tuple(stages), slo_ns=slo_ns)


def stage_plan(model_key: str, rest: CostToGo | None = None) -> StagePlan:
    """A stage of a plan, the last one without `rest`; the scheduler uses the model and the rest only."""
    return StagePlan(model_key, 1, "cpu1", MS, 0.001, rest or CostToGo((0,), (0.0,)))


def pipeline_plan(name: str, *stages: StagePlan) -> PipelinePlan:
    return PipelinePlan(name, stages, len(stages) * MS, 0.001 * len(stages), True)


def ensemble(*keys: str, name: str = "ensemble:1", late: Late = Late.SERVE, partial: bool = False) -> PipelineConfig:
    """An ensemble: all models run, and a combiner joins their outputs."""
    members = tuple(StageConfig(f"{key}#{index}", key) for index, key in enumerate(keys))
    return PipelineConfig(name, (*members, StageConfig("vote", None, tuple(range(len(keys))), partial=partial)), late)


def spec_of(
    models: Sequence[ScheduledModel],
    pipelines: Sequence[PipelineConfig] = (),
    *,
    partitions: Sequence[str | PartitionConfig] = ("cpu0",),
    limits: Limits | None = None,
) -> SchedulerSpec:
    """A spec; a partition given by name is of kind `cpu1`, and without pipelines each model has its own."""
    keys = tuple(config.key for config in models)
    return SchedulerSpec(
        tuple(models),
        tuple(pipelines) or tuple(single(key) for key in keys),
        tuple(PartitionConfig(each, "cpu1") if isinstance(each, str) else each for each in partitions),
        limits or Limits(),
    )


def serving(spec: SchedulerSpec, tables: LatencyTable | Mapping[str, LatencyTable]) -> Scheduler:
    """A scheduler whose partitions are ready since 0 ns; a single table applies to every model."""
    scheduler = Scheduler(spec)
    if isinstance(tables, LatencyTable):
        tables = {config.key: tables for config in spec.models}
    ready = [PartitionReady(partition.name, dict(tables)) for partition in spec.partitions]
    assert step(scheduler, 0, *ready) == []
    return scheduler


def planned(
    spec: SchedulerSpec, tables: Mapping[str, Mapping[str, LatencyTable]], plan: Plan | None = None
) -> Scheduler:
    """A scheduler with a planner, whose partitions are up since 0 ns with the tables of their kinds; it goes by `plan`.

    What is observed is looked at again from 1 s on.
    """
    scheduler = Scheduler(spec, LivePlanner())
    ready = [PartitionReady(partition.name, dict(tables[partition.kind])) for partition in spec.partitions]
    (order,) = step(scheduler, 0, *ready)
    assert isinstance(order, BuildPlan)
    assert step(scheduler, 0, PlanBuilt(order.build, plan or Plan(()))) == []
    return scheduler


def step(scheduler: Scheduler, now_ns: int, *events: AnyEvent) -> list[AnyDecision]:
    """The decisions on the events of one instant and, when one is due, on the wake-up after them.

    The predicted end of a batch is set to 0, so that tests need not state it.
    """
    decisions: list[AnyDecision] = []
    for event in events:
        decisions += scheduler.handle(event, now_ns)
        check_invariants(scheduler)
    due_ns = scheduler.next_wakeup_ns()
    if due_ns is not None and due_ns <= now_ns:
        decisions += scheduler.handle_wakeup(now_ns)
        check_invariants(scheduler)
        due_ns = scheduler.next_wakeup_ns()
        assert due_ns is None or due_ns > now_ns
    return [
        msgspec.structs.replace(decision, predicted_ns=0) if isinstance(decision, DispatchBatch) else decision
        for decision in decisions
    ]


def arrival(
    request: int, deadline_ns: int, pipeline: str = "m:1", *, rows: int = 1, key: str = "", memory_bytes: int = 0
) -> RequestArrived:
    return RequestArrived(request, pipeline, rows, deadline_ns, key, memory_bytes)


def dispatch(
    batch: int,
    members: Sequence[Member | int],
    reason: ReleaseReason = ReleaseReason.IDLE,
    *,
    model: str = "m:1",
    partition: str = "cpu0",
) -> DispatchBatch:
    """The decision to dispatch a batch; a number as member is a request with one row in its first stage."""
    parts = tuple(member if isinstance(member, Member) else Member(member, 0, 1) for member in members)
    return DispatchBatch(batch, partition, model, sum(part.rows for part in parts), parts, reason)


def completed(batch: int, started_ns: int, ended_ns: int, *confidences: float) -> BatchCompleted:
    """The completion of a batch with at most one output of confidences."""
    return BatchCompleted(batch, started_ns, ended_ns, (confidences,) if confidences else ())
