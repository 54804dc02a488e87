"""The HTTP application: health, metadata, metrics, documentation, and all other routes except `infer`."""

from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from sluice.gateway.config.json_rules import JsonRules
from sluice.gateway.config.restricted import ApiGroup, Restrictions
from sluice.gateway.deployment.registry import ModelRegistry
from sluice.gateway.http.exchange import error_response
from sluice.gateway.http.openapi import inference_router
from sluice.gateway.http.operations.document import DESCRIPTION, describe, tags
from sluice.gateway.http.page_files import PageFiles
from sluice.gateway.http.pieces import PiecesResponse
from sluice.gateway.http.routes.common import Version, known_query, router
from sluice.gateway.http.routes.docs import docs_router
from sluice.gateway.http.routes.generate import generate_router
from sluice.gateway.http.routes.models import model_routers
from sluice.gateway.http.routes.page import page_router, root_router
from sluice.gateway.http.routes.partitions import partition_router, resize_router
from sluice.gateway.http.routes.settings import settings_routers
from sluice.gateway.inference.dataplane import DataPlane
from sluice.gateway.management.controlplane import ControlPlane
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.observability.traces.explanation import explain
from sluice.gateway.observability.traces.trace import RecentTraces
from sluice.gateway.overview.live import LiveOverview
from sluice.models.errors import BackendUnavailable, CancelledError, NotFoundError, ServingError
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.spec import describe_batching
from sluice.models.tensors.spec import TensorSpec


class ServerMetadata(BaseModel):
    """The server's name and version, and the protocol extensions it supports."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    """An input or output; -1 in a shape is variable."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """A model or pipeline."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    properties: dict[str, str] | None = Field(
        None, description="`batching`: why a model has no batches, if it has none"
    )


class ErrorMessage(BaseModel):
    """The problem, and what was expected."""

    error: str = Field(examples=["Request for unknown model: 'digits' is not found"])


def build_app(
    control: ControlPlane,
    dataplane: DataPlane,
    metrics: ServerMetrics,
    traces: RecentTraces,
    max_upload_bytes: int,
    overview: LiveOverview,
    restrictions: Restrictions | None = None,
    json_rules: JsonRules | None = None,
    page: PageFiles | None = None,
) -> FastAPI:
    """The ASGI application of a server, without `infer`. `traces` use the clock of `control`.

    `page` are the files of the page (None: those of this package). `max_upload_bytes` bounds the body of a request that
    uploads the files of a model.
    """
    registry = control.registry
    restrictions = restrictions or Restrictions()
    app = FastAPI(
        title="Sluice",
        version=registry.server_version,
        description=DESCRIPTION,
        license_info={"name": "Apache-2.0"},
        openapi_tags=tags(),
        docs_url=None,  # `docs_router` has one that loads nothing from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        responses={"4XX": {"model": ErrorMessage}, "5XX": {"model": ErrorMessage}},
    )
    explanations, exposition = router(ApiGroup.EXPLAIN, restrictions), router(ApiGroup.METRICS, restrictions)

    @exposition.get("/metrics")
    async def metrics_exposition(request: Request) -> Response:
        pieces, content_type = await metrics.scrape_as(request.headers.get("accept", ""))
        return PiecesResponse(pieces, {"content-type": content_type, "vary": "accept"})

    @explanations.get("/v2/sluice/requests/{id:path}", dependencies=[known_query()])
    async def request_explanation(id: str) -> Response:
        return Response(explanation_json(traces, id, control.clock()), media_type="application/json")

    files = page or PageFiles()
    for routes in (
        root_router(files, restrictions),
        _health(registry, restrictions),
        *model_routers(control, restrictions, max_upload_bytes),
        *settings_routers(control, restrictions),
        inference_router(restrictions),
        generate_router(dataplane, json_rules or JsonRules(), max_upload_bytes, restrictions),
        _server_metadata(control, restrictions),
        explanations,
        exposition,
        page_router(overview, files, restrictions),
        partition_router(control.inventory, control.scaling, restrictions),
        resize_router(control.resizing, restrictions),
        docs_router(),
    ):
        app.include_router(routes)
    _add_errors(app)
    _describe_operations(app, restrictions)
    _make_routes(app)
    return app


