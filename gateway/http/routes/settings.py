"""Routes that change a running server: shared memory, trace and log settings."""

from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from sluice.gateway.config.restricted import ApiGroup, Restrictions
from sluice.gateway.http.routes.common import body_schema, json_body, router
from sluice.gateway.management.controlplane import NO_CUDA, ControlPlane
from sluice.gateway.observability.log_settings import LogValue
from sluice.gateway.protocol.shared_memory import SharedMemory
from sluice.models.errors import RequestError, UnsupportedRequest

_REGION = {
    "key": {"type": "string"},
    "offset": {"type": "integer", "minimum": 0, "default": 0},
    "byte_size": {"type": "integer", "minimum": 1},
}
_TRACE = {
    "trace_level": {"type": ["array", "null"], "items": {"enum": ["OFF", "TIMESTAMPS"]}},
    **{name: {"type": ["string", "null"]} for name in ("trace_rate", "trace_count", "log_frequency")},
}
_LOG = {
    **{name: {"type": "boolean"} for name in ("log_info", "log_warning", "log_error")},
    "log_verbose_level": {"type": "integer", "minimum": 0},
    "log_format": {"enum": ["default", "ISO8601", "json"]},
}


def settings_routers(control: ControlPlane, restrictions: Restrictions) -> list[APIRouter]:
    """The routers; the application handles errors."""
    return [
        _shared_memory(control.shared_memory, restrictions),
        _trace(control, restrictions),
        _logging(control, restrictions),
    ]


def _shared_memory(memory: SharedMemory, restrictions: Restrictions) -> APIRouter:
    routes = router(ApiGroup.SHARED_MEMORY, restrictions)

    @routes.get("/v2/systemsharedmemory/status")
    async def regions() -> list[dict[str, Any]]:
        return status(None)

    @routes.get("/v2/systemsharedmemory/region/{region}/status")
    async def region_status(region: str) -> list[dict[str, Any]]:
        return status(region)

    def status(region: str | None) -> list[dict[str, Any]]:
        return [
            {"name": each.name, "key": each.key, "offset": each.offset, "byte_size": each.byte_size}
            for each in memory.status(region)
        ]

    @routes.post(
        "/v2/systemsharedmemory/region/{region}/register", openapi_extra=body_schema(_REGION, ("key", "byte_size"))
    )
    async def register(region: str, request: Request) -> Response:
        body = await json_body(request)
        key = body.get("key")
        if not isinstance(key, str):
            raise RequestError(f"'key' must be the name of a shared memory object, got {key!r:.80}")
        memory.register(region, key, _bytes(body, "offset", 0), _bytes(body, "byte_size", None))
        return Response()

    @routes.post("/v2/systemsharedmemory/unregister")
    async def unregister_all() -> Response:
        memory.unregister()
        return Response()

    @routes.post("/v2/systemsharedmemory/region/{region}/unregister")
    async def unregister(region: str) -> Response:
        memory.unregister(region)
        return Response()

    async def no_cuda() -> Response:
        raise UnsupportedRequest(NO_CUDA)

    for path, method in (
        ("status", "GET"),
        ("region/{region}/status", "GET"),
        ("unregister", "POST"),
        ("region/{region}/unregister", "POST"),
        ("region/{region}/register", "POST"),
    ):
        routes.add_api_route(f"/v2/cudasharedmemory/{path}", no_cuda, methods=[method], include_in_schema=False)
    return routes


def _bytes(body: dict[str, Any], name: str, default: int | None) -> int:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise RequestError(f"'{name}' must be a whole number of bytes, got {value!r:.80}")
    return value


def _trace(control: ControlPlane, restrictions: Restrictions) -> APIRouter:
    routes = router(ApiGroup.TRACE, restrictions)
    traces = control.traces
    _add_settings(
        routes,
        "/v2/trace/setting",
        traces.get,
        partial(traces.update, ""),
        _TRACE,
        "trace_settings",
        dict[str, Any],
        keeps_null=True,
    )

    @routes.get("/v2/models/{name}/trace/setting")
    async def model_trace_settings(name: str) -> dict[str, Any]:
        return traces.get(name)

    @routes.post("/v2/models/{name}/trace/setting", openapi_extra=body_schema(_TRACE))
    async def update_model_trace_settings(name: str, request: Request) -> dict[str, Any]:
        traces.update(name, await json_body(request, keeps_null=True))
        return traces.get(name)

    return routes


def _logging(control: ControlPlane, restrictions: Restrictions) -> APIRouter:
    routes = router(ApiGroup.LOGGING, restrictions)
    _add_settings(
        routes, "/v2/logging", control.logs.get, control.logs.update, _LOG, "log_settings", dict[str, LogValue]
    )
    return routes


def _add_settings(
    routes: APIRouter,
    path: str,
    get: Callable[[], dict[str, Any]],
    update: Callable[[dict[str, Any]], None],
    schema: dict[str, Any],
    name: str,
    answer: type,
    *,
    keeps_null: bool = False,
) -> None:
    """Add the routes that read and change the settings of the server at a path; `answer` is the type of what is read.

    OpenAPI clients know the routes by `name`. `update` gets members that are null if it `keeps_null`.
    """

    @routes.get(path, name=name, response_model=answer)
    async def settings() -> dict[str, Any]:
        return get()

    @routes.post(path, name=f"update_{name}", response_model=answer, openapi_extra=body_schema(schema))
    async def update_settings(request: Request) -> dict[str, Any]:
        update(await json_body(request, keeps_null=keeps_null))
        return get()
