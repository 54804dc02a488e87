import msgspec
import pytest

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.interface.config import (
    CompeteConfig,
    ConfidenceSpec,
    Limits,
    PartitionConfig,
    PipelineConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
    WhenConfig,
)
from sluice.batcher.interface.instance_config import InstanceRule
from sluice.batcher.interface.planner_config import PlannerConfig, Replan, ServedPlanner
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.policies.no_batching import NoBatchingSettings
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.batcher.settings.scheduling import ModelSettings, ServingSettings
from sluice.batcher.settings.spec_builder import build_spec, check_competition, check_strictness, pipeline_key
from sluice.models.errors import ConfigError
from sluice.models.pipelines.check import single_model
from sluice.models.pipelines.pipeline import Combiner, Compete, Confidence, Late, Pipeline, Stage, TensorSource, When
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec

X, PROBS = TensorSpec("x", DataType.FP32, (4,)), TensorSpec("probs", DataType.FP32, (10,))
ANY, FEATURES = TensorSpec("x", DataType.FP32, (-1,)), TensorSpec("features", DataType.FP32, (-1, 4))
BY_DEADLINE = DeadlineSettings()
SMALL = ModelSpec("small", 1, (X,), (PROBS,), 64)
LARGE = ModelSpec("large", 2, (X,), (PROBS,), 16)
FIXED = ModelSpec("fixed", 1, (X,), (PROBS,), 0)
TEXT = ModelSpec("text", 1, (ANY,), (FEATURES,), 8)
HEAD = ModelSpec("head", 1, (FEATURES, X), (PROBS,), 8)
CPU0 = PartitionConfig("cpu0", "cpu1")
MAX, MARGIN = ConfidenceSpec("probs", Confidence.MAX), ConfidenceSpec("probs", Confidence.MARGIN)


def pipeline(name: str, *stages: Stage, late: Late | None = Late.SERVE) -> Pipeline:
    return Pipeline(name, 3, (X,), (PROBS,), stages, {"probs": (TensorSource(stages[-1].name, "probs"),)}, 8, late=late)


def scheduled(key: str, max_batch: int, *confidences: ConfidenceSpec) -> ScheduledModel:
    """A model that takes X and gives PROBS."""
    return ScheduledModel(key, max_batch, BY_DEADLINE, confidences, input_bytes=16, output_bytes=40)


def stage(name: str, model: str, *, when: When | None = None, **inputs: str) -> Stage:
    sources = {tensor: TensorSource(*source.split(".")) for tensor, source in inputs.items()}
    return Stage(name, sources, model=model, when=when)


def test_models_alone() -> None:
    spec = build_spec([SMALL, FIXED], [single_model(SMALL), single_model(FIXED)], [CPU0])
    assert spec == SchedulerSpec(
        (
            scheduled("small:1", 64),
            scheduled("fixed:1", 1),
        ),
        (
            PipelineConfig("small:1", (StageConfig("small", "small:1"),)),
            PipelineConfig("fixed:1", (StageConfig("fixed", "fixed:1"),)),
        ),
        (CPU0,),
        Limits(),
    )
    check_invariants(Scheduler(spec))


def test_a_pipeline_has_its_own_late_and_percentile_or_those_of_its_model_or_of_the_server() -> None:
    settings = ServingSettings(
        late=Late.EVICT,
        percentile=95,
        models={"small": ModelSettings(late=Late.SERVE), "fixed": ModelSettings(percentile=99.9)},
    )
    says = msgspec.structs.replace(
        pipeline("says", stage("only", "small:1", x="request.x"), late=Late.SERVE), percentile=90.0
    )
    silent = pipeline("silent", stage("only", "small:1", x="request.x"), late=None)
    served = settings.with_defaults([single_model(SMALL), single_model(FIXED), single_model(LARGE), says, silent])
    spec = build_spec([SMALL, FIXED, LARGE], served, [CPU0])
    assert [(each.name, each.late, each.percentile) for each in spec.pipelines] == [
        ("small:1", Late.SERVE, 95),
        ("fixed:1", Late.EVICT, 99.9),
        ("large:2", Late.EVICT, 95),
        ("says:3", Late.SERVE, 90),
        ("silent:3", Late.EVICT, 95),
    ]


