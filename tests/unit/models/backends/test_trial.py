"""Trial runs decide about models whose file does not say whether they can be batched."""

from pathlib import Path

import onnx
import pytest
from onnx import helper

from sluice.models.backends import trial
from sluice.models.backends.trial import SIZES, TrialOrder, TrialRun, judged, tried
from sluice.models.tensors.spec import DataType, TensorSpec
from sluice.models.triton_config.file_tensors import FileTensors
from sluice.models.triton_config.onnx_file import read_tensors
from tests.support.models.onnx_models import save_external, save_model, value

WHY = "the first dimensions have different names: a, b; set max_batch_size if it is the rows"
FILE = FileTensors(
    (TensorSpec("x", DataType.FP32, (-1, 4)), TensorSpec("b", DataType.FP32, (-1,))),
    (TensorSpec("y", DataType.FP32, (1, 3)), TensorSpec("z", DataType.FP32, ())),
    False,
    "onnxruntime_onnx",
    no_batches=WHY,
    needs_trial=True,
    unranked=frozenset({"z"}),
)
FAILED = TrialRun(error="broken")


def runs(*shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> list[TrialRun]:
    return [TrialRun({"y": y, "z": z}) for y, z in shapes]


def test_outputs_with_the_rows_of_the_inputs_make_a_model_batchable() -> None:
    found = judged(FILE, [*runs(((1, 3), (1, 7)), ((2, 3), (2, 7)), ((3, 3), (3, 7))), FAILED])
    assert (found.batchable, found.no_batches, found.unranked) == (True, "", frozenset())
    assert [tensor.shape for tensor in found.outputs] == [(-1, 3), (-1, -1)]


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ([*runs(((1, 3), (1,)), ((2, 3), (1,)), ((3, 3), (1,))), FAILED], "output 'z' has the shape [1] for 2 rows"),
        ([*runs(((1, 3), ()), ((2, 3), (2,)), ((3, 3), (3,))), FAILED], "output 'z' has the shape [] for a row; ex"),
        ([*runs(((1, 1), (1,)), ((2, 2), (2,)), ((3, 3), (3,))), FAILED], "output 'y' has the number of rows behind"),
        (runs(*(((n, 3), (n,)) for n in (1, 2, 3, 3))), "inputs 'x' and 'b' may have different numbers of rows; set"),
    ],
)
def test_other_models_are_not_batched_and_say_why(seen: list[TrialRun], reason: str) -> None:
    found = judged(FILE, seen)
    assert not found.batchable
    assert found.no_batches.startswith(reason)
    assert found.outputs[0].shape == (1, 3)


def test_a_model_that_cannot_be_tried_stays_as_its_file_says() -> None:
    found = judged(FILE, [TrialRun({"y": (1, 3), "z": (1,)}), FAILED, FAILED, FAILED])
    assert (found.batchable, found.unranked, found.outputs) == (False, FILE.unranked, FILE.outputs)
    assert found.no_batches == f"{WHY} (a trial run of 2 rows failed: broken)"


def test_a_file_is_tried_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = helper.make_node("Strange", ["x"], ["y"])
    path = save_model(
        tmp_path / "m.onnx", [node], [value("x", DataType.FP32, ["a"])], [value("y", DataType.FP32, ["b"])]
    )
    found = tried(read_tensors(path), path)
    assert not found.batchable
    assert "(a trial run of 1 row failed: " in found.no_batches
    assert "Strange" in found.no_batches
    monkeypatch.setattr(trial, "TRIAL_TIMEOUT_S", 0)
    assert "it took longer than 0 s" in tried(read_tensors(path), path).no_batches


def test_the_same_files_are_tried_once_and_changed_ones_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_external(tmp_path / "store" / "model.onnx", rows=("a", "b"))
    link = tmp_path / "link"
    link.symlink_to("store")
    started: list[str] = []

    def run(order: TrialOrder) -> list[TrialRun]:
        started.append(order.path)
        return [TrialRun({"y": (rows, 4)}) for rows in SIZES]

    monkeypatch.setattr(trial, "_run", run)
    paths = [directory / "model.onnx" for directory in (tmp_path / "store", link)]
    for path in paths:
        assert tried(read_tensors(path), path).batchable
    assert started == [str(paths[0])]
    data = tmp_path / "store" / "model.onnx_data"
    data.write_bytes(bytes(data.stat().st_size))
    for path in paths:
        assert tried(read_tensors(path), path, {"x": (4,)}).batchable
        assert tried(read_tensors(path), path).batchable
    assert len(started) == 3


@pytest.mark.parametrize(
    ("node", "batchable"),
    [
        (helper.make_node("Softmax", ["x"], ["y"], axis=0), False),
        (helper.make_node("Softmax", ["x"], ["y"], axis=1), True),
        (helper.make_node("RandomNormalLike", ["x"], ["y"]), True),  # random: it shows nothing
        (helper.make_node("Log", ["x"], ["y"]), True),  # no numbers for some inputs
    ],
)
def test_rows_that_change_each_other_are_not_batched(tmp_path: Path, node: onnx.NodeProto, batchable: bool) -> None:
    ends = [value("x", DataType.FP32, [None, 4])], [value("y", DataType.FP32, [None, 4])]
    path = save_model(tmp_path / "m.onnx", [node], *ends)
    found = tried(read_tensors(path), path)
    assert found.batchable == batchable
    assert ("depends on the other rows" in found.no_batches) != batchable
