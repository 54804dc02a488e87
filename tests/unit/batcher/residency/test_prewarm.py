"""The most likely path, and what of a pipeline is worth to be prepared."""

import pytest

from sluice.batcher.fleet.fleet import new_model
from sluice.batcher.interface.config import PipelineConfig, StageConfig, WhenConfig
from sluice.batcher.interface.residency_config import Likelihood
from sluice.batcher.policies.registry import select_policy
from sluice.batcher.residency.prewarm import Branches, likely_stages, most_likely_path
from sluice.batcher.scheduler.pipelines import new_pipeline
from sluice.batcher.state import PipelineState
from tests.support.scheduling.builders import cascade, ensemble, model, spec_of

DIVIDED: Branches[str] = {
    "root": [("A", 0.6), ("B", 0.4)],
    "A": [("A1", 0.34), ("A2", 0.33), ("A3", 0.33)],
    "B": [("B1", 1.0)],
}
"""The first branch is the likelier one, and no path through it is."""


def test_the_most_likely_path_has_the_largest_product() -> None:
    path, probability = most_likely_path(DIVIDED, "root", Likelihood.PRODUCT)
    assert path == ["root", "B", "B1"]
    assert probability == pytest.approx(0.4)


def test_the_likeliest_branch_each_time_leads_to_another_path() -> None:
    path, probability = most_likely_path(DIVIDED, "root", Likelihood.GREEDY)
    assert path == ["root", "A", "A1"]
    assert probability == pytest.approx(0.204)


def test_a_path_ends_where_that_is_likelier_than_to_go_on() -> None:
    assert most_likely_path({"a": [("b", 0.3)]}, "a", Likelihood.PRODUCT)[0] == ["a"]
    assert most_likely_path({"a": [("b", 0.7)]}, "a", Likelihood.PRODUCT)[0] == ["a", "b"]


def pipeline_of(config: PipelineConfig, *probabilities: float) -> PipelineState:
    keys = {stage.model for stage in config.stages if stage.model is not None}
    spec = spec_of([model(key) for key in sorted(keys)])
    models = {each.key: new_model(each, select_policy(each.policy, spec.limits)) for each in spec.models}
    pipeline = new_pipeline(0, config, models)
    for stage, probability in zip(pipeline.stages, probabilities, strict=True):
        stage.run_probability = probability
    return pipeline


def test_of_a_cascade_what_is_reached_more_often_than_not_is_likely() -> None:
    pipeline = pipeline_of(cascade("a", "b", "c"), 1, 0.8, 0.6)
    assert likely_stages(pipeline, pipeline.roots, Likelihood.PRODUCT) == {0: 1.0, 1: 0.8, 2: pytest.approx(0.48)}
    pipeline = pipeline_of(cascade("a", "b", "c"), 1, 0.3, 0.6)
    assert likely_stages(pipeline, pipeline.roots, Likelihood.PRODUCT) == {0: 1.0}
    # It is known by now that rows go on.
    assert likely_stages(pipeline, [pipeline.stages[1]], Likelihood.PRODUCT) == {1: 1.0, 2: 0.6}


def test_what_runs_in_any_case_is_likely() -> None:
    pipeline = pipeline_of(ensemble("a", "b"), 1, 1, 1)
    assert likely_stages(pipeline, pipeline.roots, Likelihood.PRODUCT) == {0: 1.0, 1: 1.0, 2: 1.0}


def test_of_two_branches_the_path_with_the_larger_product_is_prepared() -> None:
    stages = (
        StageConfig("root", "root"),
        StageConfig("A", "A", when=WhenConfig(0, 0, 0.5)),
        StageConfig("B", "B", when=WhenConfig(0, 1, 0.5)),
        *(StageConfig(f"A{number}", f"A{number}", when=WhenConfig(1, number, 0.5)) for number in range(3)),
        StageConfig("B1", "B1", when=WhenConfig(2, 0, 0.5)),
    )
    pipeline = pipeline_of(PipelineConfig("divided", stages), 1, 0.6, 0.4, 0.34, 0.33, 0.33, 1)
    assert likely_stages(pipeline, pipeline.roots, Likelihood.PRODUCT) == {0: 1.0, 2: 0.4, 6: 0.4}
    assert likely_stages(pipeline, pipeline.roots, Likelihood.GREEDY) == {0: 1.0, 1: 0.6, 3: pytest.approx(0.204)}
