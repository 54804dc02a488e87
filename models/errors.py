"""The error tree. No status codes here: `gateway/protocol/status.py` is the one table to HTTP and gRPC."""


class ServingError(Exception):
    """Any error that Sluice reports to a caller; `str(error)` is a sentence with the problem and the expectation."""


class ConfigError(ServingError):
    """A file or a value is wrong; the message starts with the place (`file: path.to.key: reason`)."""


class UnsupportedModel(ConfigError):
    """A model of an unsupported kind: it may answer more than once, or keeps state between requests."""


class NotFoundError(ServingError):
    """Something named in a request does not exist."""


class ModelNotFound(NotFoundError):
    """No model or pipeline of that name."""


class VersionNotFound(NotFoundError):
    """The model exists, the version does not."""


class RequestError(ServingError):
    """The request is malformed."""


class BadTensor(RequestError):
    """A tensor's bytes, data or datatype do not agree with what it declares or what the model expects."""


class ShapeMismatch(RequestError):
    """A tensor's shape is not one the model accepts."""


class UnknownInput(RequestError):
    """The request names an input the model does not have, or leaves one out."""


class UnknownOutput(RequestError):
    """The request asks for an output the model does not have."""


class UnsupportedRequest(RequestError):
    """The request is well formed, but uses a part of the protocol that is not supported."""


class ForbiddenRequest(RequestError):
    """The request is well formed, but the server was not started with the option that allows it."""


class AlreadyExists(RequestError):
    """The request would create something that exists."""


class CapacityTaken(RequestError):
    """The request asks for more of a device than the others leave it."""


class OverloadError(ServingError):
    """The request cannot be served in time or space.

    `retry_after_s` is the time after which another try may succeed; None if it would fail in the same way.
    """

    def __init__(self, message: str, retry_after_s: int | None = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RejectedError(OverloadError):
    """The request was refused before it was queued."""


class EvictedError(OverloadError):
    """The request was dropped after it was queued."""


class TooManyRequests(RejectedError):
    """The request was refused before it was queued; clients get a status code of its own for this."""


class TimeoutExpired(EvictedError):
    """The request was dropped after it was queued; clients get a status code of its own for this."""


class CancelledError(ServingError):
    """The client has disconnected or cancelled."""


class BackendError(ServingError):
    """A model could not be run."""


class BackendUnavailable(BackendError):
    """The model is known but not ready: it is loading, failed to load, or is on no partition."""


class BackendFailed(BackendError):
    """The model was run and failed."""


class ModelProcessEnded(BackendFailed):
    """The process that the model runs in has ended, and what the model kept there is gone; a new one is started."""


class SequencesLost(BackendFailed):
    """The states of all sequences of the model in this worker are gone."""


class PartitionError(ServingError):
    """A partition could not be created, reached or kept."""


class WorkerGone(PartitionError):
    """The worker of a partition takes no more batches: its loss is reported, but the scheduler may not know it yet."""


class InfeasibleLayout(PartitionError):
    """The wanted partitions do not fit on a device together."""


class ControlFailed(PartitionError):
    """A driver or daemon refused to change a partition, or could not be reached."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or the name of its type if it has no text."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
