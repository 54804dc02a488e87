"""The common part of both gRPC servers: the table of methods, and the tasks that run handlers."""

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import grpc

from sluice.gateway.grpc.transport.call import Aborted, HandOver, MessageMemory, ServerCall, parsed
from sluice.models.errors import RequestError

logger = logging.getLogger(__name__)

LAST_CALLS_S = 0.3
"""The time in which a stopping server still accepts calls, to refuse them with a status.

Clients send the next call as soon as they have an answer.
"""

NO_MEMORY = grpc.StatusCode.UNAVAILABLE, "the server has no memory left to read the message", (("retry-after", "1"),)
SLOW = grpc.StatusCode.DEADLINE_EXCEEDED, "the message of the call did not arrive in time"
_STOPPING = grpc.StatusCode.UNAVAILABLE, "the server is stopping", (("retry-after", "1"),)
"""The status of a call that a stopping server refuses, as the runtime rejects requests then."""

Refusal = Callable[[str, Iterable[tuple[str, str]]], str]
"""refusal(method, metadata): why a call is refused, "" if it is served."""


class Method(NamedTuple):
    """A method of a service. `begin` starts its calls if they need no task: it gets the message and the call.

    Large messages are received into `memory`, if there is one and the server can do that. A call of a method with
    `take_over` is alone on its connection, which that function gets.
    """

    handler: Any
    begin: Callable[[Any, Any], None] | None
    memory: MessageMemory | None = None
    take_over: HandOver | None = None


class GrpcServer(ABC):
    """Serves asynchronous handlers like `grpc.aio.server`.

    A unary handler that is a plain function needs no task. It ends its call itself, at once or later, and sets
    `on_cancelled` of the call to be notified of a cancellation.
    """

    def __init__(self) -> None:
        self.methods: dict[str, Method] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def start(self) -> None:
        """Start accepting calls."""

    @abstractmethod
    async def stop(self, grace: float | None) -> None:
        """Refuse new calls, interrupt streams, and cancel calls that are still open after `grace` seconds."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        """Serve the methods of a service."""
        for name, handler in method_handlers.items():
            plain = handler.unary_unary is not None and not inspect.iscoroutinefunction(handler.unary_unary)
            self.methods[f"/{service_name}/{name}"] = Method(handler, handler.unary_unary if plain else None)

    def receive_into(self, method: str, memory: MessageMemory) -> None:
        """Receive the large messages of a unary method, whose path this is, into memory that it provides."""
        self.methods[method] = self.methods[method]._replace(memory=memory)

    def give_connections(self, method: str, take_over: HandOver) -> None:
        """Pass on the connections on which this method is called."""
        self.methods[method] = Method(None, None, None, take_over)

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[Any]) -> None:  # noqa: B027
        """Does nothing: generated code calls it for methods that are registered already."""

    def run(self, call: ServerCall, handler: Any, request: Any) -> "asyncio.Task[None]":
        """Answer a call in a task. `request` is the message, or an iterator of them for a stream."""
        task = asyncio.get_running_loop().create_task(self._answer(call, handler, request))
        call.on_cancelled = task.cancel
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, call: ServerCall, handler: Any, request: Any) -> None:
        try:
            if not handler.request_streaming and handler.request_deserializer is not None:
                request = parsed(handler.request_deserializer, request)
            call.serializer = handler.response_serializer
            if not handler.response_streaming:
                call.finish(await handler.unary_unary(request, call))
                return
            answers = (handler.stream_stream if handler.request_streaming else handler.unary_stream)(request, call)
            if hasattr(answers, "__aiter__"):
                async for answer in answers:
                    await call.write(answer)
            else:
                await answers
            if call.interrupted:
                refuse(call)
            else:
                call.end(grpc.StatusCode.OK)
        except Aborted as aborted:
            call.end(*aborted.args)
        except RequestError as error:
            call.end(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Exception as error:
            fail(call, error)


def refuse(call: ServerCall) -> None:
    """End a call because the server is stopping."""
    call.end(*_STOPPING)


def fail(call: ServerCall, error: Exception) -> None:
    """End a call whose handler has raised an error that it should not."""
    logger.error("a call of %s failed", call.method, exc_info=error)
    call.end(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")
