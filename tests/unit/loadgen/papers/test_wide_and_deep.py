"""Pipelines with the shapes of serverless workflows."""

from sluice.loadgen.papers.wide_and_deep import (
    DAGS,
    DEEPEST,
    MODELS_MS,
    POPULAR,
    ROW_BYTES,
    WIDEST,
    arrivals,
    dags,
    play,
    shape,
    spec_of,
)


def test_stages_wait_for_the_whole_layer_before() -> None:
    stages = shape([["tiny"], ["tiny", "slow"], ["small"]])
    assert [(stage.model, stage.sources) for stage in stages] == [
        ("tiny", ()),
        ("tiny", (0,)),
        ("slow", (0,)),
        ("small", (1, 2)),
    ]
    assert [stage.source_bytes for stage in stages] == [0, ROW_BYTES, ROW_BYTES, ROW_BYTES]


def test_one_pipeline_is_as_deep_and_one_as_wide_as_is_said_and_one_is_skewed_a_hundredfold() -> None:
    pipelines = dags(1)
    assert len(pipelines) == DAGS
    assert DEEPEST in {len(each.stages) for each in pipelines}
    assert WIDEST + 2 in {len(each.stages) for each in pipelines}
    assert max(MODELS_MS.values()) / min(MODELS_MS.values()) == 100


def test_a_twentieth_of_the_pipelines_has_95_percent_of_the_requests() -> None:
    spec = spec_of(1)
    popular = {each.name for each in spec.pipelines[:POPULAR]}
    calls = [request.pipeline in popular for _, request in arrivals(spec, 1, 2.0)]
    assert POPULAR / DAGS == 0.05
    assert 0.92 < sum(calls) / len(calls) < 0.98


def test_every_request_has_one_outcome_though_a_node_is_lost() -> None:
    run = play(2, 0.3)
    assert run.once == run.requests > 20
    assert run.answered > 0.5 * run.requests
