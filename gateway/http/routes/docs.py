"""The page `/docs`: Swagger UI from this package, so that it needs no other host."""

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from sluice.gateway.http.page_files import PAGE, POLICY, PageFiles
from sluice.gateway.http.routes.page import file_response

ASSETS = PAGE / "docs"
DOCS_POLICY = f"{POLICY}; img-src 'self' data:"
"""Icons are data in Swagger UI's style sheet."""


def docs_router() -> APIRouter:
    """The page and its files. They show how to ask a server, not what it serves, so nobody needs a key for them."""
    routes = APIRouter(include_in_schema=False)
    files = PageFiles(ASSETS, DOCS_POLICY)

    @routes.get("/docs")
    async def page(request: Request) -> Response:
        return await asset("index.html", request)

    @routes.get("/docs/{name}")
    async def asset(name: str, request: Request) -> Response:
        found = await files.find(name)
        if found is None:
            raise HTTPException(404)
        return file_response(found, request.headers)

    return routes
