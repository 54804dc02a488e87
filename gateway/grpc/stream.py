"""Streams of inference requests: each request is answered when it is done, in any order."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from tritonclient.grpc import service_pb2

from sluice.gateway.front_door.budget import Budget
from sluice.gateway.grpc.errors import ResponseMetadata
from sluice.gateway.grpc.replies import FINAL_RESPONSE, Replies
from sluice.gateway.protocol.status import error_message

Infer = Callable[[Any, ResponseMetadata], Awaitable[Any]]
"""Answers a ModelInferRequest with a ModelInferResponse. The list receives the metadata, even of an error.

The request of a decoupled model is answered with an asynchronous generator of its `Replies`.
"""
STREAM_REQUESTS = 256
"""Requests of one stream in flight; the next one is read when one of them has been answered."""


class InferStream:
    """The concurrent requests of one stream, and their answers.

    A failed request is answered by an error within the stream. With `error_ends_stream`, `run` raises the error in a
    group and cancels the other requests. They are also cancelled with `run`. While the buffer is nearly full, the next
    request is read when one of the stream has been answered.
    """

    def __init__(
        self,
        infer: Infer,
        write: Callable[[Any], Awaitable[None]],
        error_ends_stream: bool,
        budget: Budget | None = None,
    ) -> None:
        self._infer = infer
        self._write = write
        self._error_ends_stream = error_ends_stream
        self._budget = budget or Budget(1 << 62)
        self._held = 0
        self._freed = asyncio.Event()
        self._slots = asyncio.Semaphore(STREAM_REQUESTS)
        self._writing = asyncio.Lock()

    async def run(self, requests: AsyncIterable[Any]) -> None:
        """Answer all requests until the client closes its side."""
        async with asyncio.TaskGroup() as tasks:
            async for request in requests:
                await self._slots.acquire()
                size = request.ByteSize()
                self._count(size)
                tasks.create_task(self._answer(request)).add_done_callback(partial(self._done, size))
                while self._held and self._budget.used > self._budget.mark:
                    self._freed.clear()
                    await self._freed.wait()

    def _count(self, size: int) -> None:
        self._held += size
        self._budget.used += size

    def _done(self, size: int, _: asyncio.Task[None]) -> None:
        self._count(-size)
        self._slots.release()
        self._freed.set()

    async def _answer(self, request: Any) -> None:
        metadata: ResponseMetadata = []
        reply = service_pb2.ModelStreamInferResponse()
        try:
            answer = await self._infer(request, metadata)
            if isinstance(answer, AsyncGenerator):
                async with aclosing(answer) as replies:
                    await self._reply(request, replies)
                return
            reply.infer_response.MergeFrom(answer)
        except Exception as error:
            if self._error_ends_stream:
                raise
            reply.error_message = error_message(error)
            reply.infer_response.id = request.id
        for name, text in metadata:
            reply.infer_response.parameters[name].string_param = text
        async with self._writing:
            await self._write(reply)

    async def _reply(self, request: Any, replies: Replies) -> None:
        """Write the replies to a request of a decoupled model."""
        async for reply, is_final in replies:
            if isinstance(reply, Exception) and self._error_ends_stream:
                raise reply
            message = _error_reply(request, reply, is_final) if isinstance(reply, Exception) else reply
            async with self._writing:
                await self._write(message)


def _error_reply(request: Any, error: Exception, is_final: bool) -> Any:
    reply = service_pb2.ModelStreamInferResponse(error_message=error_message(error))
    response = reply.infer_response
    response.id, response.model_name, response.model_version = request.id, request.model_name, request.model_version
    response.parameters[FINAL_RESPONSE].bool_param = is_final
    return reply
