"""Real workers prove their partitions: cores, memory, and what has changed them behind our back."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sluice.models.tensors.spec import DataType
from sluice.mps.ipc.messages import BatchFinished, BatchRefused, LoadResult, RunBatch
from sluice.mps.partitions.cpu import available_cores
from sluice.mps.partitions.isolation_report import CUDA, Evidence, isolation_violations
from sluice.mps.partitions.partition import CpuPartition, MigPartition, Partition
from sluice.mps.supervisor.worker_spec import WorkerSpec
from sluice.mps.worker.isolation_probe import probe_partition
from tests.support.gateway.processes import until
from tests.support.gateway.server import GatewayServer, gateway_server
from tests.support.gateway.workers import Gateway, in_loop, model, rows
from tests.support.models.onnx_models import save_identity, save_mlp

CORES = available_cores()
ABSENT_CORE = 1023
HARD_MEMORY_MB = 400
UUID = "MIG-5d1f7b7a-9c1d-4b52-8b2a-0123456789ab"
CONFIG = """
backend: "python" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
"""
STRAY = """
import os
import threading

os.sched_setaffinity(0, range(os.cpu_count()))

def infer(inputs):
    return {"y": inputs["x"]}
"""
"""As libraries do that place their own threads."""
AGENT = """
import threading

