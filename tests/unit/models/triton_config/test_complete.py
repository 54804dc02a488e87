import json
from pathlib import Path

import pytest
from onnx import helper

from sluice.models.dynamic_batching import DynamicBatching
from sluice.models.errors import ConfigError
from sluice.models.pipelines.check import single_model
from sluice.models.repository.scan import ModelEntry, Repository
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec
from sluice.models.triton_config.as_json import model_config_json
from tests.support.models.onnx_models import (
    Dimension,
    save_fixed_batch,
    save_identity,
    save_mlp,
    save_model,
    save_variable,
    value,
)
from tests.unit.models.backends.test_backends import TIMED

FP32 = DataType.FP32


def configured(directory: Path, text: str, limits: dict[str, int] | None = None) -> ModelSpec:
    """The model `m`, `x` FP32 [N, 4] -> `y` FP32 [N, 3], with a configuration."""
    save_mlp(directory / "m" / "1" / "model.onnx", [4, 3])
    (directory / "m" / "config.pbtxt").write_text(text)
    return only(directory, limits).spec


def only(directory: Path, limits: dict[str, int] | None = None) -> ModelEntry:
    found = Repository.scan(directory, max_batch_sizes=limits)
    if found.broken:
        raise ConfigError(found.broken[0].reason.removeprefix(f"{directory}/"))
    (entry,) = found.models.values()
    return entry


def test_what_is_left_out_is_completed_from_the_file(tmp_path: Path) -> None:
    spec = configured(tmp_path, "dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 100 }")
    assert spec.inputs == (TensorSpec("x", FP32, (4,)),)
    assert spec.outputs == (TensorSpec("y", FP32, (3,)),)
    assert (spec.max_batch_size, spec.platform) == (64, "onnxruntime_onnx")
    assert spec.dynamic_batching == DynamicBatching(preferred=(4,), max_queue_delay_us=100)
    config = json.loads(spec.config)
    assert config["input"][0] | {"name": "x", "data_type": "TYPE_FP32", "dims": [4]} == config["input"][0]
    assert (config["name"], config["max_batch_size"], config["backend"]) == ("m", 64, "onnxruntime")


def test_a_tensor_may_be_given_in_part(tmp_path: Path) -> None:
    spec = configured(tmp_path, 'input { name: "x" } output { name: "y" data_type: TYPE_FP32 }')
    assert (spec.inputs[0].shape, spec.outputs[0].shape) == ((4,), (3,))


@pytest.mark.parametrize(
    ("text", "limits", "rows"),
    [
        ("max_batch_size: 8", {}, 8),
        ("max_batch_size: 8", {"m": 4}, 4),
        ("max_batch_size: 8", {"m": 16}, 8),
        ("", {"m": 16}, 16),
        ("max_batch_size: 0", {"m": 16}, 0),
        ('input { name: "x" dims: [ -1, 4 ] }', {}, 0),
    ],
)
def test_the_maximum_batch_size(tmp_path: Path, text: str, limits: dict[str, int], rows: int) -> None:
    spec = configured(tmp_path, text, limits)
    assert spec.max_batch_size == rows
    assert spec.inputs[0].shape == ((4,) if rows else (-1, 4))
    assert json.loads(spec.config)["max_batch_size"] == rows


def test_labels_are_read(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "labels.txt").write_text("cat\ndog\nhorse\n")
    spec = configured(tmp_path, 'output { name: "y" label_filename: "labels.txt" }')
    assert spec.outputs[0].labels == ("cat", "dog", "horse")
    assert single_model(spec).outputs[0].labels == ("cat", "dog", "horse")


def test_a_reshaped_tensor_has_the_dimensions_that_clients_see(tmp_path: Path) -> None:
    spec = configured(tmp_path, 'input { name: "x" dims: [ 2, 2 ] reshape { shape: [ 4 ] } }')
    assert spec.inputs == (TensorSpec("x", FP32, (2, 2)),)


def test_warm_up_is_kept(tmp_path: Path) -> None:
    given = 'inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 zero_data: true } }'
    text = f'model_warmup {{ name: "w" batch_size: 2 {given} }}'
    assert json.loads(configured(tmp_path, text).config)["model_warmup"][0]["batch_size"] == 2


