"""The routes of the page: its files, the document, and the events."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from sluice.gateway.config.restricted import ApiGroup, RestrictedSettings, Restrictions
from sluice.gateway.http import page_files
from sluice.gateway.http.access import AccessRules
from sluice.gateway.http.page_files import SLOW_S, send_events, wants_html
from sluice.gateway.overview.document import Question
from sluice.gateway.overview.live import MAX_VIEWERS
from sluice.models.tensors.spec import DataType
from tests.support.scheduling.virtual_time import VirtualLoop, run_virtual
from tests.unit.gateway.instant_gateway import (
    TIMEOUT_S,
    Client,
    InstantGateway,
    Reply,
    get,
    identity,
    instant_gateway,
    message,
    post,
    send,
    talk,
    until,
)

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
MODEL = identity("m", ("x", DataType.INT32, (2,)))
KEY = {"page-key": "s3cret"}


@pytest.fixture
def page(tmp_path: Path) -> Path:
    folder = tmp_path / "page"
    (folder / "docs").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><title>Sluice</title>")
    (folder / "page.css").write_text("body{}")
    (folder / "chart.mjs").write_text("export {}")
    (folder / "docs" / "swagger.js").write_text("1")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    return folder


@pytest.fixture
def served(page: Path) -> InstantGateway:
    return instant_gateway(MODEL, page=page)


def restricted(page: Path, *groups: ApiGroup, closed: tuple[ApiGroup, ...] = ()) -> InstantGateway:
    keys = [RestrictedSettings(groups, "page-key", "s3cret")] if groups else []
    return instant_gateway(MODEL, page=page, restrictions=Restrictions(keys, closed))


def ask(served: InstantGateway, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> Reply:
    return send(served, message(method, path, headers=headers))


async def next_event(client: Client) -> bytes:
    """The next event of a stream whose chunks are an event each, or its head."""
    lines = [await client.line()]
    while lines[-1].strip():
        lines.append(await client.line())
    return b"".join(lines)


def not_modified(served: InstantGateway, path: str, etag: str) -> bool:
    """True if the answer is 304 without a body, so that the connection goes on."""

    async def conversation(client: Client) -> bool:
        client.send(message("GET", path, headers={"If-None-Match": etag}))
        head = await next_event(client)
        if not head.startswith(b"HTTP/1.1 304 "):
            return False
        client.send(message("GET", "/v2/health/live"))
        return (await client.reply()).status == 200

    return talk(served, conversation)


def test_browsers_get_the_page_and_others_the_answer_of_v1(served: InstantGateway) -> None:
    html = ask(served, "/", BROWSER)
    assert html.status == 200
    assert html.body == b"<!doctype html><title>Sluice</title>"
    assert html.headers["content-type"] == "text/html; charset=utf-8"
    assert html.headers["content-security-policy"].startswith("default-src 'self';")
    assert html.headers["x-content-type-options"] == "nosniff"
    assert html.headers["vary"] == "accept"
    for headers in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
        plain = ask(served, "/", headers)
        assert plain.json == {"status": "alive"}
        assert plain.headers["vary"] == "accept"


def test_without_a_page_browsers_get_the_answer_of_v1_as_well() -> None:
    assert ask(instant_gateway(MODEL), "/", BROWSER).json == {"status": "alive"}


@pytest.mark.parametrize(
    ("accept", "expected"),
    [("text/html", True), ("application/json, Text/HTML;q=0.8", True), ("*/*", False), ("text/htmlx", False)],
)
def test_only_clients_that_name_html_want_it(accept: str, expected: bool) -> None:
    assert wants_html(accept) is expected


def test_files_have_their_type_and_are_not_sent_twice(served: InstantGateway) -> None:
    kinds = {
        "page.css": "text/css; charset=utf-8",
        "chart.mjs": "text/javascript; charset=utf-8",
        "docs/swagger.js": "text/javascript; charset=utf-8",
    }
    for name, kind in kinds.items():
        found = get(served, f"/page/{name}")
        assert (found.status, found.headers["content-type"]) == (200, kind)
        assert found.headers["cache-control"] == "no-cache"
        assert not_modified(served, f"/page/{name}", found.headers["etag"])
    assert not not_modified(served, "/page/page.css", '"another"')


@pytest.mark.parametrize(
    "name",
    [
        "nothing.css",
        "",
        "docs",
        "docs/",
        "../secret.txt",
        "..%2fsecret.txt",
        "docs/../../secret.txt",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "link.txt",
        "page.css%00",
        "x" * 5000,
    ],
)
def test_nothing_outside_of_the_folder_is_sent(served: InstantGateway, name: str) -> None:
    assert get(served, f"/page/{name}").status == 404


def test_the_document_is_json_that_is_not_kept(served: InstantGateway) -> None:
    found = get(served, "/v2/sluice/now?pipeline=m&since=12.5&bars_since=3")
    assert found.status == 200
    assert found.headers["content-type"] == "application/json"
    assert found.headers["cache-control"] == "no-store"
    assert found.json["server"]["state"] == "ready"
    assert found.json["pipeline"]["name"] == "m:1"


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("since=soon", "since: expected a time in seconds such as 1764500000.5, got 'soon'"),
        ("since=nan", "since: expected a time in seconds such as 1764500000.5, got 'nan'"),
        ("since=1e999", "since: expected a time in seconds such as 1764500000.5, got '1e999'"),
        ("bars_since=-1", "bars_since: expected the number of a bar such as 81234, got '-1'"),
        ("bars_since=%C2%B2", "bars_since: expected the number of a bar such as 81234, got '²'"),
        (f"bars_since={'9' * 100}", f"bars_since: expected the number of a bar such as 81234, got '{'9' * 80}'"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_with_what_was_expected(
    served: InstantGateway, query: str, error: str
) -> None:
    for path in ("/v2/sluice/now", "/v2/sluice/now/events"):
        found = get(served, f"{path}?{query}")
        assert (found.status, found.json) == (400, {"error": error})


@pytest.mark.parametrize(
    ("question", "error"),
    [
        ("now?pipline=m", "pipline' is unknown; expected pipeline, since, bars_since; did you mean 'pipeline'?"),
        ("now/events?x=1", "x' is unknown; expected pipeline, since, bars_since"),
        ("plan?pipline=m", "pipline' is unknown; expected pipeline; did you mean 'pipeline'?"),
        ("partitions?name=cpu0", "name' is unknown; expected no parameters"),
        ("scaling?x", "x' is unknown; expected no parameters"),
        ("requests/7?verbose=1", "verbose' is unknown; expected no parameters"),
    ],
)
def test_an_unknown_parameter_of_a_route_of_ours_is_refused_with_those_that_it_has(
    served: InstantGateway, question: str, error: str
) -> None:
    found = get(served, f"/v2/sluice/{question}")
    assert (found.status, found.json) == (400, {"error": f"query parameter '{error}"})


def test_v2_routes_leave_parameters_that_they_do_not_know_alone(served: InstantGateway) -> None:
    assert get(served, "/v2/health/ready?verbose=1").status == 200


def test_the_plan_of_an_unknown_pipeline_is_refused_and_that_of_a_known_one_says_why_there_is_none(
    served: InstantGateway,
) -> None:
    assert get(served, "/v2/sluice/plan?pipeline=nope").status == 404
    found = get(served, "/v2/sluice/plan").json
    assert found["in_force"] is False
    assert found["pipelines"] == []


def test_events_begin_at_once_and_a_client_that_leaves_is_noticed(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        client.send(message("GET", "/v2/sluice/now/events"))
        head = await next_event(client)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"content-type: text/event-stream; charset=utf-8\r\n" in head
        assert b"cache-control: no-store\r\n" in head
        assert b"x-accel-buffering: no\r\n" in head
        await client.line()  # the length of the chunk
        event = await next_event(client)
        assert event.startswith(b"data: {")
        assert json.loads(event.removeprefix(b"data: "))["pipeline"]["name"] == "m:1"

    talk(served, conversation)
    talk(served, conversation)


def test_the_head_of_the_events_ends_at_once(page: Path) -> None:
    served = instant_gateway(MODEL, page=page, access=AccessRules())

    async def conversation(client: Client) -> None:
        client.send(message("HEAD", "/v2/sluice/now/events"))
        assert b"content-type: text/event-stream; charset=utf-8\r\n" in await next_event(client)
        client.send(message("GET", "/v2/health/live"))
        assert (await client.reply()).json == {"live": True}

    talk(served, conversation)
    assert served.overview.viewers == 0


def test_a_stopping_server_ends_the_events_and_the_connection_goes_on(served: InstantGateway) -> None:
    async def conversation(client: Client) -> None:
        client.send(message("GET", "/v2/sluice/now/events"))
        await next_event(client)
        await client.line()
        await next_event(client)
        await client.line()
        served.registry.start_draining()
        await client.line()
        last = await next_event(client)
        assert json.loads(last.removeprefix(b"data: "))["server"]["state"] == "draining"
        assert await client.line() == b"\r\n"
        assert await client.line() == b"0\r\n"
        assert await client.line() == b"\r\n"
        client.send(message("GET", "/v2/health/live"))
        assert (await client.reply()).status == 200

    talk(served, conversation)


def test_the_group_page_needs_its_key(page: Path) -> None:
    served = restricted(page, ApiGroup.PAGE)
    for path in ("/page/page.css", "/v2/sluice/now", "/v2/sluice/now/events", "/v2/sluice/plan"):
        refused = get(served, path)
        assert (refused.status, refused.json["error"]) == (
            403,
            "This protocol is restricted, expecting header 'page-key'",
        )
    assert ask(served, "/", BROWSER).status == 403
    assert get(served, "/").json == {"status": "alive"}  # health has no key
    assert ask(served, "/", BROWSER | KEY).status == 200
    assert ask(served, "/page/page.css", KEY).status == 200
    assert ask(served, "/v2/sluice/now", KEY).status == 200
    hidden = restricted(page, closed=(ApiGroup.PAGE,))
    assert ask(hidden, "/", BROWSER).json["error"].startswith("The group 'page' is closed")
    assert get(restricted(page, ApiGroup.HEALTH), "/").status == 403


def test_requests_are_shown_only_to_those_who_may_have_them_explained(page: Path) -> None:
    served = restricted(page, ApiGroup.EXPLAIN)
    served.runtime.answer = None
    post(
        served, "/v2/models/m/infer", {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "INT32", "data": [1, 2]}]}
    )
    (trace,) = [served.runtime.traces.find("sluice-1")]
    served.runtime.traces.add_missed(trace)
    assert get(served, "/v2/sluice/now").json["troubles"] == []
    shown = ask(served, "/v2/sluice/now", KEY).json["troubles"]
    assert [each["id"] for each in shown] == ["sluice-1"]


def test_there_is_a_bound_on_viewers(served: InstantGateway) -> None:
    async def conversation(client: Client) -> Reply:
        client.send(message("GET", "/v2/sluice/now/events"))
        return await client.reply()

    served.overview.viewers = MAX_VIEWERS
    refused = talk(served, conversation)
    assert (refused.status, refused.json["error"]) == (
        503,
        f"{MAX_VIEWERS} viewers have this stream open, which is the most that may",
    )


def test_a_host_that_is_not_the_servers_sees_nothing(page: Path) -> None:
    served = instant_gateway(MODEL, page=page, access=AccessRules(frozenset([b"sluice.example"])))
    assert ask(served, "/v2/sluice/now", {"Host": "evil.example"}).status == 421


def test_a_viewer_that_does_not_take_a_document_is_left_and_its_documents_are_closed() -> None:
    closed: list[bool] = []

    async def documents() -> AsyncGenerator[bytes]:
        try:
            while True:
                yield b"{}"
        finally:
            closed.append(True)

    async def scene(loop: VirtualLoop) -> None:
        sent: list[bytes] = []

        async def send(event: bytes) -> None:
            sent.append(event)
            if len(sent) == 3:
                await asyncio.Event().wait()

        with pytest.raises(TimeoutError):
            await send_events(documents(), send, asyncio.sleep(3600))
        assert sent == [b"data: {}\n\n"] * 3
        assert loop.time() == SLOW_S
        assert closed == [True]

    run_virtual(scene)


def test_the_connection_of_a_viewer_that_does_not_read_is_closed(
    served: InstantGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = asyncio.Event()

    async def documents(question: Question) -> AsyncGenerator[bytes]:
        try:
            while True:
                yield b"x" * 20_000
        finally:
            left.set()

    monkeypatch.setattr(page_files, "SLOW_S", 0.01)
    monkeypatch.setattr(served.overview, "stream", documents)

    async def conversation(client: Client) -> None:
        client.send(message("GET", "/v2/sluice/now/events"))
        await next_event(client)
        client.pause_reading()
        await asyncio.wait_for(left.wait(), TIMEOUT_S)
        await until(client.connection.transport.is_closing)

    talk(served, conversation)


def test_a_viewer_that_goes_while_no_document_comes_is_noticed() -> None:
    async def documents() -> AsyncGenerator[bytes]:
        yield b"{}"
        await asyncio.Event().wait()

    async def scene(loop: VirtualLoop) -> None:
        sent: list[bytes] = []

        async def send(event: bytes) -> None:
            sent.append(event)

        await send_events(documents(), send, asyncio.sleep(5))
        assert loop.time() == 5
        assert sent == [b"data: {}\n\n"]

    run_virtual(scene)
