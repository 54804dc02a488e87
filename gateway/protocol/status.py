"""The table of errors and their HTTP and gRPC status codes, and the table of outcomes and their errors."""

import logging

import grpc

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.config.status_settings import TRITON_STATUSES, StatusSettings
from sluice.models import errors
from sluice.models.backends.requests import FailureCode

MAX_MESSAGE = 2000
"""Longest message in characters; gRPC sends it in a header, whose size clients bound."""

_log = logging.getLogger(__name__)

_CODES: dict[type[Exception], tuple[int, grpc.StatusCode]] = {
    errors.NotFoundError: (404, grpc.StatusCode.NOT_FOUND),
    errors.UnsupportedRequest: (501, grpc.StatusCode.UNIMPLEMENTED),
    errors.ForbiddenRequest: (403, grpc.StatusCode.PERMISSION_DENIED),
    errors.AlreadyExists: (400, grpc.StatusCode.ALREADY_EXISTS),
    errors.CapacityTaken: (409, grpc.StatusCode.FAILED_PRECONDITION),
    errors.RequestError: (400, grpc.StatusCode.INVALID_ARGUMENT),
    errors.TooManyRequests: (429, grpc.StatusCode.RESOURCE_EXHAUSTED),
    errors.TimeoutExpired: (504, grpc.StatusCode.DEADLINE_EXCEEDED),
    errors.OverloadError: (503, grpc.StatusCode.UNAVAILABLE),
    errors.CancelledError: (400, grpc.StatusCode.CANCELLED),
    errors.BackendUnavailable: (503, grpc.StatusCode.UNAVAILABLE),
    errors.PartitionError: (503, grpc.StatusCode.UNAVAILABLE),
    errors.ServingError: (500, grpc.StatusCode.INTERNAL),
}

_ERRORS: dict[Outcome, tuple[type[errors.ServingError], str]] = {
    Outcome.REJECTED_DEADLINE: (errors.RejectedError, "the request cannot be answered by its deadline"),
    Outcome.REJECTED_COST: (errors.RejectedError, "the request cannot be answered at that price"),
    Outcome.REJECTED_QUEUE_FULL: (errors.RejectedError, "Exceeds maximum queue size"),
    Outcome.REJECTED_MEMORY: (errors.RejectedError, "no memory is left for the request's tensors"),
    Outcome.REJECTED_UNAVAILABLE: (errors.BackendUnavailable, "the model is not at ready state"),
    Outcome.REJECTED_DRAINING: (errors.RejectedError, "the server is stopping"),
    Outcome.REJECTED_SEQUENCE: (errors.RequestError, "the request belongs to no sequence"),
    Outcome.EVICTED_DEADLINE: (errors.EvictedError, "Request timeout expired"),
    Outcome.CANCELLED_CLIENT: (errors.CancelledError, "the request was cancelled"),
    Outcome.FAILED_BACKEND: (errors.BackendFailed, "the model failed"),
    Outcome.FAILED_WORKER_LOST: (errors.BackendFailed, "the worker died with the request"),
    Outcome.FAILED_UNAVAILABLE: (errors.BackendUnavailable, "the model is not at ready state"),
}
_OF_MODELS: dict[FailureCode, type[errors.ServingError]] = {
    FailureCode.NOT_FOUND: errors.NotFoundError,
    FailureCode.INVALID_ARG: errors.RequestError,
    FailureCode.UNAVAILABLE: errors.BackendUnavailable,
    FailureCode.UNSUPPORTED: errors.UnsupportedRequest,
    FailureCode.ALREADY_EXISTS: errors.AlreadyExists,
    FailureCode.CANCELLED: errors.CancelledError,
}
"""The errors that models report by Triton's code; others are failures of the model."""
_OVERLOAD = frozenset({Outcome.REJECTED_DEADLINE, Outcome.REJECTED_QUEUE_FULL, Outcome.REJECTED_MEMORY})


def _codes(error: Exception) -> tuple[int, grpc.StatusCode]:
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    return 500, grpc.StatusCode.INTERNAL


def http_status(error: Exception) -> int:
    """The HTTP status of an error; 500 for anything but a `ServingError`."""
    return _codes(error)[0]


def grpc_status(error: Exception) -> grpc.StatusCode:
    """The gRPC status of an error; INTERNAL for anything but a `ServingError`."""
    return _codes(error)[1]


def retry_after_s(error: Exception) -> int | None:
    """Seconds after which a retry may succeed; None if it would fail the same way."""
    if isinstance(error, errors.OverloadError):
        return None if error.retry_after_s is None else max(1, error.retry_after_s)
    return 1 if http_status(error) == 503 else None


def error_message(error: Exception) -> str:
    """The message of an error for a client; errors other than `ServingError` are logged and hidden."""
    if isinstance(error, errors.ServingError):
        return str(error)[:MAX_MESSAGE]
    _log.error("a request failed unexpectedly", exc_info=error)
    return "internal error: see the log of the server"


def model_error(message: str, code: FailureCode) -> errors.ServingError:
    """The error that a model sends as a response."""
    return _OF_MODELS.get(code, errors.BackendFailed)(message)


def outcome_error(
    outcome: Outcome,
    reason: str,
    retry_after: int | None,
    statuses: StatusSettings = TRITON_STATUSES,
    failure: FailureCode | None = None,
) -> errors.ServingError:
    """The error that reports an outcome without outputs; `failure` is the kind of an error that the model reports."""
    kind, sentence = _ERRORS[outcome]
    if failure is not None and outcome is Outcome.FAILED_BACKEND:
        kind = _OF_MODELS.get(failure, kind)
    if statuses.overload == 429 and outcome in _OVERLOAD:
        kind = errors.TooManyRequests
    elif statuses.expired == 504 and outcome is Outcome.EVICTED_DEADLINE:
        kind = errors.TimeoutExpired
    message = f"{sentence}: {reason}" if reason not in ("", sentence) else sentence
    if outcome is Outcome.REJECTED_SEQUENCE and reason:
        message = reason  # in Triton's words
    if issubclass(kind, errors.OverloadError):
        return kind(message, retry_after)
    return kind(message)