def test_a_pipeline_is_planned_for_its_objective_without_the_time_of_the_network() -> None:
    settings = ServingSettings(network_ms=2.5)
    served = [
        msgspec.structs.replace(pipeline(name, stage("only", "small:1", x="request.x")), slo_ms=slo_ms)
        for name, slo_ms in (("none", None), ("long", 20.0), ("short", 2.0))
    ]
    spec = build_spec([SMALL], settings.with_defaults(served), [CPU0])
    assert [each.slo_ns for each in spec.pipelines] == [0, 17_500_000, 1]


def test_a_cascade_names_the_verdict_that_it_asks_for() -> None:
    served = pipeline(
        "digits",
        stage("first", "small:1", x="request.x"),
        stage("second", "large:2", when=When("first", "probs", 0.8, Confidence.MARGIN), x="request.x"),
        late=Late.EVICT,
    )
    other = pipeline(
        "other",
        stage("first", "small:1", x="request.x"),
        stage("second", "large:2", when=When("first", "probs", 0.9), x="request.x"),
        stage("third", "large:2", when=When("first", "probs", 0.2, Confidence.MARGIN), x="request.x"),
    )
    spec = build_spec([SMALL, LARGE], [served, other], [CPU0])
    assert spec.models == (
        scheduled("small:1", 64, MARGIN, MAX),
        scheduled("large:2", 16),
    )
    assert spec.pipelines == (
        PipelineConfig(
            "digits:3",
            (StageConfig("first", "small:1"), StageConfig("second", "large:2", (), WhenConfig(0, 0, 0.8))),
            Late.EVICT,
        ),
        PipelineConfig(
            "other:3",
            (
                StageConfig("first", "small:1"),
                StageConfig("second", "large:2", (), WhenConfig(0, 1, 0.9)),
                StageConfig("third", "large:2", (), WhenConfig(0, 0, 0.2)),
            ),
        ),
    )


def test_an_ensemble_whose_combiner_is_asked() -> None:
    served = pipeline(
        "vote",
        stage("a", "small:1", x="request.x"),
        stage("b", "large:2", x="request.x"),
        Stage("mean", {"0": TensorSource("a", "probs"), "1": TensorSource("b", "probs")}, combine=Combiner.MEAN),
        stage("c", "large:2", when=When("mean", "probs", 0.5), x="request.x"),
        stage("d", "large:2", when=When("mean", "probs", 0.1, Confidence.MARGIN), x="request.x"),
    )
    spec = build_spec([SMALL, LARGE], [served], [CPU0])
    assert spec.models == (
        scheduled("small:1", 64),
        scheduled("large:2", 16),
    )
    assert spec.pipelines[0].stages[2:] == (
        StageConfig("mean", None, (0, 1), None, (MAX, MARGIN)),
        StageConfig("c", "large:2", (), WhenConfig(2, 0, 0.5)),
        StageConfig("d", "large:2", (), WhenConfig(2, 1, 0.1)),
    )


def test_a_row_has_the_bytes_of_the_tensors_whose_sizes_are_fixed() -> None:
    image = TensorSpec("image", DataType.UINT8, (224, 224, 3))
    words = TensorSpec("words", DataType.BYTES, (1,))
    fusing = ModelSpec("fusing", 1, (image, PROBS, words, ANY), (FEATURES, X), 8)
    served = pipeline(
        "fused",
        stage("probs", "small:1", x="request.x"),
        stage("fusing", "fusing:1", image="request.image", probs="probs.probs", words="request.words", x="request.x"),
    )
    spec = build_spec([SMALL, fusing], [served], [CPU0])
    assert [(model.input_bytes, model.output_bytes) for model in spec.models] == [(16, 40), (150_528 + 40, 16)]
    assert [made.source_bytes for made in spec.pipelines[0].stages] == [0, 40]


