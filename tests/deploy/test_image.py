"""The image is built by its own steps, and run as a runtime would run it: another user, a read-only root."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.container_image import Container, Image, built_image, running
from tests.support.gateway.processes import until
from tests.support.models.onnx_models import save_mlp
from tests.support.packaging import ROOT
from tests.support.sandbox import may_unshare

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not may_unshare("--mount", "--pid", "--net"), reason="only root may make containers here"
)

INFER = """
import numpy as np
from tritonclient import grpc, http
for protocol, port in ((http, 8000), (grpc, 8001)):
    tensor = protocol.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
    client = protocol.InferenceServerClient(f"127.0.0.1:{port}")
    for model in ("mlp", "double"):
        print(client.infer(model, [tensor]).as_numpy("y").sum())
"""
PYTHON_MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", 2 * each)]) for each in tensors]
"""
PYTHON_CONFIG = """
backend: "python"
max_batch_size: 4
input [{ name: "x", data_type: TYPE_FP32, dims: [4] }]
output [{ name: "y", data_type: TYPE_FP32, dims: [4] }]
"""
BUILD_TOOLS = ("gcc", "cc", "make", "pip", "pip3", "hatchling", "mypyc")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    with built_image("cpu", tmp_path_factory.mktemp("image")) as built:
        yield built


@pytest.fixture(scope="module")
def container(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    models, directory = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("container")
    save_mlp(models / "mlp" / "1" / "model.onnx", [4, 2])
    double = models / "double"
    (double / "1").mkdir(parents=True)
    (double / "1" / "model.py").write_text(PYTHON_MODEL)
    (double / "config.pbtxt").write_text(PYTHON_CONFIG)
    models.chmod(0o755)
    with running(image, models, directory) as started:
        yield started


def health(container: Container) -> int:
    kind, *command = container.image.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    return container.execute(command).returncode


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_its_user_is_not_root_and_its_labels_say_what_it_is(image: Image) -> None:
    assert re.fullmatch(r"[1-9][0-9]*:[1-9][0-9]*", image.config["User"])
    labels = image.config["Labels"]
    assert labels["org.opencontainers.image.title"] == "Sluice"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_it_has_no_tools_for_building_and_only_pinned_packages(image: Image) -> None:
    programs = {path.name for place in ("opt/sluice/bin", "usr/bin", "bin") for path in (image.root / place).iterdir()}
    assert programs.isdisjoint(BUILD_TOOLS)
    pinned = {line for line in _lines(ROOT / "deploy" / "constraints.txt") if not line.startswith("#")}
    packages = _lines(image.root / "opt" / "sluice" / "packages.txt")
    assert packages
    assert [each for each in packages if each not in pinned] == [], "run `python -m scripts.pins`"
    found = {path.name.split("-")[0] for path in image.root.glob("opt/sluice/lib/python3*/site-packages/*.dist-info")}
    names = {_normal(each) for each in found}
    assert names == {_normal(line.split("==")[0]) for line in packages} | {"sluice-gateway"}


def test_it_serves_as_process_1_of_a_container_with_a_read_only_root(container: Container) -> None:
    until(lambda: container.process.poll() is not None or health(container) == 0, 120)
    assert container.process.poll() is None, container.log.read_text()
    assert [float(each) for each in container.ask(INFER).split()] == pytest.approx([1, 8, 1, 8])
    assert container.execute(["sh", "-c", "touch /opt/sluice/file || touch /models/file"]).returncode != 0
    status = Path(f"/proc/{container.pid}/status").read_text()
    assert re.search(r"^NSpid:\t\d+\t1$", status, re.MULTILINE)
    assert re.search(r"^Uid:\t10001\t", status, re.MULTILINE)
    assert "hot path" in container.execute(["sluice", "doctor"]).stdout


def test_it_takes_the_exits_of_processes_that_others_leave_behind(container: Container) -> None:
    before = children(container.pid)
    left = container.execute(["sh", "-c", "sleep 0.01 & echo $!"])
    assert left.returncode == 0
    until(lambda: children(container.pid) == before)
    assert "Z" not in [state(pid) for pid in before]


def test_it_ends_in_order_at_sigterm_and_is_unhealthy_without_a_server(container: Container) -> None:
    assert health(container) == 0
    (server,) = children(container.pid)
    workers = children(server)
    assert workers
    assert container.stop() == 0
    assert [pid for pid in (server, *workers) if Path(f"/proc/{pid}").exists()] == []
    assert "server stopped" in container.log.read_text()


def _lines(file: Path) -> list[str]:
    return [
        f"{_normal(name)}=={version}"
        for line in file.read_text().splitlines()
        for name, _, version in [line.partition("==")]
    ]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
