"""The meaning of a Triton server's errors for the server, the model and the batch."""

import grpc

from sluice.models.errors import BackendFailed, PartitionError


class ServerLost(PartitionError):
    """The server cannot be reached, hangs, or gives malformed answers."""


class ModelLost(PartitionError):
    """The server is up, but does not run a model any more that it should have."""


def meaning(code: grpc.StatusCode, details: str) -> ServerLost | ModelLost | BackendFailed | PartitionError:
    """The error that a status stands for; Triton's words decide where a code does not."""
    text = details.strip().splitlines()[0] if details.strip() else code.name
    match code:
        case _ if "shared memory region" in details:  # a restarted server does not know it
            return ServerLost(text)
        case grpc.StatusCode.INTERNAL if "Stub process" in details:
            return ModelLost(text)
        case grpc.StatusCode.UNAVAILABLE if "maximum queue size" in details:
            return PartitionError(text)
        case grpc.StatusCode.UNAVAILABLE if "is not at ready state" in details or "explicit model" in details:
            return ModelLost(text)
        case grpc.StatusCode.NOT_FOUND:
            return ModelLost(text)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return PartitionError(text)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return ServerLost("no answer in time")
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED | grpc.StatusCode.UNIMPLEMENTED:
            return ServerLost(text)
        case _:
            return BackendFailed(text)
