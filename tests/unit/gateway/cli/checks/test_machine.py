import io
import json
import locale
import os
from collections.abc import Iterator
from email.message import Message
from importlib.metadata import PathDistribution
from pathlib import Path
from urllib.response import addinfourl

import msgspec
import pytest

from sluice.gateway.cli.checks import machine as doctor
from sluice.gateway.cli.client import http as http_client
from sluice.gateway.cli.doctor import partition_findings
from sluice.gateway.cli.main import main
from sluice.gateway.partitions.inventory import Enforcement, PartitionStatus, RemoteSlot
from sluice.gateway.server.limits import Severity
from sluice.gateway.version import server_version
from sluice.mps.partitions.cpu import available_cores
from sluice.mps.partitions.partition import CpuPartition, MigPartition, MpsPartition
from tests.support.gpu.fake_nvml import FakeGpu, FakeNvml, installed

UUID = "5d1f7b7a-9c1d-4b52-8b2a-0123456789ab"
MIG = MigPartition("mig0", f"MIG-{UUID}", "2g.20gb")
MPS = MpsPartition("mps0", f"GPU-{UUID}", 50)
CORE = available_cores()[0]


@pytest.fixture
def gpu() -> Iterator[FakeGpu]:
    gpu = FakeGpu(mig=True)
    with installed(FakeNvml(gpu)):
        yield gpu


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml()
    fake.fail["nvmlInitWithFlags"] = 12
    monkeypatch.setattr("pynvml.nvmlLib", fake)
    monkeypatch.setattr("pynvml._nvmlGetFunctionPointer_cache", {})


def install(directory: Path, *names: str) -> list[PathDistribution]:
    for name in names:
        metadata = directory / f"{name.replace('-', '_')}-1.30.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Name: {name}\nVersion: 1.30.0\n")
    return [PathDistribution(each) for each in sorted(directory.iterdir())]


def test_the_version_and_the_build_of_the_core_are_reported() -> None:
    found = doctor.check_build()
    assert found.severity is Severity.OK
    compiled = os.environ.get("SLUICE_TEST_BUILD") == "compiled"
    assert found.text.startswith(f"Sluice {server_version()}, hot path {'compiled' if compiled else 'in pure Python'}")


def test_two_runtimes_in_one_place_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = install(tmp_path, "numpy", "onnxruntime", "onnxruntime-gpu")
    monkeypatch.setattr(doctor, "distributions", lambda: found)
    (finding,) = doctor.check_packages()
    assert (finding.severity, finding.text) == (
        Severity.WRONG,
        "onnxruntime 1.30.0, onnxruntime-gpu 1.30.0 are installed into the same directory; "
        "uninstall all of them and install one",
    )
    monkeypatch.setattr(doctor, "distributions", lambda: found[:2])
    assert [(each.severity, each.text) for each in doctor.check_packages()] == [(Severity.OK, "onnxruntime 1.30.0")]


def test_of_two_runtimes_in_two_places_the_first_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    found = [*install(tmp_path / "first", "onnxruntime-gpu"), *install(tmp_path / "second", "onnxruntime")]
    monkeypatch.setattr(doctor, "distributions", lambda: found)
    (finding,) = doctor.check_packages()
    assert (finding.severity, finding.text) == (Severity.OK, "onnxruntime-gpu 1.30.0")


def test_a_partition_of_a_gpu_needs_a_runtime_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sluice.models.backends.onnxruntime.available_providers", lambda: ("1.30.0", ("CPUExecutionProvider",))
    )
    assert [(each.severity, each.text) for each in doctor.check_providers([CpuPartition("a", (0,)), MIG])] == [
        (Severity.OK, "ONNX Runtime 1.30.0: CPUExecutionProvider"),
        (Severity.WRONG, "partition mig0 needs a GPU, but this ONNX Runtime has no CUDAExecutionProvider"),
    ]


@pytest.mark.usefixtures("no_driver")
def test_without_a_driver_only_partitions_of_gpus_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert [each.severity for each in doctor.check_drivers([CpuPartition("a", (0,))])] == [Severity.NOTE]
    missing, program = doctor.check_drivers([MPS])
    assert missing.severity is program.severity is Severity.WRONG
    assert missing.text.startswith("partition mps0 needs a GPU: no NVIDIA driver answers on this machine")
    assert program.text == "partition mps0 needs MPS, but nvidia-cuda-mps-control is not installed"


