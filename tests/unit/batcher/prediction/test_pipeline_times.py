"""The predictions of a pipeline follow from the latencies of its models and the shares of rows that reach them."""

from sluice.batcher.interface.config import PartitionConfig, PipelineConfig
from sluice.batcher.prediction.pipeline_times import predict, unloaded_latency_ns, unplanned_work
from sluice.batcher.state import PipelineState
from tests.support.scheduling.builders import MS, US, cascade, chain, ensemble, single
from tests.unit.batcher.prediction.pipelines import Pipelines

LATENCY_MS = {"a": 1.0, "b": 2.0}


def predicted(
    config: PipelineConfig, *more: PipelineConfig, hand_off_ns: int = 0, probability: float = 1.0, cores: int = 1
) -> PipelineState:
    """The first pipeline, whose later stages run for a share of its rows, on equal partitions."""
    partitions = tuple(PartitionConfig(f"cpu{number}", "cpu1") for number in range(cores))
    pipelines = Pipelines(LATENCY_MS, config, *more, partitions=partitions, hand_off_ns=hand_off_ns)
    pipeline = pipelines.by_name[config.name]
    for stage in pipeline.stages:
        stage.run_probability = 1.0 if stage.config.when is None else probability
    predict(pipeline, hand_off_ns)
    return pipeline


def runs(pipeline: PipelineState) -> dict[str, float]:
    return {model.config.key: count for model, count in pipeline.expected_runs.items()}


def work_ns(pipeline: PipelineState) -> list[list[int]]:
    """The work of a row in each group, by stage."""
    return [[row_ns for _, row_ns in shares] for shares in pipeline.work.stages]


def test_the_critical_path_of_a_chain_is_the_sum_of_its_stages() -> None:
    pipeline = predicted(chain("a", "b"))
    assert pipeline.critical_path_ns == 3 * MS
    assert [stage.remaining_path_ns for stage in pipeline.stages] == [2 * MS, 0]
    assert runs(pipeline) == {"a": 1.0, "b": 1.0}
    assert work_ns(pipeline) == [[MS], [2 * MS]]
    assert [row_ns for _, row_ns in pipeline.work.total] == [3 * MS]


def test_the_hand_off_counts_in_every_stage() -> None:
    pipeline = predicted(chain("a", "b"), hand_off_ns=100 * US)
    assert pipeline.critical_path_ns == 3 * MS + 200 * US
    assert pipeline.stages[0].remaining_path_ns == 2 * MS + 100 * US
    assert unloaded_latency_ns(pipeline, 100 * US) == 3 * MS + 200 * US


def test_the_work_of_a_row_is_spread_over_all_partitions_of_a_group() -> None:
    assert work_ns(predicted(single("b"), cores=4)) == [[2 * MS]]


def test_parallel_stages_take_turns_on_one_partition_and_run_together_on_two() -> None:
    assert predicted(ensemble("a", "b")).critical_path_ns == 3 * MS
    assert predicted(ensemble("a", "b"), cores=2).critical_path_ns == 2 * MS


def test_a_conditional_stage_counts_by_the_share_of_rows_that_reach_it() -> None:
    pipeline = predicted(cascade("a", "b"), probability=0.25)
    assert runs(pipeline) == {"a": 1.0, "b": 0.25}
    assert work_ns(pipeline) == [[MS], [MS // 2]]
    assert [row_ns for _, row_ns in pipeline.work.known(1, 1.0).total] == [3 * MS]


def test_a_request_waits_before_its_first_stage_only_where_all_stages_have_the_same_groups() -> None:
    pipeline = predicted(chain("a", "b"))
    assert [(stage.index, rest_ns, row_ns) for stage, _, rest_ns, row_ns in pipeline.steps] == [(0, 3 * MS, MS)]


def test_a_pipeline_is_shared_if_another_one_uses_its_model() -> None:
    assert not predicted(single("a"), single("b")).shared
    assert predicted(single("a"), chain("a", "b")).shared


def test_predictions_include_all_changes_so_far() -> None:
    pipeline = predicted(single("a"))
    assert pipeline.predicted_changes == pipeline.changes


def test_a_pipeline_without_predictions_has_no_work() -> None:
    work = unplanned_work(2)
    assert (work.stages, work.total) == (((), ()), ())
