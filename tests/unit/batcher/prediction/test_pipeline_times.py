"""The predictions of a pipeline follow from the latencies of its models and the shares of rows that reach them."""

from sluice.batcher.interface.config import PartitionConfig, PipelineConfig
from sluice.batcher.prediction.pipeline_times import predict, unloaded_latency_ns
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


def test_the_critical_path_of_a_chain_is_the_sum_of_its_stages() -> None:
    pipeline = predicted(chain("a", "b"))
    assert pipeline.critical_path_ns == 3 * MS
    assert [stage.remaining_path_ns for stage in pipeline.stages] == [2 * MS, 0]
    assert runs(pipeline) == {"a": 1.0, "b": 1.0}


def test_the_hand_off_counts_in_every_stage() -> None:
    pipeline = predicted(chain("a", "b"), hand_off_ns=100 * US)
    assert pipeline.critical_path_ns == 3 * MS + 200 * US
    assert pipeline.stages[0].remaining_path_ns == 2 * MS + 100 * US
    assert unloaded_latency_ns(pipeline, 100 * US) == 3 * MS + 200 * US


def test_parallel_stages_take_turns_on_one_partition_and_run_together_on_two() -> None:
    assert predicted(ensemble("a", "b")).critical_path_ns == 3 * MS
    assert predicted(ensemble("a", "b"), cores=2).critical_path_ns == 2 * MS


def test_a_conditional_stage_counts_by_the_share_of_rows_that_reach_it() -> None:
    pipeline = predicted(cascade("a", "b"), probability=0.25)
    assert runs(pipeline) == {"a": 1.0, "b": 0.25}
    assert pipeline.reach == [1.0, 0.25]


def test_a_request_waits_before_its_first_stage_only_where_all_stages_have_the_same_groups() -> None:
    pipeline = predicted(chain("a", "b"))
    assert [(stage.index, rest_ns) for stage, _, rest_ns in pipeline.steps] == [(0, 3 * MS)]


def test_predictions_include_all_changes_so_far() -> None:
    pipeline = predicted(single("a"))
    assert pipeline.predicted_changes == pipeline.changes
