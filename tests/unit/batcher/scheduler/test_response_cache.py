"""Stages whose outputs the driver may know: it is asked before they are queued."""

import msgspec

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.interface.config import PipelineConfig, StageConfig
from sluice.batcher.interface.decisions import CancelRequest, CombineOutputs, CompleteRequest, LookUpCache, Member
from sluice.batcher.interface.events import CacheHit, CacheMiss, OutputsCombined, RequestCancelled
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.pipelines.pipeline import Late
from tests.support.scheduling.builders import (
    GAINING,
    MS,
    S,
    arrival,
    completed,
    dispatch,
    ensemble,
    model,
    serving,
    spec_of,
    step,
)

CHAIN = PipelineConfig(
    "chain:1", (StageConfig("a", "a:1", uses_cache=True), StageConfig("b", "b:1", (0,), uses_cache=True))
)
DONE = [CompleteRequest(1, Outcome.COMPLETED)]


def serving_pipeline(pipeline: PipelineConfig) -> Scheduler:
    return serving(spec_of([model("a:1"), model("b:1")], [pipeline]), GAINING)


def test_what_is_known_is_not_run() -> None:
    scheduler = serving_pipeline(CHAIN)
    assert step(scheduler, 0, arrival(1, S, "chain:1", rows=2)) == [LookUpCache(Member(1, 0, 2))]
    assert step(scheduler, 0, CacheHit(1, 0)) == [LookUpCache(Member(1, 1, 2))]
    assert step(scheduler, 0, CacheHit(1, 1)) == DONE
    assert scheduler.next_wakeup_ns() is None


def test_what_is_unknown_is_run() -> None:
    scheduler = serving_pipeline(CHAIN)
    step(scheduler, 0, arrival(1, S, "chain:1"))
    assert step(scheduler, 0, CacheMiss(1, 0)) == [dispatch(1, [Member(1, 0, 1)], model="a:1")]
    assert step(scheduler, MS, completed(1, 0, MS)) == [LookUpCache(Member(1, 1, 1))]
    assert step(scheduler, MS, CacheMiss(1, 1)) == [dispatch(2, [Member(1, 1, 1)], model="b:1")]
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == DONE


def test_a_pipeline_of_one_stage_asks_too() -> None:
    scheduler = serving_pipeline(PipelineConfig("one:1", (StageConfig("a", "a:1", uses_cache=True),)))
    step(scheduler, 0, arrival(1, S, "one:1"))
    assert step(scheduler, 0, CacheMiss(1, 0)) == [dispatch(1, [Member(1, 0, 1)], model="a:1")]
    assert step(scheduler, MS, completed(1, 0, MS)) == DONE
    step(scheduler, MS, arrival(2, S, "one:1"))
    assert step(scheduler, MS, CacheHit(2, 0)) == [CompleteRequest(2, Outcome.COMPLETED)]


def test_what_is_known_of_one_member_is_joined_with_what_the_other_makes() -> None:
    joined = ensemble("a:1", "b:1")
    first, *others = joined.stages
    joined = msgspec.structs.replace(joined, stages=(msgspec.structs.replace(first, uses_cache=True), *others))
    scheduler = serving_pipeline(joined)
    recall, _ = step(scheduler, 0, arrival(1, S, "ensemble:1"))
    assert recall == LookUpCache(Member(1, 0, 1))
    assert step(scheduler, 0, CacheHit(1, 0)) == []
    assert step(scheduler, MS, completed(1, 0, MS)) == [CombineOutputs(Member(1, 2, 1))]
    assert step(scheduler, MS, OutputsCombined(1, 2)) == DONE


def test_a_request_that_is_cancelled_meanwhile_is_gone() -> None:
    for answer in (CacheHit(1, 0), CacheMiss(1, 0)):
        scheduler = serving_pipeline(CHAIN)
        step(scheduler, 0, arrival(1, S, "chain:1"))
        assert step(scheduler, 0, RequestCancelled(1)) == [CancelRequest(1, Outcome.CANCELLED_CLIENT)]
        assert step(scheduler, 0, answer) == []
        check_invariants(scheduler)


def test_a_place_that_is_not_needed_is_given_back() -> None:
    scheduler = serving_pipeline(msgspec.structs.replace(CHAIN, late=Late.EVICT))
    assert step(scheduler, 0, arrival(1, S, "chain:1")) == [LookUpCache(Member(1, 0, 1))]
    assert step(scheduler, 0, CacheHit(1, 0)) == [LookUpCache(Member(1, 1, 1))]
    assert step(scheduler, 0, CacheMiss(1, 1)) == [dispatch(1, [Member(1, 1, 1)], model="b:1")]
    assert step(scheduler, MS, completed(1, 0, MS)) == DONE
    check_invariants(scheduler)
