"""Models are measured on shares of GPUs as they are served there: on the fakes of MPS, CUDA and NVML."""

import json
import os
from pathlib import Path

import pytest

from sluice.gateway.cli.main import main
from sluice.gateway.deployment.stored_profiles import stored_entries, stored_tables
from sluice.models.profiles.file import ProfileEntry, read_profile
from sluice.models.repository.scan import Repository
from sluice.mps.daemon.daemon import MpsDaemon
from sluice.mps.daemon.processes import mps_processes
from sluice.mps.isolation.mps_environment import pipe_directory
from sluice.mps.partitions.cpu import available_cores
from tests.support.gateway.processes import until
from tests.support.gpu import fake_gpu, fake_mps
from tests.support.gpu.fake_mps import OWN_GPU as GPU

MIG = "MIG-74d43ed3-cdf7-e667-3644-0000000000fd"
SHARE = {"kind": "mps", "name": "share", "uuid": GPU, "share_percent": 25, "memory_mb": 2048}
# Takes 100 MiB of the device when it is loaded, and 4 for each row of the largest batch so far.
MODEL = """
import json, os
from pathlib import Path
TAKEN = Path(os.environ.get("FAKE_GPU_TAKEN", Path(__file__).parent), os.environ.get("CUDA_VISIBLE_DEVICES", "taken"))
most = 0
def load(config):
    seen = {name: value for name, value in os.environ.items() if name.startswith("CUDA_")}
    Path(__file__).with_name("seen.json").write_text(json.dumps(seen))
def infer(inputs):
    global most
    if len(inputs["x"]) > most:
        most = len(inputs["x"])
        TAKEN.write_text(str(100 + 4 * most))
    return {"y": inputs["x"]}
"""
CONFIG = """
backend: "python" max_batch_size: 4
input [{ name: "x" data_type: TYPE_FP32 dims: [2] }] output [{ name: "y" data_type: TYPE_FP32 dims: [2] }]
"""

pytestmark = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there may well be an MPS of its own here")


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a model in Python; the fake MPS is on the PATH."""
    fake_mps.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    version = tmp_path / "models" / "taker" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    return tmp_path / "models"


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers see a GPU."""
    for name, value in fake_gpu.environment(tmp_path / "site").items():
        monkeypatch.setenv(name, value)


def profile(models: Path, *partitions: object, strict: bool = False, batches: str = "1") -> int:
    """The status of `sluice profile` with a configuration of these partitions."""
    config = models.parent / "sluice.yaml"
    config.write_text(json.dumps({"partitions": partitions, "strict": strict}))
    return main(["profile", "--repository", str(models), "--config", str(config), "--batches", batches])


def entries(models: Path) -> dict[str, ProfileEntry]:
    path = models / "taker" / "1" / "profile.json"
    return {entry.kind: entry for entry in read_profile(path).entries} if path.exists() else {}


@pytest.mark.usefixtures("device")
def test_every_kind_of_partition_is_measured_as_it_is_served(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cores = {"name": "cores", "cores": available_cores()[:1], "hard_memory_mb": 1024}
    mig = {"kind": "mig", "name": "slice", "uuid": MIG, "profile": "2g.20gb"}
    assert profile(models, cores, mig, SHARE, strict=True, batches="1,4") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert f"taker:1: measuring on mig-2g.20gb (slice: 2g.20gb {MIG}" in out
    assert f"taker:1: measuring on mps-25 (share: 25 % (hard) of {GPU}" in out
    found = entries(models)
    assert found.keys() == {"cpu1", "mig-2g.20gb", "mps-25"}
    for entry in found.values():
        assert (entry.label, entry.unenforced) == (entry.kind, ())
        assert [cell.batch for cell in entry.cells] == [1, 4]
    for kind in ("mig-2g.20gb", "mps-25"):
        assert (found[kind].memory_rest_bytes, found[kind].memory_row_bytes) == (100 << 20, 4 << 20)
    seen = json.loads((models / "taker" / "1" / "seen.json").read_text())
    assert seen == {
        "CUDA_VISIBLE_DEVICES": GPU,
        "CUDA_MPS_PIPE_DIRECTORY": str(pipe_directory(GPU)),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M",
    }
    # A process that lists the daemons of this machine may still ask this one.
    until(lambda: mps_processes(pipe_directory(GPU)) == ())


def test_what_was_not_enforced_is_said_and_taken_by_no_server(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile(models, SHARE) == 0
    reason = "CUDA does not report the worker's device: libcuda.so.1"
    out = capsys.readouterr().out
    assert "taker:1: mps-25 UNENFORCED: p50 " in out
    assert f"warning: mps-25 UNENFORCED: the partition did not hold: {reason}" in out
    (entry,) = entries(models).values()
    assert entry.unenforced[0].startswith(reason)
    assert entry.memory_rest_bytes is None
    model = Repository.scan(models).models["taker:1"]
    assert stored_tables(model, stored_entries(model, ["mps-25"])) == {}
    assert main(["profile", "show", "--repository", str(models)]) == 0
    assert f"mps-25 UNENFORCED: on {entry.fingerprint}" in capsys.readouterr().out


def test_with_strict_it_is_refused(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile(models, SHARE, strict=True) == 1
    assert "sluice: taker:1: partition share is not enforced: CUDA does not report" in capsys.readouterr().err
    assert entries(models) == {}


@pytest.mark.usefixtures("device")
def test_the_daemon_of_a_server_is_used(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = MpsDaemon(GPU)
    daemon.start()
    try:
        assert profile(models, SHARE, strict=True) == 0
        assert f"sluice: the MPS daemon of {GPU} is run by another process" in capsys.readouterr().err
        assert entries(models).keys() == {"mps-25"}
        assert daemon.pid is not None
    finally:
        daemon.stop()
