"""A request that asks for an accuracy has the cheapest variant loaded that reaches it."""

import msgspec

from sluice.batcher.interface.config import PartitionConfig, PipelineConfig, SchedulerSpec, StageConfig
from sluice.batcher.interface.decisions import (
    AnyDecision,
    CompleteRequest,
    DispatchBatch,
    LoadModel,
    RejectRequest,
    UnloadModel,
)
from sluice.batcher.interface.events import ModelLoaded, PartitionReady, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.interface.residency_config import Footprint, Loading, ResidencyConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, S, completed, model, spec_of, step

TABLES = {key: LatencyTable.from_ms({1: ms}) for key, ms in (("large", 20), ("medium", 8), ("small", 2))}
ACCURACIES = {"large": 0.95, "medium": 0.9, "small": 0.8}
LOAD_NS = 10 * MS


def spec(memory: int = 1, sizes: dict[str, int] | None = None) -> SchedulerSpec:
    """A family of three variants that take 10 ms to load, on a partition with room for one of them."""
    models = [
        msgspec.structs.replace(
            model(key, 1), footprints={"cpu1": Footprint((sizes or {}).get(key, 1), load_ns=LOAD_NS, table=table)}
        )
        for key, table in TABLES.items()
    ]
    stage = StageConfig("classify", "large", variants=tuple(ACCURACIES), accuracies=tuple(ACCURACIES.values()))
    partitions = [PartitionConfig("cpu0", "cpu1", memory_bytes=memory)]
    made = spec_of(models, [PipelineConfig("family", (stage,))], partitions=partitions)
    return msgspec.structs.replace(made, residency=ResidencyConfig(Loading.DEMAND))


def with_small(made: SchedulerSpec) -> Scheduler:
    scheduler = Scheduler(made)
    step(scheduler, 0, PartitionReady("cpu0", {"small": TABLES["small"]}))
    return scheduler


def asks(request: int, min_accuracy: float, deadline_ns: int) -> RequestArrived:
    return RequestArrived(request, "family", 1, deadline_ns, min_accuracy=min_accuracy)


def rejection(decisions: list[AnyDecision]) -> RejectRequest:
    assert isinstance(decisions[0], RejectRequest)
    return decisions[0]


def test_the_cheapest_variant_that_is_accurate_enough_is_loaded_and_runs_the_request() -> None:
    scheduler = with_small(spec())
    assert step(scheduler, MS, asks(1, 0.85, S)) == [UnloadModel("cpu0", "small"), LoadModel("cpu0", "medium")]
    (batch,) = step(scheduler, 11 * MS, ModelLoaded("cpu0", "medium", TABLES["medium"]))
    assert isinstance(batch, DispatchBatch)
    assert batch.model == "medium"
    assert step(scheduler, 19 * MS, completed(1, 11 * MS, 19 * MS)) == [CompleteRequest(1, Outcome.COMPLETED)]
    # It is held now, and serves what asks for less.
    (batch,) = step(scheduler, 20 * MS, asks(2, 0.5, S))
    assert isinstance(batch, DispatchBatch)
    assert batch.model == "medium"


def test_where_the_cheapest_variant_never_has_room_the_next_one_is_loaded() -> None:
    scheduler = with_small(spec(sizes={"medium": 2}))
    assert LoadModel("cpu0", "large") in step(scheduler, MS, asks(1, 0.85, S))


def test_the_reason_names_the_variant_that_has_no_room() -> None:
    refused = rejection(step(with_small(spec(sizes={"large": 2})), MS, asks(1, 0.95, S)))
    assert (refused.outcome, refused.reason) == (
        Outcome.REJECTED_UNAVAILABLE,
        "model large, for an accuracy of 0.95 or more, is not loaded: no partition has room for it",
    )


def test_a_request_without_time_for_the_load_is_refused_and_the_variant_is_loaded_for_the_next_ones() -> None:
    scheduler = with_small(spec())
    decisions = step(scheduler, MS, asks(1, 0.95, 6 * MS))
    refused = rejection(decisions)
    assert refused.outcome is Outcome.REJECTED_DEADLINE
    assert refused.reason == (
        "model large, for an accuracy of 0.95 or more, is not loaded: predicted to complete in 30.1 ms with its load, "
        "5.0 ms are left"
    )
    assert decisions[1:] == [UnloadModel("cpu0", "small"), LoadModel("cpu0", "large")]


def test_requests_for_any_accuracy_keep_their_model_from_a_few_that_ask_for_more() -> None:
    scheduler = with_small(spec())
    for request in range(10):
        now_ns = (1 + 3 * request) * MS
        step(scheduler, now_ns, asks(request, 0.8, S))
        step(scheduler, now_ns + 2 * MS, completed(request + 1, now_ns, now_ns + 2 * MS))
    decisions = step(scheduler, 100 * MS, asks(20, 0.95, 105 * MS))
    assert rejection(decisions).outcome is Outcome.REJECTED_DEADLINE
    assert decisions[1:] == []
