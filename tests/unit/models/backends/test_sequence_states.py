import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.models.backends.sequence_states import SequenceStates, sequence_states
from sluice.models.errors import BackendFailed, SequencesLost
from sluice.models.sequence_batching import SequenceRow, SequenceStep
from sluice.models.tensors.arrays import Array
from sluice.models.tensors.spec import TensorSpec
from sluice.models.triton_config.pbtxt import decode_config, encode_config

TENSORS = "input { name: 'x' data_type: TYPE_INT32 dims: 1 } output { name: 'y' data_type: TYPE_INT32 dims: 1 }"
CONTROLS = """
control_input { name: 'start' control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ -1, 1 ] } }
control_input { name: 'end' control { kind: CONTROL_SEQUENCE_END bool_false_true: [ false, true ] } }
control_input { name: 'ready' control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
"""
SUM = "state { input_name: 'sum' output_name: 'new' data_type: TYPE_INT32 dims: 1 %s }"


class Recorded:
    """Keeps what it is given, and answers by `answer`."""

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    provider, threads = "", 0

    def __init__(self) -> None:
        self.given: dict[str, Array] = {}
        self.error: BackendFailed | None = None

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.given = dict(inputs)
        if self.error is not None:
            raise self.error
        total = np.asarray(inputs["x"], np.int32) + np.asarray(inputs.get("sum", 0), np.int32)
        return {"y": total, "new": total}


def states(batching: str, tmp_path: Path, rows: int = 4) -> SequenceStates:
    text = f"max_batch_size: {rows} sequence_batching {{ {batching} }} {TENSORS}"
    made = sequence_states(encode_config(decode_config(text, "")), str(tmp_path / "m" / "1" / "model.onnx"))
    assert made is not None
    return made


def row(slot: int, id: int | str = 7, *, start: bool = False, end: bool = False) -> SequenceRow:
    return SequenceRow(slot, SequenceStep(id, start, end))


def x(*values: int) -> dict[str, Array]:
    return {"x": np.array([[value] for value in values], np.int32)}


def test_models_without_sequences_have_no_states() -> None:
    assert sequence_states("", "m.onnx") is None
    assert sequence_states(encode_config(decode_config(TENSORS, "")), "m.onnx") is None


def test_the_direct_strategy_puts_each_row_in_its_slot_and_says_which_rows_are_ready(tmp_path: Path) -> None:
    backend = Recorded()
    kept = states(CONTROLS, tmp_path)
    kept.run(backend, x(1), [row(1, 8, start=True)])
    outputs = kept.run(backend, x(5, 6), [row(3, start=True), row(1, 8, end=True)])
    assert backend.given["x"].tolist() == [[0], [6], [0], [5]]
    assert backend.given["start"].tolist() == [[-1], [-1], [-1], [1]]
    assert backend.given["start"].dtype == np.float32
    assert backend.given["end"].tolist() == [[False], [True], [False], [False]]
    assert backend.given["ready"].tolist() == [[0], [1], [0], [1]]
    assert outputs.keys() == {"y"}
    assert outputs["y"].tolist() == [[5], [6]]


def test_the_oldest_strategy_has_rows_without_gaps(tmp_path: Path) -> None:
    backend = Recorded()
    kept = states(f"{CONTROLS} oldest {{ max_candidate_sequences: 9 }}", tmp_path)
    kept.run(backend, x(5, 6), [row(8, start=True), row(2, start=True)])
    assert backend.given["x"].tolist() == [[5], [6]]
    assert backend.given["ready"].tolist() == [[1], [1]]


@pytest.mark.parametrize(
    ("data_type", "id", "given"),
    [
        ("TYPE_UINT64", (1 << 64) - 1, (1 << 64) - 1),
        ("TYPE_INT64", (1 << 64) - 1, -1),
        ("TYPE_INT32", (1 << 32) + 5, 5),
        ("TYPE_UINT32", (1 << 32) + 5, 5),
        ("TYPE_STRING", "abc", b"abc"),
    ],
)
def test_the_id_of_a_sequence_is_an_input(data_type: str, id: int | str, given: object, tmp_path: Path) -> None:
    backend = Recorded()
    text = f"control_input {{ name: 'id' control {{ kind: CONTROL_SEQUENCE_CORRID data_type: {data_type} }} }}"
    states(text, tmp_path).run(backend, x(1), [row(0, id, start=True)])
    assert backend.given["id"].tolist() == [[given]]


