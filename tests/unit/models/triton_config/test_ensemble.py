import json
from pathlib import Path

import pytest

from sluice.models.errors import ConfigError
from sluice.models.pipelines.pipeline import Stage, TensorSource
from sluice.models.repository.scan import Repository
from sluice.models.tensors.spec import TensorSpec
from sluice.models.triton_config.ensemble import _stage_names
from tests.support.models.ensembles import FP32, HEAD, NET, PREP, ensemble
from tests.support.models.onnx_models import save_mlp


def test_an_ensemble_is_a_pipeline() -> None:
    pipeline = ensemble(NET + PREP)  # in any order
    assert (pipeline.name, pipeline.platform, pipeline.max_batch_size) == ("e", "ensemble", 8)
    assert pipeline.inputs == (TensorSpec("IN", FP32, (4,)),)
    assert pipeline.outputs == (TensorSpec("OUT", FP32, (10,), ("a", "b")),)
    assert pipeline.stages == (
        Stage("prep", {"raw": TensorSource("request", "IN")}, model="prep:1"),
        Stage("net", {"x": TensorSource("prep", "x")}, model="net:3"),
    )
    assert pipeline.sources == {"OUT": (TensorSource("net", "probs"),)}
    config = json.loads(pipeline.config)
    assert config["ensemble_scheduling"]["max_inflight_requests"] == 0
    assert config["ensemble_scheduling"]["step"][1]["output_map"] == {"x": "mid"}


def test_a_version_may_be_named() -> None:
    assert ensemble(PREP + NET.replace("-1", "1")).stages[1].model == "net:1"


def test_a_model_may_be_in_several_steps_and_a_tensor_go_to_several() -> None:
    second = NET.replace('"OUT"', '"OTHER"')
    head = HEAD + 'output { name: "OTHER" data_type: TYPE_FP32 dims: -1 }'
    pipeline = ensemble(PREP + NET + second, head)
    assert [stage.name for stage in pipeline.stages] == ["prep", "net", "net__2"]
    assert pipeline.sources["OTHER"] == (TensorSource("net__2", "probs"),)


def test_variable_dimensions_fit_any() -> None:
    head = HEAD.replace("dims: 4", "dims: -1")
    assert ensemble(PREP + NET.replace('"net"', '"any"'), head).inputs == (TensorSpec("IN", FP32, (4,)),)


def test_names_that_no_stage_can_have() -> None:
    step = """step { model_name: "v2.5" input_map { key: "x" value: "mid" } output_map { key: "x" value: "mid2" } }"""
    pipeline = ensemble(PREP + step + NET.replace('"mid"', '"mid2"'))
    assert [stage.name for stage in pipeline.stages] == ["prep", "v2_5", "net"]


def test_one_step_may_go_without_a_batch_dimension() -> None:
    head = HEAD.replace("max_batch_size: 8", "").replace("dims: 4", "dims: 3")
    pipeline = ensemble(NET.replace('"net"', '"fixed"').replace('"mid"', '"IN"'), head)
    assert (pipeline.max_batch_size, pipeline.stages[0].model) == (0, "fixed:1")


PAIR = 'step { model_name: "pair" input_map { key: "x" value: "mid" } input_map { key: "probs" value: "P" } %s }'
BACK = """
step {
  model_name: "back"
  input_map { key: "probs" value: "P" }
  output_map { key: "x" value: "mid" }
}
"""

