"""Checks a model's configuration by itself, without the model."""

from collections.abc import Collection, Sequence

from sluice.models.dynamic_batching import DynamicBatching, QueuePolicy, TimeoutAction
from sluice.models.errors import ConfigError, UnsupportedModel
from sluice.models.pipelines.model_reference import expected_one_of
from sluice.models.spelling import did_you_mean
from sluice.models.tensors.spec import VARIABLE, element_count
from sluice.models.triton_config.accelerators import providers
from sluice.models.triton_config.instance_groups import CPU, check_groups
from sluice.models.triton_config.model_config import (
    DATA_TYPE,
    ENSEMBLE,
    UNTYPED,
    InputConfig,
    TensorConfig,
    TritonModelConfig,
    VersionPolicy,
    WarmUp,
)
from sluice.models.triton_config.session_options import session_options

PLATFORMS = {"onnxruntime_onnx": "onnxruntime", ENSEMBLE: ""}
"""The backend of each platform."""
BACKENDS = ("onnxruntime", "python", "timed")
MAX_WARM_UP_RUNS = 1000
_ENVIRONMENT = "EXECUTION_ENV_PATH"
_TRITON_ONLY = (
    *("dali", "fil", "openvino", "pytorch", "pytorch_libtorch", "tensorflow", "tensorflow_graphdef"),
    *("tensorflow_savedmodel", "tensorrt", "tensorrt_plan", "tensorrtllm", "vllm"),
)
"""Backends and platforms that only a Triton server runs."""
_FORMATS = ("FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW")


def check_config(config: TritonModelConfig, name: str, path: str, kinds: Collection[str] = (CPU,)) -> None:
    """Check a configuration as written; `name` is that of its directory, `kinds` are the kinds of the partitions.

    Raises ConfigError, whose message starts with `path` and the field.
    """
    if config.name not in {"", name}:
        raise ConfigError(f"{path}: name: '{config.name}'; expected that of the directory, '{name}', or none")
    _check_backend(config, path)
    if (config.max_batch_size or 0) < 0:
        raise ConfigError(f"{path}: max_batch_size: expected 0 or more, got {config.max_batch_size}")
    _check_versions(config.version_policy, path)
    for kind, tensors in (("input", config.input), ("output", config.output)):
        _check_tensors(kind, tensors, path)
    for tensor in config.input:
        if tensor.format not in _FORMATS or (tensor.format != "FORMAT_NONE" and len(tensor.dims) != 3):
            raise ConfigError(
                f"{path}: input '{tensor.name}': format {tensor.format}: expected one of {', '.join(_FORMATS)}, "
                f"the latter two with 3 dims, got {list(tensor.dims)}"
            )
    check_groups(config.instance_group, path, kinds)
    if "/" in config.default_model_filename or config.default_model_filename in {".", ".."}:
        raise ConfigError(
            f"{path}: default_model_filename: '{config.default_model_filename}'; expected the name of a file "
            "in the version directory"
        )


def check_options(config: TritonModelConfig, path: str) -> None:
    """Check the options that only some backends take; the configuration names its backend. Raises as `check_config`."""
    if config.is_decoupled:
        _check_decoupled(config, path)
    accelerators = None if config.optimization is None else config.optimization.execution_accelerators
    if config.backend == "onnxruntime":
        session_options(config, path)
        providers(accelerators, path, gpu=False)
        return
    if accelerators is not None:
        raise ConfigError(
            f"{path}: optimization.execution_accelerators: expected them with backend onnxruntime only; leave them out"
        )
    if config.optimization is not None and config.optimization.graph is not None:
        raise ConfigError(f"{path}: optimization.graph: expected it with backend onnxruntime only; leave it out")
    if config.parameters and config.backend != "python":
        raise ConfigError(
            f"{path}: parameters: expected them with backends onnxruntime and python only; leave them out"
        )
    if _ENVIRONMENT in config.parameters:
        raise ConfigError(
            f"{path}: parameters '{_ENVIRONMENT}': not supported: models run in the environment of the server; "
            "leave it out"
        )


def check_batching(batching: DynamicBatching, max_batch_size: int, path: str) -> None:
    """Check the batching of a model of that maximum batch size; raises as `check_config`."""
    at = f"{path}: dynamic_batching"
    for size in batching.preferred:
        if not 0 < size <= max_batch_size:
            raise ConfigError(f"{at}.preferred_batch_size: expected 1 to max_batch_size {max_batch_size}, got {size}")
    levels = batching.priority_levels
    if levels and not 1 <= batching.default_priority_level <= levels:
        raise ConfigError(
            f"{at}.default_priority_level: expected 1 to priority_levels {levels}, got "
            f"{batching.default_priority_level}"
        )
    for level in batching.priority_queue_policy:
        if not 1 <= level <= levels:
            raise ConfigError(
                f"{at}.priority_queue_policy: expected keys from 1 to priority_levels {levels}, got {level}"
            )
    policies: Sequence[QueuePolicy] = [batching.default_queue_policy, *batching.priority_queue_policy.values()]
    if batching.preserve_ordering and levels > 1:
        raise ConfigError(f"{at}.preserve_ordering: expected priority_levels of at most 1 with it, got {levels}")
    if batching.preserve_ordering and any(policy.timeout_action is TimeoutAction.DELAY for policy in policies):
        raise ConfigError(f"{at}.preserve_ordering: expected no timeout_action DELAY with it")


