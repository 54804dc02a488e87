"""Triton's `triton_python_backend_utils` for its Python models: tensors, requests, responses and calls.

Models import this module under that name; its names are therefore Triton's. Memory of GPUs is not supported.
"""

import asyncio
import contextvars
import inspect
import json
import logging
import operator
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from sluice.models.backends.python_models.calls import CallAnswer, Calls, running_batch
from sluice.models.backends.python_models.config_builder import ModelConfig
from sluice.models.backends.python_models.custom_metrics import Metric, MetricFamily
from sluice.models.backends.python_models.decoupled import Closed, RunSender, SentError
from sluice.models.backends.python_models.wire import sendable
from sluice.models.backends.requests import CallKind, CallRequest, FailureCode, RequestFailure, RequestPart
from sluice.models.errors import BackendFailed, BadTensor
from sluice.models.sequence_batching import SequenceStep
from sluice.models.tensors.arrays import Array, numpy_dtype
from sluice.models.tensors.spec import VARIABLE, DataType, TensorSpec
from sluice.models.triton_config.model_config import DATA_TYPE

# Numpy has no BF16.
_NUMPY: dict[str, Any] = {
    name: numpy_dtype(datatype).type for datatype, name in DATA_TYPE.items() if datatype is not DataType.BF16
}
_TRITON = {dtype: name for name, dtype in _NUMPY.items()}

__all__ = ["Metric", "MetricFamily", "ModelConfig"]

LOGGER = "triton_python_model"
"""The name of the models' logger."""
TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_MEMORY_GPU = 1
TRITONSERVER_MEMORY_CPU = 0
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
"""The flag of a final response."""


class TritonError:
    """The error of a request, in a response."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = FailureCode

    def __init__(self, message: str, code: FailureCode = FailureCode.INTERNAL) -> None:
        if not isinstance(message, str):
            raise TypeError(f"TritonError: expected a message of type str, got {type(message).__name__}")
        self._message = message
        self._code = FailureCode(code)

    def message(self) -> str:
        """The message for clients."""
        return self._message

    def code(self) -> FailureCode:
        """One of the class's constants."""
        return self._code


class TritonModelException(Exception):
    """Raised by and for models."""


class Tensor:
    """A named array."""

    def __init__(self, name: str, numpy_array: Array) -> None:
        if not isinstance(numpy_array, np.ndarray):
            raise TritonModelException(f"tensor '{name}': expected a numpy array, got {type(numpy_array).__name__}")
        self._name = name
        self._array = numpy_array

    @classmethod
    def from_dlpack(cls, name: str, tensor: Any) -> "Tensor":
        """A tensor of any object in CPU memory that speaks DLPack."""
        return cls(name, np.from_dlpack(tensor))

    def to_dlpack(self) -> Any:
        """The array for libraries that speak DLPack; they refuse a read-only one."""
        array: Any = self._array
        return array.__dlpack__()

    def __dlpack__(self, stream: object = None) -> Any:
        """The same, for their functions `from_dlpack`."""
        del stream
        return self.to_dlpack()

    def __dlpack_device__(self) -> Any:
        """The memory of the CPU."""
        array: Any = self._array
        return array.__dlpack_device__()

    def name(self) -> str:
        """The name in the model's configuration."""
        return self._name

    def as_numpy(self) -> Array:
        """The array; one of a request is read-only."""
        return self._array

    def triton_dtype(self) -> str:
        """The datatype's name in configurations."""
        return numpy_to_triton_type(self._array.dtype.type)

    def shape(self) -> list[int]:
        """The dimensions."""
        return list(self._array.shape)

    def is_cpu(self) -> bool:
        """Always true."""
        return True


