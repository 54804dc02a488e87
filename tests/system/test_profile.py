import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from sluice.gateway.cli.main import main
from sluice.gateway.deployment.stored_profiles import stored_entries
from sluice.models.profiles.file import (
    FigureSource,
    ModelProfile,
    ProfileEntry,
    model_hash,
    read_profile,
    write_profile,
)
from sluice.models.profiles.hardware import hardware_id
from sluice.models.profiles.measurement import Cell
from sluice.models.repository.scan import Repository
from sluice.mps.partitions.cpu import available_cores
from tests.support.gateway.server import gateway_server
from tests.support.models.onnx_models import save_fixed_batch, save_mlp, save_spin

ROOT = Path(__file__).parents[2]
ONE_CORE: dict[str, object] = {"partitions": [{"name": "only", "cores": [available_cores()[0]]}]}


class Done(NamedTuple):
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str


Profiling = Callable[..., Done]


@pytest.fixture
def profile(capsys: pytest.CaptureFixture[str]) -> Profiling:
    """Runs `sluice profile` with the arguments given."""

    def run(*arguments: object) -> Done:
        status = main(["profile", *map(str, arguments)])
        return Done(status, *capsys.readouterr())

    return run


def test_a_model_is_measured_and_its_profile_lies_beside_it(profile: Profiling, tmp_path: Path) -> None:
    save_spin(tmp_path / "spin" / "1" / "model.onnx", fixed_iters=100, row_iters=10)
    done = profile("--repository", tmp_path, "spin", "--partitions", "cpu1", "--batches", "8,1")
    assert done.status == 0, done.err
    assert "spin:1: cpu1: p50 " in done.out
    (entry,) = read_profile(tmp_path / "spin" / "1" / "profile.json").entries
    assert (entry.kind, entry.source, entry.fingerprint) == ("cpu1", FigureSource.MEASURED, hardware_id())
    assert entry.sha256 == model_hash(tmp_path / "spin" / "1" / "model.onnx")
    assert [cell.batch for cell in entry.cells] == [1, 8]
    assert all(5 <= cell.samples <= 1000 for cell in entry.cells)
    assert 50_000 < entry.cells[0].p50_ns < 100_000_000
    assert entry.load_ns is not None
    assert 100_000 < entry.load_ns < 10_000_000_000
    assert entry.memory_rest_bytes is not None
    # A session of its own for a file of 1 kB; what ONNX Runtime takes by itself does not count.
    assert 1 << 17 < entry.memory_rest_bytes < 200 << 20


def test_memory_grows_with_the_rows(profile: Profiling, tmp_path: Path) -> None:
    # The 50 000 outputs of a row take 200 kB, before the softmax and after it, and ONNX Runtime keeps some more.
    save_mlp(tmp_path / "wide.onnx", [2, 50_000])
    done = profile(tmp_path / "wide.onnx", "--partitions", "1", "--batches", "1,4,16,64")
    assert done.status == 0, done.err
    (entry,) = read_profile(tmp_path / "wide.profile.json").entries
    assert entry.memory_row_bytes is not None
    assert 200_000 <= entry.memory_row_bytes <= 1_600_000


def test_measuring_again_keeps_what_other_hardware_said(profile: Profiling, tmp_path: Path) -> None:
    model = save_fixed_batch(tmp_path / "fixed.onnx")
    stored = tmp_path / "fixed.profile.json"
    there, here = (
        ProfileEntry(
            fingerprint=hardware, kind="cpu1", source=FigureSource.MEASURED, sha256="00", cells=(Cell(1, 7, 8, 9, 5),)
        )
        for hardware in ("another machine", hardware_id())
    )
    write_profile(stored, ModelProfile(entries=(there, here)))
    assert profile(model, "--partitions", "cpu1").status == 0
    entries = {entry.fingerprint: entry for entry in read_profile(stored).entries}
    assert entries["another machine"] == there
    assert entries[hardware_id()].sha256 == model_hash(model)