def test_what_a_run_writes_the_next_one_of_the_sequence_reads(tmp_path: Path) -> None:
    kept, backend = states(SUM % "", tmp_path), Recorded()
    assert kept.run(backend, x(1, 10), [row(0, 1, start=True), row(1, 2, start=True)])["y"].tolist() == [[1], [10]]
    assert kept.run(backend, x(20, 2), [row(1, 2), row(0, 1)])["y"].tolist() == [[30], [3]]
    assert kept.run(backend, x(5), [row(1, 3, start=True)])["y"].tolist() == [[5]], "a slot starts afresh"


def test_a_failed_run_leaves_the_states_as_they_are(tmp_path: Path) -> None:
    kept, backend = states(SUM % "", tmp_path), Recorded()
    kept.run(backend, x(1), [row(0, start=True)])
    backend.error = BackendFailed("it fails")
    with pytest.raises(BackendFailed, match="it fails"):
        kept.run(backend, x(100), [row(0)])
    backend.error = None
    assert kept.run(backend, x(2), [row(0)])["y"].tolist() == [[3]]


def test_no_sequence_goes_on_when_the_states_are_lost(tmp_path: Path) -> None:
    kept, backend = states("", tmp_path), Recorded()
    kept.run(backend, x(1, 2), [row(0, 1, start=True), row(1, 2, start=True)])
    kept.clear()
    with pytest.raises(SequencesLost, match="the state of sequence 2 is gone; start the sequence again"):
        kept.run(backend, x(4), [row(1, 2)])
    assert kept.run(backend, x(5), [row(1, 2, start=True)])["y"].tolist() == [[5]]


def test_sequences_begin_with_the_initial_state(tmp_path: Path) -> None:
    initial = "initial_state { name: 'i' data_type: TYPE_INT32 dims: 1 data_file: 'begin' }"
    (tmp_path / "m" / "initial_state").mkdir(parents=True)
    (tmp_path / "m" / "initial_state" / "begin").write_bytes(np.int32(100).tobytes())
    kept = states(SUM % initial, tmp_path)
    assert kept.run(Recorded(), x(1), [row(0, start=True)])["y"].tolist() == [[101]]


@pytest.mark.parametrize(
    ("make", "reason"), [(os.mkfifo, "expected a file, got a FIFO"), (os.path.exists, "No such file")]
)
def test_an_initial_state_that_is_no_file_is_named(tmp_path: Path, make: Callable[[Path], Any], reason: str) -> None:
    initial = "initial_state { name: 'i' data_type: TYPE_INT32 dims: 1 data_file: 'begin' }"
    (tmp_path / "m" / "initial_state").mkdir(parents=True)
    make(tmp_path / "m" / "initial_state" / "begin")
    with pytest.raises(BackendFailed, match=f"the initial state cannot be read: .*/begin: .*{reason}"):
        states(SUM % initial, tmp_path)


def test_a_file_that_is_too_short_for_an_initial_state_is_named(tmp_path: Path) -> None:
    initial = "initial_state { name: 'i' data_type: TYPE_INT32 dims: 1 data_file: 'begin' }"
    (tmp_path / "m" / "initial_state").mkdir(parents=True)
    (tmp_path / "m" / "initial_state" / "begin").write_bytes(b"\0")
    with pytest.raises(BackendFailed, match="begin: the initial state takes 4 bytes, but the file has only 1"):
        states(SUM % initial, tmp_path)


def test_a_model_without_a_batch_dimension_has_its_state_as_it_is(tmp_path: Path) -> None:
    kept, backend = states(f"{CONTROLS} {SUM % ''}", tmp_path, rows=0), Recorded()
    assert kept.run(backend, {"x": np.array([1], np.int32)}, [row(0, start=True)])["y"].tolist() == [1]
    assert backend.given["start"].tolist() == [1]
    assert kept.run(backend, {"x": np.array([2], np.int32)}, [row(0)])["y"].tolist() == [3]


class Growing(Recorded):
    """A state that has one element more after each run; y is how many there were."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        before = inputs["sum"]
        made = np.full((before.shape[0], 1), before.shape[1], np.int32)
        return {"y": made, "new": np.concatenate([before, made], axis=1)}


def test_sequences_whose_states_have_different_shapes_run_apart(tmp_path: Path) -> None:
    kept = states("state { input_name: 'sum' output_name: 'new' data_type: TYPE_INT32 dims: -1 }", tmp_path)
    kept.run(Growing(), x(0), [row(0, 1, start=True)])
    kept.run(Growing(), x(0), [row(0, 1)])
    assert kept.run(Growing(), x(0, 0), [row(1, 2, start=True), row(0, 1)])["y"].tolist() == [[1], [3]]
    assert kept.run(Growing(), x(0, 0), [row(0, 1), row(1, 2)])["y"].tolist() == [[4], [2]]