BAD_STEPS = [
    ("no steps", "", "ensemble_scheduling: expected at least one step"),
    ("no model name", PREP.replace('"prep"', '""') + NET, "step 0: model_name: expected the name of a model"),
    (
        "unknown model",
        PREP + NET.replace('"net"', '"nett"'),
        "step 1.model: no model 'nett'; expected one of any, any_rows, back,",
    ),
    (
        "unknown version",
        PREP + NET.replace("-1", "2"),
        "step 1.version: model 'net' has no version 2; expected one of 1, 3",
    ),
    (
        "bad version",
        PREP + NET.replace("-1", "-2"),
        r"step 1 \('net'\): model_version: expected a version or -1, got -2",
    ),
    (
        "no input map",
        PREP + NET.replace('input_map { key: "x" value: "mid" }', ""),
        r"step 1 \('net'\): input_map: expected at least one tensor",
    ),
    (
        "no output map",
        PREP + NET.replace('output_map { key: "probs" value: "OUT" }', ""),
        r"step 1 \('net'\): output_map: expected at least one tensor",
    ),
    (
        "unmapped input of a model",
        PREP + NET + PAIR.replace('input_map { key: "probs" value: "P" }', "") % 'output_map { key: "y" value: "Y" }',
        r"step 2 \('pair'\): input_map: input 'probs' of the model is missing",
    ),
    (
        "input mapped twice",
        PREP + NET.replace("output_map", 'input_map { key: "x" value: "IN" } output_map'),
        'input_map has the key "x" twice',
    ),
    (
        "map from an unknown input",
        PREP + NET.replace('"x"', '"y"'),
        r"step 1 \('net'\): input_map: the model has no input 'y'; expected x",
    ),
    (
        "map from an unknown output",
        PREP + NET.replace('"probs"', '"prob"'),
        r"step 1 \('net'\): output_map: the model has no output 'prob'; expected probs",
    ),
    (
        "input mapped to nothing",
        PREP + NET.replace('value: "mid"', 'value: ""'),
        r"step 1 \('net'\): input_map: input 'x': expected the name of a tensor",
    ),
    (
        "input that nobody writes",
        PREP + NET.replace('"mid"', '"mid2"'),
        r"step 1 \('net'\): input 'x': 'mid2' is written by no step and is no input of the ensemble",
    ),
    (
        "two outputs to one tensor, of two steps",
        PREP + NET + NET,
        r"step 2 \('net'\): output_map: 'OUT' is already written by step 1 \('net'\)",
    ),
    (
        "two outputs to one tensor, of one step",
        PREP.replace("output_map", 'output_map { key: "n" value: "mid" } output_map') + NET,
        r"step 0 \('prep'\): output_map: 'mid' is already written by step 0 \('prep'\)",
    ),
    (
        "output to an input of the ensemble",
        PREP.replace('"mid"', '"IN"') + NET,
        r"step 0 \('prep'\): output_map: 'IN' is an input of the ensemble, which no step may write",
    ),
    (
        "cycle",
        PREP.replace('"mid"', '"m"')
        + 'step { model_name: "pair" input_map { key: "x" value: "mid" } input_map { key: "probs" value: "P" } '
        'output_map { key: "y" value: "Y" } }' + BACK + NET.replace('"OUT"', '"P"'),
        r"ensemble_scheduling: cycle step \d \('\w+'\) -> step \d \('\w+'\) -> step \d \('\w+'\); expected steps that",
    ),
    (
        "cycle of one step",
        PREP + NET + 'step { model_name: "v2.5" input_map { key: "x" value: "c" } output_map { key: "x" value: "c" } }',
        r"ensemble_scheduling: cycle step 2 \('v2.5'\) -> step 2 \('v2.5'\)",
    ),
    (
        "datatypes between steps",
        PREP.replace('"x"', '"n"') + NET,
        r"step 1 \('net'\): input 'x': expected FP32 \[3\], but 'mid', output 'n' of step 0 \('prep'\), is INT64 \[1\]",
    ),
    (
        "shapes between steps",
        PREP
        + NET
        + 'step { model_name: "v2.5" input_map { key: "x" value: "OUT" } output_map { key: "x" value: "Y" } }',
        r"step 2 \('v2.5'\): input 'x': expected FP32 \[3\], but 'OUT', output 'probs' of step 1 \('net'\), is",
    ),
    (
        "the ensemble's rows are more than a model's",
        PREP + NET.replace('"net"', '"small"'),
        r"step 1 \('small'\): max_batch_size of the ensemble is 8, but 2 of the model",
    ),
    (
        "a batch for a model without a batch dimension",
        PREP + NET.replace('"net"', '"rows"'),
        r"step 1 \('rows'\): input 'x': expected FP32 \[2, 3\], but 'mid', output 'x' of step 0 \('prep'\), is",
    ),
    (
        "as many rows as there happen to be",
        PREP
        + 'step { model_name: "any_rows" input_map { key: "x" value: "mid" } output_map { key: "x" value: "more" } }'
        + NET.replace('"mid"', '"more"'),
        r"step 2 \('net'\): input 'x': expected FP32 \[3\], but 'more', output 'x' of step 1 \('any_rows'\), is",
    ),
    (
        "a tensor that is not used",
        PREP.replace("output_map", 'output_map { key: "n" value: "count" } output_map') + NET,
        r"step 0 \('prep'\): output_map: 'count' is used by no step and is no output",
    ),
    (
        "a step that leads nowhere",
        PREP
        + NET
        + 'step { model_name: "v2.5" input_map { key: "x" value: "mid" } output_map { key: "x" value: "Y" } }',
        r"step 2 \('v2.5'\): output_map: 'Y' is used by no step and is no output",
    ),
    ("datatype of an output", PREP.replace('"mid"', '"OUT"').replace('"x"', '"n"'), "output 'OUT': FP32"),
]
BAD_HEADS = [
    (
        HEAD.replace("dims: 4", "dims: 5"),
        r"step 0 \('prep'\): input 'raw': expected FP32 \[4\], but 'IN', the ensemble's",
    ),
    (
        HEAD.replace("dims: 4", "dims: [ 2, 2 ]"),
        r"step 0 \('prep'\): input 'raw': expected FP32 \[4\], but 'IN', the ensemble's input, is FP32 \[2, 2\]",
    ),
    (
        HEAD.replace("FP32 dims: 4", "INT8 dims: 4"),
        r"step 0 \('prep'\): input 'raw': expected FP32 \[4\], but 'IN', the ensemble's input, is INT8 \[4\]",
    ),
    (HEAD + 'input { name: "IN2" data_type: TYPE_FP32 dims: 4 }', "input 'IN2': used by no step"),
    (HEAD + 'output { name: "O2" data_type: TYPE_FP32 dims: 4 }', "output 'O2': written by no step"),
    (HEAD.replace("dims: 10", "dims: 9"), r"output 'OUT': FP32 \[9\], but step 1 \('net'\) makes FP32 \[10\]"),
    (
        HEAD.replace("FP32 dims: 10", "INT8 dims: 10"),
        r"output 'OUT': INT8 \[10\], but step 1 \('net'\) makes FP32 \[10\]",
    ),
    (HEAD.replace("dims: 4", ""), "input 'IN': expected data_type and dims"),
    (HEAD[: HEAD.index("output")], "output: expected at least one output"),
    (HEAD.replace('platform: "ensemble"', ""), "platform: expected 'ensemble' with ensemble_scheduling, got ''"),
    (HEAD + 'backend: "onnxruntime"', "backend: platform ensemble goes with none, not with onnxruntime"),
    (HEAD + "instance_group { count: 1 }", "instance_group: an ensemble has no instances of its own"),
    (HEAD + 'model_warmup { name: "w" }', "model_warmup: an ensemble has no instances of its own"),
    (HEAD + "optimization { graph { level: 1 } }", "optimization: an ensemble has no instances of its own"),
    (
        HEAD.replace("dims: 4", "dims: 4 reshape { shape: [ 2, 2 ] }"),
        "input 'IN': reshape: expected it in the models of the steps",
    ),
]


