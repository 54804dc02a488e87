"""The page `/docs` in a browser: it shows every operation, asks the server, and loads nothing from elsewhere."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.models.tensors.spec import DataType
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_identity
from tests.support.page.browser import Watched, chromium
from tests.support.tools import require_tool

PHONE, DESK = 390, 1280


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    require_tool("chromium")
    directory = tmp_path_factory.mktemp("docs")
    save_identity(directory / "models" / "m" / "1" / "model.onnx", DataType.FP32, [2])
    with gateway_server(directory / "models", directory, {"partitions": 1}) as running:
        yield running


@pytest.fixture(params=[("light", DESK), ("dark", PHONE)], ids=["desk", "phone"])
def watched(server: GatewayServer, request: pytest.FixtureRequest) -> Iterator[Watched]:
    scheme, width = request.param
    with chromium(require_tool("chromium")) as browser:
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
        seen = Watched(context.new_page())
        seen.page.goto(f"http://{server.http_url}/docs")
        seen.page.wait_for_selector(".opblock")
        yield seen


def test_it_shows_all_operations_and_asks_the_server(server: GatewayServer, watched: Watched) -> None:
    page = watched.page
    paths = page.evaluate("fetch('openapi.json').then(answer => answer.json()).then(document => document.paths)")
    assert page.locator(".opblock").count() == sum(len(operations) for operations in paths.values())
    assert watched.overflow() <= 0

    metadata = page.locator(".opblock").filter(has=page.locator('[data-path="/v2"]'))
    metadata.locator("button").first.click()
    metadata.locator("button.execute").click()
    answer = metadata.locator(".live-responses-table")
    answer.wait_for()
    assert answer.locator("tbody .response-col_status").first.inner_text().strip() == "200"
    assert '"name": "sluice"' in answer.inner_text()

    assert watched.said == []
    assert [url for url in watched.off_host(f"http://{server.http_url}/") if not url.startswith("data:")] == []
    assert f"http://{server.http_url}/v2" in watched.asked


def test_it_follows_the_colours_of_the_system(watched: Watched) -> None:
    dark = watched.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert watched.page.evaluate("document.documentElement.classList.contains('dark-mode')") is dark


def test_it_asks_with_the_key_of_a_restricted_group(tmp_path: Path) -> None:
    path = require_tool("chromium")
    save_identity(tmp_path / "models" / "m" / "1" / "model.onnx", DataType.FP32, [2])
    key = {"groups": ["statistics"], "header": "api-key", "value": "s3cret"}
    with (
        gateway_server(tmp_path / "models", tmp_path, {"partitions": 1, "restricted": [key]}) as server,
        chromium(path) as browser,
    ):
        page = Watched(browser.new_context().new_page()).page
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
