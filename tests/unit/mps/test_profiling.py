"""The process that measures, and what it hands over."""

from pathlib import Path

import pytest

from models.errors import BackendFailed
from mps.cpu import default_partitions
from mps.profiling import measure_on, time_on
from tests.support.onnx_models import save_mlp

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


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_mlp(tmp_path / "model.onnx", [8, 8, 4])
    return tmp_path / "model.onnx"


@pytest.mark.usefixtures("noisy")
def test_what_a_library_prints_is_no_part_of_the_result(model: Path) -> None:
    (partition,) = default_partitions(1)
    table = time_on(partition, model, "onnxruntime", True, (1, 4))
    assert [rows for rows, _ in table.cells] == [1, 4]
    measurement = measure_on(partition, model, "onnxruntime", True, (1, 4))
    assert [cell.batch for cell in measurement.cells] == [1, 4]


@pytest.mark.usefixtures("noisy")
def test_the_reason_of_a_failure_is_the_model_and_not_what_was_printed_last(tmp_path: Path) -> None:
    (partition,) = default_partitions(1)
    torn = tmp_path / "torn.onnx"
    torn.write_bytes(b"not a model")
    with pytest.raises(BackendFailed, match=r"torn\.onnx: cannot be measured on \S+: .*torn\.onnx"):
        time_on(partition, torn, "onnxruntime", True, (1,))


def test_a_process_that_dies_is_told_by_what_it_said_last(model: Path) -> None:
    (partition,) = default_partitions(1)
    with pytest.raises(BackendFailed, match=r"cannot be measured on .*: ModuleNotFoundError: No module named"):
        time_on(partition, model, "absent", True, (1,))