def test_gpus_are_listed(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    (finding,) = doctor.check_drivers([MIG])
    assert finding.severity is Severity.OK
    assert gpu.uuid in finding.text


def test_a_gpu_that_is_lost_is_wrong(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    gpu.lost = True
    (finding,) = doctor.check_drivers([])
    assert (finding.severity, finding.text) == (Severity.WRONG, "GPU 0: lost (NVML: GPU is lost)")


def test_a_server_tells_of_its_partitions_and_why_one_has_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [
        PartitionStatus(CpuPartition("a", (0,)), "cpu1", 4242, Enforcement.ENFORCED),
        PartitionStatus(CpuPartition("b", (1,)), "cpu1", 4243, Enforcement.UNENFORCED, ("it may run anywhere",)),
        PartitionStatus(CpuPartition("c", (2,)), "cpu1"),
        PartitionStatus(CpuPartition("d", (3,)), "cpu1", lost="the worker exited with status 1"),
        PartitionStatus(RemoteSlot("e"), "cpu1", lost="another gateway has it"),
        PartitionStatus(RemoteSlot("f"), "cpu1", lost="node n1: it is gone", url="10.0.0.5:9001"),
    ]
    body = msgspec.json.encode({"partitions": states})
    answer = addinfourl(io.BytesIO(body), Message(), "")
    monkeypatch.setattr(http_client, "_open_url", lambda server, message, timeout_s: answer)
    assert [
        (each.severity, each.text) for each in partition_findings(http_client.ServerAddress("http://127.0.0.1:8000"))
    ] == [
        (Severity.OK, "a: enforced (worker 4242)"),
        (Severity.WRONG, "b: unenforced; it may run anywhere (worker 4243)"),
        (Severity.NOTE, "c: unknown (no running worker)"),
        (Severity.WRONG, "d: unknown; the worker exited with status 1 (no running worker)"),
        (Severity.NOTE, "e: vacant; another gateway has it"),
        (Severity.WRONG, "f: unknown; node n1: it is gone (no running worker)"),
    ]


def test_a_partition_of_cores_is_tried_out() -> None:
    partition = CpuPartition("cpu0", (CORE,), hard_memory_mb=256)
    (finding,) = doctor.check_layout([partition])
    assert (finding.severity, finding.text) == (Severity.OK, f"cpu0: core {CORE}, 256 MiB at most: enforced")


@pytest.mark.usefixtures("no_driver")
def test_the_command_exits_with_1_when_something_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sluice.gateway.server.limits.cpu_quota", lambda: None)
    config = tmp_path / "sluice.yaml"
    config.write_text(json.dumps({"partitions": [{"name": "a", "cores": [CORE]}]}))
    assert main(["doctor", "--config", str(config), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"]
    assert {"part": "partitions", "verdict": "ok", "text": f"a: core {CORE}: enforced"} in printed["findings"]
    config.write_text(json.dumps({"partitions": [{"name": "a", "cores": [CORE], "hard_memory_mb": 1e9}]}))
    assert main(["doctor", "--config", str(config)]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(
        "wrong  partitions  host: 1000000000 MiB of memory are requested by hard_memory_mb (1000000000 MiB for a), "
    )


def test_a_server_that_is_not_there_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", "http://127.0.0.1:1"]) == 2
    assert capsys.readouterr().err.startswith("sluice: http://127.0.0.1:1: cannot be reached: ")


@pytest.mark.parametrize(("name", "severity"), [("C", Severity.OK), ("xx_XX.UTF-8", Severity.NOTE)])
def test_the_locale_of_text_is_looked_for_and_nothing_changes(
    monkeypatch: pytest.MonkeyPatch, name: str, severity: Severity
) -> None:
    monkeypatch.setattr("sluice.models.backends.onnxruntime.TEXT_LOCALE", name)
    before = locale.setlocale(locale.LC_ALL)
    (finding,) = doctor.check_locale()
    assert (finding.part, finding.severity) == ("locale", severity)
    assert finding.text.startswith(name)
    assert locale.setlocale(locale.LC_ALL) == before