@pytest.mark.parametrize(("steps", "message"), [case[1:] for case in BAD_STEPS], ids=[case[0] for case in BAD_STEPS])
def test_bad_steps(steps: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^e/config.pbtxt.*: {message}"):
        ensemble(steps)


@pytest.mark.parametrize(("head", "message"), BAD_HEADS)
def test_bad_ensembles_of_good_steps(head: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^e/config.pbtxt: {message}"):
        ensemble(head=head)


SOME = """
step {
  model_name: "some" model_version: -1
  input_map { key: "x" value: "mid" }
  output_map { key: "probs" value: "OUT" }
}
"""


def test_an_optional_input_of_a_step_may_be_left_out_or_be_optional_in_the_ensemble() -> None:
    left_out = ensemble(PREP + SOME)
    assert left_out.stages[1].inputs == {"x": TensorSource("prep", "x")}
    taken = SOME.replace("output_map", 'input_map { key: "k" value: "K" } output_map')
    passed_on = ensemble(PREP + taken, HEAD + 'input { name: "K" data_type: TYPE_FP32 dims: 4 optional: true }')
    assert passed_on.stages[1].inputs == {"x": TensorSource("prep", "x"), "k": TensorSource("request", "K")}
    assert [(tensor.name, tensor.optional) for tensor in passed_on.inputs] == [("IN", False), ("K", True)]


def test_what_a_step_needs_is_not_optional_in_the_ensemble() -> None:
    head = HEAD.replace("dims: 4", "dims: 4 optional: true")
    with pytest.raises(ConfigError, match=r"step 0 \('prep'\): input_map: expected at least one input that is not opt"):
        ensemble(head=head)
    head += 'input { name: "Z" data_type: TYPE_FP32 dims: 3 }'
    both = """step {
      model_name: "pair" model_version: -1
      input_map { key: "x" value: "Z" } input_map { key: "probs" value: "IN" }
      output_map { key: "y" value: "OUT" }
    }"""
    with pytest.raises(ConfigError, match=r"input 'probs': 'IN' is optional in the ensemble, but not in the model"):
        ensemble(both, head)


@pytest.mark.parametrize(
    ("head", "net", "max_batch_size"),
    [
        (HEAD, "fixed", 1),
        (HEAD.replace("max_batch_size: 8", ""), "net", 0),
        (HEAD.replace("max_batch_size: 8", ""), "fixed", 0),
        (HEAD.replace("max_batch_size: 8", "").replace("dims: 4", "dims: [ 1, 4 ]"), "net", 0),
        (HEAD.replace("max_batch_size: 8", "").replace("dims: 10", "dims: [ -1, 10 ]"), "net", 0),
        (HEAD, "net", 8),
    ],
)
def test_a_request_is_one_row_where_only_some_have_a_batch_dimension(head: str, net: str, max_batch_size: int) -> None:
    pipeline = ensemble(PREP + NET.replace('"net"', f'"{net}"'), head)
    assert pipeline.max_batch_size == max_batch_size
    assert [stage.name for stage in pipeline.stages] == ["prep", net]
    assert json.loads(pipeline.config)["max_batch_size"] == (8 if "max_batch_size" in head else 0)


def test_an_ensemble_in_a_repository(tmp_path: Path) -> None:
    save_mlp(tmp_path / "prep" / "1" / "model.onnx", [4, 3])
    save_mlp(tmp_path / "net" / "1" / "model.onnx", [3, 10])
    text = (HEAD + f"ensemble_scheduling {{ {PREP + NET} }}").replace('"raw"', '"x"')
    text = text.replace('{ key: "x" value: "mid" }\n}\n\nstep', '{ key: "y" value: "mid" }\n}\n\nstep')
    text = text.replace('"probs"', '"y"')
    for name in ("a", "z"):
        (tmp_path / name / "4").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(text.replace("mid", "IN") if name == "z" else text)
    (tmp_path / "a" / "labels.txt").write_text("one\ntwo\n")
    (tmp_path / "a" / "config.pbtxt").write_text(text.replace("dims: 10", 'dims: 10 label_filename: "labels.txt"'))
    found = Repository.scan(tmp_path)
    assert [(name, pipeline.version) for name, pipeline in found.pipelines.items()] == [("a", 4)]
    assert found.pipelines["a"].outputs[0].labels == ("one", "two")
    assert [broken.name for broken in found.broken] == ["z"]


def test_every_stage_has_a_name_of_its_own() -> None:
    assert _stage_names(["e-x", "e-x__3", "e-x", "e-x__3"]) == ["e-x", "e-x__3", "e-x__2", "e-x__3__2"]
    assert _stage_names(["v2.5", "v2_5", "v2_5__2"]) == ["v2_5", "v2_5__2", "v2_5__2__2"]
