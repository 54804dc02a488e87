from sluice.batcher.interface.config import PipelineConfig, StageConfig, WhenConfig
from sluice.batcher.interface.decisions import CombineOutputs, CompleteRequest, Member
from sluice.batcher.interface.events import BatchCompleted, OutputsCombined
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.scheduler.scheduler import Scheduler
from tests.support.scheduling.builders import (
    CERTAINTY,
    GAINING,
    MS,
    S,
    arrival,
    cascade,
    completed,
    dispatch,
    ensemble,
    model,
    serving,
    spec_of,
    step,
)

DONE = [CompleteRequest(1, Outcome.COMPLETED)]


def serving_pipeline(pipeline: PipelineConfig, *keys: str, partitions: tuple[str, ...] = ("cpu0",)) -> Scheduler:
    return serving(spec_of([model(key) for key in keys], [pipeline], partitions=partitions), GAINING)


def test_a_cascade_escalates_only_the_rows_that_are_unsure() -> None:
    scheduler = serving_pipeline(cascade("small:1", "large:1"), "small:1", "large:1")
    assert step(scheduler, 0, arrival(1, S, "cascade:1", rows=4)) == [dispatch(1, [Member(1, 0, 4)], model="small:1")]
    assert step(scheduler, MS, completed(1, 0, MS, 0.95, 0.5, 0.9, 0.3)) == [
        dispatch(2, [Member(1, 1, 2, (1, 3))], model="large:1")
    ]
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == DONE


def test_a_cascade_that_is_sure_of_every_row_is_complete_without_its_second_stage() -> None:
    scheduler = serving_pipeline(cascade("small:1", "large:1"), "small:1", "large:1")
    step(scheduler, 0, arrival(1, S, "cascade:1", rows=2))
    assert step(scheduler, MS, completed(1, 0, MS, 0.9, 1.0)) == DONE
    assert scheduler.next_wakeup_ns() is None


def test_a_cascade_that_is_sure_of_no_row_escalates_the_whole_request() -> None:
    scheduler = serving_pipeline(cascade("small:1", "large:1"), "small:1", "large:1")
    step(scheduler, 0, arrival(1, S, "cascade:1", rows=2))
    assert step(scheduler, MS, completed(1, 0, MS, 0.0, 0.89)) == [dispatch(2, [Member(1, 1, 2)], model="large:1")]


def test_each_member_of_a_batch_gets_the_confidences_of_its_own_rows() -> None:
    scheduler = serving_pipeline(cascade("small:1", "large:1"), "small:1", "large:1")
    assert step(scheduler, 0, *(arrival(number, S, "cascade:1", rows=2) for number in (1, 2, 3))) == [
        dispatch(1, [Member(1, 0, 2), Member(2, 0, 2), Member(3, 0, 2)], model="small:1")
    ]
    assert step(scheduler, MS, completed(1, 0, MS, 1.0, 0.1, 1.0, 1.0, 0.2, 0.3)) == [
        CompleteRequest(2, Outcome.COMPLETED),
        dispatch(2, [Member(1, 1, 1, (1,)), Member(3, 1, 2)], model="large:1"),
    ]
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == [
        CompleteRequest(1, Outcome.COMPLETED),
        CompleteRequest(3, Outcome.COMPLETED),
    ]


def test_a_cascade_of_three_stages_counts_rows_by_the_request() -> None:
    scheduler = serving_pipeline(cascade("small:1", "mid:1", "large:1"), "small:1", "mid:1", "large:1")
    step(scheduler, 0, arrival(1, S, "cascade:1", rows=4))
    assert step(scheduler, MS, completed(1, 0, MS, 0.95, 0.5, 0.9, 0.3)) == [
        dispatch(2, [Member(1, 1, 2, (1, 3))], model="mid:1")
    ]
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS, 0.95, 0.2)) == [
        dispatch(3, [Member(1, 2, 1, (3,))], model="large:1")
    ]
    assert step(scheduler, 3 * MS, completed(3, 2 * MS, 3 * MS)) == DONE


def test_a_three_stage_cascade_that_is_sure_after_the_first_skips_both_others() -> None:
    scheduler = serving_pipeline(cascade("small:1", "mid:1", "large:1"), "small:1", "mid:1", "large:1")
    step(scheduler, 0, arrival(1, S, "cascade:1", rows=4))
    assert step(scheduler, MS, completed(1, 0, MS, 1.0, 1.0, 1.0, 1.0)) == DONE


def test_a_condition_s_own_verdict_is_asked() -> None:
    stages = (
        StageConfig("small", "small:1"),
        StageConfig("low", "low:1", when=WhenConfig(0, 0, 0.5)),
        StageConfig("high", "high:1", when=WhenConfig(0, 1, 0.5)),
    )
    scheduler = serving_pipeline(PipelineConfig("p:1", stages), "small:1", "low:1", "high:1")
    step(scheduler, 0, arrival(1, S, "p:1", rows=2))
    both = BatchCompleted(1, 0, MS, ((0.1, 0.9), (0.9, 0.1)))
    assert step(scheduler, MS, both) == [dispatch(2, [Member(1, 1, 1, (0,))], model="low:1")]
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == [dispatch(3, [Member(1, 2, 1, (1,))], model="high:1")]
    assert step(scheduler, 3 * MS, completed(3, 2 * MS, 3 * MS)) == DONE


