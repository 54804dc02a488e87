"""The OpenAPI document describes every operation, with examples."""

from typing import Any

import pytest

from sluice.gateway.config.restricted import ApiGroup, RestrictedSettings, Restrictions
from sluice.gateway.http.operations.document import GROUPS, OPERATIONS, operations
from sluice.gateway.http.operations.inference import BINARY_LENGTH, BINARY_REQUEST, IMAGE
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.instant_gateway import get, identity, instant_gateway


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    served = instant_gateway(identity("m", ("x", DataType.FP32, (2,))))
    found: dict[str, Any] = get(served, "/openapi.json").json
    assert get(served, "/openapi.json").json == found
    return found


def test_every_route_has_a_description_and_every_description_a_route(document: dict[str, Any]) -> None:
    routes = {f"{method} {path}" for method, path, _ in operations(document)}
    plain = {route.replace("/versions/{version}", "") for route in routes}
    assert plain - OPERATIONS.keys() == set()
    assert OPERATIONS.keys() - plain == set()


def test_every_operation_has_a_tag_a_summary_of_its_own_and_a_description(document: dict[str, Any]) -> None:
    groups = {group.value for group in GROUPS}
    described = list(operations(document))
    assert [each["tags"] for _, _, each in described if not set(each["tags"]) <= groups] == []
    summaries = [each["summary"] for _, _, each in described]
    assert sorted(set(summaries)) == sorted(summaries)
    assert [
        path for _, path, each in described if not each["description"].rstrip("` \n").endswith((".", "answer"))
    ] == []
    assert [tag["name"] for tag in document["tags"]] == [group.value for group in GROUPS]


def test_every_operation_has_an_answer_and_every_json_body_an_example(document: dict[str, Any]) -> None:
    without = []
    for method, path, described in operations(document):
        statuses = {status: each for status, each in described["responses"].items() if not status.endswith("XX")}
        contents = [each.get("content", {}) for each in statuses.values()]
        assert len(statuses) == 1, path
        if not any("examples" in each for content in contents for each in content.values()):
            assert [each["description"] for each in statuses.values()] == ["Done; the body is empty"], path
        body = described.get("requestBody")
        if body and "examples" not in body["content"]["application/json"]:
            without.append((method, path))
        for parameter in described.get("parameters", ()):
            if parameter["in"] == "path":
                assert parameter["description"], path
                assert parameter["example"], path
    assert without == []


def test_paths_with_a_version_are_described_as_those_without(document: dict[str, Any]) -> None:
    paths = document["paths"]
    infer, version = (
        paths["/v2/models/{name}/infer"]["post"],
        paths["/v2/models/{name}/versions/{version}/infer"]["post"],
    )
    assert (infer["summary"], version["summary"]) == ("Infer", "Infer, by version")
    for part in ("description", "requestBody", "responses", "tags"):
        assert version[part] == infer[part]


def test_restricted_groups_name_the_header_of_their_key_only() -> None:
    keys = RestrictedSettings((ApiGroup.INFERENCE, ApiGroup.TRACE), "api-key", "s3cret")
    served = instant_gateway(identity("m", ("x", DataType.FP32, (2,))), restrictions=Restrictions([keys]))
    reply = get(served, "/openapi.json")
    assert reply.json["components"]["securitySchemes"] == {
        "api-key": {"type": "apiKey", "in": "header", "name": "api-key"}
    }
    paths = reply.json["paths"]
    assert paths["/v2/models/{name}/infer"]["post"]["security"] == [{"api-key": []}]
    assert paths["/v2/sluice/requests/{id}"]["get"]["security"] == [{"api-key": []}]
    assert "security" not in paths["/v2"]["get"]
    assert b"s3cret" not in reply.body


def test_the_binary_example_is_json_followed_by_the_bytes_of_its_tensor() -> None:
    body = BINARY_REQUEST.encode("latin-1")
    assert body[:BINARY_LENGTH].endswith(b"}]}")
    assert tuple(body[BINARY_LENGTH:]) == IMAGE
