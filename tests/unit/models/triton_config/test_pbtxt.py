from collections.abc import Iterator
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2

from sluice.models.dynamic_batching import DynamicBatching, QueuePolicy, TimeoutAction
from sluice.models.errors import ConfigError
from sluice.models.triton_config.fields import HINTS, HONOURED, REFUSED
from sluice.models.triton_config.model_config import EnsembleStep, Reshape, TritonModelConfig
from sluice.models.triton_config.pbtxt import decode_config, decode_config_json, encode_config

FULL = """
name: "m"
backend: "onnxruntime"
max_batch_size: 8
input [
  { name: "x", data_type: TYPE_FP32, dims: [ 2, 2 ], reshape: { shape: [ 4 ] } }
]
output { name: "y" data_type: TYPE_STRING dims: -1 label_filename: "labels.txt" }
version_policy { specific { versions: [ 1, 3 ] } }
dynamic_batching { preferred_batch_size: [ 2, 6 ] max_queue_delay_microseconds: 18446744073709551615 }
parameters { key: "a" value { string_value: "b" } }
"""


def test_a_configuration_in_text_and_in_json() -> None:
    config = decode_config(FULL, "m/config.pbtxt")
    assert (config.name, config.backend, config.max_batch_size) == ("m", "onnxruntime", 8)
    assert config.input[0].dims == (2, 2)
    assert config.input[0].reshape == Reshape((4,))
    assert config.output[0].data_type == "TYPE_STRING"
    assert config.output[0].label_filename == "labels.txt"
    assert config.dynamic_batching == DynamicBatching(preferred=(2, 6), max_queue_delay_us=(1 << 64) - 1)
    assert config.version_policy is not None
    assert config.version_policy.specific is not None
    assert config.version_policy.specific.versions == (1, 3)
    assert config.parameters["a"].string_value == "b"
    assert decode_config_json(encode_config(config), "request") == config


def test_the_steps_of_an_ensemble() -> None:
    config = decode_config(
        'platform: "ensemble" ensemble_scheduling { step [ { model_name: "a" model_version: -1 '
        'input_map { key: "x" value: "IN" } output_map [ { key: "y", value: "OUT" } ] } ] }',
        "",
    )
    assert config.is_ensemble
    assert config.ensemble_scheduling is not None
    assert config.ensemble_scheduling.step == (
        EnsembleStep(model_name="a", model_version=-1, input_map={"x": "IN"}, output_map={"y": "OUT"}),
    )