def test_batches_are_keyed_where_a_dimension_is_variable() -> None:
    served = pipeline(
        "text",
        stage("text", "text:1", x="request.x"),
        stage("head", "head:1", features="text.features", x="request.y"),
        stage("raw", "head:1", features="request.features", x="request.y"),
    )
    spec = build_spec([TEXT, HEAD], [served], [CPU0])
    assert [(made.sources, made.request_keyed, made.source_keyed) for made in spec.pipelines[0].stages] == [
        ((), True, False),
        ((0,), False, True),
        ((), True, False),
    ]


def test_keys_say_which_input_is_which_where_names_do_not() -> None:
    other = TensorSpec("y", DataType.FP32, (-1,))
    pair = ModelSpec("pair", 1, (ANY, other), (PROBS,), 8)
    served = pipeline(
        "renaming",
        stage("alone", "pair:1", x="request.x", y="request.y"),
        stage("straight", "pair:1", x="request.a", y="request.b"),
        stage("crossed", "pair:1", x="request.b", y="request.a"),
        stage("text", "text:1", x="request.a"),
        stage("again", "text:1", x="request.b"),
        stage("both", "pair:1", x="text.features", y="again.features"),
        stage("swapped", "pair:1", x="again.features", y="text.features"),
        stage("half", "pair:1", x="request.x", y="text.features"),
        stage("fixed", "small:1", x="request.a"),
    )
    spec = build_spec([pair, TEXT, SMALL], [served], [CPU0])
    assert [made.renamed for made in spec.pipelines[0].stages] == [
        "",
        "x=0.a,y=0.b",
        "x=0.b,y=0.a",
        "x=0.a",
        "x=0.b",
        "x=0.features,y=1.features",
        "x=1.features,y=0.features",
        "x=0.x,y=1.features",
        "",
    ]


def test_variants_report_the_same_verdicts_in_the_same_order() -> None:
    third = ModelSpec("third", 1, (X,), (PROBS,), 8)
    cascade = pipeline(
        "cascade",
        Stage("first", {"x": TensorSource("request", "x")}, model="large:2", variants=("large:2", "small:1")),
        stage("second", "fixed:1", when=When("first", "probs", 0.9), x="request.x"),
    )
    other = pipeline(
        "other",
        Stage("first", {"x": TensorSource("request", "x")}, model="small:1", variants=("small:1", "third:1")),
        stage("second", "fixed:1", when=When("first", "probs", 0.5, Confidence.MARGIN), x="request.x"),
    )
    spec = build_spec([SMALL, LARGE, third, FIXED], [cascade, other], [CPU0])
    assert {config.key: config.confidences for config in spec.models} == {
        "small:1": (MAX, MARGIN),
        "large:2": (MAX, MARGIN),
        "third:1": (MAX, MARGIN),
        "fixed:1": (),
    }
    first, second = spec.pipelines[1].stages
    assert (first.model, first.variants) == ("small:1", ("small:1", "third:1"))
    assert second.when == WhenConfig(0, 1, 0.5)


def test_a_pipeline_s_objective_and_weight_and_a_model_s_memory() -> None:
    served = Pipeline("p", 1, (X,), (PROBS,), single_model(SMALL).stages, {}, 8, slo_ms=2.5, weight=3.0)
    spec = build_spec([SMALL, LARGE], [served, single_model(LARGE)], [CPU0], memory_of={"small:1": 4096})
    assert [(config.slo_ns, config.weight) for config in spec.pipelines] == [(2_500_000, 3.0), (0, 1.0)]
    assert [config.memory_bytes for config in spec.models] == [4096, 0]


def test_an_objective_beyond_a_day_counts_as_one() -> None:
    served = Pipeline("p", 1, (X,), (PROBS,), single_model(SMALL).stages, {}, 8, slo_ms=1e300)
    assert build_spec([SMALL], [served], [CPU0]).pipelines[0].slo_ns == 86_400 * 1_000_000_000


