"""A configuration's options of ONNX Runtime, by the names of Triton's backend for it."""

import re
from collections.abc import Mapping

import msgspec

from sluice.models.errors import ConfigError
from sluice.models.triton_config.model_config import TritonModelConfig

ALL, BASIC, EXTENDED, NONE = 0, -1, 1, 2
"""Levels of graph optimization, as `optimization.graph` in Triton numbers them."""

_SWITCHES = {"true": True, "1": True, "false": False, "0": False}
_DEVICE_ALLOCATOR = "session.use_device_allocator_for_initializers"
_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_ARENAS = re.compile(r"(cpu|gpu):\d+(;(cpu|gpu):\d+)*")
_CUDA = "the options of the CUDA provider follow from the partition"
_SHARED = "share_session_between_instances"
_REFUSED = {
    "cudnn_conv_algo_search": _CUDA,
    "gpu_mem_limit": _CUDA,
    "arena_extend_strategy": _CUDA,
    "do_copy_in_default_stream": _CUDA,
}
"""Parameters of Triton's backend that are not honoured, with the reason."""
_KNOWN = (
    "intra_op_thread_count",
    "inter_op_thread_count",
    "execution_mode",
    "enable_mem_arena",
    "enable_mem_pattern",
    _DEVICE_ALLOCATOR,
    _SHRINKAGE,
    _SHARED,
)


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a session; 0 threads means one for each core of the partition.

    `entries` are options by their names in ONNX Runtime, `run_entries` those of every run.
    """

    intra_op_threads: int = 0
    inter_op_threads: int = 0
    parallel: bool = False
    level: int = ALL
    mem_arena: bool = True
    mem_pattern: bool = True
    entries: Mapping[str, str] = {}
    run_entries: Mapping[str, str] = {}


def session_options(config: TritonModelConfig, path: str = "") -> SessionOptions:
    """Return the options that the configuration of a model for ONNX Runtime asks for.

    Raises ConfigError, whose message starts with `path` and names the parameter.
    """
    given = {name: parameter.string_value.strip() for name, parameter in config.parameters.items()}
    for name in given:
        if name in _REFUSED:
            raise ConfigError(f"{path}: parameters '{name}': not supported: {_REFUSED[name]}; leave it out")
        if name not in _KNOWN:
            known = ", ".join(_KNOWN)
            raise ConfigError(f"{path}: parameters '{name}': not supported: backend onnxruntime takes {known}")
    read = _Reading(given, path)
    if read.switch(_SHARED, False):
        raise read.wrong(_SHARED, "false, since every worker is a process with a session of its own")
    shrinkage = given.get(_SHRINKAGE, "")
    if _SHRINKAGE in given and not _ARENAS.fullmatch(shrinkage):
        raise read.wrong(_SHRINKAGE, "devices such as cpu:0")
    allocator = {_DEVICE_ALLOCATOR: "1" if read.switch(_DEVICE_ALLOCATOR, False) else "0"}
    return SessionOptions(
        intra_op_threads=read.number("intra_op_thread_count"),
        inter_op_threads=read.number("inter_op_thread_count"),
        parallel=read.number("execution_mode", most=1) == 1,
        level=_level(config, path),
        mem_arena=read.switch("enable_mem_arena", True),
        mem_pattern=read.switch("enable_mem_pattern", True),
        entries=allocator if _DEVICE_ALLOCATOR in given else {},
        run_entries={_SHRINKAGE: shrinkage} if shrinkage else {},
    )


class _Reading(msgspec.Struct, frozen=True):
    """The parameters, all of which are texts."""

    given: Mapping[str, str]
    path: str

    def number(self, name: str, most: int = 1024) -> int:
        value = self.given.get(name, "0")
        if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value) <= most):
            raise self.wrong(name, f"a number from 0 to {most}")
        return int(value)

    def switch(self, name: str, default: bool) -> bool:
        value = _SWITCHES.get(self.given[name].lower()) if name in self.given else default
        if value is None:
            raise self.wrong(name, "true, false, 1 or 0")
        return value

    def wrong(self, name: str, expected: str) -> ConfigError:
        return ConfigError(f"{self.path}: parameters '{name}': expected {expected}, got '{self.given[name]:.80}'")


def _level(config: TritonModelConfig, path: str) -> int:
    level = ALL if config.optimization is None or config.optimization.graph is None else config.optimization.graph.level
    if level not in (ALL, BASIC, EXTENDED, NONE):
        raise ConfigError(
            f"{path}: optimization.graph.level: expected {ALL} (all optimizations), {BASIC} (basic), {EXTENDED} "
            f"(basic and extended) or {NONE} (none), got {level}"
        )
    return level
