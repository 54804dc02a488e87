import msgspec
import pytest

from sluice.models.errors import ConfigError
from sluice.models.pipelines.check import check_pipeline, single_model
from sluice.models.pipelines.file import decode_pipeline
from sluice.models.pipelines.pipeline import (
    Combiner,
    Compete,
    Confidence,
    Late,
    OnLate,
    Pipeline,
    Stage,
    TensorSource,
    When,
)
from sluice.models.sequence_batching import SequenceBatching
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec
from tests.support.located import without_line

FP32, FP16, UINT8 = DataType.FP32, DataType.FP16, DataType.UINT8


def model(name: str, given: TensorSpec, *made: TensorSpec, version: int = 1, max_batch_size: int = 64) -> ModelSpec:
    return ModelSpec(name, version, (given,), made, max_batch_size)


X, PROBS = TensorSpec("x", FP32, (4,)), TensorSpec("probs", FP32, (10,))
SPECS = [
    model("prep", TensorSpec("raw", UINT8, (4,)), X),
    model("small", X, PROBS),
    model("small", X, PROBS, version=3),
    model("large", X, PROBS, max_batch_size=16),
    model("any", TensorSpec("x", FP32, (-1,)), PROBS),
    model("wide", TensorSpec("x", FP32, (5,)), PROBS),
    model("flat", TensorSpec("x", FP32, (2, 2)), PROBS),
    model("half", X, TensorSpec("probs", FP16, (10,))),
    model("few", X, TensorSpec("probs", FP32, (3,))),
    model("label", X, TensorSpec("label", DataType.INT64, ())),
    model("grid", X, TensorSpec("probs", FP32, (2, 5))),
    model("fixed", X, PROBS, max_batch_size=0),
    ModelSpec("pair", 1, (X, TensorSpec("z", FP32, (4,))), (PROBS,), 64),
]
MODELS = {spec.key: spec for spec in SPECS}

CASCADE = """
slo_ms: 50
late: evict
stages:
  large: {model: large, inputs: {x: prep.x}, when: {stage: small, output: probs, below: 0.9}}
  small: {model: small, version: 1, inputs: {x: prep.x}}
  prep: {model: prep, inputs: {raw: request.raw}}
outputs:
  probs: {from: [large.probs, small.probs]}
"""
ENSEMBLE = """
stages:
  a: {model: small, inputs: {x: request.x}}
  b: {model: any, inputs: {x: request.x}}
  vote: {combine: most_confident, of: [a.probs, b.probs]}
outputs:
  answer: {from: vote.probs}
  first: a.probs
"""


PERCENTILES = "expected a number above 50 and at most 100, such as 99.9"
HEADERS = "expected the name of a header, of lower-case letters, digits, '-', '_' and '.', which does not end in '-bin'"


def check(text: str) -> Pipeline:
    return check_pipeline(decode_pipeline(text, "repo/p/pipeline.yaml"), MODELS, name="p", path="repo/p/pipeline.yaml")


def test_a_cascade() -> None:
    when = When("small", "probs", 0.9, Confidence.MAX)
    assert check(CASCADE) == Pipeline(
        name="p",
        version=1,
        inputs=(TensorSpec("raw", UINT8, (4,)),),
        outputs=(PROBS,),
        stages=(
            Stage("prep", {"raw": TensorSource("request", "raw")}, model="prep:1"),
            Stage("small", {"x": TensorSource("prep", "x")}, model="small:1"),
            Stage("large", {"x": TensorSource("prep", "x")}, model="large:1", when=when),
        ),
        sources={"probs": (TensorSource("large", "probs"), TensorSource("small", "probs"))},
        max_batch_size=16,
        slo_ms=50.0,
        late=Late.EVICT,
    )


