"""The routes of Triton's generate extension: one response as JSON, or all as server-sent events."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect

from sluice.gateway.config.json_rules import JsonRules
from sluice.gateway.config.restricted import ApiGroup, Restrictions
from sluice.gateway.http.exchange import LARGE_JSON_BYTES, error_response, json_tensor_bytes
from sluice.gateway.http.request_head import trace_in
from sluice.gateway.http.routes.common import Version, body_schema, read_body, router
from sluice.gateway.inference.dataplane import (
    REQUEST_HEADER,
    DataPlane,
    build_model_response,
    build_response,
)
from sluice.gateway.observability.traces.context import TraceContext
from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.protocol.generate import decode_generate, encode_generated
from sluice.gateway.protocol.request import InferRequest, InferResponse
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.protocol.signature import Signature
from sluice.gateway.protocol.status import http_status
from sluice.models.errors import BackendFailed, ServingError, UnsupportedRequest

Generated = AsyncGenerator[bytes | ServingError, None]
"""The responses to a request in JSON, and errors in their place."""

_FIELDS = {
    "text_input": {"type": "string", "description": "an input of that name, like every other field"},
    "parameters": {"type": "object", "description": "inputs and parameters"},
}
_COUNT = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


def generate_router(
    dataplane: DataPlane, rules: JsonRules, max_body_bytes: int, restrictions: Restrictions
) -> APIRouter:
    """The router; the application handles errors."""
    rules = rules._replace(request_bytes=min(rules.request_bytes, max_body_bytes))
    routes = router(ApiGroup.INFERENCE, restrictions)
    schema = body_schema(_FIELDS)

    @routes.post("/v2/models/{name}/generate", openapi_extra=schema)
    async def generate(name: str, request: Request) -> Response:
        return await _one(*await _begin(dataplane, request, name, "", rules))

    @routes.post("/v2/models/{name}/versions/{version}/generate", openapi_extra=schema)
    async def version_generate(name: str, version: Version, request: Request) -> Response:
        return await _one(*await _begin(dataplane, request, name, version, rules))

    @routes.post("/v2/models/{name}/generate_stream", openapi_extra=schema)
    async def generate_stream(name: str, request: Request) -> Response:
        return await _all(*await _begin(dataplane, request, name, "", rules))

    @routes.post("/v2/models/{name}/versions/{version}/generate_stream", openapi_extra=schema)
    async def version_generate_stream(name: str, version: Version, request: Request) -> Response:
        return await _all(*await _begin(dataplane, request, name, version, rules))

    return routes


class Generation:
    """A request that was submitted, whose responses `next` gives until the client leaves; `close` must follow."""

    def __init__(self, responses: Generated, request: Request) -> None:
        self._responses = responses
        self._leaving = asyncio.ensure_future(_gone(request))

    async def next(self) -> bytes | ServingError | None:
        """The next response, None after the last one. Raises ServingError before the first, and ClientDisconnect."""
        step = asyncio.ensure_future(anext(self._responses, None))
        try:
            await asyncio.wait({step, self._leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not step.done():
                step.cancel()
                await asyncio.wait({step})
        if self._leaving.done() or step.cancelled():
            raise ClientDisconnect
        return step.result()

    async def close(self) -> None:
        """Cancel the request, if it goes on."""
        self._leaving.cancel()
        await self._responses.aclose()


class EventStream(Response):
    """The responses as server-sent events, the `first` of which is known."""

    def __init__(self, generation: Generation, first: bytes | ServingError | None, headers: dict[str, str]) -> None:
        super().__init__(None, 200, headers, "text/event-stream; charset=utf-8")
        del self.headers["content-length"]
        self._generation = generation
        self._event = first
        if isinstance(first, ServingError):
            self.status_code = http_status(first)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the events as they come."""
        event = self._event
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while event is not None:
                body = error_response(event)[2] if isinstance(event, ServingError) else event
                await send({"type": "http.response.body", "body": b"data: %b\n\n" % body, "more_body": True})
                event = await self._generation.next()
            await send({"type": "http.response.body", "body": b""})
        except ClientDisconnect:
            pass
        finally:
            await self._generation.close()


