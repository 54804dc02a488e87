"""The repository and the `curl` of `sluice init`, tried on a real server, also with `sluice infer`."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.models.onnx_models import save_mlp
from tests.support.terminal import on_terminal, sluice_command


class Done(NamedTuple):
    status: int
    out: str
    err: str


Infer = Callable[..., Done]


class Cascade(NamedTuple):
    """The repository that `sluice init` wrote, and what it printed."""

    repository: Path
    out: str


@pytest.fixture(scope="module")
def cascade(tmp_path_factory: pytest.TempPathFactory) -> Cascade:
    directory = tmp_path_factory.mktemp("init")
    models = [save_mlp(directory / "tiny.onnx", [4, 3]), save_mlp(directory / "big.onnx", [4, 64, 3])]
    command = sluice_command("init", directory / "repository", *models)
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    return Cascade(directory / "repository", done.stdout)


@pytest.fixture(scope="module")
def server(cascade: Cascade, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    with gateway_server(cascade.repository, tmp_path_factory.mktemp("server"), {"partitions": 1}) as running:
        yield running


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}


@pytest.fixture(params=["http", "grpc"])
def infer(request: pytest.FixtureRequest, server: GatewayServer) -> Infer:
    """Runs `sluice infer` over each protocol."""
    url = f"http://{server.http_url}" if request.param == "http" else f"grpc://{server.grpc_url}"

    def run(*arguments: object, given: str = "") -> Done:
        command = sluice_command("infer", *arguments, "--url", url)
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, env=environment())
        return Done(done.returncode, done.stdout, done.stderr.removeprefix(f"sluice: {url}: "))

    return run


def test_the_printed_curl_gets_an_answer(cascade: Cascade, server: GatewayServer) -> None:
    (line,) = (line for line in cascade.out.splitlines() if line.startswith("  curl"))
    command = shlex.split(line.replace("localhost:8000", server.http_url))
    answer = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert answer["outputs"][0]["shape"] == [1, 3]
    assert sum(answer["outputs"][0]["data"]) == pytest.approx(1)


def test_zeros_are_answered(infer: Infer) -> None:
    done = infer("cascade", "--zeros", "--rows", 2)
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("cascade version 1: ")
    assert lines[1] == "y  FP32 [2, 3]"
    assert lines[2] == "  [[0.333333, 0.333333, 0.333333],"


def test_files_are_answered_with_the_same_numbers(infer: Infer, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.array([[1.0, 2.0, 3.0, 4.0]]))
    from_numpy = json.loads(infer("cascade:1", tmp_path / "x.npz", "--json").out)
    from_json = json.loads(infer("cascade", "-", "--json", given='{"x": [1, 2, 3, 4]}').out)
    assert from_numpy["outputs"] == from_json["outputs"]
    assert sum(from_json["outputs"][0]["data"]) == pytest.approx(1)
    assert set(from_json) == {"model_name", "model_version", "id", "outputs", "time_ms"}


def test_a_body_keeps_its_id_by_which_the_request_is_explained(infer: Infer, server: GatewayServer) -> None:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    done = infer("cascade", "-", given=json.dumps({"id": "mine", "inputs": [tensor]}))
    assert done.out.splitlines()[0].endswith("request mine")
    command = sluice_command("why", "mine", "--url", f"http://{server.http_url}")
    assert "cascade:1" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_what_is_wrong_is_said_with_the_status(infer: Infer, tmp_path: Path) -> None:
    unknown = infer("missing", "--zeros")
    assert (unknown.status, unknown.err) == (2, "Request for unknown model: 'missing' is not found\n")
    wide = infer("cascade", "-", given="[1, 2, 3]")
    assert (wide.status, wide.err) == (2, "sluice: standard input: input 'x': expected shape [-1, 4], got [1, 3]\n")
    both = infer("cascade", "-", "--zeros")
    assert (both.status, both.err) == (2, "sluice: expected either --zeros or FILE, got both\n")
    lost = infer("cascade", tmp_path / "lost.json")
    assert (lost.status, lost.err) == (
        2,
        f"sluice: {tmp_path / 'lost.json'}: cannot be read: No such file or directory\n",
    )


def test_what_the_server_refuses_has_a_status_of_its_own(infer: Infer) -> None:
    done = infer("cascade", "--zeros", "--rows", 1000)
    assert done.status == 1
    assert "1000" in done.err


def test_a_group_with_a_key_is_reached_with_a_header_over_both_protocols(cascade: Cascade, tmp_path: Path) -> None:
    keyed = {"partitions": 1, "restricted": [{"groups": ["inference"], "header": "infer-key", "value": "s3cret"}]}
    with gateway_server(cascade.repository, tmp_path, keyed) as server:
        for url in (f"http://{server.http_url}", f"grpc://{server.grpc_url}"):
            command = sluice_command("infer", "cascade", "--zeros", "--url", url)
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
            assert done.returncode == 1
            assert "This protocol is restricted, expecting header" in done.stderr
            assert "cannot be reached" not in done.stderr
            command += ["--header", "infer-key: s3cret"]
            assert subprocess.run(command, capture_output=True, check=False, env=environment()).returncode == 0


def test_a_server_that_is_not_there_is_said() -> None:
    for url in ("http://127.0.0.1:1", "grpc://127.0.0.1:1"):
        done = subprocess.run(
            sluice_command("infer", "m", "--zeros", "--url", url), capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert done.stderr.startswith(f"sluice: {url}: cannot be reached: ")


SLOW = """
import time


def load(config):
    time.sleep(1.2)


def infer(inputs):
    return {"y": inputs["x"]}
"""
CONFIG = """
backend: "python"
max_batch_size: 2
input { name: "x" data_type: TYPE_FP32 dims: [1] }
output { name: "y" data_type: TYPE_FP32 dims: [1] }
"""


def test_a_server_on_a_terminal_shows_how_far_it_has_loaded_its_models(tmp_path: Path) -> None:
    for index in range(3):
        folder = tmp_path / "models" / f"slow{index}"
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(SLOW)
        (folder / "config.pbtxt").write_text(CONFIG)
    ports = ["--http-port", 0, "--grpc-port", 0, "--partitions", 1]
    with on_terminal(sluice_command("serve", tmp_path / "models", *ports), 200, 30, {"NO_COLOR": "1"}) as terminal:
        terminal.read_until(lambda text: "server ready" in text)
        terminal.press("\x03")
        text = terminal.read_to_end()
        assert terminal.process.wait(60) == 0
    assert re.search("loading models .*2/3 .* left ", text)
    lines = [line.rpartition("\x1b[2K")[2] for line in text.replace("\r", "\n").split("\n")]
    (ready,) = (line for line in lines if "server ready" in line)
    assert re.match(r"\d{4}-\d\d-\d\dT", ready), "lines of the log stand alone"