def test_an_ensemble() -> None:
    pipeline = check(ENSEMBLE)
    # The latest version; the request input takes the one fixed shape that both stages accept.
    assert [stage.model for stage in pipeline.stages] == ["small:3", "any:1", None]
    assert pipeline.inputs == (X,)
    assert pipeline.stages[2] == Stage(
        "vote", {"0": TensorSource("a", "probs"), "1": TensorSource("b", "probs")}, combine=Combiner.MOST_CONFIDENT
    )
    assert [output.name for output in pipeline.outputs] == ["answer", "first"]
    assert (pipeline.max_batch_size, pipeline.slo_ms, pipeline.late) == (64, None, None)
    assert (pipeline.percentile, pipeline.client_key) == (None, None)


def test_a_pipeline_has_its_own_percentile_and_client_key() -> None:
    pipeline = check(ENSEMBLE + "percentile: 99.9\nclient_key: x-tenant\n")
    assert (pipeline.percentile, pipeline.client_key) == (99.9, "x-tenant")


def test_stages_keep_the_order_of_the_file_where_they_can() -> None:
    text = """
stages:
  c: {model: small, inputs: {x: a.x}}
  b: {model: small, inputs: {x: a.x}}
  a: {model: prep, inputs: {raw: request.raw}}
  d: {combine: mean, of: [b.probs, c.probs]}
outputs: {probs: d.probs}
"""
    assert [stage.name for stage in check(text).stages] == ["a", "c", "b", "d"]


def test_a_stage_may_be_used_for_its_confidence_only() -> None:
    text = """
stages:
  gate: {model: small, inputs: {x: request.x}}
  a: {model: small, inputs: {x: request.x}}
  b: {model: large, inputs: {x: request.x}, when: {stage: gate, output: probs, confidence: margin, below: 1}}
outputs: {probs: {from: [b.probs, a.probs]}}
"""
    assert check(text).stages[2].when == When("gate", "probs", 1.0, Confidence.MARGIN)


def test_one_unbatchable_model_may_be_a_pipeline() -> None:
    pipeline = check("stages: {one: {model: fixed, inputs: {x: request.x}}}\noutputs: {probs: one.probs}")
    assert (pipeline.max_batch_size, pipeline.batchable) == (0, False)


def test_a_model_by_itself_is_a_pipeline() -> None:
    assert single_model(MODELS["small:3"]) == Pipeline(
        name="small",
        version=3,
        inputs=(X,),
        outputs=(PROBS,),
        stages=(Stage("small", {"x": TensorSource("request", "x")}, model="small:3"),),
        sources={"probs": (TensorSource("small", "probs"),)},
        max_batch_size=64,
        platform="onnxruntime_onnx",
    )


