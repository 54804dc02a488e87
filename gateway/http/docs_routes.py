"""The page `/docs`: Swagger UI from this package, so that it needs no other host."""

from pathlib import Path

from fastapi import APIRouter, Response
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse

ASSETS = Path(__file__).parents[1] / "page/docs"
MEDIA_TYPES = {
    "start.js": "text/javascript; charset=utf-8",
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
}
"""The files that the page loads; the others of the folder are licences."""

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'self'",
        "img-src 'self' data:",  # the icons in Swagger UI's style sheet
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "object-src 'none'",
    )
)
_HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
_DAY_S = 86400


def docs_router() -> APIRouter:
    """The page and its files. They show how to ask a server, not what it serves, so nobody needs a key for them."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/docs")
    async def page() -> Response:
        headers = {**_HEADERS, "content-security-policy": CONTENT_SECURITY_POLICY, "cache-control": "no-cache"}
        return FileResponse(ASSETS / "index.html", headers=headers, media_type="text/html; charset=utf-8")

    @routes.get("/docs/{name}")
    async def asset(name: str) -> Response:
        if name not in MEDIA_TYPES:
            raise HTTPException(404)
        headers = {**_HEADERS, "cache-control": f"max-age={_DAY_S}"}
        return FileResponse(ASSETS / name, headers=headers, media_type=MEDIA_TYPES[name])

    return routes
