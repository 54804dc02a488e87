"""Common parts of all gRPC calls: error statuses, versions, and handlers that answer at once."""

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from inspect import isawaitable
from typing import Any, NoReturn, TypeVar

import grpc

from sluice.gateway.protocol.request import is_version
from sluice.gateway.protocol.status import error_message, grpc_status, retry_after_s
from sluice.models.errors import RequestError, ServingError

S = TypeVar("S")

ResponseMetadata = list[tuple[str, str | bytes]]
"""Names and values that accompany an answer."""


def call_status(
    error: Exception, metadata: Sequence[tuple[str, str | bytes]] = ()
) -> tuple[grpc.StatusCode, str, Sequence[tuple[str, str | bytes]]]:
    """The status of a call that ends with an error: code, message and trailing metadata.

    `metadata` is added to the trailing metadata.
    """
    if isinstance(error, PassedStatus):
        return error.code, str(error), metadata
    wait_s = retry_after_s(error)
    metadata = tuple(metadata) if wait_s is None else (*metadata, ("retry-after", str(wait_s)))
    return grpc_status(error), error_message(error), metadata


class PassedStatus(ServingError):
    """The status of a call that the gateway's process has answered for a front end."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


async def abort(context: Any, error: Exception) -> NoReturn:
    """End the call with the status of an error."""
    await context.abort(*call_status(error))
    raise AssertionError("abort returns to no one")


def unary_call(answer: Callable[[S, Any], Any]) -> Callable[[S, Any, Any], Awaitable[Any]]:
    """A call that ends with the result of `answer`, which may be a coroutine, or with its error."""

    @wraps(answer)
    async def call(self: S, request: Any, context: Any) -> Any:
        try:
            reply = answer(self, request)
            return await reply if isawaitable(reply) else reply
        except Exception as error:
            await abort(context, error)

    return call


def parse_version(text: str) -> str:
    """A version as requests give it, "" for the latest. Raises RequestError."""
    if text and not is_version(text):
        raise RequestError(f"model version '{text:.80}' must be a number, or empty for the latest")
    return text
