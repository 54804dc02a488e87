"""Routes for models: configuration, statistics and the repository."""

from typing import Any

from fastapi import APIRouter, Request, Response

from sluice.gateway.config.restricted import ApiGroup, Restrictions
from sluice.gateway.http.routes.common import MAX_BODY_BYTES, Version, body_schema, json_body, router, without_null
from sluice.gateway.management.controlplane import ControlPlane
from sluice.models.errors import RequestError

_READY = {"ready": {"type": "boolean", "description": "list only what is ready"}}
_PARAMETERS = {"parameters": {"type": "object"}}


def model_routers(control: ControlPlane, restrictions: Restrictions, max_upload_bytes: int) -> list[APIRouter]:
    """The routers; the application handles errors. `max_upload_bytes` bounds requests that upload files of a model."""
    return [
        _config(control, restrictions),
        _statistics(control, restrictions),
        _repository(control, restrictions, max_upload_bytes),
    ]


def _config(control: ControlPlane, restrictions: Restrictions) -> APIRouter:
    routes = router(ApiGroup.MODEL_CONFIG, restrictions)

    @routes.get("/v2/models/{name}/config")
    async def model_config(name: str) -> dict[str, Any]:
        return control.model_config(name, "")

    @routes.get("/v2/models/{name}/versions/{version}/config")
    async def model_version_config(name: str, version: Version) -> dict[str, Any]:
        return control.model_config(name, version)

    return routes


def _statistics(control: ControlPlane, restrictions: Restrictions) -> APIRouter:
    routes = router(ApiGroup.STATISTICS, restrictions)

    @routes.get("/v2/models/stats")
    async def statistics() -> dict[str, Any]:
        return control.model_statistics("", "")

    @routes.get("/v2/models/{name}/stats")
    async def model_statistics(name: str) -> dict[str, Any]:
        return control.model_statistics(name, "")

    @routes.get("/v2/models/{name}/versions/{version}/stats")
    async def model_version_statistics(name: str, version: Version) -> dict[str, Any]:
        return control.model_statistics(name, version)

    return routes


def _repository(control: ControlPlane, restrictions: Restrictions, max_upload_bytes: int) -> APIRouter:
    routes = router(ApiGroup.MODEL_REPOSITORY, restrictions)
    repository = control.repository

    @routes.post("/v2/repository/index", openapi_extra=body_schema(_READY))
    async def repository_index(request: Request) -> list[dict[str, str]]:
        return await index("", request)

    @routes.post("/v2/repository/{repository_name}/index", openapi_extra=body_schema(_READY))
    async def named_repository_index(repository_name: str, request: Request) -> list[dict[str, str]]:
        return await index(repository_name, request)

    async def index(repository_name: str, request: Request) -> list[dict[str, str]]:
        ready = (await json_body(request)).get("ready", False)
        if not isinstance(ready, bool):
            raise RequestError(f"'ready' must be true or false, got {ready!r:.80}")
        return [
            {name: text for name in each.__struct_fields__ if (text := str(getattr(each, name)))}
            for each in repository.index(repository_name, ready)
        ]

    @routes.post("/v2/repository/models/{name}/load", openapi_extra=body_schema(_PARAMETERS))
    async def model_load(name: str, request: Request) -> Response:
        await repository.load("", name, await parameters(request, max_upload_bytes))
        return Response()

    @routes.post("/v2/repository/models/{name}/unload", openapi_extra=body_schema(_PARAMETERS))
    async def model_unload(name: str, request: Request) -> Response:
        await repository.unload("", name, await parameters(request))
        return Response()

    @routes.post("/v2/repository/{repository_name}/models/{name}/load", openapi_extra=body_schema(_PARAMETERS))
    async def named_model_load(repository_name: str, name: str, request: Request) -> Response:
        await repository.load(repository_name, name, await parameters(request, max_upload_bytes))
        return Response()

    @routes.post("/v2/repository/{repository_name}/models/{name}/unload", openapi_extra=body_schema(_PARAMETERS))
    async def named_model_unload(repository_name: str, name: str, request: Request) -> Response:
        await repository.unload(repository_name, name, await parameters(request))
        return Response()

    async def parameters(request: Request, max_bytes: int = MAX_BODY_BYTES) -> dict[str, object]:
        given = (await json_body(request, max_bytes)).get("parameters", {})
        if not isinstance(given, dict):
            raise RequestError(f"'parameters' must be an object, got {given!r:.80}")
        return without_null(given)

    return routes
