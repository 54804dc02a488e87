from contextlib import nullcontext

import pytest

from sluice.models.dynamic_batching import DynamicBatching, QueuePolicy, TimeoutAction
from sluice.models.errors import ConfigError
from sluice.models.triton_config.check import check_batching, check_config
from sluice.models.triton_config.instance_groups import CPU, GPU, completed_groups
from sluice.models.triton_config.model_config import InstanceGroup
from sluice.models.triton_config.pbtxt import decode_config

IO = "input { name: 'x' data_type: TYPE_FP32 dims: 4 } output { name: 'y' data_type: TYPE_FP32 dims: 2 }"
GOOD = [
    "",
    'name: "m"',
    'platform: "onnxruntime_onnx" backend: "onnxruntime"',
    'backend: "python" parameters { key: "a" value { string_value: "b" } }',
    "version_policy { latest { num_versions: 2 } }",
    "version_policy { all { } }",
    "instance_group { kind: KIND_CPU count: 1 }",
    "instance_group { kind: KIND_CPU count: 2 passive: false } instance_group { name: 'b' kind: KIND_MODEL }",
    'input { name: "x" format: FORMAT_NHWC dims: [ 2, 2, 3 ] }',
    'input { name: "x" dims: 1 reshape { } }',
    'input { name: "x" dims: [ -1, 2 ] reshape { shape: [ 2, -1 ] } }',
]


@pytest.mark.parametrize("text", GOOD)
def test_what_is_allowed(text: str) -> None:
    check_config(decode_config(text, ""), "m", "m.pbtxt")


