"""Model repositories by URL: a real server over a real S3 server, and over a web server."""

import functools
import http.server
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import pytest

from sluice.models.sources import source as source_module
from sluice.models.sources.source import FsspecSource, SourceError
from tests.support.gateway.processes import until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_external, save_mlp
from tests.support.s3 import BUCKET, s3_server, upload

URL = f"s3://{BUCKET}/models"
X = json.dumps({"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [0.1, 0.5, -0.3]}]}).encode()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with s3_server(monkeypatch) as client:
        yield client


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    save_mlp(tmp_path / "models" / "mlp" / "1" / "model.onnx", (3, 3), seed=1)
    save_external(tmp_path / "models" / "external" / "1" / "model.onnx")
    return tmp_path / "models"


@contextmanager
def serve(directory: Path, **config: Any) -> Iterator[GatewayServer]:
    directory.mkdir(exist_ok=True)
    settings = {"repository": URL, "partitions": 1, "source_cache": str(directory.parent / "cache"), **config}
    with gateway_server(None, directory, settings) as server:
        yield server


def ask(server: GatewayServer) -> list[float]:
    status, _, body = server.request("POST", "/v2/models/mlp/infer", X)
    assert status == 200, body
    data: list[float] = json.loads(body)["outputs"][0]["data"]
    return data


def test_a_bucket_is_served_and_followed_and_a_broken_upload_never_replaces_a_model(
    store: Any, repository: Path, tmp_path: Path
) -> None:
    upload(store, repository, "models/")
    with serve(tmp_path / "server", control="poll", poll_s=0.2) as server:
        first = ask(server)
        assert server.request("GET", "/v2/models/external/ready")[0] == 200
        whole = (repository / "mlp" / "1" / "model.onnx").read_bytes()
        store.put_object(Bucket=BUCKET, Key="models/mlp/1/model.onnx", Body=whole[: len(whole) // 2])
        until(lambda: "the copy stays as it was" in server.log.read_text())
        assert ask(server) == first
        unloadable = onnx.load_model_from_string(whole)  # it reads well
        unloadable.graph.node[0].op_type = "NoSuchOperator"
        store.put_object(Bucket=BUCKET, Key="models/mlp/1/model.onnx", Body=unloadable.SerializeToString())
        until(lambda: "No Op registered for NoSuchOperator" in server.log.read_text())
        assert "load failed" not in server.log.read_text()
        assert ask(server) == first
        save_mlp(repository / "mlp" / "1" / "model.onnx", (3, 3), seed=2)
        upload(store, repository, "models/")
        until(lambda: ask(server) != first)
        second = ask(server)
        store.delete_object(Bucket=BUCKET, Key="models/external/1/model.onnx")
        store.delete_object(Bucket=BUCKET, Key="models/external/1/model.onnx_data")
        until(lambda: server.request("GET", "/v2/models/external/ready")[0] != 200)
    store.put_object(Bucket=BUCKET, Key="models/mlp/1/model.onnx", Body=b"<html>")
    with serve(tmp_path / "server", control="explicit", load_models=["mlp"]) as server:
        assert ask(server) == second  # the copy, as the upload is broken
        upload(store, repository, "models/")
        assert server.request("POST", "/v2/repository/models/external/load", b"{}")[0] == 200
        assert server.request("GET", "/v2/models/external/ready")[0] == 200


def test_a_copy_is_served_while_its_source_is_away(
    store: Any, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(store, repository, "models/")
    with serve(tmp_path / "server") as server:
        first = ask(server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with serve(tmp_path / "server") as server:
        assert ask(server) == first
        assert "a source cannot be read; its copy is served" in server.log.read_text()
    with (
        pytest.raises(RuntimeError, match=f"sluice: {URL}/none: cannot be read: "),
        serve(tmp_path / "server", repository=f"{URL}/none"),
    ):
        pass


def test_files_of_a_bucket_have_tags_that_change_with_their_contents(store: Any, tmp_path: Path) -> None:
    source = FsspecSource(URL)
    store.put_object(Bucket=BUCKET, Key="models/m/1/model.onnx", Body=b"one")
    store.put_object(Bucket=BUCKET, Key="models/m/empty/", Body=b"")
    before = source.files()
    assert before.keys() == {"m/1/model.onnx"}
    assert before["m/1/model.onnx"].size == 3
    store.put_object(Bucket=BUCKET, Key="models/m/1/model.onnx", Body=b"two")
    assert source.files()["m/1/model.onnx"].tag != before["m/1/model.onnx"].tag
    source.fetch("m/1/model.onnx", tmp_path / "copy", 10_000)
    assert (tmp_path / "copy").read_bytes() == b"two"
    with pytest.raises(SourceError, match=f"{URL}/m/2: cannot be read: "):
        source.fetch("m/2", tmp_path / "copy", 10_000)
    with pytest.raises(SourceError, match="s3://nobody/models: cannot be read: "):
        FsspecSource("s3://nobody/models").files()


def test_a_web_server_that_lists_its_folders_is_a_source(repository: Path, tmp_path: Path) -> None:
    with web_server(tmp_path) as web:
        source = FsspecSource(f"{web.url}/models/")
        assert source.files().keys() == {"mlp/1/model.onnx", "external/1/model.onnx", "external/1/model.onnx_data"}
        source.fetch("mlp/1/model.onnx", tmp_path / "copy", 10_000)
        assert (tmp_path / "copy").read_bytes() == (repository / "mlp" / "1" / "model.onnx").read_bytes()


def test_a_web_server_that_is_away_or_lacks_a_folder_is_no_empty_source(repository: Path, tmp_path: Path) -> None:
    del repository
    with web_server(tmp_path) as web:
        source = FsspecSource(f"{web.url}/models")
        assert source.files()
        with pytest.raises(SourceError, match=f"{web.url}/modles: cannot be read: "):
            FsspecSource(f"{web.url}/modles").files()
    with pytest.raises(SourceError, match=f"{web.url}/models: cannot be read: "):
        source.files()


def test_more_bytes_than_announced_are_not_copied(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "file").write_bytes(b"x" * 1_000)
    with web_server(tmp_path) as web:
        source = FsspecSource(f"{web.url}/models")
        with pytest.raises(SourceError, match="/models/file: cannot be read: expected at most 999 bytes, got more"):
            source.fetch("file", tmp_path / "copy", 999)


def test_a_source_that_stalls_is_left_and_its_copy_served_and_holds_up_no_end(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with web_server(tmp_path) as web:
        source = FsspecSource(f"{web.url}/models")
        source.files()
        settings: dict[str, Any] = {"repository": f"{web.url}/models", "control": "poll", "poll_s": 0.2}
        with serve(tmp_path / "server", **settings) as server:
            first = ask(server)
            web.stall()
            web.stalled.acquire()
            assert ask(server) == first
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == 0
        monkeypatch.setattr(source_module, "STALL_TIMEOUT_S", 0.0)
        with pytest.raises(SourceError, match="nothing arrived within 0 s"):
            source.files()
        with pytest.raises(SourceError, match="an earlier attempt still waits"):
            source.files()


class WebServer(http.server.ThreadingHTTPServer):
    """A web server that lists folders, and can stop to answer; `stalled` counts the requests without an answer."""

    daemon_threads = True

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(directory)))
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.stalled = threading.Semaphore(0)
        self._answers = threading.Event()
        self._answers.set()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over clients that have gone."""

    def stall(self) -> None:
        self._answers.clear()

    def answer_again(self) -> None:
        self._answers.set()

    def wait(self) -> None:
        if not self._answers.is_set():
            self.stalled.release()
            self._answers.wait()


@contextmanager
def web_server(directory: Path) -> Iterator[WebServer]:
    with WebServer(directory) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        try:
            yield web
        finally:
            web.answer_again()
            web.shutdown()
            thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    server: WebServer

    def send_head(self) -> Any:
        self.server.wait()
        return super().send_head()

    def log_message(self, format: str, *args: Any) -> None:
        pass
