"""A server in a container-like sandbox: half a core, a small /dev/shm, a read-only root, and a user without a home."""

import base64
import json
import pwd
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from examples.digits.build import DATA, build_repository
from tests.support.gateway.processes import until
from tests.support.gateway.server import GatewayServer
from tests.support.models.onnx_models import save_mlp
from tests.support.sandbox import NOBODY, Sandbox, may_unshare, sandbox

pytestmark = pytest.mark.skipif(not may_unshare("--mount"), reason="this machine lets nobody make a namespace")

SERVE = (sys.executable, "-m", "sluice.gateway.cli.main", "serve", "--http-port", "0", "--grpc-port", "0")


class Contained(NamedTuple):
    """A server in a sandbox."""

    sandbox: Sandbox
    server: GatewayServer


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that every user may enter: each run of pytest that begins closes those of all runs to others."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture(scope="module")
def contained(folder: Path) -> Iterator[Contained]:
    repository, writable = folder / "models", folder / "volume"
    repository.mkdir()
    writable.mkdir()
    build_repository(repository, wide=False)
    ready, log = writable / "ready.json", writable / "server.log"
    with sandbox(writable, cores=0.5) as made, log.open("wb") as output:
        command = [*made.before, *SERVE, "--repository", str(repository), "--control", "explicit", "--load-model", "*"]
        process = subprocess.Popen(
            [*command, "--allow-upload", "--ready-file", str(ready)], stdout=output, stderr=subprocess.STDOUT
        )
        try:
            until(lambda: ready.exists() or process.poll() is not None, 60)
            assert ready.exists(), log.read_text()
            ports = json.loads(ready.read_text())
            yield Contained(made, GatewayServer(process, ports["http_port"], ports["grpc_port"], log))
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


@pytest.mark.parametrize("pipeline", ["digits-cascade", "digits-ensemble"])
def test_the_demo_s_models_are_served(contained: Contained, pipeline: str) -> None:
    with np.load(DATA) as data:
        rows, labels = data["raw"][:1].tolist(), data["y"][:1].tolist()
    metadata = json.loads(contained.server.request("GET", f"/v2/models/{pipeline}")[2])
    (tensor,) = metadata["inputs"]
    body = {"inputs": [{**tensor, "shape": [1, *tensor["shape"][1:]], "data": rows}]}
    status, _, answer = contained.server.request("POST", f"/v2/models/{pipeline}/infer", json.dumps(body).encode())
    assert status == 200, answer
    (probs,) = (each for each in json.loads(answer)["outputs"] if each["name"] == "probs")
    assert int(np.argmax(probs["data"])) == labels[0]


def test_one_partition_is_started_and_the_log_says_why(contained: Contained) -> None:
    if not contained.sandbox.has_quota:
        pytest.skip("only root may make a cgroup")
    text = contained.server.log.read_text()
    assert "default partitions partitions=1 " in text
    assert "quota=0.5" in text
    assert "cores: 1, but the cgroup allows the time of 0.5" in text


def test_an_upload_says_that_there_is_no_room_for_its_files(contained: Contained, tmp_path: Path) -> None:
    content = save_mlp(tmp_path / "model.onnx", [4, 2]).read_bytes()
    parameters = {"config": '{"backend": "onnxruntime"}', "file:1/model.onnx": base64.b64encode(content).decode()}
    body = json.dumps({"parameters": parameters}).encode()
    status, _, answer = contained.server.request("POST", "/v2/repository/models/sent/load", body)
    message = json.loads(answer)["error"]
    assert (status, "TMPDIR" in message) == (503, True), message
    assert contained.server.request("GET", "/v2/health/ready")[0] == 200


def test_the_server_runs_as_a_user_without_a_name(contained: Contained) -> None:
    if not contained.sandbox.is_nobody:
        pytest.skip("only root may be another user, and only where that user may run this Python")
    with pytest.raises(KeyError):
        pwd.getpwuid(NOBODY)
    status = Path(f"/proc/{contained.server.process.pid}/status").read_text()
    assert f"Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}" in status
