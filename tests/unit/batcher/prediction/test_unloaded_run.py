"""The stages of a request by itself run in parallel as far as there are partitions for them."""

from sluice.batcher.interface.config import PipelineConfig
from sluice.batcher.prediction.unloaded_run import Span, unloaded_run
from sluice.batcher.state import ModelState, PartitionGroup
from tests.support.scheduling.builders import MS, chain, ensemble
from tests.unit.batcher.prediction.pipelines import Pipelines

LATENCY_MS = {"a": 1.0, "b": 2.0}


def took_ns(model: ModelState, group: PartitionGroup) -> int:
    return model.estimates[group.kind].profile_ns(1)


def spans(
    config: PipelineConfig, *partitions: str, max_batch: int = 1, in_the_way: bool = True, lost: str = ""
) -> list[Span]:
    pipelines = Pipelines(LATENCY_MS, config, partitions=partitions, max_batch=max_batch)
    if lost:
        pipelines.fleet.lost(lost, 0)
    pipeline = pipelines.by_name[config.name]
    return unloaded_run(pipeline.stages, [in_the_way] * pipeline.stage_count, took_ns)


def test_the_stages_of_a_chain_follow_each_other() -> None:
    assert spans(chain("a", "b"), "cpu0", "cpu1") == [(0, MS), (MS, 3 * MS)]


def test_parallel_stages_wait_for_the_only_partition() -> None:
    assert spans(ensemble("a", "b"), "cpu0") == [(0, MS), (MS, 3 * MS), (3 * MS, 3 * MS)]


def test_parallel_stages_run_together_on_two_partitions() -> None:
    assert spans(ensemble("a", "b"), "cpu0", "cpu1") == [(0, MS), (0, 2 * MS), (2 * MS, 2 * MS)]


def test_parallel_stages_of_one_model_share_a_batch_if_it_batches() -> None:
    assert spans(ensemble("a", "a"), "cpu0", max_batch=2) == [(0, MS), (0, MS), (MS, MS)]
    assert spans(ensemble("a", "a"), "cpu0", max_batch=1) == [(0, MS), (MS, 2 * MS), (2 * MS, 2 * MS)]


def test_stages_that_are_not_in_the_way_delay_no_others() -> None:
    assert spans(ensemble("a", "b"), "cpu0", in_the_way=False) == [(0, MS), (0, 2 * MS), (2 * MS, 2 * MS)]


def test_a_lost_partition_runs_nothing() -> None:
    assert spans(ensemble("a", "b"), "cpu0", "cpu1", lost="cpu1") == [(0, MS), (MS, 3 * MS), (3 * MS, 3 * MS)]