def test_a_timed_model_may_have_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "slow" / "1").mkdir(parents=True)
    (tmp_path / "slow" / "1" / "model.timed.json").write_text(TIMED)
    (tmp_path / "slow" / "config.pbtxt").write_text("max_batch_size: 2 dynamic_batching { }")
    entry = only(tmp_path)
    assert (entry.backend, entry.spec.max_batch_size, entry.spec.platform) == ("timed", 2, "sluice_timed")
    (tmp_path / "slow" / "config.pbtxt").write_text("max_batch_size: 64")
    with pytest.raises(ConfigError, match="max_batch_size: 64, but the model's file allows 4"):
        only(tmp_path)


def test_the_name_of_the_file(tmp_path: Path) -> None:
    save_mlp(tmp_path / "m" / "1" / "net.onnx", [4, 3])
    (tmp_path / "m" / "config.pbtxt").write_text('default_model_filename: "net.onnx"')
    assert only(tmp_path).path == tmp_path / "m" / "1" / "net.onnx"
    (tmp_path / "m" / "config.pbtxt").write_text('default_model_filename: "none.onnx"')
    with pytest.raises(ConfigError, match=r"m/1: expected a file none\.onnx"):
        only(tmp_path)


def test_a_model_with_external_data_is_a_directory(tmp_path: Path) -> None:
    save_mlp(tmp_path / "m" / "1" / "model.onnx" / "model.onnx", [4, 3])
    assert only(tmp_path).path == tmp_path / "m" / "1" / "model.onnx" / "model.onnx"


