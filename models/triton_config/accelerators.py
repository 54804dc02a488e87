"""Execution accelerators: the providers of ONNX Runtime that a configuration asks for before that of the partition."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sluice.models.errors import ConfigError
from sluice.models.triton_config.model_config import Accelerator, ExecutionAccelerators

CUDA = "cuda"
TENSORRT = "TensorrtExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
_PRECISIONS = {"FP32": {}, "FP16": {"trt_fp16_enable": "1"}, "INT8": {"trt_int8_enable": "1"}}
_SWITCHES = {"true": "1", "1": "1", "false": "0", "0": "0"}


class Provider(NamedTuple):
    """A provider of ONNX Runtime, by its name there, with its options; `accelerator` is Triton's name of it."""

    accelerator: str
    name: str
    options: Mapping[str, str]


def providers(wanted: ExecutionAccelerators | None, path: str, *, gpu: bool) -> tuple[Provider, ...]:
    """The providers that a model is to run on, the first one first; none where the partition's alone is wanted.

    Only the accelerators for GPUs count on a GPU, and those for processors on cores. Raises ConfigError, whose message
    starts with `path`, for accelerators and parameters that are not known, of either kind.
    """
    if wanted is None:
        return ()
    on_gpu = [_provider(each, path, _GPU) for each in wanted.gpu_execution_accelerator]
    on_cores = [_provider(each, path, _CPU) for each in wanted.cpu_execution_accelerator]
    return tuple(each for each in (on_gpu if gpu else on_cores) if each.name)


def _provider(wanted: Accelerator, path: str, known: Mapping[str, str]) -> Provider:
    at = f"{path}: optimization.execution_accelerators '{wanted.name}'"
    if wanted.name not in known:
        raise ConfigError(f"{at}: not supported by the backend onnxruntime; expected {' or '.join(known)}")
    options: dict[str, str] = {}
    rules = _PARAMETERS.get(wanted.name, {})
    for name, value in wanted.parameters.items():
        if name not in rules:
            expected = (
                f"expected {', '.join(rules)}" if rules else "expected none: its options follow from the partition"
            )
            raise ConfigError(f"{at}: parameter '{name}': {expected}")
        option = rules[name](value.strip())
        if option is None:
            raise ConfigError(f"{at}: parameter '{name}': unexpected value '{value:.80}'")
        options |= option
    return Provider(wanted.name, known[wanted.name], options)


_Rule = Callable[[str], Mapping[str, str] | None]
"""Turns the value of a parameter into options of the provider; None for a value that it cannot have."""


def _number(option: str) -> _Rule:
    return lambda value: {option: value} if re.fullmatch(r"[0-9]{1,18}", value) else None


def _text(option: str) -> _Rule:
    return lambda value: {option: value} if value else None


def _switch(option: str) -> _Rule:
    return lambda value: {option: _SWITCHES[value.lower()]} if value.lower() in _SWITCHES else None


_GPU = {"tensorrt": TENSORRT, CUDA: "", "gpu_io": ""}
"""Accelerators on GPUs; the partition's provider is CUDA, and binds tensors itself, without being asked."""
_CPU = {"openvino": OPENVINO}
_PARAMETERS: Mapping[str, Mapping[str, _Rule]] = {
    "tensorrt": {
        "precision_mode": _PRECISIONS.get,
        "max_workspace_size_bytes": _number("trt_max_workspace_size"),
        "trt_max_workspace_size": _number("trt_max_workspace_size"),
        "trt_max_partition_iterations": _number("trt_max_partition_iterations"),
        "trt_min_subgraph_size": _number("trt_min_subgraph_size"),
        "int8_calibration_table_name": _text("trt_int8_calibration_table_name"),
        "int8_use_native_calibration_table": _switch("trt_int8_use_native_calibration_table"),
        "trt_engine_cache_enable": _switch("trt_engine_cache_enable"),
        "trt_engine_cache_path": _text("trt_engine_cache_path"),
        "trt_engine_cache_prefix": _text("trt_engine_cache_prefix"),
        "trt_timing_cache_enable": _switch("trt_timing_cache_enable"),
        "trt_timing_cache_path": _text("trt_timing_cache_path"),
        "trt_build_heuristics_enable": _switch("trt_build_heuristics_enable"),
        "trt_cuda_graph_enable": _switch("trt_cuda_graph_enable"),
        "trt_dump_subgraphs": _switch("trt_dump_subgraphs"),
    },
    "openvino": {
        "device_type": _text("device_type"),
        "precision": _text("precision"),
        "num_of_threads": _number("num_of_threads"),
        "num_streams": _number("num_streams"),
        "cache_dir": _text("cache_dir"),
    },
}