def test_the_partitions_of_the_configuration_are_measured_as_they_are_served(
    profile: Profiling, tmp_path: Path
) -> None:
    x = {"name": "x", "datatype": "FP32", "shape": [2]}
    timed = {"inputs": [x], "outputs": [x | {"name": "y"}], "max_batch_size": 4, "latency_ms": {1: 2, 4: 3}}
    (tmp_path / "sleep.timed.json").write_text(json.dumps(timed))
    slow = {"name": "slow", "cores": [available_cores()[0]], "slowdown": 3}
    (tmp_path / "sluice.yaml").write_text(json.dumps({"partitions": [slow], "max_batch_size": 2}))
    done = profile(tmp_path / "sleep.timed.json", "--config", tmp_path / "sluice.yaml")
    assert done.status == 0, done.err
    (entry,) = read_profile(tmp_path / "sleep.profile.json").entries
    assert (entry.kind, [cell.batch for cell in entry.cells]) == ("cpu1/x3", [1, 2])
    assert entry.cells[0].p50_ns >= 6_000_000
    assert entry.cells[1].p50_ns >= 9_000_000


def test_figures_of_a_gpu_that_is_not_here_are_labelled_everywhere(profile: Profiling, tmp_path: Path) -> None:
    model = save_mlp(tmp_path / "mlp.onnx", [4, 3])
    done = profile(model, "--simulate", "resnet50", "--partitions", "mig-1g,mps-20", "--batches", "1,8,32")
    assert done.status == 0, done.err
    assert done.out.count("SIMULATED") == 2
    entries = read_profile(tmp_path / "mlp.profile.json").entries
    assert [(entry.kind, entry.fingerprint, entry.source) for entry in entries] == [
        ("mig-1g", "simulated", "simulated"),
        ("mps-20", "simulated", "simulated"),
    ]
    shown = profile("show", model)
    assert shown.status == 0, shown.err
    assert "mig-1g SIMULATED: computed by a formula" in shown.out
    assert "mps-20 SIMULATED: latency, ms" in shown.out
    assert "o mig-1g SIMULATED   x mps-20 SIMULATED" in shown.out


def test_export_and_import(profile: Profiling, tmp_path: Path) -> None:
    model = save_mlp(tmp_path / "mlp.onnx", [4, 3])
    assert profile(model, "--simulate", "bert", "--partitions", "mig-7g").status == 0
    stored = (tmp_path / "mlp.profile.json").read_bytes()
    assert profile("export", model, "--csv", tmp_path / "mlp.csv").status == 0
    (tmp_path / "mlp.profile.json").unlink()
    assert profile("import", model, "--csv", tmp_path / "mlp.csv").status == 0
    assert (tmp_path / "mlp.profile.json").read_bytes() == stored


def test_a_slower_kind_is_measured(profile: Profiling, tmp_path: Path) -> None:
    model = save_mlp(tmp_path / "mlp.onnx", [4, 3])
    done = profile(model, "--partitions", "cpu1/x3", "--batches", "1")
    assert done.status == 0, done.err
    assert "mlp:1: measuring on cpu1/x3" in done.out


@pytest.mark.parametrize("batches", ["0,3", "", "1,,2", "few"])
def test_batch_sizes_that_are_none(capsys: pytest.CaptureFixture[str], batches: str) -> None:
    with pytest.raises(SystemExit):
        main(["profile", "mlp.onnx", "--batches", batches])
    assert f"expected batch sizes of at least 1 such as 1,2,4, got '{batches}'" in capsys.readouterr().err