def check_warm_up(warm_up: WarmUp, inputs: Sequence[InputConfig], max_batch_size: int, path: str) -> None:
    """Check a warm-up of a model with these inputs; raises as `check_config`."""
    at = f"{path}: model_warmup '{warm_up.name}'"
    if not 1 <= warm_up.batch_size <= max(max_batch_size, 1):
        raise ConfigError(f"{at}: batch_size: expected 1 to {max(max_batch_size, 1)}, got {warm_up.batch_size}")
    if warm_up.count > MAX_WARM_UP_RUNS:
        raise ConfigError(f"{at}: count: expected at most {MAX_WARM_UP_RUNS}, got {warm_up.count}")
    by_name = {tensor.name: tensor for tensor in inputs}
    for name, given in warm_up.inputs.items():
        tensor = by_name.get(name)
        if tensor is None:
            raise ConfigError(f"{at}: input '{name}': the model has no such input; {expected_one_of(by_name)}")
        if given.data_type != tensor.data_type:
            raise ConfigError(f"{at}: input '{name}': data_type: expected {tensor.data_type}, got {given.data_type}")
        fits = len(given.dims) == len(tensor.dims) and all(
            got > 0 and want in (VARIABLE, got) for got, want in zip(given.dims, tensor.dims, strict=True)
        )
        if not fits:
            raise ConfigError(f"{at}: input '{name}': dims: expected {list(tensor.dims)}, got {list(given.dims)}")
        if not (given.zero_data or given.random_data):
            raise ConfigError(f"{at}: input '{name}': expected zero_data or random_data to be true")
    for name, tensor in by_name.items():
        if name not in warm_up.inputs and not tensor.optional:
            raise ConfigError(f"{at}: input '{name}' is missing")


def _instead(name: str, known: Collection[str]) -> str:
    """The end of a message about a backend or platform that is not supported."""
    if name in _TRITON_ONLY:
        return "; a Triton server behind Sluice can run it (docs/operate/triton.md)"
    return did_you_mean(name, known)


def _check_backend(config: TritonModelConfig, path: str) -> None:
    if config.platform and config.platform not in PLATFORMS:
        raise ConfigError(
            f"{path}: platform: '{config.platform}' is not supported; expected {' or '.join(PLATFORMS)}"
            + _instead(config.platform, PLATFORMS)
        )
    if config.backend and config.backend not in BACKENDS:
        raise ConfigError(
            f"{path}: backend: '{config.backend}' is not supported; expected {', '.join(BACKENDS)}"
            + _instead(config.backend, BACKENDS)
        )
    if config.platform and config.backend not in {"", PLATFORMS[config.platform]}:
        wanted = PLATFORMS[config.platform] or "none"
        raise ConfigError(f"{path}: backend: platform {config.platform} goes with {wanted}, not with {config.backend}")


def _check_decoupled(config: TritonModelConfig, path: str) -> None:
    """Check the configuration of a model that sends any number of responses to a request."""
    at = f"{path}: model_transaction_policy.decoupled"
    if config.backend != "python":
        raise UnsupportedModel(f"{at}: not supported with backend {config.backend}; expected it with backend python")
    if config.response_cache is not None and config.response_cache.enable:
        raise ConfigError(f"{at}: expected no response_cache with it: there is no single response to keep")
    if config.sequence_batching is not None:
        raise UnsupportedModel(f"{at}: not supported with sequence_batching")
    for tensor in config.tensors:
        if tensor.reshape is not None:
            raise ConfigError(f"{at}: expected no reshape with it, got one for '{tensor.name}'")


def _check_versions(policy: VersionPolicy | None, path: str) -> None:
    if policy is None:
        return
    if policy.latest is not None and policy.latest.num_versions < 1:
        raise ConfigError(f"{path}: version_policy.latest.num_versions: expected at least 1")
    if policy.specific is not None and not policy.specific.versions:
        raise ConfigError(f"{path}: version_policy.specific.versions: expected at least one version")


def _check_tensors(kind: str, tensors: Sequence[TensorConfig], path: str) -> None:
    names: set[str] = set()
    for tensor in tensors:
        at = f"{path}: {kind} '{tensor.name}'"
        if not tensor.name:
            raise ConfigError(f"{path}: {kind}: expected a name for every {kind}")
        if tensor.name in names:
            raise ConfigError(f"{at}: given twice")
        names.add(tensor.name)
        if tensor.data_type != UNTYPED and tensor.datatype is None:
            raise ConfigError(
                f"{at}: data_type {tensor.data_type} is not supported; expected one of {', '.join(DATA_TYPE.values())}"
            )
        if any(dim < 1 and dim != VARIABLE for dim in tensor.dims):
            raise ConfigError(f"{at}: dims: expected numbers of at least 1, or -1, got {list(tensor.dims)}")
        if tensor.reshape is not None:
            _check_reshape(at, tensor.dims, tensor.reshape.shape)


def _check_reshape(at: str, dims: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if any(dim < 1 and dim != VARIABLE for dim in shape):
        raise ConfigError(f"{at}: reshape: expected numbers of at least 1, or -1, got {list(shape)}")
    if not dims:
        raise ConfigError(f"{at}: dims: expected them beside a reshape")
    # One variable dimension takes the rest of the elements; a second one would be ambiguous.
    if dims.count(VARIABLE) > 1 or dims.count(VARIABLE) != shape.count(VARIABLE):
        raise ConfigError(f"{at}: reshape: expected one -1 in both or in none of {list(dims)} and {list(shape)}")
    if element_count(dims) != element_count(shape):
        raise ConfigError(f"{at}: reshape: {list(shape)} has another number of elements than {list(dims)}")
