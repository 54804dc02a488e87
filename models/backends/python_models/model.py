"""A model written in Python: a `model.py` with a function `infer`, or with Triton's class `TritonPythonModel`.

`infer(inputs)` takes and returns a dict of arrays by tensor name, whole batches with the batch dimension first. An
optional function `load(config)` is called once before, with the model's configuration as Triton prints it. Input arrays
are read-only: other stages may read the same memory.
"""

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from sluice.models.backends.python_models import triton_utils
from sluice.models.backends.python_models.calls import Calls
from sluice.models.backends.python_models.decoupled import RunSender
from sluice.models.backends.python_models.triton_utils import Ran
from sluice.models.backends.requests import RequestPart
from sluice.models.errors import BackendFailed, BadTensor
from sluice.models.regular_file import read_regular
from sluice.models.tensors.arrays import Array, datatype_of
from sluice.models.tensors.spec import VARIABLE, TensorSpec
from sluice.models.triton_config.model_config import TensorConfig, TritonModelConfig, decode_config

Infer = Callable[[dict[str, Array], Sequence[RequestPart]], Ran]
SendResponses = Callable[[dict[str, Array], Sequence[RequestPart], RunSender], None]


class PythonModel:
    """The functions of a `model.py`, in this process; see `Backend`. `finish` is called when it is no longer needed.

    `is_ready` asks the model whether it is ready, from any thread; None for a model that does not say. `send_responses`
    starts the run of a request of a decoupled model; None for others.
    """

    def __init__(
        self,
        config: TritonModelConfig,
        path: str,
        infer: Infer,
        finish: Callable[[], object],
        is_ready: Callable[[], bool] | None = None,
        send_responses: SendResponses | None = None,
    ) -> None:
        self.inputs, self.outputs = tensors_of(config)
        self.is_decoupled = config.is_decoupled
        self._send_responses = send_responses
        self.finish = finish
        self.is_ready = is_ready
        self._path = path
        self._infer = infer

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch as one request; raises BackendFailed, also for an error of the request."""
        ran = self.run_requests(inputs, ())
        for failure in ran.errors:
            raise BackendFailed(failure.message)
        return dict(ran.outputs)

    def run_requests(self, inputs: Mapping[str, Array], requests: Sequence[RequestPart]) -> Ran:
        """Run one batch of these requests; without any, it is one.

        Raises BackendFailed with the last line of the traceback and its line in `model.py`.
        """
        with self._reports_errors():
            answer, errors = self._infer(_read_only(inputs), requests)
        if not isinstance(answer, Mapping):
            raise BackendFailed(f"{self._path}: infer: expected a dict of arrays by name, got {type(answer).__name__}")
        unknown = answer.keys() - {tensor.name for tensor in self.outputs}
        if unknown:
            raise BackendFailed(f"output '{min(map(str, unknown))}': the configuration has no such output")
        return Ran({tensor.name: _checked(tensor, answer) for tensor in self.outputs}, errors)

    def execute(self, inputs: Mapping[str, Array], requests: Sequence[RequestPart], sender: RunSender) -> None:
        """Start the run of a request of a decoupled model, which sends its responses; raises as `run`."""
        assert self._send_responses is not None, "a decoupled model has it"
        with self._reports_errors():
            self._send_responses(_read_only(inputs), requests, sender)

    def check_response(self, outputs: Mapping[str, Any]) -> dict[str, Array]:
        """The outputs of a response, which may be some of the model's; raises BackendFailed for others."""
        unknown = outputs.keys() - {tensor.name for tensor in self.outputs}
        if unknown:
            raise BackendFailed(f"output '{min(map(str, unknown))}': the configuration has no such output")
        return {tensor.name: _checked(tensor, outputs) for tensor in self.outputs if tensor.name in outputs}

    @contextlib.contextmanager
    def _reports_errors(self) -> Iterator[None]:
        """Raise BackendFailed for an error of the model."""
        try:
            yield
        except BackendFailed:
            raise
        except (Exception, SystemExit) as error:
            raise BackendFailed(last_line(error, self._path)) from error