def test_a_policy_is_a_model_s_own_or_the_default() -> None:
    none, timeout = NoBatchingSettings(), TimeoutConfig((4,), 1_000)
    spec = build_spec(
        [SMALL, LARGE], [], [], limits=Limits(queue_requests=1), policies={"large:2": timeout}, default_policy=none
    )
    assert [config.policy for config in spec.models] == [none, timeout]
    assert spec.limits == Limits(queue_requests=1)


def test_a_pipeline_is_known_by_name_and_version() -> None:
    assert pipeline_key(single_model(LARGE)) == "large:2"


def competing(copies: int) -> Pipeline:
    served = pipeline("p", Stage("first", {"x": TensorSource("request", "x")}, model="small:1"))
    first = msgspec.structs.replace(served.stages[0], compete=Compete(copies, 2.5))
    return msgspec.structs.replace(served, stages=(first,))


def test_a_stage_competes_after_ns() -> None:
    (config,) = build_spec([SMALL], [competing(2)], [CPU0]).pipelines
    assert config.stages[0].compete == CompeteConfig(2, 2_500_000)


def test_a_stage_competes_on_no_more_partitions_than_may_hold_its_model() -> None:
    spec = build_spec([SMALL], [competing(2)], [CPU0])
    other, fixed = PartitionConfig("cpu1", "cpu1"), PartitionConfig("gpu0", "t4", models=("large:2",), fixed=True)
    check_competition(spec.pipelines, [CPU0, other])
    message = (
        r"pipeline p:3: stages\.first\.compete: 1 partition may hold model small:1; expected at least 2, one for each"
    )
    for partitions in ([CPU0], [CPU0, fixed]):
        with pytest.raises(ConfigError, match=message):
            check_competition(spec.pipelines, partitions)


def strict(settings: ServingSettings, percentile: float | None = 100, planner: PlannerConfig | None = None) -> None:
    """Check a pipeline of the model `small` and another one."""
    first, other = single_model(SMALL), single_model(LARGE)
    pipelines = [msgspec.structs.replace(first, percentile=percentile), other]
    spec = build_spec(
        [SMALL, LARGE],
        settings.with_defaults(pipelines),
        [CPU0],
        policies=settings.policies([SMALL, LARGE]),
        instances=settings.instance_configs([SMALL, LARGE]),
        default_policy=settings.policy.config(),
        planner=planner,
    )
    check_strictness(settings.strict_pipelines(pipelines), spec)


def test_a_pipeline_of_percentile_100_whose_batches_cannot_run_as_planned_is_refused() -> None:
    own = ServingSettings(models={"small": ModelSettings(percentile=100, policy=NoBatchingSettings())})
    with pytest.raises(ConfigError, match=r"^models\.small\.percentile: .* or policy deadline for model small:1, got"):
        strict(own, None)
    with pytest.raises(ConfigError, match=r"^pipeline small:1: percentile: .* or policy deadline for model small:1"):
        strict(own)
    balanced = ServingSettings(instances=InstanceRule.BALANCE)
    with pytest.raises(ConfigError, match=r"^pipeline small:1: percentile: .* or instances locality for model small:1"):
        strict(balanced)
    fixing = [PlannerConfig(each) for each in ServedPlanner if each is not ServedPlanner.EXACT]
    for planner in [*fixing, PlannerConfig(replan=Replan.ONCE)]:
        with pytest.raises(ConfigError, match=r"percentile: .* or planner exact with replan dispatch, got 100"):
            strict(ServingSettings(), planner=planner)


def test_only_a_percentile_of_its_own_asks_that_a_pipeline_runs_as_planned() -> None:
    strict(ServingSettings())
    strict(ServingSettings(models={"large": ModelSettings(policy=NoBatchingSettings())}))
    strict(ServingSettings(percentile=100, policy=NoBatchingSettings()), None)
    strict(ServingSettings(policy=NoBatchingSettings()), 99.9, PlannerConfig("esg"))
