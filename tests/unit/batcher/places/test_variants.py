"""A request that asks for an accuracy is run by the cheapest variant that reaches it in time."""

import random

import pytest

from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, StageConfig
from sluice.batcher.interface.decisions import AnyDecision, DispatchBatch, RejectRequest
from sluice.batcher.interface.events import AnyEvent, PartitionLost, PartitionReady, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.loadgen.papers.engines.virtual_gateway import VirtualGateway
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, S, model, spec_of, step

ACCURACIES = {"large:1": 0.95, "medium:1": 0.9, "small:1": 0.8}
TABLES = {
    "large:1": LatencyTable.from_ms({1: 20}),
    "medium:1": LatencyTable.from_ms({1: 8}),
    "small:1": LatencyTable.from_ms({1: 2}),
}


def family(partitions: int = 1) -> Scheduler:
    """A family of three variants, on partitions that hold all of them."""
    stage = StageConfig("classify", "large:1", variants=tuple(ACCURACIES), accuracies=tuple(ACCURACIES.values()))
    names = [f"cpu{number}" for number in range(partitions)]
    models = [model(key, 1) for key in ACCURACIES]
    scheduler = Scheduler(spec_of(models, [PipelineConfig("family:1", (stage,))], partitions=names))
    step(scheduler, 0, *(PartitionReady(name, dict(TABLES)) for name in names))
    return scheduler


def asks(request: int, min_accuracy: float, deadline_ns: int = S, max_cost: float | None = None) -> RequestArrived:
    return RequestArrived(request, "family:1", 1, deadline_ns, max_cost=max_cost, min_accuracy=min_accuracy)


@pytest.mark.parametrize(
    ("min_accuracy", "key"),
    [(0.0, "large:1"), (0.5, "small:1"), (0.8, "small:1"), (0.81, "medium:1"), (0.95, "large:1")],
)
def test_the_cheapest_variant_runs_that_is_accurate_enough(min_accuracy: float, key: str) -> None:
    (batch,) = step(family(), 0, asks(1, min_accuracy))
    assert isinstance(batch, DispatchBatch)
    assert batch.model == key


def test_the_next_variant_runs_where_the_cheapest_would_be_late() -> None:
    stage = StageConfig("classify", "quick:1", variants=("quick:1", "slow:1"), accuracies=(0.9, 0.9))
    partitions = (PartitionConfig("cheap", "c"), PartitionConfig("dear", "d", price=9.0))
    scheduler = Scheduler(
        spec_of(
            [model("quick:1", 1), model("slow:1", 1)], [PipelineConfig("family:1", (stage,))], partitions=partitions
        )
    )
    step(scheduler, 0, PartitionReady("cheap", {"slow:1": LatencyTable.from_ms({1: 20})}))
    step(scheduler, 0, PartitionReady("dear", {"quick:1": LatencyTable.from_ms({1: 5})}))
    for request, deadline_ns, key in ((1, 30 * MS, "slow:1"), (2, 10 * MS, "quick:1")):
        (batch,) = step(scheduler, 0, asks(request, 0.9, deadline_ns))
        assert isinstance(batch, DispatchBatch)
        assert batch.model == key


def test_an_accuracy_is_not_given_up_for_time_or_cost() -> None:
    scheduler = family()
    for request, deadline_ns, max_cost, outcome in (
        (1, 15 * MS, None, Outcome.REJECTED_DEADLINE),
        (2, S, 0.01, Outcome.REJECTED_COST),
    ):
        (rejection,) = step(scheduler, 0, asks(request, 0.95, deadline_ns, max_cost))
        assert isinstance(rejection, RejectRequest)
        assert rejection.outcome is outcome
    (batch,) = step(scheduler, 0, asks(3, 0.8, 15 * MS, 0.01))
    assert isinstance(batch, DispatchBatch)
    assert batch.model == "small:1"


def test_a_variant_that_no_partition_holds_does_not_count() -> None:
    scheduler = family()
    step(scheduler, 0, PartitionLost("cpu0", "killed"))
    (rejection,) = step(scheduler, 0, asks(1, 0.8))
    assert isinstance(rejection, RejectRequest)
    assert rejection.outcome is Outcome.REJECTED_UNAVAILABLE
    assert rejection.reason == "no partition holds models with an accuracy of 0.8 or more for all stages"


def test_a_request_that_waits_keeps_its_variant() -> None:
    scheduler = family()
    step(scheduler, 0, asks(1, 0.95))
    assert step(scheduler, 0, asks(2, 0.9)) == []
    assert [entry.queue_key[0] for entry in scheduler.requests[2].entries] == ["medium:1"]


def test_no_failure_makes_a_variant_less_accurate_and_a_replay_decides_alike() -> None:
    chance = random.Random(7)
    stage = StageConfig("classify", "large:1", variants=tuple(ACCURACIES), accuracies=tuple(ACCURACIES.values()))
    names = ("cpu0", "cpu1")
    spec = spec_of([model(key, 4) for key in ACCURACIES], [PipelineConfig("family:1", (stage,))], partitions=names)
    steps: list[tuple[int, AnyEvent | None, list[AnyDecision]]] = []
    gateway = VirtualGateway(
        spec,
        dict.fromkeys(names, TABLES),
        observe=lambda now_ns, event, decisions: steps.append((now_ns, event, decisions)),
        fails=lambda batch: batch % 5 == 0,
    )
    arrivals = [
        (number * 5 * MS, asks(number, chance.choice((0.7, 0.85, 0.95)), number * 5 * MS + 200 * MS))
        for number in range(200)
    ]
    played = gateway.play(arrivals)
    assert len(played.requests) == 200
    asked = {event.request: event.min_accuracy for _, event in arrivals}
    ran = [
        (ACCURACIES[batch.model], asked[member.request])
        for _, _, decisions in steps
        for batch in decisions
        if isinstance(batch, DispatchBatch)
        for member in batch.members
    ]
    assert len(ran) > 200, "none has run again"
    assert all(accuracy >= least for accuracy, least in ran)
    again = Scheduler(spec, LivePlanner())
    for now_ns, event, decisions in steps:
        assert (again.handle_wakeup(now_ns) if event is None else again.handle(event, now_ns)) == decisions