BAD = [
    ('input { name: "z" }', "input 'z': there is no such tensor in the model's file; expected x"),
    ('input { name: "x" data_type: TYPE_INT32 }', "input 'x': data_type is TYPE_INT32, but TYPE_FP32 in the model's"),
    (
        'max_batch_size: 2 input { name: "x" dims: 5 }',
        r"input 'x': dims are \[5\], but \[4\] in the model's file after the batch dimension \(max_batch_size is 2\)",
    ),
    ('input { name: "x" dims: -1 }', r"input 'x': dims are \[-1\], but \[4\] in the model's file"),
    (
        'max_batch_size: 0 input { name: "x" dims: [ 4 ] }',
        r"input 'x': dims are \[4\], but \[-1, 4\] in the model's file$",
    ),
    (
        'input { name: "x" dims: [ 1, 5 ] reshape { shape: [ 5 ] } }',
        r"input 'x': reshape is \[5\], but \[4\] in the model's file",
    ),
    ('output { name: "z" }', "output 'z': there is no such tensor in the model's file; expected y"),
    ('output { name: "y" label_filename: "none.txt" }', "label_filename: none.txt: cannot be read"),
    ('output { name: "y" label_filename: "../x" }', r"label_filename: \.\./x: expected a file in the directory of the"),
    (
        "max_batch_size: 4 dynamic_batching { preferred_batch_size: 8 }",
        "dynamic_batching.preferred_batch_size: expected 1 to max_batch_size 4, got 8",
    ),
    ('model_warmup { name: "w" }', "model_warmup 'w': batch_size: expected 1 to 64, got 0"),
    (
        'model_warmup { name: "w" batch_size: 1 count: 1001 }',
        "model_warmup 'w': count: expected at most 1000, got 1001",
    ),
    ('model_warmup { name: "w" batch_size: 1 }', "model_warmup 'w': input 'x' is missing"),
    (
        'model_warmup { batch_size: 1 inputs { key: "z" value { } } }',
        "model_warmup '': input 'z': the model has no such input; expected x",
    ),
    (
        'model_warmup { batch_size: 1 inputs { key: "x" value { data_type: TYPE_INT8 } } }',
        "model_warmup '': input 'x': data_type: expected TYPE_FP32, got TYPE_INT8",
    ),
    (
        'model_warmup { batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: 5 zero_data: true } } }',
        r"model_warmup '': input 'x': dims: expected \[4\], got \[5\]",
    ),
    (
        'model_warmup { batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 } } }',
        "model_warmup '': input 'x': expected zero_data or random_data to be true",
    ),
    ("version_policy { specific { versions: 7 } }", "version_policy: there is no directory .*/m/7"),
    (
        'parameters { key: "a" value { } }',
        "parameters 'a': not supported: backend onnxruntime takes intra_op_thread_count,",
    ),
    (
        'parameters { key: "execution_mode" value { string_value: "2" } }',
        "parameters 'execution_mode': expected a number from 0 to 1, got '2'",
    ),
    ("optimization { graph { level: 3 } }", r"optimization\.graph\.level: expected 0 \(all optimizations\), .*, got 3"),
    ('backend: "python"', r"m/1: expected a file model\.py"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_what_does_not_go_with_the_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configured(tmp_path, text)


@pytest.mark.parametrize(("x", "y"), [([2, 4], [2, 4]), ([1, 4], [2, 4]), (["N", 4], [2, 4]), (["N", 4], [])])
def test_a_fixed_batch_cannot_be_given_another_size(tmp_path: Path, x: list[Dimension], y: list[Dimension]) -> None:
    ends = [value("x", DataType.FP32, x)], [value("y", DataType.FP32, y)]
    save_model(tmp_path / "m" / "1" / "model.onnx", [helper.make_node("Relu", ["x"], ["y"])], *ends)
    (tmp_path / "m" / "config.pbtxt").write_text("max_batch_size: 8")
    with pytest.raises(
        ConfigError, match=r"max_batch_size: 8, but '\w+' has the shape \[.*expected a variable dimension"
    ):
        only(tmp_path)


def test_a_batch_of_one_row_may_be_run_row_by_row(tmp_path: Path) -> None:
    save_fixed_batch(tmp_path / "m" / "1" / "model.onnx")
    spec = only(tmp_path).spec
    assert (spec.max_batch_size, spec.inputs[0].shape) == (0, (1, 4))
    (tmp_path / "m" / "config.pbtxt").write_text("max_batch_size: 8")
    spec = only(tmp_path).spec
    assert (spec.max_batch_size, spec.inputs[0].shape) == (8, (4,))
    assert spec.batching_note == "row by row: the model takes one row"


def test_variable_dimensions_may_be_given_a_size(tmp_path: Path) -> None:
    save_variable(tmp_path / "m" / "1" / "model.onnx")
    name = only(tmp_path).spec.inputs[0].name
    (tmp_path / "m" / "config.pbtxt").write_text(f'input {{ name: "{name}" dims: [ 7 ] }}')
    assert only(tmp_path).spec.inputs[0].shape == (7,)


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ("", ["m:10"]),
        ("version_policy { latest { num_versions: 2 } }", ["m:2", "m:10"]),
        ("version_policy { all { } }", ["m:1", "m:2", "m:10"]),
        ("version_policy { specific { versions: [ 2, 1 ] } }", ["m:1", "m:2"]),
    ],
)
def test_versions(tmp_path: Path, policy: str, versions: list[str]) -> None:
    for version in ("1", "2", "10"):
        save_mlp(tmp_path / "m" / version / "model.onnx", [4, 3])
    (tmp_path / "m" / "config.pbtxt").write_text(policy)
    assert list(Repository.scan(tmp_path).models) == versions


PYTHON = """
backend: "python"
max_batch_size: 4
input { name: "words" data_type: TYPE_STRING dims: -1 }
output { name: "y" data_type: TYPE_INT64 dims: [ 1 ] }
parameters { key: "limit" value { string_value: "3" } }
"""


def test_a_python_model_is_what_its_configuration_says(tmp_path: Path) -> None:
    (tmp_path / "pre" / "2").mkdir(parents=True)
    (tmp_path / "pre" / "2" / "model.py").write_text("")
    with pytest.raises(ConfigError, match=r"pre/2/model\.py: expected a .*config\.pbtxt with its inputs"):
        only(tmp_path)
    (tmp_path / "pre" / "config.pbtxt").write_text(PYTHON)
    entry = only(tmp_path)
    assert (entry.spec.key, entry.backend, entry.spec.max_batch_size) == ("pre:2", "python", 4)
    assert entry.spec.inputs == (TensorSpec("words", DataType.BYTES, (-1,)),)
    assert json.loads(entry.spec.config)["parameters"] == {"limit": {"string_value": "3"}}
    (tmp_path / "pre" / "config.pbtxt").write_text(PYTHON.replace("INT64", "BF16"))
    with pytest.raises(ConfigError, match="output 'y': TYPE_BF16 is not supported: numpy has no such type"):
        only(tmp_path)
    for more, message in (
        (
            'parameters { key: "EXECUTION_ENV_PATH" value { } }',
            "parameters 'EXECUTION_ENV_PATH': not supported: models run",
        ),
        (
            "optimization { graph { level: 1 } }",
            r"optimization\.graph: expected it with backend onnxruntime only; leave it out",
        ),
    ):
        (tmp_path / "pre" / "config.pbtxt").write_text(PYTHON + more)
        with pytest.raises(ConfigError, match=message):
            only(tmp_path)
    (tmp_path / "pre" / "config.pbtxt").write_text('backend: "python" input { name: "x" }')
    with pytest.raises(ConfigError, match="input 'x': expected data_type and dims"):
        only(tmp_path)


