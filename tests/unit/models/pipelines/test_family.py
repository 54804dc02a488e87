import pytest

from sluice.models.errors import ConfigError
from sluice.models.pipelines.check import check_pipeline, single_family
from sluice.models.pipelines.family import Family, Variant, read_family
from sluice.models.pipelines.file import decode_pipeline
from sluice.models.pipelines.pipeline import Pipeline, Stage, TensorSource
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec
from tests.support.located import without_line

X, Z = TensorSpec("x", DataType.FP32, (4,)), TensorSpec("z", DataType.INT64, ())
PROBS = TensorSpec("probs", DataType.FP32, (10,))
SPECS = [
    ModelSpec("small", 1, (X, Z), (PROBS,), 64),
    ModelSpec("large", 1, (X, Z), (PROBS,), 8),
    ModelSpec("large", 2, (Z, X), (PROBS,), 16),
    ModelSpec("other", 1, (X,), (PROBS,), 64),
    ModelSpec("few", 1, (X, Z), (TensorSpec("probs", DataType.FP32, (3,)),), 64),
    ModelSpec("fixed", 1, (X, Z), (PROBS,), 0),
]
MODELS = {spec.key: spec for spec in SPECS}
VARIANTS = """
variants:
  - {model: large, version: 1, accuracy: 0.95}
  - {model: small, accuracy: 0.93}
  - {model: large, accuracy: 0.97}
"""
DIGITS = Family("digits", (Variant("large:2", 0.97), Variant("large:1", 0.95), Variant("small:1", 0.93)))
PIPELINE = """
slo_ms: 50
stages:
  first: {family: digits, inputs: {x: request.x, z: request.z}}
  second:
    model: small
    inputs: {x: request.x, z: request.z}
    when: {stage: first, output: probs, below: 0.9}
outputs:
  probs: {from: [second.probs, first.probs]}
"""


def read(text: str) -> Family:
    return read_family(text, MODELS, name="digits", path="repo/digits/family.yaml")


def check(text: str) -> Pipeline:
    return check_pipeline(decode_pipeline(text, "p.yaml"), MODELS, {"digits": DIGITS}, name="p", path="p.yaml")


def test_the_most_accurate_variant_comes_first_and_the_order_of_inputs_does_not_matter() -> None:
    assert read(VARIANTS) == DIGITS


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("accuracy: 0.93", "accuracy: 1.5", "variants.1.accuracy: expected a number from 0 to 1, got 1.5"),
        ("accuracy: 0.93", "accuracy: .nan", "variants.1.accuracy: expected a number from 0 to 1, got nan"),
        ("accuracy: 0.93", "accuracy: high", "variants.1.accuracy: Expected `float`, got `str`"),
        (", accuracy: 0.93", "", "variants.1: Object missing required field `accuracy`"),
        (
            "accuracy: 0.93",
            "accuracy: 0.93, weight: 1",
            "variants.1: Object contains unknown field `weight`; expected model, accuracy, version",
        ),
        ("{model: small, accuracy: 0.93}", "small", "variants.1: Expected `object`, got `str`"),
        (
            "model: small",
            "model: tiny",
            "variants.1.model: no model 'tiny'; expected one of few, fixed, large, other, small",
        ),
        ("version: 1", "version: 3", "variants.0.version: model 'large' has no version 3; expected one of 1, 2"),
        ("version: 1", "version: 2", "variants.2.model: 'large:2' is given twice"),
        (
            "model: small",
            "model: other",
            "variants.1.model: 'other:1' has inputs x FP32 [4], but 'large:1' has x FP32 [4], z INT64 []; expected",
        ),
        (
            "model: small",
            "model: few",
            "variants.1.model: 'few:1' has outputs probs FP32 [3], but 'large:1' has probs FP32 [10]; expected",
        ),
        ("model: small", "model: fixed", "variants.1.model: 'large:1' has a batch dimension, but 'fixed:1' has none"),
        ("variants:", "models:", "Object contains unknown field `models`; expected variants"),
    ],
)
def test_a_bad_family_is_refused_with_the_place(old: str, new: str, message: str) -> None:
    assert old in VARIANTS
    with pytest.raises(ConfigError) as refused:
        read(VARIANTS.replace(old, new, 1))
    assert without_line(refused.value).startswith(f"repo/digits/family.yaml: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("variants: []", "variants: expected at least one"),
        ("", "Expected `object`, got `null`"),
        ("variants: [", "not YAML: "),
    ],
)
def test_a_file_without_variants_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(text)
    assert without_line(refused.value).startswith(f"repo/digits/family.yaml: {message}")


