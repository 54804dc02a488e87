"""ONNX Runtime reports to nobody: its processes leave nothing in the home directory, and open no connection."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from onnx import helper

from sluice.models.processes import process_tree
from sluice.models.tensors.spec import DataType
from tests.support.gateway.processes import until
from tests.support.gateway.server import gateway_server
from tests.support.models.onnx_models import save_identity, save_model, value

ROOT = Path(__file__).parents[2]
CONFIG = """
backend: "python" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
"""
MODEL = """
import onnxruntime

session = onnxruntime.InferenceSession({path!r})

def infer(inputs):
    return {{"y": session.run(["y"], {{"x": inputs["x"]}})[0]}}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of all processes that the test starts, which look like those of a user."""
    directory = tmp_path / "home"
    directory.mkdir()
    monkeypatch.setenv("HOME", str(directory))
    for name in ("CI", "GITHUB_ACTIONS", "TF_BUILD", "XDG_CACHE_HOME", "ORT_DISABLE_TELEMETRY"):
        monkeypatch.delenv(name, raising=False)
    return directory


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A model, one that is tried before it is loaded, and one in Python that uses ONNX Runtime itself."""
    directory = tmp_path / "models"
    path = save_identity(directory / "echo" / "1" / "model.onnx", DataType.FP32, [1])
    ends = [value("x", DataType.FP32, ["a"])], [value("y", DataType.FP32, ["b"])]
    save_model(directory / "tried" / "1" / "model.onnx", [helper.make_node("Relu", ["x"], ["y"])], *ends)
    (directory / "own" / "1").mkdir(parents=True)
    (directory / "own" / "config.pbtxt").write_text(CONFIG)
    (directory / "own" / "1" / "model.py").write_text(MODEL.format(path=str(path)))
    return directory


def test_a_server_and_its_workers_leave_and_open_nothing(home: Path, repository: Path, tmp_path: Path) -> None:
    with gateway_server(repository, tmp_path, {"partitions": 1, "spare_worker": True}) as server:
        body = b'{"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [3]}]}'
        for model in ("echo", "own"):
            assert server.request("POST", f"/v2/models/{model}/infer", body)[0] == 200
        until(lambda: len(list(process_tree(server.process.pid))) == 1 + 3)
        workers = [pid for pid in process_tree(server.process.pid) if pid != server.process.pid]
        assert [address for pid in workers for address in connections(pid)] == []
    assert list(home.rglob("*")) == []


@pytest.mark.parametrize("arguments", [["validate", "{repository}"], ["doctor"]])
def test_commands_leave_nothing(home: Path, repository: Path, arguments: list[str]) -> None:
    words = [word.format(repository=repository) for word in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "sluice.gateway.cli.main", *words],
        cwd=ROOT,
        capture_output=True,
        timeout=180,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    assert list(home.rglob("*")) == []


def connections(pid: int) -> list[str]:
    """The addresses of all TCP and UDP sockets of a process."""
    files = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    tables = (Path(f"/proc/{pid}/net/{name}") for name in ("tcp", "tcp6", "udp", "udp6"))
    lines = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    return [words[2] for words in lines if f"socket:[{words[9]}]" in files]
