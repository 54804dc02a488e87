"""Adds the descriptions of operations to the OpenAPI document."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from sluice.gateway.config.restricted import ApiGroup
from sluice.gateway.http.operations.inference import INFERENCE
from sluice.gateway.http.operations.models import MODELS
from sluice.gateway.http.operations.operation import JSON, PARAMETERS, Operation
from sluice.gateway.http.operations.page import PAGE
from sluice.gateway.http.operations.server import SERVER
from sluice.gateway.http.operations.settings import SETTINGS

OPERATIONS: Mapping[str, Operation] = MappingProxyType({**PAGE, **SERVER, **MODELS, **INFERENCE, **SETTINGS})
"""The operations by method and path; the paths of versions have the descriptions of those without."""

DESCRIPTION = """\
An inference serving gateway with adaptive batching. Inference follows the KServe V2 protocol as Triton speaks it, so
that Triton's clients work unchanged, over gRPC as well.

[The page](./) shows what this server is doing.

The examples work on the models of the demo. In a clone:

```sh
make demo
.venv-demo/bin/sluice serve --repository .demo/repository --partitions 2
```

Each tag below is a group of routes. Groups can be restricted to clients with a key (`restricted`), and groups that
change the server are closed on a network unless they are opened by name. Every error is `{"error": "..."}`."""

GROUPS: Mapping[ApiGroup, str] = MappingProxyType(
    {
        ApiGroup.INFERENCE: "Ask models and pipelines.",
        ApiGroup.HEALTH: "Probes for load balancers and orchestrators.",
        ApiGroup.METADATA: "What the server and its models are.",
        ApiGroup.MODEL_CONFIG: "How models are configured.",
        ApiGroup.STATISTICS: "How models and partitions are doing.",
        ApiGroup.MODEL_REPOSITORY: "List, load and unload models.",
        ApiGroup.PAGE: "What the server is doing, for people and for programs.",
        ApiGroup.EXPLAIN: "Why a request took as long as it did.",
        ApiGroup.PARTITIONS: "Change partitions while they serve.",
        ApiGroup.SHARED_MEMORY: "Tensors in memory that clients share with the server.",
        ApiGroup.TRACE: "Which requests are traced.",
        ApiGroup.LOGGING: "What is logged.",
        ApiGroup.METRICS: "Metrics for Prometheus.",
    }
)
"""A line for each group that has routes over HTTP, in the order in which the page shows them."""

_VERSION = "/versions/{version}"


def tags() -> list[dict[str, str]]:
    """The tags of the document."""
    return [{"name": group.value, "description": text} for group, text in GROUPS.items()]


def describe(document: dict[str, Any], key_headers: Mapping[ApiGroup, str]) -> None:
    """Add to each operation of an OpenAPI document what `OPERATIONS` says of it, and the header with its key."""
    for header in set(key_headers.values()):
        schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes[header] = {"type": "apiKey", "in": "header", "name": header}
    for method, path, described in operations(document):
        if headers := [key_headers[ApiGroup(tag)] for tag in described["tags"] if tag in key_headers]:
            described["security"] = [{header: [] for header in headers}]
        known = OPERATIONS.get(f"{method} {path.replace(_VERSION, '')}")
        if known is not None:
            described["summary"] = known.summary + (", by version" if _VERSION in path else "")
            described["description"] = known.description
            _add_parameters(described, known)
            _add_examples(described, known)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The method, the path and the description of each operation of a document."""
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            yield method.upper(), path, described


def _add_parameters(described: dict[str, Any], known: Operation) -> None:
    for parameter in described.get("parameters", ()):
        name = parameter["name"]
        about = known.parameters.get(name) or PARAMETERS.get(name)
        if about is not None:
            parameter |= {"description": about.description, "example": about.example}


def _add_examples(described: dict[str, Any], known: Operation) -> None:
    responses = described["responses"]
    success = responses.pop("200")
    success["content"] = {kind: each for kind, each in success.get("content", {}).items() if each.get("schema")}
    for example in known.examples:
        response = responses.setdefault(str(example.status), success if example.status == 200 else {})
        response.setdefault("description", "Refused")
        if example.request is not None:
            content = described["requestBody"]["content"]
            _examples_of(content, example.request.media_type)[example.name] = {"value": example.request.value}
        if example.response is None:
            response["description"] = "Done; the body is empty"
        else:
            content = response.setdefault("content", {})
            _examples_of(content, example.response.media_type)[example.name] = {"value": example.response.value}
    if not success["content"]:
        del success["content"]


def _examples_of(content: dict[str, Any], media_type: str) -> dict[str, Any]:
    fresh: dict[str, Any] = {} if media_type == JSON else {"schema": {"type": "string"}}
    examples: dict[str, Any] = content.setdefault(media_type, fresh).setdefault("examples", {})
    return examples
