"""The fields of Triton's `ModelConfig`: those that Sluice honours, that have no effect, and that it refuses."""

from collections.abc import Iterator
from typing import Any

from sluice.models.errors import ConfigError, UnsupportedModel

HONOURED = frozenset(
    {
        "name",
        "platform",
        "backend",
        "version_policy",
        "max_batch_size",
        "input.name",
        "input.data_type",
        "input.format",
        "input.dims",
        "input.reshape",
        "input.optional",
        "output.name",
        "output.data_type",
        "output.dims",
        "output.reshape",
        "output.label_filename",
        "dynamic_batching.preferred_batch_size",
        "dynamic_batching.max_queue_delay_microseconds",
        "dynamic_batching.preserve_ordering",
        "dynamic_batching.priority_levels",
        "dynamic_batching.default_priority_level",
        "dynamic_batching.default_queue_policy",
        "dynamic_batching.priority_queue_policy",
        "sequence_batching.max_sequence_idle_microseconds",
        "sequence_batching.control_input",
        "sequence_batching.state.input_name",
        "sequence_batching.state.output_name",
        "sequence_batching.state.data_type",
        "sequence_batching.state.dims",
        "sequence_batching.state.initial_state",
        "sequence_batching.direct",
        "sequence_batching.oldest.max_candidate_sequences",
        "sequence_batching.oldest.preferred_batch_size",
        "sequence_batching.oldest.max_queue_delay_microseconds",
        "ensemble_scheduling.step.model_name",
        "ensemble_scheduling.step.model_version",
        "ensemble_scheduling.step.input_map",
        "ensemble_scheduling.step.output_map",
        "instance_group.name",
        "instance_group.kind",
        "instance_group.count",
        "default_model_filename",
        "optimization.graph.level",
        "optimization.execution_accelerators",
        "parameters",
        "model_warmup.name",
        "model_warmup.batch_size",
        "model_warmup.count",
        "model_warmup.inputs.data_type",
        "model_warmup.inputs.dims",
        "model_warmup.inputs.zero_data",
        "model_warmup.inputs.random_data",
        "response_cache.enable",
        "model_transaction_policy.decoupled",
    }
)
"""Fields by path, each with everything in it; the values of a map have the path of the map."""

_RAGGED = "the inputs of a batch have one shape, and requests that differ are not batched together"
_TENSORRT = "there is no TensorRT backend"

HINTS = {
    "sequence_batching.state.use_same_buffer_for_input_output": "a state has a buffer of its own",
    "sequence_batching.state.use_growable_memory": "a state has a buffer of its own",
    "sequence_batching.oldest.preserve_ordering": "responses are in order within each sequence only",
    "optimization.priority": "models share a partition by deadline",
    "optimization.cuda": "the options of CUDA follow from the partition",
    "optimization.input_pinned_memory.enable": "tensors are not held in pinned memory",
    "optimization.output_pinned_memory.enable": "tensors are not held in pinned memory",
    "optimization.gather_kernel_buffer_threshold": "the inputs of a batch are laid out before it is sent",
    "optimization.eager_batching": "the inputs of a batch are laid out when it is sent",
    "ensemble_scheduling.max_inflight_requests": "requests under way are bounded by the server's limits.queue_requests",
    "instance_group.rate_limiter": "a partition runs one batch at a time, whose place the scheduler chooses",
    "instance_group.gpus": "partitions say which GPUs there are, and any of them that fits may hold the model",
    "instance_group.profile": "profiles are TensorRT's",
    "instance_group.host_policy": "partitions say which cores a model runs on",
    "metric_tags": "the labels of metrics are the same for all models",
    "model_metrics": "the buckets of histograms are the same for all models",
}
"""Fields that change no answer, only how fast or where it is made: they have no effect, with the reason."""

REFUSED = {
    "runtime": "the backend alone says what runs a model",
    "input.is_shape_tensor": _TENSORRT,
    "input.allow_ragged_batch": _RAGGED,
    "input.is_non_linear_format_io": _TENSORRT,
    "output.is_shape_tensor": _TENSORRT,
    "output.is_non_linear_format_io": _TENSORRT,
    "batch_input": _RAGGED,
    "batch_output": _RAGGED,
    "sequence_batching.iterative_sequence": "a request of a sequence runs once",
    "ensemble_scheduling.step.model_namespace": "the names of models are unique in a repository",
    "instance_group.secondary_devices": "partitions are of cores or of GPUs",
    "instance_group.passive": "every partition that holds a model takes requests for it",
    "cc_model_filenames": "a version has one model file, whatever runs it",
    "model_warmup.inputs.input_data_file": "warm-up inputs are zeros or random",
    "model_operations": "backends load no libraries of custom operations",
    "model_repository_agents": "the files of a repository are served as they are",
}
"""The reason why each of the other fields cannot be set; a field with its default value is not set."""

_KINDS = frozenset({"sequence_batching.iterative_sequence"})
"""Fields that make a model of an unsupported kind."""


def refuse_fields(message: Any, path: str) -> None:
    """Raise ConfigError for the first field of a `ModelConfig` that is set and not honoured.

    It is UnsupportedModel if one of them makes a model of an unsupported kind.
    """
    refused = [field for field in _set_fields(message, "") if field in REFUSED]
    for field in sorted(refused, key=lambda field: field not in _KINDS):
        kind = UnsupportedModel if field in _KINDS else ConfigError
        raise kind(f"{path}: {field}: not supported: {REFUSED[field]}; leave it out")


def unused_fields(message: Any) -> tuple[str, ...]:
    """A sentence for each field of a `ModelConfig` that is set and has no effect."""
    unused = dict.fromkeys(field for field in _set_fields(message, "") if field in HINTS)
    return tuple(f"{field} has no effect: {HINTS[field]}" for field in unused)


def _set_fields(message: Any, prefix: str) -> Iterator[str]:
    """The paths of the set fields that have a rule of their own."""
    for field, value in message.ListFields():
        name = prefix + field.name
        if name in HONOURED or name in HINTS or name in REFUSED:
            yield name
        elif field.is_repeated and field.message_type.GetOptions().map_entry:
            for each in value.values():
                yield from _set_fields(each, f"{name}.")
        else:
            for each in value if field.is_repeated else [value]:
                yield from _set_fields(each, f"{name}.")