@pytest.mark.parametrize(("text", "size"), [("", None), ("max_batch_size: 0", 0), ("max_batch_size: 4", 4)])
def test_no_maximum_batch_size_is_not_zero(text: str, size: int | None) -> None:
    assert decode_config(text, "").max_batch_size == size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name: "m"\n  nam: 3', 'm.pbtxt:2:3: not a model configuration: .* has no field named "nam"'),
        ("max_batch_size: many", "m.pbtxt:1:17: not a model configuration: .*Couldn't parse integer: many"),
        ("input { data_type: TYPE_FP99 }", "m.pbtxt:1:20: .*no value named TYPE_FP99"),
        ("input {", "m.pbtxt:1:.*: not a model configuration"),
        ("dynamic_batching { }\nsequence_batching { }", "m.pbtxt:2:.*another member of oneof"),
        (
            'parameters { key: "a" value { string_value: "1" } }\nparameters { key: "a" value { string_value: "2" } }',
            'm.pbtxt:2:.*: parameters has the key "a" twice',
        ),
        (
            'ensemble_scheduling { step { input_map [ { key: "x" value: "a" }, { key: "x" value: "b" } ] } }',
            'm.pbtxt:1:.*: input_map has the key "x" twice',
        ),
        ('name: "a"\nname: "b"', "m.pbtxt:2:7: .*should not have multiple .*name"),
    ],
)
def test_text_that_is_no_configuration(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decode_config(text, "m.pbtxt")


def test_dynamic_batching_is_read_in_full() -> None:
    text = """
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 100
  priority_levels: 18446744073709551615
  default_priority_level: 2
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 max_queue_size: 7 }
  priority_queue_policy { key: 18446744073709551615 value { allow_timeout_override: true } }
}
"""
    last = 2**64 - 1
    assert decode_config(text, "").dynamic_batching == DynamicBatching(
        preferred=(4, 8),
        max_queue_delay_us=100,
        priority_levels=last,
        default_priority_level=2,
        default_queue_policy=QueuePolicy(timeout_action=TimeoutAction.DELAY, default_timeout_us=5, max_queue_size=7),
        priority_queue_policy={last: QueuePolicy(allow_timeout_override=True)},
    )
    assert decode_config("dynamic_batching { preserve_ordering: true }", "").dynamic_batching == DynamicBatching(
        preserve_ordering=True
    )


def test_a_key_may_be_in_the_maps_of_two_steps() -> None:
    step = '{ model_name: "a" input_map { key: "x" value: "a" } output_map { key: "x" value: "b" } }'
    decode_config(f"ensemble_scheduling {{ step [ {step}, {step} ] }}", "")


@pytest.mark.parametrize(
    "text",
    ['{"nam": 1}', "[]", "{", '{"max_batch_size": "many"}', '{"name": ' + "[" * 100_000, b'{"name": "\xff"}'],
)
def test_json_that_is_no_configuration(text: str | bytes) -> None:
    with pytest.raises(ConfigError, match="request: not a model configuration in JSON"):
        decode_config_json(text, "request")


REFUSALS = [
    ("sequence_batching { iterative_sequence: true }", "sequence_batching.iterative_sequence: not supported"),
    ("model_repository_agents { agents { } }", "model_repository_agents: not supported"),
    ("input { allow_ragged_batch: true }", "input.allow_ragged_batch: not supported"),
    ("output { is_shape_tensor: true }", "output.is_shape_tensor: not supported: there is no TensorRT backend"),
    (
        'model_warmup { inputs { key: "x" value { input_data_file: "x.bin" } } }',
        "model_warmup.inputs.input_data_file: not supported: warm-up inputs are zeros or random",
    ),
    ('batch_input { target_name: "x" }', "batch_input: not supported"),
]


@pytest.mark.parametrize(("text", "message"), REFUSALS)
def test_fields_that_are_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^m.pbtxt: {message}"):
        decode_config(text, "m.pbtxt")


UNUSED = [
    ("optimization { cuda { graphs: true } }", "optimization.cuda has no effect: the options of CUDA follow"),
    ("optimization { priority: PRIORITY_MAX }", "optimization.priority has no effect"),
    ("instance_group { rate_limiter { } }", "instance_group.rate_limiter has no effect"),
    ("instance_group { kind: KIND_GPU gpus: 0 }", "instance_group.gpus has no effect: partitions say which GPUs"),
    ("ensemble_scheduling { max_inflight_requests: 2 }", "ensemble_scheduling.max_inflight_requests has no effect"),
    ('metric_tags { key: "a" value: "b" }', "metric_tags has no effect: the labels of metrics are the same"),
    ("sequence_batching { state { use_growable_memory: true } }", "sequence_batching.state.use_growable_memory has"),
]


@pytest.mark.parametrize(("text", "note"), UNUSED)
def test_fields_that_change_no_answer_are_read_and_named(text: str, note: str) -> None:
    (unused,) = decode_config(text, "m.pbtxt").unused
    assert unused.startswith(note)


def test_fields_that_have_their_default_are_not_set() -> None:
    text = """
response_cache { enable: false }
model_transaction_policy { decoupled: false }
optimization { input_pinned_memory { enable: false } }
input { name: "x" optional: false }
"""
    assert decode_config(text, "").input[0].name == "x"


def test_every_field_there_is_is_honoured_or_refused() -> None:
    known = HONOURED | HINTS.keys() | REFUSED.keys()
    fields = list(_fields(model_config_pb2.ModelConfig.DESCRIPTOR, "", known))
    assert [field for field in fields if field not in known] == []
    assert known - set(fields) == set()
    assert len(known) == len(HONOURED) + len(HINTS) + len(REFUSED)


def test_what_is_honoured_has_a_place_in_the_form() -> None:
    names = {field.partition(".")[0] for field in HONOURED}
    assert names <= set(TritonModelConfig.__struct_fields__)


def _fields(descriptor: Any, prefix: str, known: frozenset[str] | set[str]) -> Iterator[str]:
    """The paths of all fields, down to those that have a rule or nothing inside."""
    for field in descriptor.fields:
        name = prefix + field.name
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            inner = inner.fields_by_name["value"].message_type
        if name in known or inner is None:
            yield name
        else:
            yield from _fields(inner, f"{name}.", known)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('name: "m"\ninput {\n  data_type: 9223372036854775808\n}', "c:3: "),
        ("optimization { priority: -9223372036854775809 }", "c:1: "),
        ("input { format: 0x8000000000000000 }", "c: "),
    ],
)
def test_a_number_that_no_enumeration_can_have_is_refused(text: str, place: str) -> None:
    with pytest.raises(ConfigError, match=f"^{place}not a model configuration: Value out of range: ") as caught:
        decode_config(text, "c")
    assert "\n" not in str(caught.value)