def test_a_family_by_itself_is_a_pipeline() -> None:
    assert single_family(DIGITS, MODELS) == Pipeline(
        name="digits",
        version=1,
        inputs=(Z, X),
        outputs=(PROBS,),
        stages=(
            Stage(
                "digits",
                {"z": TensorSource("request", "z"), "x": TensorSource("request", "x")},
                model="large:2",
                variants=("large:2", "large:1", "small:1"),
                accuracies=tuple(variant.accuracy for variant in DIGITS.variants),
            ),
        ),
        sources={"probs": (TensorSource("digits", "probs"),)},
        max_batch_size=8,
    )


def test_a_stage_may_name_a_family() -> None:
    pipeline = check(PIPELINE)
    first, second = pipeline.stages
    assert (first.model, first.variants) == ("large:2", ("large:2", "large:1", "small:1"))
    assert (second.model, second.variants) == ("small:1", ())
    assert [stage.models for stage in pipeline.stages] == [("large:2", "large:1", "small:1"), ("small:1",)]
    assert pipeline.max_batch_size == 8


@pytest.mark.parametrize(
    ("least", "models", "max_batch_size"),
    [("0", ("large:2", "large:1", "small:1"), 8), ("0.95", ("large:2", "large:1"), 8), ("0.96", ("large:2",), 16)],
)
def test_variants_that_are_not_accurate_enough_are_left_out(
    least: str, models: tuple[str, ...], max_batch_size: int
) -> None:
    pipeline = check(PIPELINE.replace("digits,", f"digits, min_accuracy: {least},"))
    assert pipeline.stages[0].models == models
    assert pipeline.stages[0].variants == (models if len(models) > 1 else ())
    assert pipeline.max_batch_size == max_batch_size


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (
            "family: digits, min_accuracy: 0.99",
            "stages.first.min_accuracy: no model of family 'digits' reaches 0.99; the best, large:2, has 0.97",
        ),
        ("family: digits, min_accuracy: 95", "stages.first.min_accuracy: expected a number from 0 to 1, got 95"),
        ("family: letters", "stages.first.family: no family 'letters'; expected digits"),
        (
            "family: digits, version: 2",
            "stages.first: Object contains unknown field `version`; expected family, inputs, min_accuracy, when",
        ),
        (
            "model: small, min_accuracy: 0.9",
            "stages.first: Object contains unknown field `min_accuracy`; expected model, inputs, version, when",
        ),
        ("family: digits, model: small", "stages.first: Object contains unknown field `model`"),
    ],
)
def test_a_stage_that_asks_too_much_of_a_family_is_refused(new: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(PIPELINE.replace("family: digits", new, 1))
    assert without_line(refused.value).startswith(f"p.yaml: {message}")


def test_the_weight_of_a_pipeline() -> None:
    assert check(PIPELINE).weight == 1.0
    assert check(PIPELINE + "weight: 2.5").weight == 2.5


@pytest.mark.parametrize("weight", ["0", "-1", ".inf", ".nan"])
def test_a_weight_is_finite_and_above_0(weight: str) -> None:
    with pytest.raises(ConfigError, match=r"^p\.yaml:11: weight: expected a finite number above 0, got"):
        check(PIPELINE + f"weight: {weight}")
