"""The OpenAPI description of inference, which connections serve without the application."""

from typing import Any

from fastapi import APIRouter, Response
from starlette.exceptions import HTTPException

from sluice.gateway.config.restricted import ApiGroup, Restrictions
from sluice.gateway.http.routes.common import router
from sluice.models.errors import UnsupportedRequest
from sluice.models.tensors.spec import DataType

_PARAMETERS = {
    "type": "object",
    "additionalProperties": {"type": ["boolean", "integer", "number", "string"]},
}
_TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "datatype": {"enum": [datatype.value for datatype in DataType]},
        "parameters": _PARAMETERS,
        "data": {"type": "array", "description": "elements in row-major order, flat or nested; absent for binary data"},
    },
}
_REQUEST = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": _PARAMETERS,
        "inputs": {"type": "array", "items": _TENSOR},
        "outputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "parameters": _PARAMETERS},
            },
        },
    },
}
_RESPONSE = {
    "type": "object",
    "required": ["model_name", "model_version", "outputs"],
    "properties": {
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "id": {"type": "string"},
        "outputs": {"type": "array", "items": _TENSOR},
    },
}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_LENGTH = "Inference-Header-Content-Length"

_OPERATION: dict[str, Any] = {
    "parameters": [
        {
            "name": _LENGTH,
            "in": "header",
            "schema": {"type": "integer", "minimum": 0},
            "description": "length of the JSON in bytes; binary tensors follow it",
        }
    ],
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": _REQUEST}, "application/octet-stream": _BINARY},
    },
    "responses": {
        "200": {
            "description": "The outputs",
            "content": {"application/json": {"schema": _RESPONSE}, "application/octet-stream": _BINARY},
        }
    },
}


_PREDICT = {
    "type": "object",
    "properties": {
        "instances": {"type": "array", "description": "by row: values, or inputs by name"},
        "inputs": {"description": "by tensor: values, or inputs by name"},
        "signature_name": {"type": "string"},
        "parameters": _PARAMETERS,
    },
}
_PREDICTIONS = {"type": "object", "properties": {"predictions": {"type": "array"}, "outputs": {}}}
_SAGEMAKER_BINARY = "application/vnd.sagemaker-triton.binary+json"

_PREDICTION: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": _PREDICT}}},
    "responses": {"200": {"description": "The outputs", "content": {"application/json": {"schema": _PREDICTIONS}}}},
}
_INVOCATION: dict[str, Any] = {
    "parameters": [
        {
            "name": "X-Amzn-SageMaker-Target-Model",
            "in": "header",
            "schema": {"type": "string"},
            "description": "the model; without it, the server's default or only one",
            "example": "digits-cascade",
        }
    ],
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"anyOf": [_REQUEST, _PREDICT]}}, _SAGEMAKER_BINARY: _BINARY},
    },
    "responses": {
        "200": {
            "description": "The outputs",
            "content": {
                "application/json": {"schema": {"anyOf": [_RESPONSE, _PREDICTIONS]}},
                _SAGEMAKER_BINARY: _BINARY,
            },
        }
    },
}


def inference_router(restrictions: Restrictions) -> APIRouter:
    """Routes for inference requests that connections pass on: without the key, or with an impossible version."""
    routes = router(ApiGroup.INFERENCE, restrictions)

    @routes.post("/v2/models/{name}/infer", openapi_extra=_OPERATION)
    async def infer(name: str) -> Response:
        raise HTTPException(404)

    @routes.post("/v2/models/{name}/versions/{version}/infer", openapi_extra=_OPERATION)
    async def infer_version(name: str, version: str) -> Response:
        raise HTTPException(404)

    @routes.post("/invocations", openapi_extra=_INVOCATION)
    async def invocations() -> Response:
        raise HTTPException(404)

    @routes.post("/v1/models/{name}:predict", openapi_extra=_PREDICTION)
    async def predict(name: str) -> Response:
        raise HTTPException(404)

    @routes.post("/v1/models/{name}/versions/{version}:predict", openapi_extra=_PREDICTION)
    async def predict_version(name: str, version: str) -> Response:
        raise HTTPException(404)

    @routes.post("/v1/models/{name}:explain", include_in_schema=False)
    async def explain(name: str) -> Response:
        raise UnsupportedRequest(f"'{name:.80}' has no explainer: ask it with ':predict'")

    return routes
