"""The examples of the OpenAPI document, sent to a server with the demo's models: it answers as the document says."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from examples.digits.build import build_repository
from sluice.gateway.http.operations.document import operations
from sluice.gateway.http.operations.operation import EVENTS
from tests.support.gateway.server import GatewayServer, gateway_server

REGION = Path("/dev/shm/example")
FIRST, LAST = "/infer", "/unload"
"""The ends of paths that are asked first, since others show the request, and last, since others need the model."""
UNREGISTER = "/unregister"
OPEN = {"models", "providers", "threads", "partitions", "classes", "ms_by_rows", "probabilities"}
"""Objects with a member for each model, partition, class of partitions or size of a batch."""


class Sent(NamedTuple):
    """A request of the document; `answers` are the examples of its answer, by their media types."""

    operation: str
    path: str
    headers: dict[str, str]
    body: bytes | None
    status: int
    answers: dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    directory = tmp_path_factory.mktemp("examples")
    build_repository(directory / "models")
    for file in (directory / "models").glob("*/pipeline.yaml"):  # a busy machine refuses nothing
        file.write_text(file.read_text().replace("slo_ms: 50\n", "slo_ms: 50000\n"))
    settings = {"control": "explicit", "load_models": ["*"], "allow_client_shm": True, "partitions": 1}
    REGION.write_bytes(bytes(64))
    try:
        with gateway_server(directory / "models", directory, settings) as running:
            yield running
    finally:
        REGION.unlink()


def test_every_example_works(server: GatewayServer) -> None:
    status, _, body = server.request("GET", "/openapi.json")
    assert status == 200
    wrong = []
    every = sorted(requests_of(json.loads(body)), key=rank)
    for sent in every:
        problem = compare(sent, *ask(server, sent))
        if problem:
            wrong.append(f"{sent.operation}: {problem}")
    assert wrong == []
    assert len(every) >= len({sent.operation for sent in every}) > 40


def ask(server: GatewayServer, sent: Sent) -> tuple[int, dict[str, str], bytes]:
    """Send a request; returns its status, headers and body. Of events, the body is the first one."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        connection.request(sent.operation.partition(" ")[0], sent.path, sent.body, sent.headers)
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return response.status, headers, response.readline() if EVENTS in sent.answers else response.read()
    finally:
        connection.close()


def rank(sent: Sent) -> int:
    """The place of a request among the others."""
    if sent.path.endswith(FIRST):
        return 0
    if sent.path.endswith("/register"):
        return 1
    return 4 if sent.path.endswith(LAST) else 3 if sent.path.endswith(UNREGISTER) else 2


def requests_of(document: dict[str, Any]) -> Iterator[Sent]:
    """Every example of a document."""
    for method, path, described in operations(document):
        status, response = next(each for each in described["responses"].items() if not each[0].endswith("XX"))
        headers: dict[str, str] = {}
        for parameter in described.get("parameters", ()):
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", quote(parameter["example"], safe=""))  # noqa: PLW2901
            elif parameter["in"] == "query" and "example" in parameter:
                path += f"?{parameter['name']}={quote(parameter['example'])}"  # noqa: PLW2901
            elif "example" in parameter:
                headers[parameter["name"]] = parameter["example"]
        bodies = [
            (name, media_type, example["value"])
            for media_type, content in described.get("requestBody", {}).get("content", {}).items()
            for name, example in content.get("examples", {}).items()
        ]
        for name, media_type, value in bodies or [("", "", None)]:
            answers = {
                kind: (content["examples"].get(name) or next(iter(content["examples"].values())))["value"]
                for kind, content in response.get("content", {}).items()
                if "examples" in content and (not name or name in content["examples"])
            }
            body = None if not media_type else encoded(value)
            extra = {"content-type": media_type} if media_type else {}
            if isinstance(value, str):
                extra["Inference-Header-Content-Length"] = str(length_of_json(value))
            yield Sent(f"{method} {described['summary']}", path, {**headers, **extra}, body, int(status), answers)


def encoded(value: Any) -> bytes:
    """A body of the document as it is sent: a text has a character for each byte."""
    return value.encode("latin-1") if isinstance(value, str) else json.dumps(value).encode()


def length_of_json(text: str) -> int:
    """The length of the JSON at the beginning of a body."""
    return json.JSONDecoder().raw_decode(text)[1]


def compare(sent: Sent, status: int, headers: dict[str, str], body: bytes) -> str:
    """The way in which an answer is other than the document says; "" for none."""
    if status != sent.status:
        return f"status {status} for {sent.status}: {body[:200]!r}"
    if not sent.answers:
        return "" if not body else f"a body where none is expected: {body[:200]!r}"
    media_type = headers["content-type"].partition(";")[0]
    if media_type not in sent.answers:
        return f"type {media_type}, expected one of {list(sent.answers)}"
    expected = sent.answers[media_type]
    if media_type == "application/json":
        return differs(expected, json.loads(body), "answer")
    if media_type == "application/octet-stream":
        length = int(headers["inference-header-content-length"])
        found = differs(json.loads(expected[: length_of_json(expected)]), json.loads(body[:length]), "answer")
        return found or ("" if len(body) - length == len(expected) - length_of_json(expected) else "other blobs")
    if media_type == EVENTS:
        wanted, got = (json.loads(text.removeprefix("data: ")) for text in (expected, body.decode()))
        return differs(wanted, got, "event")
    kinds = [line for line in expected.splitlines() if line.startswith("# TYPE")]
    return "" if kinds and set(kinds) <= set(body.decode().splitlines()) else f"lacks one of {kinds}"


def differs(expected: Any, found: Any, place: str) -> str:
    """The place where a value is of another shape than expected; "" if there is none. Null stands for anything."""
    if expected is None or found is None:
        return ""
    if isinstance(expected, dict) and isinstance(found, dict):
        is_open = place.rpartition(".")[2] in OPEN
        if not is_open and expected.keys() != found.keys():
            return f"{place}: {sorted(found)} for {sorted(expected)}"
        return next(
            (each for key in expected if (each := differs(expected[key], found.get(key), f"{place}.{key}"))), ""
        )
    if isinstance(expected, list) and isinstance(found, list):
        return differs(expected[0], found[0], f"{place}[0]") if expected and found else ""
    numbers = isinstance(expected, int | float) and isinstance(found, int | float)
    return "" if numbers or type(expected) is type(found) else f"{place}: {found!r} for {expected!r}"