def tensors_of(config: TritonModelConfig) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """The inputs and the outputs as whole tensors."""
    batch = (VARIABLE,) if config.max_batch_size else ()
    return tuple(_whole(each, batch) for each in config.input), tuple(_whole(each, batch) for each in config.output)


def load(path: str, threads: int, config: str, calls: Calls | None = None) -> PythonModel:
    """Load the model of a `model.py` with the configuration `config`, in JSON; it may make `calls` of other models.

    `threads` is the number of cores, which the model itself has to respect. Raises BackendFailed.
    """
    del threads
    form = decode_config(config)
    try:
        module = import_model(path, form.name)
        if hasattr(module, "TritonPythonModel"):
            outputs = tensors_of(form)[1]
            model = triton_utils.TritonModel(module.TritonPythonModel(), json.loads(config), Path(path), outputs, calls)
            return PythonModel(form, path, model.infer, model.finalize, model.is_ready, model.send_responses)
        if form.is_decoupled:
            raise BackendFailed("expected a class TritonPythonModel: only that can send its responses one by one")
        if hasattr(module, "load"):
            module.load(json.loads(config))
    except (Exception, SystemExit) as error:
        raise BackendFailed(f"{path}: cannot be loaded: {last_line(error, path)}") from error
    if not callable(getattr(module, "infer", None)):
        raise BackendFailed(f"{path}: expected a function infer(inputs) or a class TritonPythonModel")
    infer = module.infer
    return PythonModel(form, path, lambda inputs, _: Ran(infer(inputs)), lambda: None)


def import_model(path: str, name: str) -> ModuleType:
    """Run a file as a module; meanwhile it can import modules beside it and beside its version directory.

    If the file is a link, it can also import those beside the file that it leads to.

    The compiled file is not kept: it would be reused for a text of the same size that is saved in the same second.
    """
    module = ModuleType(f"sluice_model_{name}")
    module.__file__ = path
    # Triton's name for what its models import.
    sys.modules["triton_python_backend_utils"] = triton_utils
    beside = [str(Path(path).parent), str(Path(path).parent.parent)]
    if os.path.islink(path):
        beside.append(os.path.dirname(os.path.realpath(path)))
    sys.path[:0] = beside
    try:
        exec(compile(read_regular(Path(path)), path, "exec", dont_inherit=True), module.__dict__)
    finally:
        del sys.path[: len(beside)]
    return module


def _read_only(inputs: Mapping[str, Array]) -> dict[str, Array]:
    feed = {name: array.view() for name, array in inputs.items()}
    for array in feed.values():
        array.flags.writeable = False
    return feed


def _whole(tensor: TensorConfig, batch: tuple[int, ...]) -> TensorSpec:
    spec = tensor.spec()
    return TensorSpec(spec.name, spec.datatype, batch + tensor.model_shape)


def _checked(tensor: TensorSpec, answer: Mapping[str, Any]) -> Array:
    if tensor.name not in answer:
        raise BackendFailed(f"output '{tensor.name}' is missing")
    array = np.asarray(answer[tensor.name])
    try:
        datatype = datatype_of(array.dtype)
    except BadTensor as error:
        raise BackendFailed(f"output '{tensor.name}': {error}") from error
    if datatype is not tensor.datatype:
        raise BackendFailed(f"output '{tensor.name}': expected {tensor.datatype}, got {datatype}")
    if not tensor.accepts(array.shape):
        raise BackendFailed(f"output '{tensor.name}': expected shape {list(tensor.shape)}, got {list(array.shape)}")
    return array


def last_line(error: BaseException, path: str) -> str:
    """The last line of a traceback, and its line number in the file `path`."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    said = traceback.format_exception_only(error)[-1].strip()
    return f"{said} ({Path(path).name}:{lines[-1]})" if lines else said
