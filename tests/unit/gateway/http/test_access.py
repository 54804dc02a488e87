"""Access over HTTP: hosts, pages of other origins, forms, preflights, HEAD and OPTIONS."""

import json
from functools import cache

import pytest

from sluice.gateway.config.access import host_names
from sluice.gateway.http.access import AccessRules
from sluice.models.tensors.spec import DataType
from tests.unit.gateway.instant_gateway import InstantGateway, Reply, identity, instant_gateway, message, send

APP = "https://app.example"
OTHER = "https://other.example"
INFER = "/v2/models/m/infer"
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}).encode()
CHANGES = (
    "/v2/repository/models/m/load",
    "/v2/repository/models/m/unload",
    "/v2/trace/setting",
    "/v2/models/m/trace/setting",
    "/v2/logging",
    "/v2/systemsharedmemory/region/r/register",
    "/v2/systemsharedmemory/unregister",
    "/v2/sluice/partitions/cpu0/resize",
)
OCTETS = "application/octet-stream"
FORMS = (
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "Text/Plain;charset=utf-8",
)


@cache
def gateway(*origins: str) -> InstantGateway:
    return instant_gateway(
        identity("m", ("x", DataType.FP32, (1,))),
        access=AccessRules(host_names("127.0.0.1", ["models.example"]), origins),
    )


def ask(method: str, path: str, body: bytes = b"", *origins: str, **headers: str) -> Reply:
    """The answer to a request of `localhost`, unless the headers name another host."""
    lines = {"Host": "localhost:8000"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return send(gateway(*origins), message(method, path, body, headers=lines))


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1:80", "[::1]:8000", "[::1]", "models.example:443"]
)
def test_the_names_of_the_server_are_accepted_with_any_port(host: str) -> None:
    assert ask("GET", "/v2/health/live", Host=host).status == 200
    assert ask("POST", INFER, BODY, Host=host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:8000",
        "evil.example:localhost",
        "localhost@evil.example",
        "xlocalhost.",
        "0.0.0.0:8000",
        "192.0.2.7",
        "[::2]:8000",
    ],
)
def test_other_names_are_misdirected(host: str) -> None:
    for reply in (ask("GET", "/v2", Host=host), ask("POST", INFER, BODY, Host=host), ask("OPTIONS", "/v2", Host=host)):
        assert reply.status == 421
        assert "expected one of allowed_hosts" in reply.json["error"]


@pytest.mark.parametrize("host", ["sluice", "sluice:8000", "gpu-7"])
def test_names_of_a_local_network_are_accepted(host: str) -> None:
    assert ask("POST", INFER, BODY, Host=host).status == 200


def test_the_address_that_the_client_has_connected_to_is_a_name_of_the_server() -> None:
    access = AccessRules(frozenset({b"models.example"}))
    for address, host in (
        ("192.0.2.7", b"192.0.2.7:80"),
        ("::ffff:192.0.2.7", b"192.0.2.7"),
        ("fe80::1%2", b"[fe80::1]"),
    ):
        assert access.knows_host(host, (address, 80))
        assert not access.knows_host(host, ("192.0.2.8", 80))
    assert not access.knows_host(b"192.0.2.7", None)


@pytest.mark.parametrize(
    "origin", [OTHER, "null", "http://localhost:9000", "https://localhost:8000.evil.example", "file://"]
)
def test_a_page_of_another_origin_changes_nothing_and_asks_for_nothing(origin: str) -> None:
    for path in CHANGES:
        reply = ask("POST", path, b"{}", APP, Origin=origin, Content_Type="application/json")
        assert (reply.status, "may not change this server" in reply.json["error"]) == (403, True)
    reply = ask("POST", INFER, BODY, APP, Origin=origin)
    assert (reply.status, "--cors-origin" in reply.json["error"]) == (403, True)
    assert "access-control-allow-origin" not in reply.headers
    assert "access-control-allow-origin" not in ask("GET", "/v2", b"", APP, Origin=origin).headers


def test_a_page_of_the_server_itself_may_do_everything() -> None:
    own = "http://localhost:8000"
    assert ask("POST", INFER, BODY, Origin=own).status == 200
    assert ask("POST", "/v2/logging", b"{}", Origin=own, Content_Type="application/json").status == 200
    access = AccessRules(tls=True)
    assert access.inference_lines([(b"host", b"a"), (b"origin", b"http://a")], None) is None
    assert access.inference_lines([(b"host", b"a"), (b"origin", b"https://a")], None) == b""


