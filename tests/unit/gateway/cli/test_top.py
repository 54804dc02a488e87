"""`sluice top` on a terminal, against a server with prepared answers."""

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sluice.gateway.cli.main import main
from tests.support.terminal import Terminal, on_terminal, sluice_command
from tests.unit.gateway.cli.now_documents import document

_LEAVES = "\x1b[?1049l"
"""The terminal goes back to what it showed before."""


class Server:
    """Answers with a document, in which the asked pipeline is the chosen one; `asked` are the paths."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = document()
        self.status = 200
        self.asked: list[str] = []
        self.port = 0
        self._http: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                found = re.search("pipeline=([^&]*)", self.path)
                if found:
                    server.document["pipeline"]["name"] = found[1].replace("%3A", ":")
                body = json.dumps(server.document if server.status == 200 else {"error": "Not Found"}).encode()
                self.send_response(server.status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._http.server_port
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        if self._http is not None and self._thread is not None:
            self._http.shutdown()
            self._http.server_close()
            self._thread.join()
            self._http = None


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    running.start()
    yield running
    running.stop()


@contextmanager
def watching(server: Server, *arguments: str) -> Iterator[Terminal]:
    command = sluice_command("top", "--url", f"http://127.0.0.1:{server.port}", *arguments)
    with on_terminal(command, 120, 40, {"NO_COLOR": "1"}) as terminal:
        terminal.read_until(lambda text: "q quit" in text)
        yield terminal


def frames(text: str) -> list[str]:
    """The frames in what a terminal got, each of which begins at its upper left corner."""
    return text.split("\x1b[H")


def seen_after(terminal: Terminal, pattern: str) -> None:
    """Wait for a text that is written from now on."""
    at = len(terminal.text)
    terminal.read_until(lambda text: re.search(pattern, text[at:]) is not None)


def test_keys_choose_a_pipeline_and_end_the_view(server: Server) -> None:
    with watching(server) as terminal:
        terminal.press("\x1b[B")
        seen_after(terminal, "> digits-cascade-2:1")
        terminal.press("k")
        seen_after(terminal, "> digits-cascade-1:1")
        terminal.press("q")
        assert _LEAVES in terminal.read_to_end()
        assert terminal.process.wait(30) == 0


def test_ctrl_c_and_signals_leave_the_terminal_as_it_was(server: Server) -> None:
    for number in (None, signal.SIGTERM, signal.SIGHUP):
        with watching(server) as terminal:
            if number is None:
                terminal.press("\x03")
            else:
                os.kill(terminal.process.pid, number)
            assert _LEAVES in terminal.read_to_end()
            assert terminal.process.wait(30) == 0


def test_the_view_follows_the_size_of_the_terminal(server: Server) -> None:
    with watching(server) as terminal:
        assert "objective" in terminal.text
        at = len(terminal.text)
        terminal.resize(70, 24)
        terminal.read_until(
            lambda text: any("q quit" in each and "objective" not in each for each in frames(text[at:]))
        )
        terminal.press("q")
        terminal.read_to_end()


def test_a_server_that_goes_and_comes_back_is_shown(server: Server) -> None:
    with watching(server) as terminal:
        server.stop()
        seen_after(terminal, "no answer for 0 s: cannot be reached: .* this is what the server said at")
        server.document["totals"]["requests_per_s"] = 77.5
        server.start()
        seen_after(terminal, "77.5 requests/s")
        terminal.press("q")
        terminal.read_to_end()


def test_later_questions_leave_out_what_is_not_shown(server: Server) -> None:
    with watching(server) as terminal:
        terminal.read_until(lambda _: any("bars_since=7" in each for each in server.asked))
        terminal.press("q")
        terminal.read_to_end()


def test_where_the_output_is_no_terminal_there_is_one_frame(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", f"http://127.0.0.1:{server.port}"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("sluice 0.1.0 compiled  degraded")
    assert "\x1b" not in out
    assert server.asked == ["/v2/sluice/now"]


def test_rates_are_awaited_where_nobody_has_looked_before(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.document["pipeline"]["history"]["good"] = []
    assert main(["top", "--once", "--pipeline", "a:1", "--url", f"http://127.0.0.1:{server.port}"]) == 0
    assert len(server.asked) == 6
    assert set(server.asked) == {"/v2/sluice/now?pipeline=a%3A1"}


def test_a_server_without_the_document_is_said(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.status = 404
    assert main(["top", "--url", f"http://127.0.0.1:{server.port}"]) == 2
    assert "this server does not say what it does now" in capsys.readouterr().err
    server.stop()
    assert main(["top", "--url", f"http://127.0.0.1:{server.port}"]) == 2
    assert "cannot be reached" in capsys.readouterr().err