def test_only_a_python_model_can_do_without_an_input(tmp_path: Path) -> None:
    (tmp_path / "pre" / "2").mkdir(parents=True)
    (tmp_path / "pre" / "2" / "model.py").write_text("")
    optional = 'input { name: "k" data_type: TYPE_INT64 dims: 1 optional: true }'
    (tmp_path / "pre" / "config.pbtxt").write_text(PYTHON + optional)
    spec = only(tmp_path).spec
    assert [(tensor.name, tensor.optional) for tensor in spec.inputs] == [("words", False), ("k", True)]
    assert [tensor["optional"] for tensor in json.loads(spec.config)["input"]] == [False, True]
    (tmp_path / "pre" / "config.pbtxt").unlink()
    with pytest.raises(ConfigError, match="input 'x': optional: only models of backend python can be run without"):
        configured(tmp_path / "other", 'input { name: "x" optional: true }')


def test_the_configuration_that_is_shown_without_a_file(tmp_path: Path) -> None:
    save_identity(tmp_path / "echo" / "1" / "model.onnx", DataType.BYTES, [2])
    config = model_config_json(single_model(only(tmp_path).spec))
    assert (config["name"], config["platform"], config["backend"]) == ("echo", "onnxruntime_onnx", "onnxruntime")
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (64, [2])
    assert config["input"][0]["data_type"] == "TYPE_STRING"
    assert config["version_policy"] == {"all": {}}
    assert config["instance_group"] == [group("echo", 2)]
    # Defaults are there, and numbers of 64 bits are numbers.
    assert (config["parameters"], config["model_warmup"], config["runtime"]) == ({}, [], "")
    assert config["input"][0]["optional"] is False


def test_the_configuration_that_is_shown_of_a_file(tmp_path: Path) -> None:
    spec = configured(
        tmp_path, "max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 100 }"
    )
    config = model_config_json(single_model(spec))
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 100
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    assert config["dynamic_batching"]["preserve_ordering"] is False
    assert [config["backend"], *config["instance_group"]] == ["onnxruntime", group("m", 2)]
    assert config["version_policy"] == {"latest": {"num_versions": 1}}


def group(name: str, count: int, kind: str = "KIND_CPU") -> dict[str, object]:
    """An instance group as Triton prints it."""
    return {
        "name": name,
        "kind": kind,
        "count": count,
        "gpus": [],
        "secondary_devices": [],
        "profile": [],
        "passive": False,
        "host_policy": "",
    }


@pytest.mark.parametrize(
    ("text", "groups", "replicas"),
    [
        ("", [group("m", 2)], 1),
        ("instance_group { kind: KIND_CPU count: 1 }", [group("m_0", 1)], 1),
        ("instance_group { }", [group("m_0", 2)], 1),
        ("instance_group { count: 3 name: 'a' }", [group("a", 3)], 3),
        (
            "instance_group [ { kind: KIND_MODEL }, { count: 4 } ]",
            [group("m_0", 1, "KIND_MODEL"), group("m_1", 4)],
            5,
        ),
    ],
)
def test_instance_groups_are_completed_as_in_triton(
    tmp_path: Path, text: str, groups: list[dict[str, object]], replicas: int
) -> None:
    spec = configured(tmp_path, text)
    assert model_config_json(single_model(spec))["instance_group"] == groups
    assert spec.replicas == replicas