def test_a_page_of_a_configured_origin_reads_and_infers_and_changes_nothing() -> None:
    for reply in (ask("POST", INFER, BODY, APP, Origin=APP), ask("GET", "/v2", b"", APP, Origin=APP)):
        assert reply.status == 200
        assert reply.headers["access-control-allow-origin"] == APP
        assert reply.headers["vary"] == "origin"
    wrong = ask("POST", INFER, b"{}", APP, Origin=APP)
    assert (wrong.status, wrong.headers["access-control-allow-origin"]) == (400, APP)
    assert ask("POST", INFER, BODY, "*", Origin=OTHER).headers["access-control-allow-origin"] == OTHER
    assert ask("POST", "/v2/repository/index", b"{}", APP, Origin=APP).status == 200
    for path in CHANGES:
        assert ask("POST", path, b"{}", APP, Origin=APP, Content_Type="application/json").status == 403


def preflight(path: str, origin: str, method: str = "POST") -> Reply:
    return ask(
        "OPTIONS",
        path,
        b"",
        APP,
        Origin=origin,
        Access_Control_Request_Method=method,
        Access_Control_Request_Headers="content-type,inference-header-content-length",
    )


def test_a_preflight_of_a_configured_origin_is_answered() -> None:
    reply = preflight(INFER, APP)
    assert reply.status == 200
    assert reply.headers["access-control-allow-origin"] == APP
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert reply.headers["access-control-allow-headers"] == "content-type,inference-header-content-length"
    assert reply.headers["access-control-max-age"] == "600"
    assert preflight("/v2/health/ready", APP, "GET").status == 200


@pytest.mark.parametrize(("path", "origin"), [(INFER, OTHER), *((path, APP) for path in CHANGES)])
def test_other_preflights_are_refused(path: str, origin: str) -> None:
    reply = preflight(path, origin)
    assert reply.status == 403
    assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize("kind", [*FORMS, "application/jsonx", "application/xml", ""])
def test_what_changes_the_server_is_no_form(kind: str) -> None:
    for path in CHANGES:
        for body in (b"{}", b""):
            reply = ask("POST", path, body, Content_Type=kind)
            assert (reply.status, "expected application/json" in reply.json["error"]) == (415, True)
    assert ask("POST", INFER, BODY, Content_Type=kind).status == 200
    assert ask("POST", "/v2/repository/index", b"", Content_Type=kind).status == 200
    assert ask("POST", "/v2/modles/m/infer", BODY, Content_Type=kind).status == 404


@pytest.mark.parametrize("kind", [None, "application/json", "Application/JSON ; charset=utf-8", OCTETS])
def test_json_is_read_with_its_type_or_without_one(kind: str | None) -> None:
    headers = {} if kind is None else {"Content_Type": kind}
    assert ask("POST", "/v2/logging", b'{"log_verbose_level": 0}', **headers).status == 200


def test_the_json_of_tritons_client_is_read_unless_a_page_sends_it() -> None:
    form = {"Content_Type": "application/x-www-form-urlencoded", "User_Agent": "libcurl-agent/1.0"}
    assert ask("POST", "/v2/systemsharedmemory/unregister", b"", **form).status == 200
    form["Content_Type"] = "text/plain"
    assert ask("POST", "/v2/systemsharedmemory/unregister", b"", **form).status == 415
    form |= {"Content_Type": "application/x-www-form-urlencoded", "Origin": "http://localhost:8000"}
    assert ask("POST", "/v2/systemsharedmemory/unregister", b"", **form).status == 415


def test_options_lists_the_methods() -> None:
    allow = {
        path: ask("OPTIONS", path).headers["allow"]
        for path in ("/v2/health/live", INFER, "/v2/logging", "*", "/metrics")
    }
    assert allow == {
        "/v2/health/live": "GET, HEAD, OPTIONS",
        INFER: "POST, OPTIONS",
        "/v2/logging": "GET, POST, HEAD, OPTIONS",
        "*": "GET, HEAD, POST, OPTIONS",
        "/metrics": "GET, HEAD, OPTIONS",
    }
    assert ask("OPTIONS", "/nowhere").status == 404
