"""A server of the page and of made-up documents: `python -m tests.support.page.server [PORT] [SITUATION]`."""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event
from urllib.parse import parse_qs, urlsplit

from tests.support.page.documents import EXPLANATION, Document, document

PAGE = Path(__file__).parents[3] / "gateway" / "page"
TYPES = {
    ".css": "text/css",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}


class DocumentServer(ThreadingHTTPServer):
    """Serves the page with documents of `situation`; both fields may be changed while it runs.

    Where `streams` is false, streams of events are refused, as if there were too many. `viewers` is the number of open
    streams.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int = 0, situation: str = "ready") -> None:
        self.situation = situation
        self.streams = True
        self.viewers = 0
        self.stopped = Event()
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.server_port}/"

    def stop(self) -> None:
        """End all streams and stop."""
        self.stopped.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: DocumentServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if parts.path == "/v2/sluice/now":
            self._reply(json.dumps(self._document(query)).encode(), "application/json")
        elif parts.path == "/v2/sluice/now/events" and self.server.streams:
            self._stream(query)
        elif parts.path.startswith("/v2/sluice/requests/"):
            self._reply(json.dumps({**EXPLANATION, "id": parts.path.rpartition("/")[2]}).encode(), "application/json")
        else:
            file = PAGE / ("index.html" if parts.path == "/" else parts.path.removeprefix("/page/"))
            if file.is_file():
                self._reply(file.read_bytes(), TYPES.get(file.suffix, "text/plain"))
            else:
                self.send_error(503 if parts.path.endswith("events") else 404)

    def _document(self, query: dict[str, str]) -> Document:
        since_s, bars_since = float(query.get("since", 0)), int(query.get("bars_since", -1))
        return document(self.server.situation, int(time.time()), since_s, bars_since, query.get("pipeline", ""))

    def _reply(self, body: bytes, media_type: str) -> None:
        self.send_response(200)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(body)))
        self.send_header("content-security-policy", "default-src 'self'")
        self.send_header("cache-control", "no-cache")
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, query: dict[str, str]) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.server.viewers += 1
        try:
            while True:
                found = self._document(query)
                self.wfile.write(f"data: {json.dumps(found)}\n\n".encode())
                history = (found["pipeline"] or {}).get("history", {"start_s": 0, "good": []})
                query["since"] = str(history["start_s"] + len(history["good"]))
                query["bars_since"] = str(found["timeline"]["last"])
                if self.server.stopped.wait(1):
                    return
        except OSError:
            return
        finally:
            self.server.viewers -= 1

    def log_message(self, *args: object) -> None:
        """Log nothing."""


if __name__ == "__main__":
    _, *given = sys.argv
    DocumentServer(int(given[0]) if given else 8765, *given[1:2]).serve_forever()