threading.Thread(target=threading.Event().wait, name="agent", daemon=True).start()
"""
"""As agents do that come with every process of a site: the thread is there before the worker is bound."""

needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="a thread has no other core to be on")


async def evidence_of(partition: Partition, *files: Path) -> Evidence:
    gateway = Gateway([WorkerSpec(partition, tuple(model(file) for file in files), 1 << 20)])
    gateway.supervisor.start()
    evidence: Evidence = (await gateway.next()).evidence
    await gateway.supervisor.drain()
    return evidence


@in_loop
async def test_a_worker_tells_its_cores_its_limit_and_what_runs_its_models(tmp_path: Path) -> None:
    partition = CpuPartition("cpu0", CORES[:1], hard_memory_mb=HARD_MEMORY_MB)
    evidence = await evidence_of(partition, save_mlp(tmp_path / "mlp.onnx", (8, 16, 3)))
    assert (evidence.cores, evidence.stray_threads) == (CORES[:1], ())
    assert evidence.data_limit_bytes == HARD_MEMORY_MB << 20
    assert evidence.providers == {"m:1": "CPUExecutionProvider"}
    assert evidence.threads == {"m:1": 1}
    assert isolation_violations(partition, evidence) == []


@needs_two_cores
@in_loop
async def test_a_session_has_a_thread_for_each_core_and_no_more(tmp_path: Path) -> None:
    mlp = save_mlp(tmp_path / "mlp.onnx", (8, 16, 3))
    found = [await evidence_of(CpuPartition("cpu0", CORES[:count]), mlp) for count in (1, 2)]
    assert [each.threads for each in found] == [{"m:1": 1}, {"m:1": 2}]
    assert found[1].thread_count == found[0].thread_count + 1


@in_loop
async def test_what_takes_more_than_the_wall_fails_alone_and_the_worker_goes_on(tmp_path: Path) -> None:
    wide = save_mlp(tmp_path / "wide.onnx", (8, 1_000_000))
    partition = CpuPartition("cpu0", CORES[:1], hard_memory_mb=HARD_MEMORY_MB)
    gateway = Gateway([WorkerSpec(partition, (model(wide, menu=(1,)),), 64 << 20)])
    gateway.supervisor.start()
    assert (await gateway.next()).models[0].error == ""
    answers = []
    for number, count in enumerate((1, 128, 1), 1):
        gateway.workers["cpu0"].send(RunBatch(number, "m:1", (gateway.place(rows(count)),)))
        answers.append(await gateway.next())
    assert [type(answer) for answer in answers] == [BatchFinished, BatchRefused, BatchFinished]
    assert "Failed to allocate memory" in answers[1].message
    await gateway.supervisor.drain()


def test_cores_that_the_kernel_does_not_grant_are_missed() -> None:
    """It says nothing where some of the cores can be had, as in a container with fewer of them."""
    partition = CpuPartition("cpu0", (CORES[0], ABSENT_CORE))
    reasons = isolation_violations(partition, probe_partition(partition))
    assert reasons == [f"the worker runs on cores {CORES[0]}, expected {CORES[0]}, {ABSENT_CORE}"]


class Proved(Gateway):
    """A gateway that keeps the evidence of models that were loaded later."""

    def model_loaded(self, partition: str, model: LoadResult) -> None:
        self.reports.put_nowait(model)


@pytest.fixture
def cpuset() -> Iterator[Path]:
    """A cgroup with the first core alone."""
    group = Path(f"/sys/fs/cgroup/cpuset/sluice-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no cgroups of version 1 that could be made")
    (group / "cpuset.mems").write_text("0")
    (group / "cpuset.cpus").write_text(str(CORES[0]))
    yield group
    until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


@needs_two_cores
@in_loop
async def test_a_container_that_moves_a_worker_to_other_cores_is_found_out(tmp_path: Path, cpuset: Path) -> None:
    mlp = save_mlp(tmp_path / "mlp.onnx", (8, 16, 3))
    partition = CpuPartition("cpu0", CORES[1:2])
    gateway = Proved([WorkerSpec(partition, (model(mlp),), 1 << 20, initial=())])
    gateway.supervisor.start()
    ready = await gateway.next()
    assert isolation_violations(partition, ready.evidence) == []
    (cpuset / "cgroup.procs").write_text(str(ready.pid))
    gateway.supervisor.load("cpu0", model(mlp))
    evidence = (await gateway.next()).evidence
    assert isolation_violations(partition, evidence) == [f"the worker runs on cores {CORES[0]}, expected {CORES[1]}"]
    await gateway.supervisor.drain()


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there may well be a GPU here")
@in_loop
async def test_a_gpu_that_is_not_there_is_proved_to_be_missing(tmp_path: Path) -> None:
    partition = MigPartition("mig0", UUID, "1g.10gb")
    evidence = await evidence_of(partition, save_mlp(tmp_path / "mlp.onnx", (8, 16, 3)))
    refusal, unseen = isolation_violations(partition, evidence)
    assert refusal.startswith("model m:1: ")
    assert CUDA in refusal
    assert unseen.startswith("CUDA does not report the worker's device: libcuda.so.1")


@pytest.fixture
def stray(tmp_path: Path) -> Path:
    """A repository with a model that leaves the cores of its partition."""
    repository = tmp_path / "models"
    save_identity(repository / "echo" / "1" / "model.onnx", DataType.FP32, [1])
    (repository / "stray" / "1").mkdir(parents=True)
    (repository / "stray" / "config.pbtxt").write_text(CONFIG)
    (repository / "stray" / "1" / "model.py").write_text(STRAY)
    return repository


def partitions() -> list[dict[str, object]]:
    return [{"name": "only", "cores": CORES[:1]}]


def reported(server: GatewayServer) -> dict[str, object]:
    (state,) = json.loads(server.request("GET", "/v2/sluice/partitions")[2])["partitions"]
    return {key: state[key] for key in ("enforcement", "reasons")}


def metric(server: GatewayServer) -> list[str]:
    lines = server.request("GET", "/metrics")[2].decode().splitlines()
    return [line for line in lines if line.startswith("sluice_partition_enforced{")]


def test_a_server_tells_that_its_partitions_are_enforced(tmp_path: Path) -> None:
    save_identity(tmp_path / "models" / "echo" / "1" / "model.onnx", DataType.FP32, [1])
    config = {"partitions": partitions(), "strict": True}
    with gateway_server(tmp_path / "models", tmp_path, config) as server:
        assert reported(server) == {"enforcement": "enforced", "reasons": []}
        assert metric(server) == ['sluice_partition_enforced{partition="only"} 1.0']
        doctor = [sys.executable, "-m", "sluice.gateway.cli.main", "doctor", "--url", f"http://{server.http_url}"]
        done = subprocess.run(doctor, capture_output=True, text=True, check=False)
        assert [line.split(" (")[0] for line in done.stdout.splitlines() if line.split()[1] == "server"] == [
            "ok    server     only: enforced"
        ]


@needs_two_cores
def test_a_model_that_leaves_its_cores_makes_its_partition_unenforced(stray: Path, tmp_path: Path) -> None:
    with gateway_server(stray, tmp_path, {"partitions": partitions()}, ["--log-format", "json"]) as server:
        state = reported(server)
        assert state["enforcement"] == "unenforced"
        (reason,) = msgspec.convert(state["reasons"], list[str])
        assert reason.endswith(f"may run on cores {', '.join(map(str, CORES))}, expected {CORES[0]}")
        assert metric(server) == ['sluice_partition_enforced{partition="only"} 0.0']
        logged = [json.loads(line) for line in server.log.read_text().splitlines()]
        assert [line["reason"] for line in logged if line["event"] == "partition unenforced"] == [reason]


@needs_two_cores
def test_a_model_that_is_loaded_later_is_found_too(stray: Path, tmp_path: Path) -> None:
    config: dict[str, object] = {"partitions": partitions(), "control": "explicit", "load_models": ["echo"]}
    with gateway_server(stray, tmp_path, config) as server:
        assert reported(server) == {"enforcement": "enforced", "reasons": []}
        assert server.request("POST", "/v2/repository/models/stray/load", b"{}")[0] == 200
        assert reported(server)["enforcement"] == "unenforced"
        assert metric(server) == ['sluice_partition_enforced{partition="only"} 0.0']


@needs_two_cores
def test_an_agent_that_was_there_before_a_worker_is_bound_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(AGENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    partition = CpuPartition("cpu0", CORES[:1])
    beside = asyncio.run(evidence_of(partition))
    assert isolation_violations(partition, beside) == []
    monkeypatch.delenv("PYTHONPATH")
    assert beside.thread_count == asyncio.run(evidence_of(partition)).thread_count + 1


@needs_two_cores
def test_a_strict_server_refuses_to_serve_and_says_why(stray: Path, tmp_path: Path) -> None:
    settings = tmp_path / "sluice.yaml"
    settings.write_text(json.dumps({"partitions": partitions(), "strict": True, "http_port": 0, "grpc_port": 0}))
    command = [
        sys.executable,
        "-m",
        "sluice.gateway.cli.main",
        "serve",
        "--repository",
        str(stray),
        "--config",
        str(settings),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("sluice: partition only is unenforced: thread ")
    assert last.endswith(f"may run on cores {', '.join(map(str, CORES))}, expected {CORES[0]}")
