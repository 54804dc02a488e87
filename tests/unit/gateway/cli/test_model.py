"""`sluice model` against a server with prepared answers."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import grpc
import pytest

from sluice.gateway.cli.main import main


@contextmanager
def answering(answer: bytes, status: int = 200, demanded: tuple[str, str] | None = None) -> Iterator[str]:
    """The URL of a server that answers with this, whatever it is asked, if that has the header which is demanded."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            allowed = demanded is None or self.headers.get(demanded[0]) == demanded[1]
            self.send_response(status if allowed else 403)
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
        f"name    version  state       reason\nfirst   1        READY\nsecond           not loaded\n{index.decode()}\n"
    )


def test_a_key_is_sent_along(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(b"[]", demanded=("admin-key", "s3cret: no")) as url:
        assert main(["model", "list", "--url", url]) == 2
        assert main(["model", "list", "--url", url, "--header", "Admin-Key: s3cret: no"]) == 0
        for wrong in ("s3cret", ": s3cret", "admin key: s3cret", "admin-key: s3cr\u00e9t"):
            with pytest.raises(SystemExit):
                main(["model", "list", "--url", url, "--header", wrong])
            assert f"expected 'NAME: VALUE', got '{wrong}'" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [b"<html>", b"\xff", b"", b"3", b'"text"'])
@pytest.mark.parametrize("command", [["list"], ["list", "--json"], ["config", "m"]])
def test_what_another_server_answers_is_reported_as_such(
    command: list[str], answer: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(answer) as url:
        assert main(["model", *command, "--url", url]) == 2
    assert capsys.readouterr().err.startswith(f"sluice: {url}: not a Sluice server: ")


@pytest.mark.parametrize(
    ("reason", "arguments", "expected"),
    [
        ("m/1/model.onnx: not an ONNX model", [], "{file}: not an ONNX model"),
        ("m/config.pbtxt: input 'z': there is none", [], "--config: input 'z': there is none"),
        ("m/config.pbtxt: input 'z': there is none", ["--config", "{config}"], "{config}: input 'z': there is none"),
        ("m/1: expected a file model.py", [], "{file}: expected a file model.py"),
    ],
)
def test_an_error_in_an_upload_is_reported_with_its_file(
    reason: str, arguments: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, config = tmp_path / "net.onnx", tmp_path / "c.json"
    file.write_bytes(b"")
    config.write_text("{}")
    refusal = json.dumps({"error": f"load failed for model 'm': {reason}"}).encode()
    given = [each.format(config=config) for each in arguments]
    with answering(refusal, 400) as url:
        assert main(["model", "register", "m", "--file", str(file), *given, "--url", url]) == 2
    said = expected.format(file=file, config=config)
    assert capsys.readouterr().err == f"sluice: {url}: load failed for model 'm': {said}\n"


def test_a_file_that_is_no_kind_of_model_is_not_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "net.pt"
    file.write_bytes(b"")
    with answering(b"{}") as url:
        assert main(["model", "register", "m", "--file", str(file), "--url", url]) == 2
    said = f"sluice: --file {file}: expected a model file that ends in one of .onnx, .timed.json, .py\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("name", ["a/b", "", "sp ace", "request"])
@pytest.mark.parametrize("command", [["register", "--file", "net.onnx"], ["load"]])
def test_what_cannot_name_a_model_is_not_sent(
    command: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(b"{}") as url:
        assert main(["model", *command, "--url", url, name]) == 2
    assert capsys.readouterr().err == (
        f"sluice: NAME: '{name}' cannot name a model or a pipeline; expected letters, digits, '_', '.' and '-', "
        "and not 'request'\n"
    )


def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, absent, latin = tmp_path / "net.onnx", tmp_path / "nofile.json", tmp_path / "latin.json"
    file.write_bytes(b"")
    latin.write_bytes(b'{"name": "\xe9"}')
    for config in (absent, latin):
        assert main(["model", "register", "m", "--file", str(file), "--config", str(config)]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"sluice: {absent}: cannot be read: No such file or directory"
    assert second.startswith(f"sluice: {latin}: cannot be read: 'utf-8' codec can't decode byte 0xe9")


def test_an_error_in_a_configuration_is_reported_with_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.json"
    config.write_text("{}")
    refusal = json.dumps({"error": "load failed for model 'm': /srv/models/m/config.pbtxt: no field 'x'"}).encode()
    with answering(refusal, 400) as url:
        assert main(["model", "load", "m", "--config", str(config), "--url", url]) == 2
        assert main(["model", "load", "m", "--url", url]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(f"load failed for model 'm': {config}: no field 'x'")
    assert second.endswith("load failed for model 'm': /srv/models/m/config.pbtxt: no field 'x'")


def test_an_unload_of_what_there_is_not_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(b'[{"name": "first", "version": "1", "state": "READY"}]') as url:
        assert main(["model", "unload", "nope", "--url", url]) == 1
        assert main(["model", "unload", "first", "--url", url]) == 0
    expected = capsys.readouterr()
    assert expected.err == f"sluice: {url}: there is no model or pipeline 'nope'\n"
    assert expected.out == "first: unloaded\n"


def test_the_port_of_grpc_is_reported_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        for command in (["model", "list"], ["why", "7"]):
            assert main([*command, "--url", f"http://127.0.0.1:{port}"]) == 2
    finally:
        server.stop(None).wait()
    sentence = f"sluice: http://127.0.0.1:{port}: this is a gRPC port; expected the server's HTTP port"
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith(sentence) for line in lines] == [True, True]