class PreferredMemory:
    """The memory for the outputs of a call; they always lie in the memory of the CPU."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


class InferenceTrace:
    """The trace of a request, for the calls that belong to it, from the headers of its context in OpenTelemetry."""

    def __init__(self, traceparent: str = "", tracestate: str = "") -> None:
        self._traceparent = traceparent
        self._tracestate = tracestate

    def get_context(self) -> str | None:
        """The headers as a JSON object, for propagators of OpenTelemetry; None for a request without a trace."""
        if not self._traceparent:
            return None
        state = {"tracestate": self._tracestate} if self._tracestate else {}
        return json.dumps({"traceparent": self._traceparent, **state})


class InferenceRequest:
    """A request of a batch, or one that the model makes of another model.

    `timeout` is in microseconds (0: none). `correlation_id` and `flags` are for sequences.
    """

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str | bytes = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        del preferred_memory
        self._inputs = list(inputs)
        self._requested = [_text("requested_output_names", name) for name in requested_output_names]
        self._request_id = _text("request_id", request_id)
        self._correlation_id = correlation_id
        self._model_name = _text("model_name", model_name)
        self._version = operator.index(model_version)
        self._flags = operator.index(flags)
        self._timeout = operator.index(timeout)
        if self._timeout < 0:
            raise TritonModelException(f"timeout: expected microseconds or 0, got {timeout}")
        self._trace = trace or InferenceTrace()
        self._sender: RunSender | None = None
        self._parameters = _json(parameters)
        self._made_for = running_batch()

    def inputs(self) -> list[Tensor]:
        """Its tensors."""
        return self._inputs

    def requested_output_names(self) -> list[str]:
        """All outputs for a request of a batch: those that clients do not want are dropped later."""
        return self._requested

    def request_id(self) -> str:
        """The id that the client gave, "" without one."""
        return self._request_id

    def correlation_id(self) -> int | str:
        """The id of the sequence, 0 outside of sequences."""
        return self._correlation_id

    def parameters(self) -> str:
        """The parameters that the client gave, as a JSON object."""
        return self._parameters

    def flags(self) -> int:
        """The flags for sequences."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Set the flags for sequences."""
        self._flags = flags

    def timeout(self) -> int:
        """The time limit of a call, or the time that a client lets its request wait, in microseconds; 0 for none."""
        return self._timeout

    def trace(self) -> InferenceTrace:
        """Its trace."""
        return self._trace

    def is_cancelled(self) -> bool:
        """True if the client has gone; only a decoupled model hears of it, as others run to the end of their batch."""
        return self._sender is not None and self._sender.is_cancelled()

    def get_response_sender(self) -> "InferenceResponseSender":
        """The sender of the responses to this request, of a decoupled model."""
        if self._sender is None:
            raise TritonModelException(
                "'get_response_sender' is of decoupled models; set model_transaction_policy { decoupled: true }"
            )
        return InferenceResponseSender(self._sender)

    def exec(self, decoupled: bool = False) -> "InferenceResponse | ResponseIterator":
        """Run the request on the model that it names; an error of that model is in the response.

        With `decoupled`, the responses are iterated. Raises TritonModelException if the call cannot be made.
        """
        try:
            return _respond(_calls().call(self._call(), self._arrays(), self._made_for), decoupled)
        except (BackendFailed, BadTensor) as error:
            raise TritonModelException(str(error)) from error

    async def async_exec(self, decoupled: bool = False) -> "InferenceResponse | ResponseIterator":
        """The same without blocking an `async def execute`."""
        try:
            return _respond(await _calls().call_async(self._call(), self._arrays(), self._made_for), decoupled)
        except (BackendFailed, BadTensor) as error:
            raise TritonModelException(str(error)) from error

    def _call(self) -> CallRequest:
        version = "" if self._version < 0 else str(self._version)
        return CallRequest(
            self._model_name,
            version,
            tuple(self._requested),
            (),
            0,
            self._request_id,
            self._call_parameters(),
            self._timeout,
            traceparent=self._trace._traceparent,
            tracestate=self._trace._tracestate,
        )

    def _call_parameters(self) -> str:
        """The parameters of a call, with its part in a sequence."""
        if not self._correlation_id:
            return self._parameters
        sequence = {
            "sequence_id": self._correlation_id,
            "sequence_start": bool(self._flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
            "sequence_end": bool(self._flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
        }
        return json.dumps(json.loads(self._parameters) | sequence)

    def _arrays(self) -> dict[str, Array]:
        return {tensor.name(): tensor.as_numpy() for tensor in self._inputs}


class InferenceResponse:
    """The answer to a request: its tensors, or an error."""

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self._tensors = list(output_tensors)
        self._error = TritonError(error) if isinstance(error, str) else error
        self._parameters = _json(parameters)

    def output_tensors(self) -> list[Tensor]:
        """Its tensors."""
        return self._tensors

    def has_error(self) -> bool:
        """Return whether it is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """The error, if it is one."""
        return self._error

    def parameters(self) -> str:
        """The parameters of the response as a JSON object; clients do not get them."""
        return self._parameters


class ResponseIterator:
    """The responses to a call that was made with `decoupled`: exactly one."""

    def __init__(self, response: InferenceResponse) -> None:
        self._responses = iter((response,))

    def __iter__(self) -> "ResponseIterator":
        return self

    def __next__(self) -> InferenceResponse:
        """The next response."""
        return next(self._responses)

    def cancel(self) -> None:
        """No effect: the call has ended."""


def _respond(answer: CallAnswer, decoupled: bool) -> InferenceResponse | ResponseIterator:
    tensors = [Tensor(name, array) for name, array in answer.outputs.items()]
    response = InferenceResponse(tensors, TritonError(answer.error, answer.code) if answer.error else None)
    return ResponseIterator(response) if decoupled else response


class _Connection:
    """The directory of this process' model, and its calls once it is loaded."""

    directory = ""
    calls: Calls | None = None


def _calls() -> Calls:
    if _Connection.calls is None:
        raise TritonModelException("other models can be called, loaded and unloaded only in execute")
    return _Connection.calls


def _text(argument: str, text: str | bytes) -> str:
    text = text.decode() if isinstance(text, bytes) else text
    if not isinstance(text, str):
        raise TypeError(f"{argument}: expected str, got {type(text).__name__}")
    return text


def _json(parameters: Mapping[str, Any] | None) -> str:
    """Parameters as a JSON object; raises TritonModelException for values that a request cannot have."""
    for name, value in (parameters or {}).items():
        if not isinstance(name, str) or not isinstance(value, bool | int | float | str):
            raise TritonModelException(
                f"parameters: '{name}': expected a str, int, float or bool by a name, got {type(value).__name__}"
            )
    return json.dumps(dict(parameters or {}))


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Load a model, again if it is loaded already, and return when it is ready; raises TritonModelException.

    `config` is a configuration in JSON in place of that of the repository. `files` are contents by names such as
    `file:1/model.onnx`, in place of the files of the repository.
    """
    contents: dict[str, Array] = {name: np.frombuffer(each, np.uint8) for name, each in (files or {}).items()}
    _ask(CallKind.LOAD, model_name, "", {"config": config} if config else {}, contents)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model, and with `unload_dependents` the models that only it needs; raises TritonModelException."""
    _ask(CallKind.UNLOAD, model_name, "", {"unload_dependents": bool(unload_dependents)}, {})


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether a model is ready, its latest version without one; raises TritonModelException."""
    return _ask(CallKind.IS_READY, model_name, model_version, {}, {})


def _ask(kind: CallKind, model: str, version: str, parameters: dict[str, Any], files: dict[str, Array]) -> bool:
    name, number = _text("model_name", model), _text("model_version", version)
    request = CallRequest(name, number, (), (), 0, parameters=json.dumps(parameters), kind=kind)
    try:
        answer = _calls().call(request, files)
    except (BackendFailed, BadTensor) as error:
        raise TritonModelException(str(error)) from error
    if answer.error:
        raise TritonModelException(answer.error)
    return answer.is_ready


class InferenceResponseSender:
    """Sends the responses to a request, from any thread, until it is closed by the final flag."""

    def __init__(self, sender: RunSender) -> None:
        self._sender = sender

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, or the final flag alone, and return when it is on its way to the client.

        It waits while the client does not read. Raises TritonModelException for a response after the final flag.
        """
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException(f"unable to send response. Unsupported flag '{flags}' provided.")
        if response is None and not flags:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        error = None if response is None else response.error()
        outputs = {} if response is None else {each.name(): each.as_numpy() for each in response.output_tensors()}
        try:
            sent = None if error is None else SentError(error.message(), error.code())
            self._sender.send(outputs if error is None else {}, sent, is_final=bool(flags))
        except Closed:
            raise TritonModelException("unable to send response. Response sender has been closed.") from None
        except BackendFailed as refused:
            raise TritonModelException(str(refused)) from None

    def is_cancelled(self) -> bool:
        """True if the client has gone."""
        return self._sender.is_cancelled()


class Logger:
    """Writes to the server's log."""

    INFO, WARNING, ERROR, VERBOSE = logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG
    _log = logging.getLogger(LOGGER)

    @classmethod
    def log(cls, message: str, level: int = logging.INFO) -> None:
        """Write a line of that level."""
        cls._log.log(level, "%s", message)

    log_info = staticmethod(_log.info)
    log_warn = staticmethod(_log.warning)
    log_error = staticmethod(_log.error)
    log_verbose = staticmethod(_log.debug)


def get_model_dir() -> str:
    """The directory of the version of this process' model."""
    return _Connection.directory


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The input of that name, None if there is none."""
    return next((tensor for tensor in inference_request.inputs() if tensor.name() == name), None)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The output of that name, None if there is none."""
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> Any:
    """The configuration of an input, None if there is none."""
    return next((tensor for tensor in model_config["input"] if tensor["name"] == name), None)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> Any:
    """The configuration of an output, None if there is none."""
    return next((tensor for tensor in model_config["output"] if tensor["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Return whether a request may have any number of responses."""
    policy: Mapping[str, Any] = model_config.get("model_transaction_policy", {})
    return bool(policy.get("decoupled", False))


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type of a datatype such as `TYPE_FP32`, None for an unknown one."""
    return _NUMPY.get(triton_type_string)


def numpy_to_triton_type(data_type: Any) -> str:
    """The reverse; a type that is not numeric is a string."""
    return _TRITON.get(np.dtype(data_type).type, "TYPE_STRING")


class _Executes(Protocol):
    def execute(
        self, requests: list[InferenceRequest]
    ) -> Sequence[InferenceResponse | None] | Awaitable[Sequence[InferenceResponse | None] | None] | None:
        """Answer the requests, in their order."""
        ...


class Ran(NamedTuple):
    """The outputs of a batch, and the errors of its requests; rows of a request with an error have no meaning."""

    outputs: Mapping[str, Any]
    errors: tuple[RequestFailure, ...] = ()


class _Loop(threading.local):
    """The event loop of a thread, for `async def execute`."""

    runner: asyncio.Runner | None = None


class TritonModel:
    """An instance of a `TritonPythonModel`, initialized with its configuration in JSON and the file that it is in.

    `outputs` are its whole outputs.
    """

    def __init__(
        self, model: _Executes, config: dict[str, Any], path: Path, outputs: Sequence[TensorSpec], calls: Calls | None
    ) -> None:
        self._model = model
        self._outputs = outputs
        self._names = [tensor.name for tensor in outputs]
        self._loop = _Loop()
        _Connection.directory = str(path.parent)
        self.is_ready: Callable[[], bool] | None = self._ask if hasattr(model, "is_ready") else None
        if hasattr(model, "initialize"):
            model.initialize(_arguments(config, path))
        _Connection.calls = calls

    def infer(self, inputs: dict[str, Array], requests: Sequence[RequestPart]) -> Ran:
        """Execute a batch; raises BackendFailed for answers that do not fit the requests."""
        given = [self._request(inputs, *part) for part in _parts(requests)]
        answers = self._model.execute(given)
        if inspect.isawaitable(answers):
            answers = self._await(answers)
        if not isinstance(answers, Sequence) or len(answers) != len(given):
            expected = (
                f"a list of {len(given)} responses for {len(given)} requests"
                if len(given) > 1
                else ("a list of one response for one request")
            )
            got = f"{len(answers)} of them" if isinstance(answers, Sequence) else type(answers).__name__
            raise BackendFailed(f"execute: expected {expected}, got {got}")
        errors: list[RequestFailure] = []
        for position, response in enumerate(answers):
            if response is None:
                raise BackendFailed(
                    "execute: expected a response, got None; a decoupled model has model_transaction_policy { "
                    "decoupled: true }"
                )
            if (error := response.error()) is not None:
                errors.append(RequestFailure(position, sendable(error.message()), error.code()))
        tensors = [None if response is None or response.has_error() else _arrays_of(response) for response in answers]
        if len(given) == 1:
            return Ran(self._blank(None, requests, 0) if errors else tensors[0] or {}, tuple(errors))
        return Ran(self._joined(tensors, requests), tuple(errors))

    def send_responses(self, inputs: dict[str, Array], requests: Sequence[RequestPart], sender: RunSender) -> None:
        """Execute a request of a decoupled model, which sends its responses; raises BackendFailed for an answer."""
        ((rows, part),) = _parts(requests)
        request = self._request(inputs, rows, part)
        request._sender = sender
        answers = self._model.execute([request])
        if inspect.isawaitable(answers):
            answers = self._await(answers)
        if answers is not None:
            raise BackendFailed("execute: expected None of a decoupled model, which sends its responses")

    def finalize(self) -> None:
        """Tell the model that it is no longer needed, if it wants to know."""
        if hasattr(self._model, "finalize"):
            self._model.finalize()

    def _ask(self) -> bool:
        """True if the model is ready by its own account; False, with a line in the log, if it does not say."""
        try:
            answer: Any = getattr(self._model, "is_ready")()  # noqa: B009 - the protocol has it for no model
            if inspect.isawaitable(answer):
                answer = self._await(answer)
            if not isinstance(answer, bool):
                raise TypeError(f"expected True or False, got {type(answer).__name__}")
        except Exception as error:
            Logger.log_error(f"is_ready: {type(error).__name__}: {error}")
            return False
        return answer

    def _request(self, inputs: dict[str, Array], rows: slice | None, part: RequestPart) -> InferenceRequest:
        tensors = [Tensor(name, array if rows is None else array[rows]) for name, array in inputs.items()]
        identity, flags = 0 if part.sequence is None else part.sequence.id, _flags(part.sequence)
        request = InferenceRequest(part.id, identity, tensors, self._names, flags=flags, timeout=part.timeout_us)
        request._parameters = part.parameters  # it is JSON already
        if part.traceparent:
            request._trace = InferenceTrace(part.traceparent, part.tracestate)
        return request

    def _await(self, answers: Awaitable[Any]) -> Any:
        if self._loop.runner is None:
            self._loop.runner = asyncio.Runner()

        async def wait() -> Any:
            return await answers

        # The runner would keep the context of its first batch.
        return self._loop.runner.run(wait(), context=contextvars.copy_context())

    def _joined(self, tensors: Sequence[dict[str, Array] | None], requests: Sequence[RequestPart]) -> dict[str, Array]:
        """The outputs of all requests by row; raises BackendFailed if their items have different shapes."""
        sample = next((each for each in tensors if each is not None), None)
        filled = [
            self._blank(sample, requests, position) if each is None else each for position, each in enumerate(tensors)
        ]
        names = {name: None for each in filled for name in each}
        for position, each in enumerate(filled):
            for name, array in each.items():
                if not array.ndim or array.shape[0] != requests[position].rows:
                    raise BackendFailed(
                        f"output '{name}' of request {position}: expected {requests[position].rows} rows, "
                        f"got shape {list(array.shape)}"
                    )
        try:
            return {name: np.concatenate([each[name] for each in filled if name in each]) for name in names}
        except ValueError as error:
            raise BackendFailed(f"the outputs of the requests do not fit together: {error}") from error

    def _blank(
        self, sample: Mapping[str, Array] | None, requests: Sequence[RequestPart], position: int
    ) -> dict[str, Array]:
        """Rows without a meaning, for a request with an error."""
        blank: dict[str, Array] = {}
        for output in self._outputs:
            shape = list(output.shape)
            if sample is not None and output.name in sample:
                shape = list(sample[output.name].shape)
            if requests and output.shape and output.shape[0] == VARIABLE:
                shape[0] = requests[position].rows
            fill: Any = b"" if output.datatype is DataType.BYTES else 0
            blank[output.name] = np.full([max(each, 0) for each in shape], fill, numpy_dtype(output.datatype))
        return blank


def _flags(step: SequenceStep | None) -> int:
    """The flags of a request for its part in a sequence."""
    if step is None:
        return 0
    flags = TRITONSERVER_REQUEST_FLAG_SEQUENCE_START if step.start else 0
    return flags | (TRITONSERVER_REQUEST_FLAG_SEQUENCE_END if step.end else 0)


def _parts(requests: Sequence[RequestPart]) -> list[tuple[slice | None, RequestPart]]:
    """The rows of each request; None for all rows, of the only one."""
    if not requests:
        return [(None, RequestPart(1))]
    if len(requests) == 1:
        return [(None, requests[0])]
    ends = [0]
    for part in requests:
        ends.append(ends[-1] + part.rows)
    return [(slice(*rows), part) for rows, part in zip(pairwise(ends), requests, strict=True)]


def _arrays_of(response: InferenceResponse) -> dict[str, Array]:
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def _arguments(config: dict[str, Any], path: Path) -> dict[str, str]:
    return {
        "model_config": json.dumps(config),
        "model_instance_kind": "CPU",
        "model_instance_name": f"{config['name']}_0",
        "model_instance_device_id": "0",
        "model_repository": str(path.parent.parent),
        "model_version": path.parent.name,
        "model_name": config["name"],
    }
