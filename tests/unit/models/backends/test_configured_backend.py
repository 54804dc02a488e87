import json
from collections.abc import Mapping

import numpy as np
import pytest

from sluice.models.backends.configured import ReshapedBackend, RowByRowBackend, warm_up_runs, warm_up_shapes
from sluice.models.backends.first_runs import blank_batch
from sluice.models.errors import BackendFailed
from sluice.models.tensors.arrays import Array
from sluice.models.tensors.spec import DataType, TensorSpec
from sluice.models.triton_config.model_config import OutputConfig, Reshape, TritonModelConfig


class Echo:
    """Keeps what it was run with, and answers with it."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.inputs = self.outputs = (TensorSpec("x", DataType.FP32, shape),)
        self.provider, self.threads = "", 0
        self.given: list[Array] = []

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.given.append(inputs["x"])
        return dict(inputs)


def config(*warm_ups: dict[str, object]) -> str:
    tensor = {"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}
    return json.dumps({"max_batch_size": 8, "input": [tensor], "model_warmup": warm_ups})


def warm_up(**changes: object) -> dict[str, object]:
    given = {"data_type": "TYPE_FP32", "dims": [5], "zero_data": True}
    return {"name": "w", "batch_size": 4, "inputs": {"x": given | changes.pop("x", {})}} | changes  # type: ignore[operator]


def test_warm_up_runs_are_those_of_the_configuration() -> None:
    backend = Echo((-1, -1))
    random = warm_up(batch_size=1, x={"zero_data": False, "random_data": True})
    steps = list(warm_up_runs(backend, config(warm_up(count=2), random)))
    assert len(steps) == 3
    assert [given.shape for given in backend.given] == [(4, 5), (4, 5), (1, 5)]
    assert [bool(given.any()) for given in backend.given] == [False, False, True]


def test_variable_dimensions_are_warmed_and_timed_at_the_size_of_a_warm_up() -> None:
    shapes = warm_up_shapes(config(warm_up()))
    assert shapes == {"x": (5,)}
    assert blank_batch(Echo((-1,)).inputs, 2, shapes)["x"].shape == (2, 5)
    assert blank_batch(Echo((-1,)).inputs, 2)["x"].shape == (2, 1)


def test_without_a_configuration_there_is_no_warm_up() -> None:
    assert list(warm_up_runs(Echo((-1,)), "")) == []
    assert warm_up_shapes("") == {}


def test_an_output_of_another_size_cannot_be_reshaped() -> None:
    output = OutputConfig(name="x", data_type="TYPE_FP32", dims=(2, 2), reshape=Reshape((4,)))
    backend = ReshapedBackend(Echo((-1, 4)), TritonModelConfig(max_batch_size=8, output=(output,)))
    assert backend.outputs[0].shape == (-1, 2, 2)
    with pytest.raises(BackendFailed, match="tensor 'x': cannot reshape array of size 3"):
        backend.run({"x": np.zeros((1, 3), np.float32)})


def test_rows_are_run_one_by_one_and_joined() -> None:
    echo = Echo((1, 2))
    backend = RowByRowBackend(echo)
    assert (backend.inputs[0].shape, backend.outputs[0].shape) == ((-1, 2), (-1, 2))
    batch = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal(backend.run({"x": batch})["x"], batch)
    assert [given.shape for given in echo.given] == [(1, 2)] * 3


class Reused(Echo):
    """Answers with memory that its next run overwrites."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        memory = self.given[0] if self.given else np.empty_like(inputs["x"])
        memory[:] = inputs["x"]
        self.given = [memory]
        return {"x": memory}


def test_outputs_that_are_valid_until_the_next_run_are_kept() -> None:
    batch = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal(RowByRowBackend(Reused((1, 2))).run({"x": batch})["x"], batch)


class Repeating(Echo):
    """Answers a row with as many zeros as its first number is, or with as many rows."""

    def __init__(self, axis: int) -> None:
        super().__init__((1, 1))
        self._axis = axis

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"x": np.repeat(np.zeros((1, 1)), int(inputs["x"][0, 0]), self._axis)}


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        (0, r"output 'x' has shape \[2, 1\] for one row; expected 1 in front"),
        (1, r"output 'x' has shape \[1, 2\] for one row and \[1, 1\] for another one; send rows whose outputs differ"),
    ],
)
def test_rows_that_cannot_be_joined_are_refused(axis: int, message: str) -> None:
    with pytest.raises(BackendFailed, match=message):
        RowByRowBackend(Repeating(axis)).run({"x": np.array([[1.0], [2.0]])})