BAD_CASCADES = [
    # the form of the file
    ("slo_ms: 50", "slo_ms: fast", "slo_ms: Expected `float | null`, got `str`"),
    ("slo_ms: 50", "slo_mss: 50", "Object contains unknown field `slo_mss`; expected stages, outputs, slo_ms, late"),
    ("late: evict", "late: never", "late: Invalid enum value 'never'; expected serve or evict"),
    ("below: 0.9", "below: low", "stages.large.when.below: Expected `float`, got `str`"),
    (
        "below: 0.9",
        "beneath: 0.9",
        "stages.large.when: Object contains unknown field `beneath`; expected stage, output",
    ),
    (", below: 0.9", "", "stages.large.when: Object missing required field `below`"),
    (
        "below: 0.9",
        "below: 0.9, confidence: sure",
        "stages.large.when.confidence: Invalid enum value 'sure'; expected max or margin or entropy",
    ),
    ("version: 1", "version: one", "stages.small.version: Expected `int | null`, got `str`"),
    (
        "version: 1",
        "ver: 1",
        "stages.small: Object contains unknown field `ver`; expected model, inputs, version, when",
    ),
    ("{x: prep.x}, when", "prep.x, when", "stages.large.inputs: Expected `object`, got `str`"),
    (
        "raw: request.raw",
        "raw: request",
        "stages.prep.inputs.raw: expected STAGE.TENSOR or request.TENSOR, got 'reques",
    ),
    ("raw: request.raw", "raw: 3", "stages.prep.inputs.raw: expected STAGE.TENSOR or request.TENSOR, got 3"),
    ("{model: prep, inputs", "{inputs", "stages.prep: expected 'model', 'family' or 'combine'"),
    ("{from: [large", "{form: [large", "outputs.probs: Object contains unknown field `form`; expected from"),
    ("[large.probs, small.probs]", "[large.probs, small]", "outputs.probs.from.1: expected STAGE.TENSOR"),
    ("[large.probs, small.probs]", "[]", "outputs.probs: expected at least one source"),
    ("  prep: {", "  small: {", "not YAML: 'small' twice"),
    ("stages:", "stages: [", "not YAML: "),
    # names, models and tensors that do not exist
    (
        "model: large,",
        "model: huge,",
        "stages.large.model: no model 'huge'; expected one of any, few, fixed, flat, grid, half",
    ),
    ("version: 1", "version: 2", "stages.small.version: model 'small' has no version 2; expected one of 1, 3"),
    ("inputs: {raw:", "inputs: {row:", "stages.prep.inputs.row: model 'prep:1' has no such input; expected raw"),
    ("{raw: request.raw}", "{}", "stages.prep.inputs: input 'raw' of model 'prep:1' is missing"),
    (
        "x: prep.x}, when",
        "x: prop.x}, when",
        "stages.large.inputs.x: no stage 'prop'; expected one of large, small, prep",
    ),
    ("x: prep.x}, when", "x: prep.y}, when", "stages.large.inputs.x: stage 'prep' has no output 'y'; expected x"),
    ("stage: small", "stage: tiny", "stages.large.when.stage: no stage 'tiny'; expected one of large, small, prep"),
    (
        "stage: small",
        "stage: request",
        "stages.large.when.stage: no stage 'request'; expected one of large, small, prep",
    ),
    (
        "output: probs",
        "output: logits",
        "stages.large.when.output: stage 'small' has no output 'logits'; expected probs",
    ),
    ("small.probs]", "tiny.probs]", "outputs.probs: no stage 'tiny'; expected one of large, small, prep"),
    ("small.probs]", "small.y]", "outputs.probs: stage 'small' has no output 'y'; expected probs"),
    ("small.probs]", "request.raw]", "outputs.probs: expected a stage's tensor, got request.raw"),
    ("  prep: {model", "  request: {model", "stages.request: not a stage name; expected letters, digits, '_' and '-'"),
    ("  prep: {model", "  a.b: {model", "stages.a.b: not a stage name; expected letters"),
    # values
    ("slo_ms: 50", "slo_ms: 0", "slo_ms: expected a finite number above 0, got 0.0"),
    ("slo_ms: 50", "slo_ms: .nan", "slo_ms: expected a finite number above 0, got nan"),
    ("slo_ms: 50", "slo_ms: .inf", "slo_ms: expected a finite number above 0, got inf"),
    *(
        ("slo_ms: 50", f"percentile: {text}", f"percentile: {PERCENTILES}, got {value}")
        for text, value in (("100.5", "100.5"), ("50", "50"), ("0.99", "0.99"), (".nan", "nan"), (".inf", "inf"))
    ),
    *(
        ("slo_ms: 50", f"client_key: {name}", f"client_key: {HEADERS}, got '{name}'")
        for name in ("X-Tenant", "tenant name", ":path", "tenant-bin")
    ),
    ("slo_ms: 50", "client_key: ''", f"client_key: {HEADERS}, got ''"),
    ("below: 0.9", "below: 0", "stages.large.when.below: expected a threshold above 0 and at most 1, got 0.0"),
    ("below: 0.9", "below: 1.1", "stages.large.when.below: expected a threshold above 0 and at most 1, got 1.1"),
    ("below: 0.9", "below: .nan", "stages.large.when.below: expected a threshold above 0 and at most 1, got nan"),
    # the graph
    ("stage: small", "stage: large", "stages.large.when.stage: a stage cannot depend on its own confidence"),
    ("{x: prep.x}}", "{x: large.probs}}", "stages.large.when.stage: 'small' comes after 'large'; expected an earlier"),
    ("raw: request.raw", "raw: small.probs", "stages: cycle prep -> small -> prep; expected stages that only need"),
    ("raw: request.raw", "raw: prep.x", "stages: cycle prep -> prep"),
    (
        "[large.probs, small.probs]",
        "small.probs",
        "stages.large: unreachable: no output and no other stage that is used",
    ),
    (
        "[large.probs, small.probs]",
        "large.probs",
        "outputs.probs: rows for which 'large' does not run would have no answer",
    ),
    ("[large.probs, small.probs]", "[small.probs, large.probs]", "outputs.probs: rows for which 'large' does not run"),
    ("}, when: {stage: small, output: probs, below: 0.9}}", "}}", "outputs.probs: 'large' always runs, so the sources"),
    ("large.probs, small", "small.probs, small", "outputs.probs: small.probs is given twice"),
    # kinds of tensors
    ("model: large,", "model: wide,", "stages.large.inputs.x: expected FP32 [5], but prep.x is FP32 [4]"),
    ("model: large,", "model: flat,", "stages.large.inputs.x: expected FP32 [2, 2], but prep.x is FP32 [4]"),
    ("x: prep.x}, when", "x: request.raw}, when", "stages.large.inputs.x: expected FP32 [4], but request.raw is UINT8"),
    ("model: large,", "model: half,", "outputs.probs: small.probs is FP32 [10], but large.probs is FP16 [10]"),
    ("model: large,", "model: few,", "outputs.probs: small.probs is FP32 [10], but large.probs is FP32 [3]"),
    ("model: large,", "model: fixed,", "stages.large.model: model 'fixed:1' has no batch dimension; expected a model"),
    ("model: large,", "model: pair,", "stages.large.inputs: input 'z' of model 'pair:1' is missing"),
    (
        "{stage: small, output: probs",
        "{stage: prep, output: raw",
        "stages.large.when.output: stage 'prep' has no output 'raw'; expected x",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD_CASCADES)
def test_a_bad_cascade_is_refused_with_the_place(old: str, new: str, message: str) -> None:
    assert old in CASCADE
    with pytest.raises(ConfigError) as refused:
        check(CASCADE.replace(old, new, 1))
    assert without_line(refused.value).startswith(f"repo/p/pipeline.yaml: {message}")


BAD_ENSEMBLES = [
    (
        "most_confident",
        "best",
        "stages.vote.combine: Invalid enum value 'best'; expected mean or most_confident or weighted_mean or vote or",
    ),
    ("of: [a.probs, b.probs]", "of: [a.probs]", "stages.vote.of: expected at least two tensors to combine, got 1"),
    ("of: [a.probs, b.probs]", "of: [a.probs, a.probs]", "stages.vote.of: a.probs is given twice"),
    ("of: [a.probs, b.probs]", "of: [a.probs, request.x]", "stages.vote.of.1: expected a stage's tensor, not the req"),
    ("of: [a.probs, b.probs]", "of: a.probs", "stages.vote.of: Expected `array`, got `str`"),
    ("of: [a.probs, b.probs]", "of: [a.probs, c.probs]", "stages.vote.of.1: no stage 'c'; expected one of a, b, vote"),
    ("model: any", "model: few", "stages.vote.of: b.probs is FP32 [3], but a.probs is FP32 [10]"),
    ("model: any", "model: half", "stages.vote.of: b.probs is FP16 [10], but a.probs is FP32 [10]"),
    ("model: any", "model: wide", "stages.b.inputs.x: expected FP32 [5], but request.x is FP32 [4] elsewhere"),
    ("model: any", "model: prep", "stages.b.inputs.x: model 'prep:1' has no such input; expected raw"),
    ("vote.probs", "vote.y", "outputs.answer: stage 'vote' has no output 'y'; expected probs"),
    (
        "vote: {",
        "vote: {model: small, ",
        "stages.vote: Object contains unknown field `model`; expected combine, of, weights, when",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD_ENSEMBLES)
def test_a_bad_ensemble_is_refused_with_the_place(old: str, new: str, message: str) -> None:
    assert old in ENSEMBLE
    with pytest.raises(ConfigError) as refused:
        check(ENSEMBLE.replace(old, new, 1))
    assert without_line(refused.value).startswith(f"repo/p/pipeline.yaml: {message}")


def _combined(combine: str, tensor: str, one: str, other: str) -> str:
    return f"""
stages:
  a: {{model: {one}, inputs: {{x: request.x}}}}
  b: {{model: {other}, inputs: {{x: request.x}}}}
  vote: {{combine: {combine}, of: [a.{tensor}, b.{tensor}]}}
outputs: {{out: vote.{tensor}}}
"""


def test_combiners_take_floats_and_most_confident_takes_vectors() -> None:
    with pytest.raises(ConfigError, match=r"stages\.vote\.of: expected tensors of FP16, FP32, FP64, got INT64"):
        check(_combined("mean", "label", "label", "label"))
    with pytest.raises(ConfigError, match=r"of: most_confident expected a vector of probabilities a row, got FP32 \[2"):
        check(_combined("most_confident", "probs", "grid", "grid"))
    assert check(_combined("mean", "probs", "grid", "grid")).outputs == (TensorSpec("out", FP32, (2, 5)),)


def test_combiners_that_take_more() -> None:
    assert check(_combined("vote", "label", "label", "label")).outputs == (TensorSpec("out", DataType.INT64, ()),)
    assert check(_combined("concat", "probs", "few", "small")).outputs == (TensorSpec("out", FP32, (13,)),)
    weighted = check(_combined("weighted_mean, weights: [1, 2.5]", "probs", "small", "small"))
    assert weighted.stages[2].weights == (1.0, 2.5)


@pytest.mark.parametrize(
    ("combine", "tensor", "one", "other", "message"),
    [
        ("vote", "probs", "grid", "grid", r"of: vote expected a vector of probabilities a row, got FP32 \[2, 5\]"),
        ("vote", "probs", "small", "few", r"of: b.probs is FP32 \[3\], but a.probs is FP32 \[10\]"),
        (
            "concat",
            "probs",
            "small",
            "grid",
            r"of: b.probs is FP32 \[2, 5\], but a.probs is FP32 \[10\]; expected them to",
        ),
        ("concat", "probs", "small", "half", r"of: b.probs is FP16 \[10\], but a.probs is FP32 \[10\]"),
        ("concat", "label", "label", "label", r"of: concat expected tensors of at least one dimension, but a.label is"),
        ("weighted_mean", "probs", "small", "small", "weights: expected one weight for each of the 2 tensors, got 0"),
        (
            "weighted_mean, weights: [0, 0]",
            "probs",
            "small",
            "small",
            r"weights: expected finite weights of at least 0, one of them above, got \[0.0, 0.0\]",
        ),
        (
            "weighted_mean, weights: [1, .nan]",
            "probs",
            "small",
            "small",
            r"weights: expected finite weights of at least 0, one of them above, got \[1.0, nan\]",
        ),
        (
            "mean, weights: [1, 1]",
            "probs",
            "small",
            "small",
            "weights: expected weights with weighted_mean only, got them with mean",
        ),
    ],
)
def test_combiners_that_cannot_join(combine: str, tensor: str, one: str, other: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"stages\.vote\.{message}"):
        check(_combined(combine, tensor, one, other))


def test_a_threshold_needs_probabilities() -> None:
    text = CASCADE.replace("model: small, version: 1", "model: label").replace("output: probs", "output: label")
    with pytest.raises(
        ConfigError, match=r"stages\.large\.when\.output: expected probabilities \(FP16, FP32, FP64\), g"
    ):
        check(text)


def test_what_depends_on_a_conditional_stage_is_conditional() -> None:
    text = """
stages:
  a: {model: small, inputs: {x: request.x}}
  b: {model: small, inputs: {x: request.x}, when: {stage: a, output: probs, below: 0.5}}
  vote: {combine: mean, of: [a.probs, b.probs]}
outputs: {probs: SOURCES}
"""
    with pytest.raises(ConfigError, match=r"outputs\.probs: rows for which 'vote' does not run would have no answer"):
        check(text.replace("SOURCES", "vote.probs"))
    assert len(check(text.replace("SOURCES", "{from: [vote.probs, a.probs]}")).stages) == 3


def test_two_stages_that_wait_for_each_others_confidence_are_a_cycle() -> None:
    text = """
stages:
  a: {model: small, inputs: {x: request.x}, when: {stage: b, output: probs, below: 0.5}}
  b: {model: small, inputs: {x: request.x}, when: {stage: a, output: probs, below: 0.5}}
outputs: {probs: a.probs}
"""
    with pytest.raises(ConfigError, match="stages: cycle a -> b -> a; expected"):
        check(text)


@pytest.mark.parametrize(("head", "most"), [("", "256 stages"), ("slo_ms: 50\n", "64 stages beside slo_ms")])
@pytest.mark.parametrize("over", [0, 1])
def test_a_pipeline_has_at_most_256_stages_and_64_if_it_has_to_be_planned(head: str, most: str, over: int) -> None:
    stages = int(most.split(maxsplit=1)[0]) + over
    lines = "\n".join(f"  s{number}: {{model: small, inputs: {{x: request.x}}}}" for number in range(stages))
    text = f"{head}stages:\n{lines}\noutputs: {{probs: s0.probs}}\n"
    with pytest.raises(ConfigError) as error:
        check(text)
    assert (f"stages: expected at most {most}, got {stages}" in str(error.value)) == bool(over)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expected `object`, got `null`"),
        ("[]", "Expected `object`, got `array`"),
        ("outputs: {}", "Object missing required field `stages`"),
        ("stages: {}\noutputs: {y: a.y}", "stages: expected at least one stage"),
        ("stages: {a: {model: small, inputs: {x: request.x}}}\noutputs: {}", "outputs: expected at least one output"),
        ("stages: {a: 3}\noutputs: {y: a.y}", "stages.a: Expected `object`, got `int`"),
        (
            "stages: {a: {combine: mean, of: [a.y, a.z]}}\noutputs: {y: a.y}",
            "stages: expected at least one stage with a",
        ),
        (
            "stages: {true: {model: small, inputs: {}}}\noutputs: {}",
            "stages: Expected `str`, got `bool` as a name; put it in quotes",
        ),
        (
            "slo_ms: 2024-02-31",
            "slo_ms: expected a number of milliseconds, or one with its unit (ns, us, µs, ms, s, min",
        ),
        ("[" * 500, "not YAML: "),
    ],
)
def test_what_is_no_pipeline_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(text)
    assert without_line(refused.value).startswith(f"repo/p/pipeline.yaml: {message}")


