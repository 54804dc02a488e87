"""A browser that looks at the page, and remembers what the page complained of and asked for."""

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, expect, sync_playwright

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
TIMEOUT_MS = 30_000


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """The Chromium at `path`, without a window."""
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page, with what it wrote to its console and which URLs it asked for."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def off_host(self, url: str) -> list[str]:
        """The URLs that are not below `url`."""
        return [asked for asked in self.asked if not asked.startswith(url)]

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        wide: int = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        return wide


@contextmanager
def watched(
    browser: Browser, url: str, size: tuple[int, int] = (1360, 760), scheme: str = "light", before: str = ""
) -> Iterator[Watched]:
    """The page at `url` once it shows a document, after the script `before` has run in it."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if scheme == "dark" else "light"
    )
    try:
        if before:
            context.add_init_script(before)
        seen = Watched(context.new_page())
        seen.page.goto(url)
        expect(seen.page.locator("#age")).not_to_have_attribute("data-fresh", "no")
        yield seen
    finally:
        context.close()