def test_what_is_stale_is_shown_as_such(profile: Profiling, tmp_path: Path) -> None:
    model = save_mlp(tmp_path / "mlp.onnx", [4, 3])
    assert profile(model, "--simulate", "bert", "--partitions", "mig-7g").status == 0
    save_mlp(model, [4, 5, 3])
    shown = profile("show", model)
    assert (shown.status, shown.out.count("[STALE, another model file]")) == (0, 1)
    assert "throughput" not in shown.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["measure"], "expected model files, or --repository DIR"),
        (["nothing.onnx"], "nothing.onnx: cannot be read: No such file or directory"),
        (
            ["mlp.onnx", "--partitions", "mig-1g"],
            "--partitions: mig-1g cannot be measured here, expected kinds cpu1 to",
        ),
        (["mlp.onnx", "--partitions", "cpu1/x0.5"], "expected a finite slowdown of at least 1, got 0.5"),
        (["mlp.onnx", "--partitions", "cpu512"], "--partitions: cpu512 has more than the"),
        (["mlp.onnx", "--batches", "128"], "mlp:1: --batches: 128 exceeds the model's largest batch, 64"),
        (["mlp.onnx", "--simulate", "bert"], "--simulate: expected --partitions with the kinds to compute"),
        (["mlp.onnx", "--simulate", "bert", "--partitions", "mps-20"], "model bert: cannot be simulated on mps-20"),
        (["show", "mlp.onnx"], "mlp.profile.json: there is no profile; `sluice profile` makes one"),
        (["show", "--repository", ".", "other"], "no model 'other'; there are none"),
        (["export", "--csv", "x.csv", "mlp.onnx"], "mlp.profile.json: there is no profile"),
    ],
)
def test_what_cannot_be_done_is_reported(
    profile: Profiling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: str
) -> None:
    save_mlp(tmp_path / "mlp.onnx", [4, 3])
    monkeypatch.chdir(tmp_path)
    done = profile(*arguments)
    assert done.status in (1, 2)
    assert done.out == ""
    assert expected in done.err


def test_the_command_by_itself(tmp_path: Path) -> None:
    model = save_mlp(tmp_path / "mlp.onnx", [4, 3])
    command = [
        sys.executable,
        "-m",
        "sluice.gateway.cli.main",
        "profile",
        str(model),
        "--partitions",
        "cpu1",
        "--batches",
        "1",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [entry.kind for entry in read_profile(tmp_path / "mlp.profile.json").entries] == ["cpu1"]


def test_a_server_serves_by_the_stored_profile_and_tells_how_far_it_is_off(profile: Profiling, tmp_path: Path) -> None:
    model = save_spin(tmp_path / "spin" / "1" / "model.onnx", fixed_iters=200, row_iters=1)
    assert profile("--repository", tmp_path, "--partitions", "cpu1", "--batches", "1,64").status == 0
    entry = stored_entries(Repository.scan(tmp_path).models["spin:1"], ["cpu1"])["cpu1"]
    # As if this machine had been so quick when it was measured that it never is again.
    quicker = tuple(
        Cell(cell.batch, cell.p50_ns // 200, cell.p90_ns // 200, cell.p99_ns // 200, cell.samples)
        for cell in entry.cells
    )
    fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
    write_profile(model.with_name("profile.json"), ModelProfile(entries=(ProfileEntry(**fields | {"cells": quicker}),)))
    body = json.dumps({"inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [1.0] * 64}]}).encode()
    with gateway_server(tmp_path, tmp_path, ONE_CORE) as server:
        for _ in range(50):
            assert server.request("POST", "/v2/models/spin/infer", body)[0] == 200
        _, _, text = server.request("GET", "/metrics")
        (line,) = [line for line in text.decode().splitlines() if line.startswith("sluice_latency_correction{")]
    assert line.startswith('sluice_latency_correction{kind="cpu1",model="spin:1"}')
    # Two batches in a row that were far off have set the median, which is corrected by a factor of 16 at most.
    assert float(line.split()[-1]) == 16


def test_a_server_with_a_stale_profile_measures_as_without_one(profile: Profiling, tmp_path: Path) -> None:
    model = save_mlp(tmp_path / "mlp.onnx", [4, 3])
    assert profile(model, "--partitions", "cpu1", "--batches", "1,64").status == 0
    save_mlp(model, [4, 5, 3])
    row = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}).encode()
    with gateway_server(model, tmp_path, ONE_CORE) as server:
        assert server.request("POST", "/v2/models/mlp/infer", row)[0] == 200
    assert "the profile is not used" in server.log.read_text()
    assert "it was measured with another model file" in server.log.read_text()
