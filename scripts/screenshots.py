"""Takes the pictures of the operators' page and of loadgen's report in docs/pictures: `make screenshots`.

It takes seven minutes. The page shows a real server with the models of the demo under traffic from loadgen: in good
order in three sizes and colours, overloaded, and with a worker that was killed. The report is that of a run against the
same server. Chromium must be installed.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from examples.digits.build import DATA, build_repository
from examples.digits.deep import build_deep
from tests.support.gateway.processes import children
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.page.browser import chromium

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
WIDE, TALL, PHONE = (1360, 760), (1360, 1080), (390, 844)
FILL_S = 300
"""The charts show this much time."""
OVERLOAD_S = 25
REPORTED_S = 45
MOST_BYTES = 250_000
PARTITIONS = [{"name": f"cpu{core}", "cores": [core], "memory_mb": 512} for core in (0, 1)]
TRAFFIC = (("digits-deep", 80, 1), ("digits-cascade", 40, 1), ("digits-ensemble", 20, 1))
TOO_MUCH = ("digits-deep", 900, 4)
"""Models, requests a second, and rows of each."""
OBJECTIVE = "slo_ms: 250"
"""That of all pipelines: a machine that does other things meanwhile can keep it too."""
DEEP = f"""{OBJECTIVE}
stages:
  prep:  {{model: prep, inputs: {{raw: request.raw}}}}
  small: {{model: rf256, inputs: {{x: prep.x}}}}
  large: {{model: deep, inputs: {{x: prep.x}}, when: {{stage: small, output: probs, confidence: max, below: 0.995}}}}
outputs:
  probs: {{from: [large.probs, small.probs]}}
"""
"""A cascade whose last model takes long enough for batches to be seen."""


def main() -> None:
    """Take all pictures."""
    path = shutil.which("chromium")
    if path is None:
        sys.exit(
            "screenshots: 'chromium' is not installed; expected it on the path (on Debian: apt-get install chromium)"
        )
    PICTURES.mkdir(exist_ok=True)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        repository = directory / "models"
        build_repository(repository, wide=False)
        build_deep(repository)
        (repository / "digits-deep").mkdir()
        (repository / "digits-deep" / "pipeline.yaml").write_text(DEEP)
        for file in repository.glob("*/pipeline.yaml"):
            file.write_text(file.read_text().replace("slo_ms: 50", OBJECTIVE))
        config = {"partitions": PARTITIONS, "prices": {"core_hour": 0.05}, "max_batch_size": 4}
        server = stack.enter_context(gateway_server(repository, directory, config))
        browser = stack.enter_context(chromium(path))
        take_report(browser, server, directory / "result")
        for traffic in TRAFFIC:
            stack.enter_context(load(server, *traffic))
        take_pictures(browser, server)


def take_report(browser: Browser, server: GatewayServer, folder: Path) -> None:
    """Take the pictures of the report of a run against the cascade."""
    model, rate, rows = TRAFFIC[0]
    options = ("--duration", str(REPORTED_S), "--slo-ms", "100", "--explain-share", "20", "--out", str(folder))
    subprocess.run(command(server, model, rate, rows, *options), cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    url = (folder / "report.html").as_uri()
    for name, size, scheme in (
        ("loadgen-report", TALL, "light"),
        ("loadgen-report-dark", TALL, "dark"),
        ("loadgen-report-phone", PHONE, "light"),
    ):
        page = opened(browser, url, size, scheme)
        picture(page, name)
        page.context.close()


def take_pictures(browser: Browser, server: GatewayServer) -> None:
    """Take the pictures of a server under traffic."""
    url = f"http://{server.http_url}/#digits-deep:1"
    page = opened(browser, url, WIDE, "light")
    page.wait_for_timeout(FILL_S * 1000)
    # Where other programs need the machine, requests are refused, and the pictures would show nothing else.
    expect(page.locator("#state")).to_have_text("ready", timeout=60_000)
    picture(page, "page")
    for name, size, scheme in (("page-dark", WIDE, "dark"), ("page-phone", PHONE, "light")):
        other = opened(browser, url, size, scheme)
        other.wait_for_timeout(6_000)
        picture(other, name, whole=size == PHONE)
        other.context.close()
    lost = page.locator(".lane:not([data-state=ready])")
    while not lost.count():  # a worker that is back before the next tick has not been seen
        os.kill(children(server.process.pid)[0], signal.SIGKILL)
        page.wait_for_timeout(1_200)
    picture(page, "page-lost-partition")
    expect(lost).to_have_count(0, timeout=60_000)
    with load(server, *TOO_MUCH):
        page.wait_for_timeout(OVERLOAD_S * 1000)
        expect(page.locator("#state")).to_have_text("overloaded", timeout=60_000)
        picture(page, "page-overload")


def opened(browser: Browser, url: str, size: Sequence[int], scheme: str) -> Page:
    """The page in a window of a size."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",  # no colour is between two
    )
    page = context.new_page()
    page.goto(url)
    return page


def picture(page: Page, name: str, whole: bool = False) -> None:
    """Save what the page shows. Raises SystemExit for a picture that is too large for the repository."""
    file = PICTURES / f"{name}.png"
    page.screenshot(path=file, full_page=whole)
    print(f"{file.relative_to(ROOT)}: {file.stat().st_size // 1000} kB", flush=True)
    if file.stat().st_size > MOST_BYTES:
        sys.exit(f"screenshots: {file.name} has {file.stat().st_size} bytes; expected at most {MOST_BYTES}")


def command(server: GatewayServer, model: str, rate: int, rows: int, *options: str) -> tuple[str, ...]:
    """The command of a run of loadgen."""
    return (
        *(sys.executable, "-m", "sluice.loadgen.cli.main", "run", "--target", f"http://{server.http_url}"),
        *("--model", model, "--rate", str(rate), "--rows", str(rows)),
        *("--samples", str(DATA), "--subset", "test", "--labels", "y"),
        *options,
    )


@contextmanager
def load(server: GatewayServer, model: str, rate: int, rows: int) -> Iterator[None]:
    """Traffic from loadgen while the block runs."""
    endless = command(server, model, rate, rows, "--duration", "3600")
    process = subprocess.Popen(endless, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
