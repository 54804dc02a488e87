"""ONNX models on ONNX Runtime, with exactly the given threads and never on another provider than requested."""

import ctypes
import mmap
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

import numpy as np

from sluice.models.backends.base import GpuOptions
from sluice.models.errors import BackendFailed, ConfigError, PartitionError, first_line
from sluice.models.processes import TELEMETRY_OFF
from sluice.models.regular_file import beside, open_regular
from sluice.models.tensors.arrays import Array, datatype_of
from sluice.models.tensors.spec import VARIABLE, DataType, TensorSpec, element_count
from sluice.models.triton_config.accelerators import Provider, providers
from sluice.models.triton_config.model_config import TritonModelConfig, decode_config
from sluice.models.triton_config.onnx_outline import OnnxOutline, check_external, is_inside, read_outline
from sluice.models.triton_config.session_options import ALL, BASIC, EXTENDED, NONE, SessionOptions, session_options

os.environ.update(TELEMETRY_OFF)  # the library reads it when it is imported
import onnxruntime as ort

_RELEASE = tuple(int(part) for part in ort.__version__.split(".")[:2])

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TEXT_LOCALE = "en_US.UTF-8"
"""The locale in which ONNX Runtime changes the case of text for models that name no other one."""
_ERRORS = 3
"""The level of log lines that are printed, of sessions and of the rest; each CUDA session has a warning otherwise."""
_LOCALE = re.compile(r"construct locale with name: ?([^:]+):")
"""The error of a model whose locale is missing."""
_ONNX_BF16 = 16
"""ONNX's number of the type."""
_LEAST = bytes.fromhex(
    "08083a370a100a01781201792208"
    + b"Identity".hex()
    + "1201675a0f0a0178120a0a08080112040a020801620f0a0179120a0a08080112040a02080142040a00100d"
)
"""A model file: y is x, a float."""
_LEVELS = {
    ALL: ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    BASIC: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    EXTENDED: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    NONE: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}

_DATATYPE = {
    "tensor(bool)": DataType.BOOL,
    "tensor(uint8)": DataType.UINT8,
    "tensor(uint16)": DataType.UINT16,
    "tensor(uint32)": DataType.UINT32,
    "tensor(uint64)": DataType.UINT64,
    "tensor(int8)": DataType.INT8,
    "tensor(int16)": DataType.INT16,
    "tensor(int32)": DataType.INT32,
    "tensor(int64)": DataType.INT64,
    "tensor(float16)": DataType.FP16,
    "tensor(float)": DataType.FP32,
    "tensor(double)": DataType.FP64,
    "tensor(bfloat16)": DataType.BF16,
    "tensor(string)": DataType.BYTES,
}

ort.set_default_logger_severity(_ERRORS)


def missing_locale(name: str) -> str:
    """Say that this machine lacks a locale, and how to get it; text in other cases is not converted without."""
    language, _, encoding = name.partition(".")
    return (
        "this machine lacks it; install the locales of the system, and create it with "
        f"localedef -i {language} -f {encoding or 'UTF-8'} {name}"
    )


def available_providers() -> tuple[str, tuple[str, ...]]:
    """The version of ONNX Runtime and the providers that it was built with, of which CUDA's may still not work."""
    return ort.__version__, tuple(ort.get_available_providers())


class OnnxRuntimeBackend:
    """A session of ONNX Runtime; see `Backend`. Strings are returned as `str` objects.

    Only the outputs that are `wanted` are computed; all by default.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        path: str,
        wanted: Collection[str] = (),
        run_options: ort.RunOptions | None = None,
    ) -> None:
        self.inputs = _specs(session.get_inputs(), path)
        self.outputs = _specs([each for each in session.get_outputs() if not wanted or each.name in wanted], path)
        self.provider: str = session.get_providers()[0]
        self.threads: int = session.get_session_options().intra_op_num_threads
        self._session = session
        self._run_options = run_options
        self._names = [output.name for output in self.outputs]
        self._strings = [tensor.name for tensor in self.inputs if tensor.datatype is DataType.BYTES]
        self._bfloats = {tensor.name for tensor in self.inputs if tensor.datatype is DataType.BF16}
        self._has_bfloats = any(tensor.datatype is DataType.BF16 for tensor in (*self.inputs, *self.outputs))

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; raises BackendFailed with the first line of ONNX Runtime's error."""
        feed = dict(inputs)
        for name in self._strings:
            if name in feed:
                feed[name] = _text(name, feed[name])
        try:
            if self._has_bfloats:
                outputs = self._run_values(feed)
            else:
                outputs = self._session.run(self._names, feed, self._run_options)
            return dict(zip(self._names, outputs, strict=True))
        except Exception as error:  # the runtime's errors have no base class of their own
            raise BackendFailed(first_line(error)) from error

    def _run_values(self, feed: Mapping[str, Array]) -> list[Array]:
        """Run the session with BF16 as raw bits, since numpy has no such type."""
        values = {
            name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(array), _ONNX_BF16)
            if name in self._bfloats
            else ort.OrtValue.ortvalue_from_numpy(array)
            for name, array in feed.items()
        }
        outputs = self._session.run_with_ort_values(self._names, values, self._run_options)
        return [_bits(value) if value.element_type() == _ONNX_BF16 else value.numpy() for value in outputs]