def test_a_pipeline_may_not_be_named_like_a_model() -> None:
    file = decode_pipeline(CASCADE, "f")
    with pytest.raises(ConfigError, match=r"^f:2: there is already a model named 'small'; expected another name"):
        check_pipeline(file, MODELS, name="small", path="f")


def test_inputs_are_text_if_a_model_that_takes_only_text_gets_them() -> None:
    words, y = TensorSpec("words", DataType.BYTES, (1,)), TensorSpec("y", FP32, (4,))
    text = ModelSpec("text", 1, (words, X), (y,), 64, only_text=True)
    free = ModelSpec("free", 1, (words,), (y,), 64)
    assert single_model(text).text_inputs == ("words",)
    assert single_model(free).text_inputs == ()
    file = decode_pipeline(
        """
        stages:
          a: {model: text, inputs: {words: request.a, x: b.y}}
          b: {model: free, inputs: {words: request.b}}
        outputs: {y: a.y}
        """,
        "",
    )
    models = {spec.key: spec for spec in (text, free)}
    pipeline = check_pipeline(file, models, name="p", path="")
    assert {each.name for each in pipeline.inputs} == {"a", "b"}
    assert pipeline.text_inputs == ("a",)


@pytest.mark.parametrize(
    ("written", "compete"),
    [
        ("{}", Compete(2)),
        ("{copies: 7, after: 0}", Compete(7)),
        ("{copies: 3, after: 12.5}", Compete(3, 12.5)),
        ("{after: p90}", Compete(2, percentile=90.0)),
        ("{after: p99.5}", Compete(2, percentile=99.5)),
    ],
)
def test_a_stage_competes(written: str, compete: Compete) -> None:
    text = f"stages: {{a: {{model: small, inputs: {{x: request.x}}, compete: {written}}}}}\noutputs: {{y: a.probs}}"
    assert check(text).stages[0].compete == compete


