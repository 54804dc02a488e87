"""The models and pipelines of the comparison, as every server in Python runs them: NumPy and ONNX Runtime, one thread.

What differs between those servers is the server. The folder of the ONNX files is in the variable
PEERS_FILES, and the names of the models to serve are in PEERS_MODELS.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

MOST_ROWS = 64
"""The largest batch, in every server that batches."""
ENOUGH = 0.9
"""Rows of the cascade whose highest probability in the small model is less go on to the large one."""


@dataclass(frozen=True)
class Served:
    """A model or pipeline with one input and one output, whose first dimension is that of the rows."""

    name: str
    input: str
    dtype: type
    row: tuple[int, ...]
    output: str
    open: Callable[[], Callable[[np.ndarray], np.ndarray]]

    def rows_of(self, body: bytes) -> np.ndarray:
        """The rows in the bytes of a tensor."""
        return np.frombuffer(body, self.dtype).reshape(-1, *self.row)

    @property
    def datatype(self) -> str:
        """The datatype of the input in the V2 protocol."""
        return {np.float32: "FP32", np.uint8: "UINT8"}[self.dtype]


def _session(name: str) -> Callable[[np.ndarray], np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    file = Path(os.environ["PEERS_FILES"], f"{name}.onnx")
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    return lambda rows: session.run(None, {taken.name: rows})[0]


def _cascade() -> Callable[[np.ndarray], np.ndarray]:
    prepare, small, large = _session("prep"), _session("logreg"), _session("wide")

    def run(raw: np.ndarray) -> np.ndarray:
        x = prepare(raw)
        probs = small(x)
        unsure = probs.max(axis=1) < ENOUGH
        if unsure.any():
            probs[unsure] = large(x[unsure])
        return probs

    return run


def _ensemble() -> Callable[[np.ndarray], np.ndarray]:
    prepare, members = _session("prep"), [_session(name) for name in ("rf256", "wide", "rbf")]

    def run(raw: np.ndarray) -> np.ndarray:
        x = prepare(raw)
        return np.mean([member(x) for member in members], axis=0, dtype=np.float32)

    return run


ALL = {
    each.name: each
    for each in (
        Served("mlp", "x", np.float32, (64,), "y", lambda: _session("mlp")),
        Served("wide", "x", np.float32, (1, 8, 8), "probs", lambda: _session("wide")),
        Served("image", "x", np.float32, (3, 224, 224), "y", lambda: _session("image")),
        Served("digits-cascade", "raw", np.uint8, (1, 8, 8), "probs", _cascade),
        Served("digits-ensemble", "raw", np.uint8, (1, 8, 8), "probs", _ensemble),
    )
}


def chosen() -> list[Served]:
    """The models that this process serves."""
    return [ALL[name] for name in os.environ["PEERS_MODELS"].split(",")]
