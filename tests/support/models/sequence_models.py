"""Models of sequences: those of Triton's examples, and an accumulator with a state, as tiny ONNX models."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from sluice.models.tensors.spec import DataType
from tests.support.models.onnx_models import Dimension, save_model, value

START = 'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'
READY = 'control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }'
END = 'control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } }'
CORRID = 'control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }'
INITIAL = "initial_state { name: 'begin' data_type: TYPE_INT32 dims: 1 %s }"
STATE = "state { input_name: 'SUM' output_name: 'NEW_SUM' data_type: TYPE_INT32 dims: 1 %s }"
PATIENT = "max_sequence_idle_microseconds: 60000000"
"""No sequence ends because a client stands still: by default one that is idle for a second does."""
TENSORS = """
input { name: "INPUT" data_type: TYPE_INT32 dims: 1 }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 }
"""


def save_simple_sequence(entry: Path, more: str = "", rows: int = 8) -> None:
    """The behaviour of Triton's `simple_sequence`: OUTPUT is INPUT, and 1 more for the first request of a sequence."""
    _save(entry, ["INPUT", "START", "READY"], [("Add", "INPUT", "START", "s"), ("Mul", "s", "READY", "OUTPUT")])
    _configure(entry, f"{START} {READY} {more}", rows)


def save_simple_dyna_sequence(entry: Path, more: str = "", rows: int = 8) -> None:
    """As Triton's `simple_dyna_sequence`: the last request of a sequence adds its id as well."""
    cast = helper.make_node("Cast", ["CORRID"], ["id"], to=6)
    steps = [("Add", "INPUT", "START", "s"), ("Mul", "END", "id", "e"), ("Add", "s", "e", "t")]
    _save(entry, ["INPUT", "START", "END", "READY", "CORRID"], [*steps, ("Mul", "t", "READY", "OUTPUT")], [cast])
    oldest = "oldest { max_candidate_sequences: 1024 max_queue_delay_microseconds: 2000 }"
    _configure(entry, f"{START} {END} {READY} {CORRID} {oldest} {more}", rows)


def save_accumulator(entry: Path, more: str = "", initial: str = "", rows: int = 8) -> None:
    """OUTPUT is the sum of all INPUTs of the sequence and its initial state, which is kept as a state."""
    shape: list[Dimension] = ["N", 1] if rows else [1]
    int32 = DataType.INT32
    nodes = [
        helper.make_node("Add", ["INPUT", "SUM"], ["OUTPUT"]),
        helper.make_node("Identity", ["OUTPUT"], ["NEW_SUM"]),
    ]
    inputs = [value(name, int32, shape) for name in ("INPUT", "SUM")]
    save_model(entry / "1" / "model.onnx", nodes, inputs, [value(name, int32, shape) for name in ("OUTPUT", "NEW_SUM")])
    _configure(entry, f"{STATE % (INITIAL % initial if initial else '')} {more}", rows)


def save_initial_state(entry: Path, number: int) -> None:
    """Write the file `begin` of an initial state."""
    (entry / "initial_state").mkdir(parents=True)
    (entry / "initial_state" / "begin").write_bytes(np.int32(number).tobytes())


def _configure(entry: Path, batching: str, rows: int) -> None:
    (entry / "config.pbtxt").write_text(f"max_batch_size: {rows} sequence_batching {{ {batching} }} {TENSORS}")


def _save(
    entry: Path, inputs: list[str], steps: list[tuple[str, str, str, str]], before: Sequence[onnx.NodeProto] = ()
) -> None:
    nodes = [*before, *(helper.make_node(kind, [left, right], [to]) for kind, left, right, to in steps)]
    tensors = [value(name, DataType.UINT64 if name == "CORRID" else DataType.INT32, ["N", 1]) for name in inputs]
    save_model(entry / "1" / "model.onnx", nodes, tensors, [value("OUTPUT", DataType.INT32, ["N", 1])])
