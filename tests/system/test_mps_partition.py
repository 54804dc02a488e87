"""A server with a share under MPS, on the fake: its daemon comes and goes with it, and nothing runs without proof."""

import json
import os
import tempfile
from pathlib import Path

import pytest

from sluice.mps.daemon.daemon import MpsDaemon
from sluice.mps.daemon.processes import mps_processes
from sluice.mps.isolation.mps_environment import pipe_directory
from sluice.mps.partitions.cpu import available_cores
from sluice.mps.worker.evidence import mps_facts
from tests.support.gateway.processes import until
from tests.support.gateway.server import gateway_server
from tests.support.gpu import fake_mps
from tests.support.gpu.fake_mps import OWN_GPU as GPU
from tests.support.models.onnx_models import save_mlp

ROW = json.dumps({"inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [0.5] * 8}]}).encode()

pytestmark = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there may well be an MPS of its own here")


def test_the_daemon_lives_as_long_as_the_server_and_the_other_partitions_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_mps.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_MPS_CLIENT_PRIORITY", "1")
    save_mlp(tmp_path / "models" / "mlp" / "1" / "model.onnx", (8, 16, 3))
    partitions = [
        {"name": "cores", "cores": available_cores()[:1]},
        {"kind": "mps", "name": "share", "uuid": GPU, "share_percent": 25, "memory_mb": 2048},
    ]
    with gateway_server(tmp_path / "models", tmp_path, {"partitions": partitions}) as server:
        assert mps_processes(pipe_directory(GPU))
        assert server.request("POST", "/v2/models/mlp/infer", ROW)[0] == 200
        states = json.loads(server.request("GET", "/v2/sluice/partitions")[2])["partitions"]
        assert {each["partition"]["name"]: each["enforcement"] for each in states} == {
            "cores": "enforced",
            "share": "unenforced",
        }
        refusal, unseen = states[1]["reasons"]
        assert "CUDAExecutionProvider" in refusal
        assert unseen.startswith("CUDA does not report the worker's device: libcuda.so.1")
        variables = Path(f"/proc/{states[1]['worker']}/environ").read_bytes().split(b"\0")
        assert f"CUDA_VISIBLE_DEVICES={GPU}".encode() in variables
        assert b"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25" in variables
        assert f"CUDA_MPS_PIPE_DIRECTORY={pipe_directory(GPU)}".encode() in variables
        assert not any(each.startswith(b"CUDA_MPS_CLIENT_PRIORITY") for each in variables)
    # A process that lists the daemons of this machine may still ask this one.
    until(lambda: mps_processes(pipe_directory(GPU)) == ())


def test_a_worker_knows_whether_the_daemon_lists_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as directory:
        fake_mps.install(Path(directory) / "bin")
        monkeypatch.setenv("PATH", f"{directory}/bin{os.pathsep}{os.environ['PATH']}")
        daemon = MpsDaemon(GPU, Path(directory))
        daemon.start()
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(daemon.pipes))
        assert not mps_facts((os.getpid(),)).client
        client = fake_mps.FakeCuda(os.environ)
        found = mps_facts((os.getpid(),))
        assert (found.client, found.multiprocessors) == (True, 0)
        assert "libcuda.so.1" in found.trouble
        assert not mps_facts((1,)).client
        client.close()
        daemon.stop()
        assert "failed with status 1" in mps_facts((os.getpid(),)).trouble
