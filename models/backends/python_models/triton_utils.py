"""Triton's `triton_python_backend_utils` for its Python models: tensors, requests and responses.

Models import this module under that name; its names are therefore Triton's. Calls of other models and GPU shared memory
are not supported.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np

from sluice.models.backends.python_models.decoupled import Closed, RunSender
from sluice.models.errors import BackendFailed
from sluice.models.tensors.arrays import Array, numpy_dtype
from sluice.models.tensors.spec import DataType
from sluice.models.triton_config.model_config import DATA_TYPE

# Numpy has no BF16.
_NUMPY: dict[str, Any] = {
    name: numpy_dtype(datatype).type for datatype, name in DATA_TYPE.items() if datatype is not DataType.BF16
}
_TRITON = {dtype: name for name, dtype in _NUMPY.items()}


TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
"""The flag of a final response."""


class TritonError:
    """The error of a request, in a response."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message = message
        self._code = code

    def message(self) -> str:
        """The message for clients."""
        return self._message

    def code(self) -> int:
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


class InferenceRequest:
    """A batch: a model sees the rows of all its requests as one request."""

    def __init__(
        self,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[str] = (),
        request_id: str = "",
        correlation_id: int = 0,
        sender: RunSender | None = None,
    ) -> None:
        self._sender = sender
        self._inputs = list(inputs)
        self._requested = list(requested_output_names)
        self._request_id = request_id
        self._correlation_id = correlation_id

    def inputs(self) -> list[Tensor]:
        """Its tensors."""
        return self._inputs

    def requested_output_names(self) -> list[str]:
        """All outputs: those that clients do not want are dropped later."""
        return self._requested

    def request_id(self) -> str:
        """Empty: a batch has no client."""
        return self._request_id

    def correlation_id(self) -> int:
        """0: there are no sequences."""
        return self._correlation_id

    def parameters(self) -> str:
        """None, in JSON."""
        return "{}"

    def flags(self) -> int:
        """None."""
        return 0

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

    def exec(self, *_: object, **__: object) -> NoReturn:
        """Other models cannot be called."""
        raise TritonModelException("a model cannot call other models; make them steps of an ensemble or a pipeline")

    async_exec = exec


class InferenceResponse:
    """The answer to a request: its tensors, or an error."""

    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | str | None = None) -> None:
        self._tensors = list(output_tensors)
        self._error = TritonError(error) if isinstance(error, str) else error

    def output_tensors(self) -> list[Tensor]:
        """Its tensors."""
        return self._tensors

    def has_error(self) -> bool:
        """Return whether it is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """The error, if it is one."""
        return self._error


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
            message = None if error is None else error.message()
            self._sender.send(outputs if error is None else {}, message, is_final=bool(flags))
        except Closed:
            raise TritonModelException("unable to send response. Response sender has been closed.") from None
        except BackendFailed as refused:
            raise TritonModelException(str(refused)) from None

    def is_cancelled(self) -> bool:
        """True if the client has gone."""
        return self._sender.is_cancelled()


class Logger:
    """Writes to the worker's log."""

    _log = logging.getLogger("triton_python_model")

    log_info = staticmethod(_log.info)
    log_warn = staticmethod(_log.warning)
    log_error = staticmethod(_log.error)
    log_verbose = staticmethod(_log.debug)


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
    def execute(self, requests: list[InferenceRequest]) -> Sequence[InferenceResponse | None] | None:
        """Answer the requests, in their order."""
        ...


class TritonModel:
    """An instance of a `TritonPythonModel`, initialized with its configuration in JSON and the file that it is in."""

    def __init__(self, model: _Executes, config: dict[str, Any], path: Path) -> None:
        self._model = model
        self._outputs = [tensor["name"] for tensor in config["output"]]
        if hasattr(model, "initialize"):
            model.initialize(_arguments(config, path))

    def infer(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Execute a batch as one request; raises BackendFailed for a missing response or an error."""
        tensors = [Tensor(name, array) for name, array in inputs.items()]
        responses = self._model.execute([InferenceRequest(tensors, self._outputs)])
        if not isinstance(responses, Sequence) or len(responses) != 1:
            raise BackendFailed("execute: expected a list of one response for one request")
        response = responses[0]
        if response is None:
            raise BackendFailed(
                "execute: expected a response, got None; a decoupled model has model_transaction_policy { decoupled: "
                "true }"
            )
        if (error := response.error()) is not None:
            raise BackendFailed(error.message())
        return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}

    def send_responses(self, inputs: dict[str, Array], sender: RunSender) -> None:
        """Execute a request of a decoupled model, which sends its responses; raises BackendFailed for an answer."""
        tensors = [Tensor(name, array) for name, array in inputs.items()]
        if self._model.execute([InferenceRequest(tensors, self._outputs, sender=sender)]) is not None:
            raise BackendFailed("execute: expected None of a decoupled model, which sends its responses")

    def finalize(self) -> None:
        """Tell the model that it is no longer needed, if it wants to know."""
        if hasattr(self._model, "finalize"):
            self._model.finalize()


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