@cache
def prepare(gpu: GpuOptions | None = None) -> None:
    """Load what all sessions of this process share, which the first session makes."""
    provider = CPU if gpu is None else CUDA
    if gpu is not None:
        _load_cuda_libraries()
    with suppress(Exception):  # loading a model reports the error
        ort.InferenceSession(_LEAST, _options(SessionOptions(), 1), providers=[(provider, _provider_options(gpu))])


def load(
    path: str, threads: int, config: str = "", gpu: GpuOptions | None = None, wanted: Collection[str] = ()
) -> OnnxRuntimeBackend:
    """Open a session with at most `threads` threads on the calling process's cores, with the options of `config`.

    Only the outputs that are `wanted`, or that `config` names, are computed.
    With `gpu` it runs on CUDA. Raises PartitionError if ONNX Runtime would run elsewhere (it falls back silently), and
    BackendFailed for a model that it cannot load.
    """
    provider = CPU if gpu is None else CUDA
    if gpu is not None:
        _load_cuda_libraries()
    available = ort.get_available_providers()
    if provider not in available:
        raise PartitionError(f"{path}: ONNX Runtime: expected a build with {provider}, got {', '.join(available)}")
    form = decode_config(config) if config else None
    asked = session_options(form, path) if form is not None else SessionOptions()
    accelerators = _accelerators(form, path, threads, gpu)
    chosen = [*((each.name, each.options) for each in accelerators), (provider, _provider_options(gpu))]
    if form is not None:
        wanted = form.computed
    options = _options(asked, threads)
    try:
        with _linked_weights(Path(path), options):
            session = ort.InferenceSession(path, options, providers=chosen)
    except ConfigError as error:
        raise BackendFailed(str(error)) from error
    except Exception as error:  # as above
        if (locale := _LOCALE.search(str(error))) is not None:
            raise BackendFailed(
                f"{path}: the model needs the locale {locale[1]}: {missing_locale(locale[1])}"
            ) from error
        raise BackendFailed(f"{path}: ONNX Runtime cannot load the model: {first_line(error)}") from error
    active = session.get_providers()
    if active[0] != chosen[0][0]:
        raise PartitionError(f"{path}: ONNX Runtime: expected {chosen[0][0]}, but it runs on {', '.join(active)}")
    run_options = None
    for name, value in asked.run_entries.items():
        run_options = run_options or ort.RunOptions()
        run_options.add_run_config_entry(name, value)
    return OnnxRuntimeBackend(session, path, wanted, run_options)


