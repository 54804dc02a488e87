"""The tensors of a model file, before it is known whether they have a batch dimension."""

from typing import NamedTuple

from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import VARIABLE, TensorSpec


class FileTensors(NamedTuple):
    """Whole tensors: if the model is `batchable`, their first dimension is the batch's.

    `most_rows` limits the rows of a batch, if the file does. `no_batches` is the reason why a model is not batchable,
    with what to do about it. If the file does not decide that, `needs_trial` is true: runs can. `unranked` are the
    tensors whose rank the file does not declare; their shape is empty.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batchable: bool
    platform: str
    most_rows: int | None = None
    no_batches: str = ""
    needs_trial: bool = False
    unranked: frozenset[str] = frozenset()

    @property
    def one_row(self) -> bool:
        """Return whether the model takes exactly one row: batches can be run row by row."""
        inputs = bool(self.inputs) and all(tensor.shape[:1] == (1,) for tensor in self.inputs)
        return inputs and all(
            tensor.name in self.unranked or tensor.shape[:1] in {(1,), (VARIABLE,)} for tensor in self.outputs
        )

    def rows(self, wanted: int) -> int:
        """The rows that a batch may have if up to `wanted` are wanted."""
        return wanted if self.most_rows is None else min(wanted, self.most_rows)

    def spec(self, name: str, version: int, max_batch_size: int) -> ModelSpec:
        """The spec of the model without a configuration of its own."""
        rows = self.rows(max_batch_size) if self.batchable else 0
        inputs, outputs = (without_batch(tensors) if rows else tensors for tensors in (self.inputs, self.outputs))
        note = "" if rows else self.no_batches or "the maximum batch size is 0"
        return ModelSpec(name, version, inputs, outputs, rows, self.platform, batching_note=note)


def without_batch(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """The tensors without their first dimension, which is the batch's."""
    return tuple(TensorSpec(tensor.name, tensor.datatype, tensor.shape[1:]) for tensor in tensors)
