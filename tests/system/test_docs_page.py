"""The page `/docs` in a browser: it shows every operation, asks the server, and loads nothing from elsewhere."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from sluice.models.tensors.spec import DataType
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity
from tests.support.tools import require_tool

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
TIMEOUT_MS = 60_000
PHONE, DESK = 390, 1280


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    require_tool("chromium")
    directory = tmp_path_factory.mktemp("docs")
    save_identity(directory / "models" / "m" / "1" / "model.onnx", DataType.FP32, [2])
    with gateway_server(directory / "models", directory, {"partitions": 1}) as running:
        yield running


class Watched:
    """A page in a browser, with what it said on its console and the URLs that it asked for."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))


@pytest.fixture(params=[("light", DESK), ("dark", PHONE)], ids=["desk", "phone"])
def watched(server: GatewayServer, request: pytest.FixtureRequest) -> Iterator[Watched]:
    scheme, width = request.param
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=require_tool("chromium"), args=FLAGS)
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
        seen = Watched(context.new_page())
        seen.page.goto(f"http://{server.http_url}/docs")
        seen.page.wait_for_selector(".opblock")
        yield seen
        browser.close()


def test_it_shows_all_operations_and_asks_the_server(server: GatewayServer, watched: Watched) -> None:
    page = watched.page
    paths = page.evaluate("fetch('openapi.json').then(answer => answer.json()).then(document => document.paths)")
    assert page.locator(".opblock").count() == sum(len(operations) for operations in paths.values())
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    metadata = page.locator(".opblock").filter(has=page.locator('[data-path="/v2"]'))
    metadata.locator("button").first.click()
    metadata.locator("button.execute").click()
    answer = metadata.locator(".live-responses-table")
    answer.wait_for()
    assert answer.locator("tbody .response-col_status").first.inner_text().strip() == "200"
    assert '"name": "sluice"' in answer.inner_text()

    assert watched.said == []
    assert [url for url in watched.asked if not url.startswith((f"http://{server.http_url}/", "data:"))] == []
    assert f"http://{server.http_url}/v2" in watched.asked


def test_it_follows_the_colours_of_the_system(watched: Watched) -> None:
    dark = watched.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert watched.page.evaluate("document.documentElement.classList.contains('dark-mode')") is dark


def test_it_asks_with_the_key_of_a_restricted_group(tmp_path: Path) -> None:
    chromium = require_tool("chromium")
    save_identity(tmp_path / "models" / "m" / "1" / "model.onnx", DataType.FP32, [2])
    key = {"groups": ["statistics"], "header": "api-key", "value": "s3cret"}
    with (
        gateway_server(tmp_path / "models", tmp_path, {"partitions": 1, "restricted": [key]}) as server,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_context().new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(f"http://{server.http_url}/docs")
        page.locator("button.authorize").first.click()
        page.locator(".modal-ux input").fill("s3cret")
        page.locator(".modal-ux button.authorize").click()
        page.locator(".modal-ux button.btn-done").click()
        statistics = page.locator(".opblock").filter(has=page.locator('[data-path="/v2/models/stats"]'))
        statistics.locator(".opblock-summary-control").click()
        statistics.locator("button.execute").click()
        answer = statistics.locator(".live-responses-table")
        answer.wait_for()
        assert answer.locator("tbody .response-col_status").first.inner_text().strip() == "200"
        browser.close()
