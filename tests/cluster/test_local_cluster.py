"""`sluice ray`: a cluster on this machine with a gateway, as its user sees it."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs the extra ray: make cluster")

from tests.cluster.load import ENSEMBLE, labelled_images, probabilities


def sluice_ray(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "sluice.gateway.cli.main", "ray", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def test_a_gateway_that_cannot_serve_says_why(tmp_path: Path) -> None:
    where = ["--directory", str(tmp_path / "files")]
    up = sluice_ray("up", *where, "--cores", "1", "--dashboard-port", "0", str(tmp_path / "nothing"))
    assert up.returncode == 2
    assert "nothing: no such file or directory; expected a model file, or a model repository" in up.stderr
    assert str(tmp_path / "files" / "gateway.log") in up.stderr
    assert sluice_ray("status", *where).returncode == 1


def test_a_cluster_is_started_shown_and_ended(repository: Path, tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(json.dumps({"http_port": 0, "grpc_port": 0, "spare_worker": False}))
    where = ["--directory", str(tmp_path / "files")]
    assert sluice_ray("status", *where).returncode == 1
    up = sluice_ray("up", *where, "--config", str(settings), "--cores", "1", "--dashboard-port", "0", str(repository))
    try:
        assert up.returncode == 0, up.stderr
        addresses = dict(line.split() for line in up.stdout.splitlines())
        images, _ = labelled_images()
        assert probabilities(addresses["gRPC"], ENSEMBLE, images[:1]).shape == (1, 10)
        status = json.loads(sluice_ray("status", *where, "--json").stdout)
        assert [each["resources"]["CPU"] for each in status["nodes"]] == [1.0]
        assert [each["partition"] for each in status["partitions"] if each["url"]] == ["ray-0"]
        again = sluice_ray("up", *where, str(repository))
        assert again.returncode == 2
        assert "a cluster is running already; end it with sluice ray down" in again.stderr
    finally:
        down = sluice_ray("down", *where)
    assert down.returncode == 0, down.stderr
    host, _, port = addresses["gRPC"].rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
    assert sluice_ray("down", *where).returncode == 1
