"""`sluice top` beside a real server under load: in a pipe, on a terminal, and when the server is killed."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_mlp
from tests.support.terminal import on_terminal, sluice_command

CASCADE = """
slo_ms: 60000
stages:
  small: {model: small, inputs: {x: request.x}}
  large: {model: large, inputs: {x: request.x}, when: {stage: small, output: y, below: 0.99}}
outputs:
  y: {from: [large.y, small.y]}
"""
BODY = b'{"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [0, 0, 0, 0]}]}'


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("repository")
    save_mlp(directory / "small" / "1" / "model.onnx", [4, 3])
    save_mlp(directory / "large" / "1" / "model.onnx", [4, 64, 3])
    (directory / "cascade").mkdir()
    (directory / "cascade" / "pipeline.yaml").write_text(CASCADE)
    (directory / "broken" / "1").mkdir(parents=True)
    (directory / "broken" / "1" / "model.onnx").write_text("no model")
    return directory


@pytest.fixture
def server(repository: Path, tmp_path: Path) -> Iterator[GatewayServer]:
    with gateway_server(repository, tmp_path, {"partitions": 1}) as running:
        yield running


def send(server: GatewayServer, count: int) -> None:
    for _ in range(count):
        assert server.request("POST", "/v2/models/cascade/infer", BODY)[0] == 200


def test_a_frame_in_a_pipe_says_what_the_server_does(server: GatewayServer) -> None:
    server.request("GET", "/v2/sluice/now")  # rates are taken from now on
    send(server, 50)
    command = sluice_command("top", "--once", "--url", f"http://{server.http_url}")
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.match(r"sluice .*  ready  up ", text)
    assert "\x1b" not in text
    found = re.search(r"\n  > cascade:1 +([0-9.]+) +100 % ", text)
    assert found, text
    assert float(found[1]) > 0
    assert re.search(r"\n  large +large:1 +small: max of y below 0.99 +[0-9.]+ +100 % ", text), text
    assert re.search(r"\n  cpu0 +cpu\d+ +ready ", text)
    assert re.search(r"\nnot served\n.*\n  broken  1 .*not an ONNX model", text)


def test_a_terminal_follows_a_server_until_it_is_killed(server: GatewayServer) -> None:
    with on_terminal(sluice_command("top", "--url", f"http://{server.http_url}"), 120, 40) as terminal:
        terminal.read_until(lambda text: "q quit" in text)
        send(server, 20)
        terminal.read_until(lambda text: "answers/s" in text)
        server.process.kill()
        terminal.read_until(lambda text: "no answer for" in text)
        terminal.press("q")
        terminal.read_to_end()
        assert terminal.process.wait(60) == 0
