"""A cascade is drafted from two models: matched tensors, the output that decides, and the text of the pipeline."""

import pytest

from sluice.models.errors import ConfigError
from sluice.models.pipelines.cascade import Cascade, cascade_text, draft_cascade, vectors
from sluice.models.pipelines.check import check_pipeline
from sluice.models.pipelines.file import decode_pipeline
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec

PLACES = "small.onnx", "large.onnx"


def tensor(name: str, *shape: int, datatype: DataType = DataType.FP32) -> TensorSpec:
    return TensorSpec(name, datatype, shape)


def spec(name: str, inputs: list[TensorSpec], outputs: list[TensorSpec], rows: int = 8) -> ModelSpec:
    return ModelSpec(name, 1, tuple(inputs), tuple(outputs), rows)


SMALL = spec("a", [tensor("x", 4)], [tensor("probs", 3)])


def draft(
    small: ModelSpec, large: ModelSpec, output: str | None = None, probabilities: dict[str, str] | None = None
) -> Cascade:
    clear = {each.name: "" for each in vectors(small.outputs)} if probabilities is None else probabilities
    return draft_cascade(small, large, PLACES, clear, output)


def test_tensors_of_the_same_name_belong_together() -> None:
    found = draft(SMALL, spec("b", [tensor("x", 4)], [tensor("probs", 3)]))
    assert found == Cascade(("x",), {"x": "x"}, {"probs": "probs"}, "probs", ())


def test_tensors_of_other_names_are_matched_by_datatype_and_shape() -> None:
    small = spec("a", [tensor("x", 4), tensor("ids", 2, datatype=DataType.INT64)], [tensor("probs", 3)])
    large = spec("b", [tensor("tokens", 2, datatype=DataType.INT64), tensor("image", -1)], [tensor("softmax", 3)])
    found = draft(small, large)
    assert found.inputs == {"tokens": "ids", "image": "x"}
    assert found.outputs == {"probs": "softmax"}


def test_the_cascade_that_is_drafted_passes_the_checks_of_a_server() -> None:
    small = spec("a", [tensor("x", 4), tensor("only small", 2)], [tensor("p:0", 3), tensor("true", 3)])
    large = spec("b", [tensor("x", 4)], [tensor("p:0", 3), tensor("true", 3)])
    text = cascade_text(draft(small, large, "p:0"), ("a", "b"), 0.75, 20)
    pipeline = check_pipeline(
        decode_pipeline(text, "c/pipeline.yaml"), {"a:1": small, "b:1": large}, name="c", path="c/pipeline.yaml"
    )
    assert [each.name for each in pipeline.inputs] == ["x", "only small"]
    assert [each.name for each in pipeline.outputs] == ["p:0", "true"]
    condition = pipeline.stages[1].when
    assert condition is not None
    assert (condition.stage, condition.output, condition.below, pipeline.slo_ms) == ("small", "p:0", 0.75, 20)


def test_outputs_that_only_one_model_has_are_named() -> None:
    small = spec("a", [tensor("x", 4)], [tensor("probs", 3), tensor("extra", 9)])
    large = spec("b", [tensor("x", 4)], [tensor("probs", 3), tensor("hidden", 7)])
    assert draft(small, large, "probs").left == ("small.onnx: extra", "large.onnx: hidden")


@pytest.mark.parametrize(
    ("small", "large", "output", "probabilities", "expected"),
    [
        pytest.param(
            SMALL,
            spec("b", [tensor("x", 5)], [tensor("probs", 3)]),
            *(None, None),
            "large.onnx: input 'x' is FP32 [5]; expected one that fits an input of small.onnx, which has 'x' FP32 [4]",
            id="input",
        ),
        pytest.param(
            spec("a", [tensor("p", 4), tensor("q", 4)], [tensor("probs", 3)]),
            spec("b", [tensor("x", 4)], [tensor("probs", 3)]),
            *(None, None),
            "large.onnx: input 'x' is FP32 [4]; expected one that fits an input of small.onnx, which has 'p' FP32 [4], "
            "'q' FP32 [4]",
            id="two inputs would do",
        ),
        pytest.param(
            SMALL,
            spec("b", [tensor("x", 4)], [tensor("probs", 5)]),
            *(None, None),
            "large.onnx: its outputs are 'probs' FP32 [5]; expected one with the datatype and shape of an output of "
            "small.onnx, which has 'probs' FP32 [3]",
            id="output",
        ),
        pytest.param(
            spec("a", [tensor("x", 1, 4)], [tensor("probs", 1, 3)], rows=0),
            SMALL,
            *(None, None),
            "small.onnx: expected a model with a batch dimension, since a cascade decides row by row; it has none",
            id="no rows",
        ),
        pytest.param(
            SMALL,
            SMALL,
            None,
            {"probs": "adds up to 3 for zeros"},
            "small.onnx: no output holds probabilities, as the confidence of a cascade needs: 'probs' adds up to 3 for "
            "zeros; expected an output that ends in a softmax, or --output to take one all the same",
            id="logits",
        ),
        pytest.param(
            spec("a", [tensor("x", 4)], [tensor("p", 3), tensor("q", 3)]),
            spec("b", [tensor("x", 4)], [tensor("p", 3), tensor("q", 3)]),
            *(None, None),
            "small.onnx: 'p' and 'q' hold probabilities; expected --output with the one whose confidence decides",
            id="two outputs would do",
        ),
        pytest.param(
            *(SMALL, SMALL, "prob", None),
            "--output: small.onnx has no output 'prob'; expected one of probs; did you mean 'probs'?",
            id="unknown output",
        ),
        pytest.param(
            spec("a", [tensor("x", 4)], [tensor("label", datatype=DataType.INT64)]),
            spec("b", [tensor("x", 4)], [tensor("label", datatype=DataType.INT64)]),
            *("label", None),
            "--output: 'label' of small.onnx is INT64 []; expected a vector of probabilities a row, FP16, FP32, FP64",
            id="no vector",
        ),
    ],
)
def test_what_does_not_fit_is_named(
    small: ModelSpec, large: ModelSpec, output: str | None, probabilities: dict[str, str] | None, expected: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        draft(small, large, output, probabilities)
    assert str(raised.value) == expected


def test_an_output_may_be_taken_all_the_same() -> None:
    assert draft(SMALL, SMALL, "probs", {"probs": "adds up to 3 for zeros"}).judged == "probs"
