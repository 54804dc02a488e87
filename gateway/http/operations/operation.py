"""The description of an operation: a method on a path."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

JSON = "application/json"
OCTETS = "application/octet-stream"
EVENTS = "text/event-stream"
TEXT = "text/plain"
NOTHING: Mapping[str, "OperationParameter"] = MappingProxyType({})


class Body(NamedTuple):
    """A body: a JSON value, or a text of another media type, each character of which stands for a byte."""

    value: Any
    media_type: str = JSON


class Example(NamedTuple):
    """A request and its answer. A body of None is empty; one operation has examples of different names."""

    response: Body | None = None
    request: Body | None = None
    status: int = 200
    name: str = "example"


class OperationParameter(NamedTuple):
    """A variable part of a path or a query, with a value that works."""

    description: str
    example: str


class Operation(NamedTuple):
    """The description of an operation; `parameters` are those that mean something else than `PARAMETERS` says."""

    summary: str
    description: str
    examples: tuple[Example, ...]
    parameters: Mapping[str, OperationParameter] = NOTHING


PARAMETERS: Mapping[str, OperationParameter] = MappingProxyType(
    {
        "name": OperationParameter("the name of a model or pipeline", "digits-cascade"),
        "version": OperationParameter("the version, a number", "1"),
        "id": OperationParameter(
            "the `id` of a request, or the one in the header `x-sluice-request` of its answer", "example-1"
        ),
        "region": OperationParameter("a name for the region, which requests use", "example"),
        "repository_name": OperationParameter("the name of a repository", "models"),
    }
)


def answers(value: Any, request: Any = None) -> tuple[Example, ...]:
    """The only example of an operation: JSON, asked for with JSON or without a body."""
    return (Example(Body(value), None if request is None else Body(request)),)


def done(request: Any = None) -> tuple[Example, ...]:
    """The only example of an operation with an empty answer."""
    return (Example(None, None if request is None else Body(request)),)
