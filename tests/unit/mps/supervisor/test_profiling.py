"""A worker that measures, and what it hands over."""

from pathlib import Path

import pytest

from sluice.models.errors import BackendFailed, PartitionError
from sluice.mps.ipc.messages import ModelFile
from sluice.mps.partitions.cpu import available_cores, default_partitions
from sluice.mps.partitions.isolation_report import isolation_violations
from sluice.mps.partitions.partition import CpuPartition, MpsPartition, ShareMode
from sluice.mps.supervisor import profiling
from sluice.mps.supervisor.profiling import as_measured, measure_on, time_on
from tests.support.models.onnx_models import save_mlp

NOISE = """
import atexit, os, sys
def say():
    print('{"type": "failure", "reason": "none of this counts"}', flush=True)
    os.write(1, b"written past Python" * 10_000)
    print("a warning", file=sys.stderr, flush=True)
say()
atexit.register(say)
"""


@pytest.fixture
def noisy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python process that is started prints, at its beginning and at its end."""
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise" / "sitecustomize.py").write_text(NOISE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "noise"))


def file(path: Path, *menu: int, backend: str = "onnxruntime") -> ModelFile:
    return ModelFile("m:1", str(path), backend, menu, batchable=True)


@pytest.mark.usefixtures("noisy")
def test_what_a_library_prints_is_no_part_of_the_result(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = save_mlp(tmp_path / "model.onnx", [8, 8, 4])
    (partition,) = default_partitions(1)
    table = time_on(partition, file(model, 1, 4))
    assert [rows for rows, _ in table.cells] == [1, 4]
    measured = measure_on(partition, file(model, 1, 4))
    assert measured.measurement is not None
    assert [cell.batch for cell in measured.measurement.cells] == [1, 4]
    assert isolation_violations(partition, measured.evidence) == []
    assert capfd.readouterr().out == ""


def test_the_reason_of_a_failure_is_the_model(tmp_path: Path) -> None:
    (partition,) = default_partitions(1)
    torn = tmp_path / "torn.onnx"
    torn.write_bytes(b"not a model")
    for measure in (time_on, measure_on):
        with pytest.raises(BackendFailed, match=r"torn\.onnx: cannot be measured on \S+: .*torn\.onnx"):
            measure(partition, file(torn, 1))
    with pytest.raises(
        BackendFailed, match=r"cannot be measured on .*: No module named 'sluice\.models\.backends\.absent'"
    ):
        time_on(partition, file(torn, 1, backend="absent"))


def test_a_worker_that_does_not_start_is_reported_otherwise_than_a_model_that_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_mlp(tmp_path / "model.onnx", [8, 8, 4])
    (partition,) = default_partitions(1)
    monkeypatch.setattr(profiling, "READY_S", 0.0)
    with pytest.raises(BackendFailed, match=r"model\.onnx: cannot .*: its worker is not ready within 0 s$"):
        measure_on(partition, file(model, 1))
    monkeypatch.setattr(profiling, "TIMEOUT_S", 0.0)
    with pytest.raises(BackendFailed, match="it takes more than 900 s; name fewer batch sizes"):
        time_on(partition, file(model, 1))


def test_a_model_is_measured_within_the_hard_memory_limit_of_its_partition(tmp_path: Path) -> None:
    # 1000 rows have outputs of 200 MB, and ONNX Runtime has them twice.
    model = save_mlp(tmp_path / "wide.onnx", [2, 50_000])
    partition = CpuPartition("small", available_cores()[:1], hard_memory_mb=300)
    measured = measure_on(partition, file(model, 1, 1000), strict=True)
    assert measured.measurement is not None
    assert [cell.batch for cell in measured.measurement.cells] == [1]
    assert measured.measurement.no_memory_batch == 1000
    assert measured.evidence.data_limit_bytes == 300 << 20


def test_a_partition_that_cannot_be_had_is_reported(tmp_path: Path) -> None:
    model = save_mlp(tmp_path / "model.onnx", [8, 8, 4])
    with pytest.raises(PartitionError, match="core 999 is not available"):
        measure_on(CpuPartition("far", (999,)), file(model, 1))


def test_an_elastic_share_is_measured_as_what_it_is_promised() -> None:
    elastic = MpsPartition("half", "GPU-1", 50, mode=ShareMode.ELASTIC)
    assert as_measured(elastic) == MpsPartition("half", "GPU-1", 50)
    for mode in (ShareMode.HARD, ShareMode.STATIC, ShareMode.UNCAPPED):
        share = MpsPartition("half", "GPU-1", 50, mode=mode)
        assert as_measured(share) is share