BAD = [
    ('name: "n"', "name: 'n'; expected that of the directory, 'm', or none"),
    (
        'platform: "tensorrt_plan"',
        "platform: 'tensorrt_plan' is not supported; expected onnxruntime_onnx or ensemble; a Triton server behind",
    ),
    (
        'backend: "pytorch"',
        "backend: 'pytorch' is not supported; expected onnxruntime, python, timed; a Triton server behind",
    ),
    ('backend: "onnxruntine"', r"backend: 'onnxruntine' .* timed; did you mean 'onnxruntime'\?$"),
    ('platform: "onnxruntime_onnx" backend: "python"', "backend: platform onnxruntime_onnx goes with onnxruntime, not"),
    ('platform: "ensemble" backend: "python"', "backend: platform ensemble goes with none, not with python"),
    ("max_batch_size: -1", "max_batch_size: expected 0 or more, got -1"),
    ("version_policy { latest { } }", r"version_policy\.latest\.num_versions: expected at least 1"),
    ("version_policy { specific { } }", r"version_policy\.specific\.versions: expected at least one version"),
    ("input { dims: 1 }", "input: expected a name for every input"),
    ("output { dims: 1 }", "output: expected a name for every output"),
    (IO + "input { name: 'x' }", "input 'x': given twice"),
    ("input { name: 'x' dims: 0 }", r"input 'x': dims: expected numbers of at least 1, or -1, got \[0\]"),
    ("output { name: 'y' dims: [ 2, -2 ] }", r"output 'y': dims: .* got \[2, -2\]"),
    ("input { name: 'x' data_type: 99 }", "input 'x': data_type 99 is not supported; expected one of .*TYPE_FP32"),
    ("input { name: 'x' format: FORMAT_NCHW dims: 3 }", r"input 'x': format FORMAT_NCHW: .*with 3 dims, got \[3\]"),
    (
        "input { name: 'x' dims: 4 reshape { shape: 3 } }",
        r"input 'x': reshape: \[3\] has another number of elements than \[4\]",
    ),
    ("input { name: 'x' dims: -1 reshape { shape: 3 } }", "input 'x': reshape: expected one -1 in both or in none"),
    (
        "input { name: 'x' dims: [ -1, -1 ] reshape { shape: [ -1, -1 ] } }",
        "input 'x': reshape: expected one -1 in both or in none",
    ),
    ("input { name: 'x' reshape { shape: 1 } }", "input 'x': dims: expected them beside a reshape"),
    (
        "instance_group { kind: KIND_CPU } instance_group { kind: KIND_GPU }",
        "instance_group 1: kind KIND_GPU, but no GPUs are available: partitions are sets of cores; expected KIND_CPU,",
    ),
    (
        "instance_group { name: 'g' kind: KIND_GPU gpus: [ 0, 1 ] }",
        r"instance_group 0 \('g'\): kind KIND_GPU for gpus \[0, 1\], but no GPUs are available",
    ),
    ("instance_group { kind: KIND_CPU gpus: 0 }", r"instance_group 0: gpus: expected none with KIND_CPU, got \[0\]"),
    ("instance_group { gpus: 0 }", r"instance_group 0: gpus: expected none with KIND_CPU, got \[0\]: no GPUs"),
    ("instance_group { kind: KIND_MODEL gpus: 1 }", r"instance_group 0: gpus: expected none with KIND_MODEL, got"),
    ('default_model_filename: "../x.onnx"', "default_model_filename: '../x.onnx'; expected the name of a file"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_what_is_not(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^m.pbtxt: {message}"):
        check_config(decode_config(text, ""), "m", "m.pbtxt")


@pytest.mark.parametrize(
    ("kind", "kinds", "message"),
    [
        ("KIND_GPU", {GPU}, ""),
        ("KIND_AUTO", {GPU}, ""),
        ("KIND_MODEL", {CPU, GPU}, ""),
        (
            "KIND_CPU",
            {GPU},
            "kind KIND_CPU, but all partitions are of GPUs; expected KIND_GPU, KIND_AUTO or KIND_MODEL",
        ),
        ("KIND_GPU gpus: 1", {GPU}, ""),
        ("KIND_MODEL gpus: 1", {GPU}, r"gpus: expected none with KIND_MODEL, got \[1\]: it is for KIND_GPU"),
        (
            "KIND_GPU",
            {CPU, GPU},
            "kind KIND_GPU, but partitions are of cores and of GPUs, any of which may run a model",
        ),
        (
            "KIND_CPU",
            {CPU, GPU},
            "kind KIND_CPU, but partitions are of cores and of GPUs, any of which may run a model",
        ),
        ("7", {CPU}, "unknown kind 7; expected KIND_CPU, KIND_GPU, KIND_AUTO or KIND_MODEL"),
    ],
)
def test_kinds_of_instances_go_with_the_partitions(kind: str, kinds: set[str], message: str) -> None:
    config = decode_config(f"instance_group {{ kind: {kind} }}", "")
    with pytest.raises(ConfigError, match=f"^m.pbtxt: instance_group 0: {message}") if message else nullcontext():
        check_config(config, "m", "m.pbtxt", kinds)


def test_automatic_instances_are_on_gpus_where_partitions_are() -> None:
    (group,) = completed_groups((InstanceGroup(),), "m", "onnxruntime", {GPU})
    assert (group.kind, group.count, group.name) == ("KIND_GPU", 1, "m_0")


DELAY = QueuePolicy(timeout_action=TimeoutAction.DELAY)


@pytest.mark.parametrize(
    "batching",
    [
        DynamicBatching(),
        DynamicBatching(preferred=(1, 8), preserve_ordering=True, priority_levels=1, default_priority_level=1),
        DynamicBatching(priority_levels=(1 << 64) - 1, default_priority_level=3, priority_queue_policy={7: DELAY}),
    ],
)
def test_batching_that_is_allowed(batching: DynamicBatching) -> None:
    check_batching(batching, 8, "m.pbtxt")


@pytest.mark.parametrize(
    ("batching", "message"),
    [
        (DynamicBatching(preferred=(4, 9)), "preferred_batch_size: expected 1 to max_batch_size 8, got 9"),
        (DynamicBatching(preferred=(0,)), "preferred_batch_size: expected 1 to max_batch_size 8, got 0"),
        (DynamicBatching(priority_levels=2), "default_priority_level: expected 1 to priority_levels 2, got 0"),
        (
            DynamicBatching(priority_levels=2, default_priority_level=3),
            "default_priority_level: expected 1 to priority_levels 2, got 3",
        ),
        (
            DynamicBatching(priority_levels=2, default_priority_level=1, priority_queue_policy={3: DELAY}),
            "priority_queue_policy: expected keys from 1 to priority_levels 2, got 3",
        ),
        (
            DynamicBatching(preserve_ordering=True, priority_levels=2, default_priority_level=1),
            "preserve_ordering: expected priority_levels of at most 1 with it, got 2",
        ),
        (
            DynamicBatching(preserve_ordering=True, default_queue_policy=DELAY),
            "preserve_ordering: expected no timeout_action DELAY with it",
        ),
    ],
)
def test_batching_that_is_not(batching: DynamicBatching, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^m.pbtxt: dynamic_batching.{message}"):
        check_batching(batching, 8, "m.pbtxt")
