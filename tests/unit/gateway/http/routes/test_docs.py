"""The page `/docs`, which loads nothing from elsewhere."""

import re

import pytest

from sluice.gateway.config.restricted import ApiGroup, RestrictedSettings, Restrictions
from sluice.gateway.http.routes.docs import ASSETS
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.instant_gateway import InstantGateway, get, identity, instant_gateway

MODEL = identity("m", ("x", DataType.FP32, (2,)))


@pytest.fixture
def served() -> InstantGateway:
    return instant_gateway(MODEL)


def test_the_page_may_load_only_what_the_server_has(served: InstantGateway) -> None:
    page = get(served, "/docs")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    rules = page.headers["content-security-policy"].split("; ")
    assert {"default-src 'self'", "img-src 'self' data:"} <= set(rules)
    assert not any("unsafe" in rule or "http" in rule for rule in rules)
    text = page.body.decode()
    assert "<script>" not in text
    assert re.findall(r'(?:src|href)="([^"]*)"', text) == [
        "data:,",
        "docs/swagger-ui.css",
        "docs/swagger-ui-bundle.js",
        "docs/start.js",
        "openapi.json",
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("start.js", "text/javascript; charset=utf-8"),
        ("swagger-ui-bundle.js", "text/javascript; charset=utf-8"),
        ("swagger-ui.css", "text/css; charset=utf-8"),
    ],
)
def test_the_files_of_the_page_are_served_with_their_types(served: InstantGateway, name: str, kind: str) -> None:
    reply = get(served, f"/docs/{name}")
    assert (reply.status, reply.headers["content-type"]) == (200, kind)
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.body == (ASSETS / name).read_bytes()


@pytest.mark.parametrize("path", ["/docs/none.js", "/docs/../openapi.py", "/docs/%2e%2e/app.py", "/docs/", "/redoc"])
def test_nothing_else_is_served(served: InstantGateway, path: str) -> None:
    assert get(served, path).status == 404


def test_the_licences_lie_beside_what_was_copied() -> None:
    names = {file.name for file in ASSETS.iterdir()}
    assert {"LICENSE", "NOTICE", "swagger-ui-bundle.js.LICENSE.txt"} <= names
    assert "Apache License" in (ASSETS / "LICENSE").read_text()


def test_the_page_needs_no_key_where_all_groups_have_one() -> None:
    keys = RestrictedSettings(tuple(ApiGroup), "api-key", "s3cret")
    served = instant_gateway(MODEL, restrictions=Restrictions([keys]))
    assert get(served, "/docs").status == 200
    assert get(served, "/v2").status == 403
