"""Streams of inference requests: each one is answered when it is done, whatever their order was."""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Any

from tritonclient.grpc import service_pb2

from sluice.gateway.protocol.status import error_message

STREAM_REQUESTS = 256
"""Requests of one stream that are under way at a time; the next is read when one of them has been answered."""

ResponseMetadata = list[tuple[str, str]]
"""What is told of a request beside its tensors, by name."""

Infer = Callable[[Any, ResponseMetadata], Awaitable[Any]]
"""Answers a ModelInferRequest with a ModelInferResponse, and says more of it in the list, even when it fails."""


class InferStream:
    """The requests of one stream, which run at the same time, and their answers.

    A request that fails is answered by an error within the stream. With `error_ends_stream` its error is raised by `run`
    instead, in a group, and the other requests are cancelled; so they are when `run` is.
    """

    def __init__(self, infer: Infer, write: Callable[[Any], Awaitable[None]], error_ends_stream: bool) -> None:
        self._infer = infer
        self._write = write
        self._error_ends_stream = error_ends_stream
        self._slots = asyncio.Semaphore(STREAM_REQUESTS)
        self._writing = asyncio.Lock()

    async def run(self, requests: AsyncIterable[Any]) -> None:
        """Answer all requests until the client sends no more."""
        async with asyncio.TaskGroup() as tasks:
            async for request in requests:
                await self._slots.acquire()
                tasks.create_task(self._answer(request))

    async def _answer(self, request: Any) -> None:
        metadata: ResponseMetadata = []
        reply = service_pb2.ModelStreamInferResponse()
        try:
            reply.infer_response.MergeFrom(await self._infer(request, metadata))
        except Exception as error:
            if self._error_ends_stream:
                raise
            reply.error_message = error_message(error)
            reply.infer_response.id = request.id
        for name, text in metadata:
            reply.infer_response.parameters[name].string_param = text
        async with self._writing:
            await self._write(reply)
        self._slots.release()
