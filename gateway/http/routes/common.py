"""Common parts of all routers: restricted groups, versions in paths, JSON bodies."""

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Path, Request
from starlette.exceptions import HTTPException

from sluice.gateway.config.restricted import ApiGroup, Restrictions
from sluice.gateway.protocol.query import check_query
from sluice.gateway.protocol.request import MAX_VERSION_DIGITS
from sluice.models.errors import RequestError

Version = Annotated[str, Path(pattern=rf"^[0-9]{{1,{MAX_VERSION_DIGITS}}}$")]

MAX_BODY_BYTES = 1 << 20
"""Bound of a request without tensors and files."""

MAX_VALUES = 100_000
"""Bound of the commas and brackets in a larger body; more would take much longer to parse than the text of files."""


def router(group: ApiGroup, restrictions: Restrictions) -> APIRouter:
    """A router for the routes of a group; they answer 403 without the key, if the group has one."""

    def check(request: Request) -> None:
        if refusal := restrictions.refusal(group, request.headers):
            raise HTTPException(403, refusal)

    return APIRouter(tags=[group.value], dependencies=[Depends(check)] if restrictions else [])


def known_query(*names: str) -> Any:
    """A dependency of a route: other parameters in its query string than `names` are answered with 400."""

    def check(request: Request) -> None:
        check_query(request.query_params, names)

    return Depends(check)


async def read_body(request: Request, max_bytes: int) -> bytearray:
    """A body of at most `max_bytes`. Raises RequestError."""
    length = request.headers.get("content-length", "")
    body = bytearray()
    if length.isdigit() and int(length[:20]) > max_bytes:
        raise RequestError(f"the body has {length:.20} bytes, the limit is {max_bytes}")
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise RequestError(f"the body exceeds the limit of {max_bytes} bytes")
    return body


async def json_body(request: Request, max_bytes: int = MAX_BODY_BYTES, *, keeps_null: bool = False) -> dict[str, Any]:
    """The JSON object in a body of at most `max_bytes`; an empty body is an empty object. Raises RequestError.

    A member that is null counts as absent, unless the route `keeps_null`.
    """
    body = await read_body(request, max_bytes)
    if not body.strip():
        return {}
    if len(body) > MAX_BODY_BYTES and sum(map(body.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise RequestError(f"the body has too many values, the limit is {MAX_VALUES}")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"failed to parse the request JSON buffer: {error}") from error
    if not isinstance(document, dict):
        raise RequestError(f"expected a JSON object, got {type(document).__name__}")
    return document if keeps_null else without_null(document)


def without_null(members: dict[str, Any]) -> dict[str, Any]:
    """The members of an object that are not null."""
    return {name: value for name, value in members.items() if value is not None}


def body_schema(properties: dict[str, Any], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """The OpenAPI description of a body that its route reads itself."""
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"requestBody": {"required": bool(required), "content": {"application/json": {"schema": schema}}}}
