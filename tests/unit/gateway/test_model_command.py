"""`sluice model` against a server that answers what it is told to."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gateway.cli import main


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The URL of a server that answers 200 with this, whatever it is asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *arguments: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_what_a_server_knows_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    index = b'[{"name": "first", "version": "1", "state": "READY"}, {"name": "second"}]'
    with answering(index) as url:
        assert main(["model", "list", "--url", url]) == 0
        assert main(["model", "list", "--json", "--url", url]) == 0
    assert capsys.readouterr().out == (
        f"name    version  state  reason\nfirst   1        READY\nsecond\n{index.decode()}\n"
    )


@pytest.mark.parametrize("answer", [b"<html>", b"\xff", b"", b"3", b'"text"'])
@pytest.mark.parametrize("command", [["list"], ["list", "--json"], ["config", "m"]])
def test_what_another_server_answers_is_told_as_such(
    command: list[str], answer: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(answer) as url:
        assert main(["model", *command, "--url", url]) == 2
    assert capsys.readouterr().err == f"sluice: {url}: not an answer of Sluice\n"