def test_an_ensemble_is_joined_when_its_last_member_is_done() -> None:
    scheduler = serving_pipeline(ensemble("a:1", "b:1"), "a:1", "b:1", partitions=("cpu0", "cpu1"))
    assert step(scheduler, 0, arrival(1, S, "ensemble:1", rows=2)) == [
        dispatch(1, [Member(1, 1, 2)], model="b:1", partition="cpu1"),
        dispatch(2, [Member(1, 0, 2)], model="a:1"),
    ]
    assert step(scheduler, MS, completed(2, 0, MS)) == []
    assert step(scheduler, 2 * MS, completed(1, 0, 2 * MS)) == [CombineOutputs(Member(1, 2, 2))]
    assert step(scheduler, 2 * MS, OutputsCombined(1, 2)) == DONE


def test_an_ensemble_may_hold_one_model_twice() -> None:
    scheduler = serving_pipeline(ensemble("a:1", "a:1"), "a:1")
    assert step(scheduler, 0, arrival(1, S, "ensemble:1")) == [
        dispatch(1, [Member(1, 1, 1), Member(1, 0, 1)], model="a:1")
    ]
    assert step(scheduler, MS, completed(1, 0, MS)) == [CombineOutputs(Member(1, 2, 1))]
    assert step(scheduler, MS, OutputsCombined(1, 2)) == DONE


def test_a_condition_on_a_combiner() -> None:
    stages = (
        StageConfig("a", "a:1"),
        StageConfig("b", "b:1"),
        StageConfig("vote", None, (0, 1), confidences=(CERTAINTY,)),
        StageConfig("large", "large:1", when=WhenConfig(2, 0, 0.9)),
    )
    scheduler = serving_pipeline(PipelineConfig("p:1", stages), "a:1", "b:1", "large:1", partitions=("cpu0", "cpu1"))
    step(scheduler, 0, arrival(1, S, "p:1", rows=3))
    step(scheduler, MS, completed(1, 0, MS))
    assert step(scheduler, MS, completed(2, 0, MS)) == [CombineOutputs(Member(1, 2, 3))]
    assert step(scheduler, MS, OutputsCombined(1, 2, ((0.95, 0.1, 0.99),))) == [
        dispatch(3, [Member(1, 3, 1, (1,))], model="large:1")
    ]
    assert step(scheduler, 2 * MS, completed(3, MS, 2 * MS)) == DONE


def two_branches(*extra: StageConfig) -> PipelineConfig:
    stages = (
        StageConfig("a", "a:1"),
        StageConfig("b", "b:1", when=WhenConfig(0, 0, 0.9)),
        StageConfig("c", "c:1", when=WhenConfig(0, 0, 0.5)),
        StageConfig("vote", None, (1, 2)),
    )
    return PipelineConfig("p:1", (*stages, *extra))


def test_a_stage_runs_for_the_rows_that_all_its_sources_ran() -> None:
    scheduler = serving_pipeline(two_branches(), "a:1", "b:1", "c:1", partitions=("cpu0", "cpu1"))
    step(scheduler, 0, arrival(1, S, "p:1", rows=4))
    assert step(scheduler, MS, completed(1, 0, MS, 0.95, 0.7, 0.4, 0.3)) == [
        dispatch(2, [Member(1, 2, 2, (2, 3))], model="c:1"),
        dispatch(3, [Member(1, 1, 3, (1, 2, 3))], model="b:1", partition="cpu1"),
    ]
    step(scheduler, 2 * MS, completed(2, MS, 2 * MS))
    assert step(scheduler, 2 * MS, completed(3, MS, 2 * MS)) == [CombineOutputs(Member(1, 3, 2, (2, 3)))]
    assert step(scheduler, 2 * MS, OutputsCombined(1, 3)) == DONE


def test_a_stage_whose_source_was_skipped_is_skipped_as_well() -> None:
    scheduler = serving_pipeline(two_branches(StageConfig("last", "a:1", (3,))), "a:1", "b:1", "c:1")
    step(scheduler, 0, arrival(1, S, "p:1", rows=2))
    assert step(scheduler, MS, completed(1, 0, MS, 0.95, 0.7)) == [dispatch(2, [Member(1, 1, 1, (1,))], model="b:1")]
    assert step(scheduler, 2 * MS, completed(2, MS, 2 * MS)) == DONE


def test_a_batch_of_one_model_mixes_stages_and_pipelines() -> None:
    pipelines = [cascade("small:1", "large:1"), cascade("large:1", "small:1", name="other:1")]
    scheduler = serving(spec_of([model("small:1"), model("large:1")], pipelines), GAINING)
    step(scheduler, 0, arrival(1, S, "cascade:1", rows=2))
    # The new request comes first: its deadline leaves time for a stage after this one.
    assert step(scheduler, MS, completed(1, 0, MS, 1.0, 0.1), arrival(2, S, "other:1")) == [
        dispatch(2, [Member(2, 0, 1), Member(1, 1, 1, (1,))], model="large:1")
    ]
