"""A server whose MPS daemon is killed: it goes on serving, and the daemon is there again."""

import json
import os
import signal
from pathlib import Path

import pytest

from sluice.mps.daemon.processes import control_daemons, mps_processes
from sluice.mps.isolation.mps_environment import pipe_directory
from sluice.mps.partitions.cpu import available_cores
from tests.support.gateway.processes import until
from tests.support.gateway.server import gateway_server
from tests.support.gpu import fake_mps
from tests.support.gpu.fake_mps import OWN_GPU as GPU
from tests.support.models.onnx_models import save_mlp

ROW = json.dumps({"inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [0.5] * 8}]}).encode()
REVIVED_S = 100


def daemon() -> int:
    """The process of the daemon, beside which there may be short ones that ask it something."""
    pipes = str(pipe_directory(GPU))
    (pid,) = (pid for pid, variables in control_daemons() if variables.get("CUDA_MPS_PIPE_DIRECTORY") == pipes)
    return pid


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there may well be an MPS of its own here")
def test_a_daemon_that_is_killed_is_started_again_and_every_request_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_mps.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    save_mlp(tmp_path / "models" / "mlp" / "1" / "model.onnx", (8, 16, 3))
    partitions = [
        {"name": "cores", "cores": available_cores()[:1]},
        {"kind": "mps", "name": "share", "uuid": GPU, "share_percent": 25, "memory_mb": 2048},
    ]
    with gateway_server(tmp_path / "models", tmp_path, {"partitions": partitions}) as server:
        first = daemon()
        answers = []

        def runs_again() -> bool:
            answers.append(server.request("POST", "/v2/models/mlp/infer", ROW)[0])
            return "runs again" in server.log.read_text()

        os.kill(first, signal.SIGKILL)
        until(runs_again, REVIVED_S)
        assert set(answers) == {200}
        assert daemon() != first
        assert f"the MPS daemon of {GPU} has ended; restarting it" in server.log.read_text()
    # A process that lists the daemons of this machine may still ask this one.
    until(lambda: mps_processes(pipe_directory(GPU)) == ())
