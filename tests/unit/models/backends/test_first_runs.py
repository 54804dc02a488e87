"""A model keeps its word in its first runs, or is not loaded."""

from collections.abc import Mapping

import numpy as np
import pytest

from sluice.models.backends.first_runs import check_outputs, fillings
from sluice.models.errors import BackendFailed
from sluice.models.measuring.quick import measure_table, run_to_end, warm_up_steps
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.tensors.arrays import Array
from sluice.models.tensors.spec import DataType, TensorSpec

Y = TensorSpec("y", DataType.FP32, (3,))


@pytest.mark.parametrize(
    ("tensor", "array", "rows"),
    [
        (Y, np.zeros((2, 3), np.float32), 2),
        (Y, np.zeros(3, np.float32), None),
        (TensorSpec("y", DataType.FP32, (-1, 3)), np.zeros((2, 5, 3), np.float32), 2),
        (TensorSpec("y", DataType.BF16, ()), np.zeros(2, np.uint16), 2),
        (TensorSpec("y", DataType.BYTES, ()), np.array(["a", "b"], np.object_), 2),
        (TensorSpec("y", DataType.BYTES, ()), np.array(["a", "b"]), 2),
    ],
)
def test_outputs_as_declared_pass(tensor: TensorSpec, array: Array, rows: int | None) -> None:
    check_outputs({"y": array, "undeclared": np.zeros(9)}, [tensor], rows)


@pytest.mark.parametrize(
    ("outputs", "rows", "message"),
    [
        ({}, 2, "output 'y' is missing"),
        ({"y": np.zeros((2, 3))}, 2, "output 'y': expected FP32, got FP64"),
        ({"y": np.zeros((1, 3), np.float32)}, 2, "output 'y' has shape [1, 3], expected 2 in front, the rows of the"),
        ({"y": np.float32(1)}, 2, "output 'y' has shape [], expected 2 in front, the rows of the batch; set max_batch"),
        ({"y": np.zeros((2, 4), np.float32)}, 2, "output 'y' has shape [2, 4], expected [3] after the rows as the mod"),
        ({"y": np.zeros((1, 3), np.float32)}, None, "output 'y' has shape [1, 3], expected [3] as the model declares;"),
    ],
)
def test_others_do_not(outputs: Mapping[str, Array], rows: int | None, message: str) -> None:
    with pytest.raises(BackendFailed) as refused:
        check_outputs(outputs, [Y], rows)
    assert str(refused.value).startswith(message)


class Forgetful:
    """A backend that drops rows beyond the third."""

    inputs = outputs = (TensorSpec("y", DataType.FP32, (-1,)),)
    provider, threads = "", 0

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": inputs["y"][:3]}


def test_the_size_at_which_a_model_breaks_its_word_is_named() -> None:
    refused = r"^a batch of 4 rows: output 'y' has shape \[3\], expected 4 in front, "
    with pytest.raises(BackendFailed, match=refused):
        measure_table(Forgetful(), True, (1, 2, 4, 8))
    with pytest.raises(BackendFailed, match=refused):
        run_to_end(warm_up_steps(Forgetful(), True, (1, 2, 4, 8), LatencyTable.from_ms({1: 1})))
    with pytest.raises(BackendFailed, match=r"^output 'y' has shape \[1\], expected \[\] as the model declares"):
        measure_table(Scalar(), False, (1,))


class Scalar:
    """A backend without batches whose output has one dimension too many."""

    inputs = outputs = (TensorSpec("y", DataType.FP32, ()),)
    provider, threads = "", 0

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": inputs["y"].reshape(1)}


class Picky:
    """A backend that takes images of at least 30 pixels a side, and words that are numbers."""

    inputs = (TensorSpec("image", DataType.FP32, (-1, 3, -1, -1)), TensorSpec("words", DataType.BYTES, (-1, 2)))
    outputs = (TensorSpec("y", DataType.FP32, (-1,)),)
    provider, threads = "", 0

    def __init__(self, least: int = 30) -> None:
        self._least = least
        self.seen: list[tuple[int, ...]] = []

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.seen.append(inputs["image"].shape)
        if inputs["image"].shape[-1] < self._least:
            raise BackendFailed("too small")
        if b"" in inputs["words"]:
            raise BackendFailed("no number")
        return {"y": inputs["words"].astype(np.float32).sum(1)}


def test_a_model_that_needs_larger_inputs_is_run_on_such() -> None:
    backend = Picky()
    measure_table(backend, True, (1, 2), repeats=1)
    assert backend.seen[:4] == [(1, 3, 1, 1), (1, 3, 1, 1), (1, 3, 8, 8), (1, 3, 32, 32)]
    assert {shape[1:] for shape in backend.seen[4:]} == {(3, 32, 32)}


def test_sizes_that_are_given_are_not_changed() -> None:
    backend = Picky()
    measure_table(backend, True, (1,), repeats=1, shapes={"image": (3, 40, 40)})
    assert {shape[1:] for shape in backend.seen} == {(3, 40, 40)}


def test_a_model_that_takes_none_of_them_fails_with_its_first_error() -> None:
    expected = "^a batch of 1 row: too small; the model was run on zeros of 6 kinds: give typical sizes of its inputs "
    with pytest.raises(BackendFailed, match=expected):
        measure_table(Picky(1000), True, (1, 2))


def test_inputs_are_not_made_too_large() -> None:
    cube = TensorSpec("x", DataType.FP32, (-1, -1, -1))
    assert [filling.size for filling in fillings([cube], None)] == [8, 32]
    assert list(fillings([Y], None)) == []
