"""The page on every port: its files, questions for the document, and the document as server-sent events."""

import asyncio
import hashlib
import math
import mimetypes
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sluice.gateway.overview.document import Question
from sluice.gateway.protocol.query import check_query
from sluice.models.errors import RequestError

PAGE = Path(__file__).parents[1] / "page"
"""The folder of the page's files."""
SLOW_S = 10.0
"""A viewer that does not take a document within this time is left."""
POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""The content security policy: a page loads only what its server has."""
_SECURITY = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
EVENT_TYPE = "text/event-stream; charset=utf-8"
EVENT_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Headers of a stream: proxies that buffer would hold it back."""
QUESTION = ("pipeline", "since", "bars_since")
"""The parameters of a question for the document."""
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class PageFile(NamedTuple):
    """One file of the page, with the headers of its response."""

    body: bytes
    headers: Mapping[str, str]


class PageFiles:
    """The files below a folder. They are read when they are first asked for, and kept.

    They are served with the content security policy `policy`.
    """

    def __init__(self, folder: Path = PAGE, policy: str = POLICY) -> None:
        self._folder = folder
        self._security = {"content-security-policy": policy, **_SECURITY}
        self._known: dict[str, PageFile] = {}

    @property
    def has_index(self) -> bool:
        """True if there is a page."""
        return (self._folder / "index.html").is_file()

    async def find(self, name: str) -> PageFile | None:
        """The file of a name, such as `page.css`; None if there is none."""
        found = self._known.get(name)
        if found is None:
            found = await asyncio.to_thread(self._read, name)
            if found is not None:
                self._known[name] = found
        return found

    def _read(self, name: str) -> PageFile | None:
        parts = name.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            return None
        path = self._folder.joinpath(*parts)
        if not path.resolve().is_relative_to(self._folder.resolve()):
            return None
        try:
            body = path.read_bytes()
        except (OSError, ValueError):
            return None
        kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        if kind.startswith("text/"):
            kind += "; charset=utf-8"
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        return PageFile(body, {"content-type": kind, "etag": tag, "cache-control": "no-cache", **self._security})


def wants_html(accept: str) -> bool:
    """True if a client, such as a browser, says that it takes HTML."""
    return any(each.partition(";")[0].strip() == "text/html" for each in accept.lower().split(","))


def read_question(query: Mapping[str, str], *, explains: bool) -> Question:
    """The question in a query string. Raises RequestError, which names the parameter."""
    check_query(query, QUESTION)
    since, bars = query.get("since", ""), query.get("bars_since", "")
    try:
        since_s = float(since) if since else None
        if since_s is not None and not math.isfinite(since_s):
            raise ValueError
    except ValueError:
        raise RequestError(f"since: expected a time in seconds such as 1764500000.5, got '{since:.80}'") from None
    if bars and not (bars.isascii() and bars.isdigit() and len(bars) <= 18):
        raise RequestError(f"bars_since: expected the number of a bar such as 81234, got '{bars:.80}'")
    return Question(query.get("pipeline", ""), since_s, int(bars) if bars else None, explains)


async def send_events(
    documents: AsyncGenerator[bytes], send: Callable[[bytes], Awaitable[None]], gone: Awaitable[None]
) -> None:
    """Send documents as events until they end, the client has `gone`, or it does not take one within SLOW_S.

    Raises TimeoutError for a client that is too slow, and what the first document raises before anything is sent.
    """
    leaving = asyncio.ensure_future(gone)
    try:
        while True:
            step = asyncio.ensure_future(anext(documents, None))
            try:
                await asyncio.wait({step, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not step.done():
                    step.cancel()
                    await asyncio.wait({step})
            if leaving.done() or step.cancelled() or (document := step.result()) is None:
                return
            async with asyncio.timeout(SLOW_S):
                await send(b"data: %b\n\n" % document)
    finally:
        leaving.cancel()
        with suppress(Exception, asyncio.CancelledError):
            await leaving
        await documents.aclose()