async def _begin(
    dataplane: DataPlane, request: Request, name: str, version: str, rules: JsonRules
) -> tuple[Generation, dict[str, str]]:
    """Submit a request; returns it with the headers of its response. Raises ServingError."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedRequest("Unsupported content-encoding, only 'identity' is supported.")
    signature = dataplane.signature(name, version)
    body = await read_body(request, rules.request_bytes)
    decoded: InferRequest
    if len(body) > LARGE_JSON_BYTES:
        decoded = await asyncio.to_thread(decode_generate, body, signature)
        signature = dataplane.signature(name, version)  # it may have been replaced meanwhile
    else:
        decoded = decode_generate(body, signature)
    inputs, options = dataplane.check(signature, decoded)
    client = "" if signature.client_key is None else signature.client_key.in_headers(request.scope["headers"])
    submit = _decoupled if signature.pipeline.decoupled else _plain
    trace = trace_in(request.scope["headers"])
    responses, given_id = submit(dataplane, signature, inputs, options, client, trace, rules)
    return Generation(responses, request), {REQUEST_HEADER: given_id} if given_id else {}


def _plain(
    dataplane: DataPlane,
    signature: Signature,
    inputs: dict[str, Tensor],
    options: RequestOptions,
    client: str,
    trace: TraceContext,
    rules: JsonRules,
) -> tuple[Generated, str]:
    """Submit a request of a model with one response."""
    submission = dataplane.submit(signature, inputs, options, client, trace)

    async def responses() -> Generated:
        answer = await dataplane.answer(submission)
        try:
            response = build_response(answer, options, dataplane.statuses)
        except ServingError as error:
            if answer.failure is None and not isinstance(error, BackendFailed):  # the model has not run
                raise
            yield error
            return
        yield await encode_apart(response, signature, rules)

    return responses(), submission.given_id


def _decoupled(
    dataplane: DataPlane,
    signature: Signature,
    inputs: dict[str, Tensor],
    options: RequestOptions,
    client: str,
    trace: TraceContext,
    rules: JsonRules,
) -> tuple[Generated, str]:
    """Submit a request of a decoupled model."""
    stream = dataplane.open_responses(signature, inputs, options, client, trace)

    async def responses() -> Generated:
        sent = 0
        try:
            while (response := await stream.next()) is not None:
                sent += not response.is_empty
                if response.error is not None:
                    error = response.error
                    response.release()
                    yield error
                elif response.is_empty:
                    response.release()
                else:
                    yield await encode_apart(build_model_response(response, options), signature, rules)
        except ServingError as error:
            if not (sent or isinstance(error, BackendFailed)):  # the model has not run
                raise
            yield error
        finally:
            stream.close()

    return responses(), stream.given_id


async def encode_apart(response: InferResponse, signature: Signature, rules: JsonRules) -> bytes:
    """The JSON of a response, which is released; that of large tensors is written in a thread. Raises BadTensor."""
    if json_tensor_bytes(response, (False,) * len(response.outputs)) <= LARGE_JSON_BYTES:
        try:
            return encode_generated(response, signature, rules)
        finally:
            response.release()

    def release(ended: asyncio.Future[bytes]) -> None:
        response.release()
        ended.exception()  # nobody may be left to take it

    encoding = asyncio.get_running_loop().run_in_executor(None, encode_generated, response, signature, rules)
    encoding.add_done_callback(release)
    return await asyncio.shield(encoding)  # the thread reads the tensors to the end, even if the client leaves


async def _one(generation: Generation, headers: dict[str, str]) -> Response:
    """The only response of a request."""
    try:
        first = await generation.next()
        if isinstance(first, ServingError):
            raise first
        if first is None or await generation.next() is not None:
            return Response(orjson.dumps({"error": _COUNT}), 500, headers, "application/json")
        return Response(first, 200, headers, "application/json")
    finally:
        await generation.close()


async def _all(generation: Generation, headers: dict[str, str]) -> Response:
    """All responses of a request. One that fails before its model runs is answered as others are."""
    try:
        return EventStream(generation, await generation.next(), headers)
    except BaseException:
        await generation.close()
        raise


async def _gone(request: Request) -> None:
    """Return when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