AFTER = "compete.after: expected 0, a number of milliseconds up to 86400000 or a percentile such as p90, got "


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{copies: 1}", "compete.copies: expected 2 to 7, got 1"),
        ("{copies: 8}", "compete.copies: expected 2 to 7, got 8"),
        ("{after: -1}", AFTER + "-1"),
        ("{after: p0}", AFTER + "'p0'"),
        ("{after: p100}", AFTER + "'p100'"),
        ("{after: soon}", AFTER + "'soon'"),
        ("{after: .inf}", AFTER + "inf"),
        ("{copy: 2}", "compete: Object contains unknown field `copy`"),
    ],
)
def test_a_stage_that_competes_badly_is_refused_with_the_place(written: str, message: str) -> None:
    text = f"stages: {{a: {{model: small, inputs: {{x: request.x}}, compete: {written}}}}}\noutputs: {{y: a.probs}}"
    with pytest.raises(ConfigError) as refused:
        check(text)
    assert without_line(refused.value).startswith(f"repo/p/pipeline.yaml: stages.a.{message}")


def test_a_combiner_and_a_model_with_sequences_do_not_compete() -> None:
    with pytest.raises(ConfigError, match=r"stages\.vote: Object contains unknown field `compete`"):
        check(ENSEMBLE.replace("most_confident,", "most_confident, compete: {},"))
    states = msgspec.structs.replace(MODELS["small:1"], sequence_batching=SequenceBatching())
    text = "stages: {a: {model: small, inputs: {x: request.x}, compete: {}}}\noutputs: {y: a.probs}"
    with pytest.raises(ConfigError, match=r"stages\.a\.compete: model 'small:1' keeps states of sequences, which"):
        check_pipeline(decode_pipeline(text, "f"), {"small:1": states}, name="p", path="f")


PARTIAL = ENSEMBLE.replace("most_confident,", "most_confident, on_late: partial,").replace("  first: a.probs\n", "")


def test_an_ensemble_may_join_what_is_there_on_time() -> None:
    assert [stage.on_late for stage in check(PARTIAL).stages] == [OnLate.WAIT, OnLate.WAIT, OnLate.PARTIAL]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("partial", "late", "stages.vote.on_late: Invalid enum value 'late'; expected wait or partial"),
        ("most_confident", "concat", "stages.vote.on_late: concat needs all its members; expected another combiner"),
        (
            "outputs:",
            "outputs:\n  first: a.probs",
            "outputs.first: 'vote' may give up stage 'a'; expected",
        ),
    ],
)
def test_a_partial_ensemble_that_cannot_be_is_refused_with_the_place(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(PARTIAL.replace(old, new, 1))
    assert without_line(refused.value).startswith(f"repo/p/pipeline.yaml: {message}")