@contextmanager
def _linked_weights(path: Path, options: ort.SessionOptions) -> Iterator[None]:
    """Give ONNX Runtime the weights that links beside a model lead to, while it makes a session.

    It takes no file that lies outside of the directory of the model, where stores of files by their contents have it.
    """
    try:
        outline = read_outline(path)
    except ConfigError:
        if path.exists() and not path.is_file():  # to open it might take for ever
            raise
        outline = OnnxOutline()  # ONNX Runtime has a reason of its own
    check_external(path, outline)
    files = {location: beside(path, location) for location in outline.external if is_inside(location)}
    places = {location: os.path.realpath(file) for location, file in files.items()}
    homes = {os.path.realpath(path.parent)}
    if _RELEASE >= (1, 25):  # that of the model itself, if it is a link, counts as well
        homes.add(os.path.dirname(os.path.realpath(path)))
    linked = {
        location: place
        for location, place in sorted(places.items())
        if files[location] != path.parent / location
        or not any(os.path.commonpath((home, place)) == home for home in homes)
    }
    with ExitStack() as opened:
        # Releases without this method follow the links themselves.
        if linked and hasattr(options, "add_external_initializers_from_files_in_memory"):
            maps = []
            for place in linked.values():
                file = opened.enter_context(open_regular(Path(place)))
                maps.append(opened.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
            options.add_external_initializers_from_files_in_memory(list(linked), maps, [len(each) for each in maps])
        yield


def _accelerators(form: TritonModelConfig | None, path: str, threads: int, gpu: GpuOptions | None) -> list[Provider]:
    """The accelerators that a configuration asks for; raises BackendFailed where this build has not all of them."""
    if form is None or form.optimization is None:
        return []
    found: list[Provider] = []
    available = ort.get_available_providers()
    for each in providers(form.optimization.execution_accelerators, path, gpu=gpu is not None):
        if each.name not in available:
            raise BackendFailed(
                f"{path}: optimization.execution_accelerators '{each.accelerator}': expected a build of ONNX Runtime "
                f"with {each.name}, got {', '.join(available)}"
            )
        own = {"device_id": "0"} if gpu is not None else {"num_of_threads": str(threads)}
        found.append(each._replace(options={**own, **each.options}))
    return found


@cache
def _load_cuda_libraries() -> None:
    """Load the CUDA libraries that pip has installed beside ONNX Runtime, which does not find them by itself.

    Libraries that are not there are named on standard output.
    """
    if hasattr(ort, "preload_dlls"):  # from 1.21 on
        ort.preload_dlls()


def _provider_options(gpu: GpuOptions | None) -> dict[str, str]:
    """Options of the provider. An exhaustive search of algorithms would be repeated for every batch size."""
    if gpu is None:
        return {}
    options = {"device_id": "0", "cudnn_conv_algo_search": "HEURISTIC", "do_copy_in_default_stream": "1"}
    if gpu.memory_bytes:
        # Powers of two would leave up to half of a limit unused.
        options |= {"gpu_mem_limit": str(gpu.memory_bytes), "arena_extend_strategy": "kSameAsRequested"}
    return options


def _options(asked: SessionOptions, threads: int) -> ort.SessionOptions:
    """Options of a session; more threads than cores would only wait for each other."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = min(asked.intra_op_threads or threads, threads)
    options.inter_op_num_threads = min(asked.inter_op_threads or threads, threads) if asked.parallel else 1
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL if asked.parallel else ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = _LEVELS[asked.level]
    options.enable_cpu_mem_arena = asked.mem_arena
    options.enable_mem_pattern = asked.mem_pattern
    options.log_severity_level = _ERRORS
    # A spinning pool burns its cores between batches, ten times the work itself at low rates.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    for name, value in asked.entries.items():
        options.add_session_config_entry(name, value)
    return options


def _specs(arguments: Sequence[ort.NodeArg], path: str) -> tuple[TensorSpec, ...]:
    specs = []
    for argument in arguments:
        if argument.type not in _DATATYPE:
            raise BackendFailed(f"{path}: tensor '{argument.name}': type {argument.type} is not supported")
        shape = tuple(dim if isinstance(dim, int) and dim >= 0 else VARIABLE for dim in argument.shape)
        specs.append(TensorSpec(argument.name, _DATATYPE[argument.type], shape))
    return tuple(specs)


def _bits(value: ort.OrtValue) -> Array:
    """A copy of the bits of a BF16 value in this process's memory."""
    shape = tuple(value.shape())
    memory = ctypes.string_at(value.data_ptr(), 2 * element_count(shape))
    return np.frombuffer(memory, np.uint16).reshape(shape)


def _text(name: str, array: Array) -> Array:
    """The array with every `bytes` element decoded: the runtime would take their `repr`."""
    if datatype_of(array.dtype) is not DataType.BYTES:
        raise BackendFailed(f"input '{name}': expected BYTES, got {array.dtype}")
    decoded = np.empty(array.size, np.object_)
    for index, element in enumerate(array.ravel().tolist()):
        try:
            decoded[index] = element.decode() if isinstance(element, bytes) else element
        except UnicodeDecodeError as error:
            raise BackendFailed(
                f"input '{name}': element {index} is not UTF-8; expected UTF-8, as ONNX strings are"
            ) from error
    return decoded.reshape(array.shape)
