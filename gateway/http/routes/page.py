"""Routes of the page: its files, the document of what the server does now, and the same as server-sent events."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from sluice.gateway.config.restricted import ApiGroup, Restrictions
from sluice.gateway.http.access import HEAD_ONLY
from sluice.gateway.http.page_files import (
    EVENT_HEADERS,
    EVENT_TYPE,
    QUESTION,
    PageFile,
    PageFiles,
    read_question,
    send_events,
    wants_html,
)
from sluice.gateway.http.routes.common import known_query, router
from sluice.gateway.overview.document import Question
from sluice.gateway.overview.live import LiveOverview

_QUESTION = [
    {"name": name, "in": "query", "schema": schema, "description": description}
    for name, (schema, description) in zip(
        QUESTION,
        (
            ({"type": "string"}, ""),
            ({"type": "number"}, "history after this time of the server's clock only, in seconds"),
            ({"type": "integer", "minimum": 0}, "bars of the timeline after this number only"),
        ),
        strict=True,
    )
]
"""The parameters of the document, for its description; `read_question` reads them."""


class DocumentEvents(Response):
    """The documents as server-sent events."""

    def __init__(self, documents: AsyncGenerator[bytes], request: Request) -> None:
        super().__init__(None, 200, EVENT_HEADERS, EVENT_TYPE)
        del self.headers["content-length"]
        self._documents = documents
        self._request = request

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the events as they come."""
        if scope.get(HEAD_ONLY):
            await self._documents.aclose()
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b""})
            return
        started = False

        async def event(data: bytes) -> None:
            nonlocal started
            if not started:
                started = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": data, "more_body": True})

        try:
            await send_events(self._documents, event, _gone(self._request))
        except TimeoutError:
            return  # the response is incomplete, so the connection is closed
        if started:
            await send({"type": "http.response.body", "body": b""})


def page_router(overview: LiveOverview, files: PageFiles, restrictions: Restrictions) -> APIRouter:
    """The routes of the page, but `/`."""
    routes = router(ApiGroup.PAGE, restrictions)

    def question(request: Request) -> Question:
        explains = not restrictions.refusal(ApiGroup.EXPLAIN, request.headers)
        return read_question(request.query_params, explains=explains)

    @routes.get("/v2/sluice/now", openapi_extra={"parameters": _QUESTION})
    async def now(request: Request) -> Response:
        body = await overview.document(question(request))
        return Response(body, headers={"cache-control": "no-store"}, media_type="application/json")

    @routes.get("/v2/sluice/now/events", openapi_extra={"parameters": _QUESTION})
    async def now_events(request: Request) -> Response:
        overview.check_room()
        return DocumentEvents(overview.stream(question(request)), request)

    @routes.get("/v2/sluice/plan", dependencies=[known_query("pipeline")])
    async def plan(pipeline: str = "") -> Response:
        return Response(await overview.plan(pipeline), media_type="application/json")

    @routes.get("/page/{name:path}", include_in_schema=False)
    async def page_file(name: str, request: Request) -> Response:
        found = await files.find(name)
        if found is None:
            raise HTTPException(404, "Not Found")
        return file_response(found, request.headers)

    return routes


def root_router(files: PageFiles, restrictions: Restrictions) -> APIRouter:
    """The route `/`: the page for browsers, and `{"status": "alive"}` for others, as KServe's V1 has it."""
    routes = APIRouter(tags=[ApiGroup.PAGE.value])

    @routes.get("/")
    async def root(request: Request) -> Response:
        is_page = wants_html(request.headers.get("accept", "")) and files.has_index
        if refusal := restrictions.refusal(ApiGroup.PAGE if is_page else ApiGroup.HEALTH, request.headers):
            raise HTTPException(403, refusal)
        if not is_page or (found := await files.find("index.html")) is None:
            return JSONResponse({"status": "alive"}, headers={"vary": "accept"})
        response = file_response(found, request.headers)
        response.headers["vary"] = "accept"
        return response

    return routes


def file_response(found: PageFile, headers: Mapping[str, str]) -> Response:
    """A file of the page, or 304 if the client has it already."""
    if headers.get("if-none-match") == found.headers["etag"]:
        return Response(status_code=304, headers=dict(found.headers))
    return Response(found.body, headers=dict(found.headers))


async def _gone(request: Request) -> None:
    """Return when the client has gone."""
    with suppress(ClientDisconnect):
        while (await request.receive())["type"] != "http.disconnect":
            pass
