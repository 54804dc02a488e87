from pathlib import Path

import pytest

from sluice.models.errors import ConfigError
from sluice.models.pipelines.pipeline import Pipeline, Stage, TensorSource
from sluice.models.repository.scan import Repository
from tests.support.located import without_line
from tests.support.models.ensembles import HEAD, NET, PREP, ensemble
from tests.support.models.onnx_models import save_mlp

OUTER = """
step {
  model_name: "inner" model_version: -1
  input_map { key: "IN" value: "IN" }
  output_map { key: "OUT" value: "seen" }
}
step {
  model_name: "back"
  input_map { key: "probs" value: "seen" }
  output_map { key: "x" value: "again" }
}
step {
  model_name: "net"
  input_map { key: "x" value: "again" }
  output_map { key: "probs" value: "OUT" }
}
"""


def test_the_steps_of_an_inner_ensemble_are_stages_of_the_outer_one() -> None:
    twice = ensemble(OUTER, inner={"inner": ensemble()})
    assert twice.stages == (
        Stage("inner-prep", {"raw": TensorSource("request", "IN")}, model="prep:1"),
        Stage("inner-net", {"x": TensorSource("inner-prep", "x")}, model="net:3"),
        Stage("back", {"probs": TensorSource("inner-net", "probs")}, model="back:1"),
        Stage("net", {"x": TensorSource("back", "x")}, model="net:3"),
    )
    assert twice.sources == {"OUT": (TensorSource("net", "probs"),)}
    thrice = ensemble(inner={"prep": ensemble(), "net": twice}, steps=PREP_OF_PROBS)
    assert [stage.name for stage in thrice.stages] == ["prep-prep", "prep-net"]
    assert thrice.sources == {"OUT": (TensorSource("prep-net", "probs"),)}


PREP_OF_PROBS = PREP.replace('"raw"', '"IN"').replace('"x"', '"OUT"').replace('"mid"', '"OUT"')


def test_what_no_output_needs_of_an_inner_ensemble_is_not_run() -> None:
    head = HEAD + 'output { name: "OTHER" data_type: TYPE_FP32 dims: 10 }'
    both = ensemble(PREP + NET + NET.replace('"OUT"', '"OTHER"'), head)
    assert [stage.name for stage in both.stages] == ["prep", "net", "net__2"]
    one = ensemble(PREP_OF_PROBS.replace('"OUT" value', '"OTHER" value'), inner={"prep": both})
    assert [stage.name for stage in one.stages] == ["prep-prep", "prep-net__2"]


@pytest.mark.parametrize(
    ("steps", "inner", "message"),
    [
        (OUTER, None, r"step 0 \('inner'\): the ensemble of this step cannot be served"),
        (
            OUTER.replace("model_version: -1", "model_version: 7", 1),
            ensemble(),
            r"step 0 \('inner'\): model_version: the ensemble has version 1, not 7",
        ),
        (
            OUTER.replace('"IN" value', '"raw" value'),
            ensemble(),
            r"step 0 \('inner'\): input_map: the model has no input",
        ),
        (OUTER, ensemble(head=HEAD.replace("8", "4")), "max_batch_size of the ensemble is 8, but 4 of the model"),
    ],
)
def test_inner_ensembles_that_are_refused(steps: str, inner: Pipeline | None, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^e/config.pbtxt: {message}" if message[0] == "s" else message):
        ensemble(steps, inner={"inner": inner})


def test_ensembles_that_are_too_large_with_those_inside() -> None:
    # 2, 4, 8 ... 256 stages, and then no more.
    double = """
    step { model_name: "inner" input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "a" } }
    step { model_name: "inner" input_map { key: "IN" value: "a" } output_map { key: "OUT" value: "OUT" } }
    """
    one = 'step { model_name: "v2.5" input_map { key: "x" value: "IN" } output_map { key: "x" value: "OUT" } }'
    head = HEAD.replace("dims: 4", "dims: 3").replace("dims: 10", "dims: 3")
    inner = ensemble(one, head)
    for _ in range(8):
        inner = ensemble(double, head, {"inner": inner})
    assert len(inner.stages) == 256
    with pytest.raises(ConfigError, match="512 steps with those of inner ensembles; expected 256"):
        ensemble(double, head, {"inner": inner})


CHAIN = """
platform: "ensemble" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 3 }
output { name: "y" data_type: TYPE_FP32 dims: 3 }
ensemble_scheduling { step {
  model_name: "%s" input_map { key: "x" value: "x" } output_map { key: "y" value: "y" }
} }
"""


def chain(directory: Path, **steps: str) -> Repository:
    """Ensembles by name, each of the one step that is given."""
    save_mlp(directory / "net" / "1" / "model.onnx", [3, 3])
    for name, step in steps.items():
        (directory / name).mkdir()
        (directory / name / "config.pbtxt").write_text(CHAIN % step)
    return Repository.scan(directory)


def test_ensembles_are_read_after_those_that_they_need(tmp_path: Path) -> None:
    found = chain(tmp_path, a="b", b="c", c="net")
    assert found.broken == ()
    assert {name: [stage.name for stage in each.stages] for name, each in found.pipelines.items()} == {
        "a": ["b-c-net"],
        "b": ["c-net"],
        "c": ["net"],
    }


def test_ensembles_that_need_each_other_are_refused_and_those_that_need_them(tmp_path: Path) -> None:
    found = chain(tmp_path, a="b", b="c", c="b", own="own", bad="nowhere", outer="bad", good="net")
    assert list(found.pipelines) == ["good"]
    expected = "expected steps that do not need the ensemble itself"
    assert {
        each.name: without_line(each.reason).removeprefix(f"{tmp_path}/{each.name}/config.pbtxt: ")
        for each in found.broken
    } == {
        "bad": "step 0.model: no model 'nowhere'; expected net",
        "outer": "step 0 ('bad'): the ensemble of this step cannot be served",
        "a": f"ensemble_scheduling: cycle of ensembles b -> c -> b; {expected}",
        "b": f"ensemble_scheduling: cycle of ensembles b -> c -> b; {expected}",
        "c": f"ensemble_scheduling: cycle of ensembles b -> c -> b; {expected}",
        "own": f"ensemble_scheduling: cycle of ensembles own -> own; {expected}",
    }


def test_ensembles_that_are_nested_too_deep(tmp_path: Path) -> None:
    names = [f"e{level}" for level in range(18)]
    found = chain(tmp_path, **dict(zip(names, ["net", *names], strict=False)))
    assert len(found.pipelines) == 16
    assert [each.reason.partition("scheduling: ")[2] for each in found.broken] == [
        "ensembles are nested 17 deep here; expected at most 16",
        "ensembles are nested 18 deep here; expected at most 16",
    ]