def _describe_operations(app: FastAPI, restrictions: Restrictions) -> None:
    """Make the OpenAPI document, when it is first asked for, with descriptions and examples."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            describe(generate(), restrictions.headers)
        return generate()  # which keeps what it has made

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation extends it


def explanation_json(traces: RecentTraces, id: str, now_ns: int) -> bytes:
    """The explanation of a request as JSON. Raises NotFoundError for one that is not remembered."""
    return msgspec.json.encode(explain(traces.find(id), now_ns))


def _make_routes(app: FastAPI) -> None:
    """Build now what FastAPI builds at the first lookup of a route, which would make all requests wait."""
    nowhere = {"type": "http", "method": "GET", "path": "/", "root_path": "", "headers": []}
    for route in app.routes:
        route.matches(nowhere)


def _health(registry: ModelRegistry, restrictions: Restrictions) -> APIRouter:
    routes = router(ApiGroup.HEALTH, restrictions)

    @routes.get("/v2/health/live")
    async def server_live() -> Response:
        return _health_response("live", registry.live, 400)

    @routes.get("/v2/health/ready")
    async def server_ready() -> Response:
        return _health_response("ready", registry.server_ready(), 503 if registry.leaving else 400)

    @routes.get("/ping")
    async def sagemaker_ready() -> Response:
        return await server_ready()

    @routes.get("/v1/models/{name}")
    async def v1_model_ready(name: str) -> Response:
        return await ready(name, "")

    @routes.get("/v1/models/{name}/versions/{version}")
    async def v1_model_version_ready(name: str, version: Version) -> Response:
        return await ready(name, version)

    @routes.get("/v2/models/{name}/ready")
    async def model_ready(name: str) -> Response:
        return await ready(name, "")

    @routes.get("/v2/models/{name}/versions/{version}/ready")
    async def model_version_ready(name: str, version: Version) -> Response:
        return await ready(name, version)

    async def ready(name: str, version: str) -> Response:
        if not registry.ready(name, version):
            registry.pipeline(name, version)
            raise BackendUnavailable(f"'{name}' is not at ready state: no running worker has it loaded")
        if not await registry.says_ready(name, version):
            raise BackendUnavailable(f"'{name}' is not at ready state: its function is_ready does not return True")
        return JSONResponse({"name": name, "ready": True})

    return routes


def _health_response(question: str, answer: bool, status_if_not: int) -> Response:
    """The answer to a question about the server, in the status and in the body: clients look at either."""
    return JSONResponse({question: answer}, 200 if answer else status_if_not)


def _server_metadata(control: ControlPlane, restrictions: Restrictions) -> APIRouter:
    routes = router(ApiGroup.METADATA, restrictions)
    registry = control.registry

    @routes.get("/v2")
    async def server_metadata() -> ServerMetadata:
        return ServerMetadata(name=registry.server_name, version=registry.server_version, extensions=control.extensions)

    @routes.get("/v1/models")
    async def v1_models() -> dict[str, list[str]]:
        return {"models": registry.serving_names()}

    @routes.get("/v2/models/{name}", response_model_exclude_none=True)
    async def model_metadata(name: str) -> ModelMetadata:
        return _metadata(registry.pipeline(name, ""), registry.served(name))

    @routes.get("/v2/models/{name}/versions/{version}", response_model_exclude_none=True)
    async def model_version_metadata(name: str, version: Version) -> ModelMetadata:
        pipeline = registry.pipeline(name, version)
        return _metadata(pipeline, [str(pipeline.version)])

    return routes


def _metadata(pipeline: Pipeline, versions: list[str]) -> ModelMetadata:
    def tensors(specs: tuple[TensorSpec, ...]) -> list[TensorMetadata]:
        return [
            TensorMetadata(name=spec.name, datatype=spec.datatype, shape=list(pipeline.wire_shape(spec)))
            for spec in specs
        ]

    return ModelMetadata(
        name=pipeline.name,
        versions=versions,
        platform=pipeline.platform,
        inputs=tensors(pipeline.inputs),
        outputs=tensors(pipeline.outputs),
        properties={"batching": describe_batching(pipeline.max_batch_size, pipeline.batching_note)}
        if pipeline.batching_note
        else None,
    )


def _add_errors(app: FastAPI) -> None:
    """Answer every error as `{"error": "..."}`."""

    def answer(error: Exception) -> Response:
        status, headers, body = error_response(error)
        response = Response(body, status)
        response.raw_headers += headers
        return response

    @app.exception_handler(ServingError)
    async def serving_error(_: Request, error: ServingError) -> Response:
        return answer(error)

    @app.exception_handler(RequestValidationError)
    async def validation_error(_: Request, error: RequestValidationError) -> Response:
        # Only paths are validated, and a path with an impossible version is unknown.
        return answer(NotFoundError("Not Found"))

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> Response:
        response = answer(ServingError(str(error.detail)))
        response.status_code = error.status_code
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(ClientDisconnect)
    async def client_gone(_: Request, error: ClientDisconnect) -> Response:
        return answer(CancelledError("the client has gone"))

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        return answer(error)
