"""Reads models that only take time: a JSON file with their tensors and a latency table (see `backends.timed`)."""

from collections.abc import Collection
from pathlib import Path

import msgspec

from sluice.models.errors import ConfigError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.regular_file import read_text
from sluice.models.tensors.spec import VARIABLE, TensorSpec
from sluice.models.triton_config.file_tensors import FileTensors


class TimedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of the file: shapes are those of items; output i echoes input i, with its datatype and shape.

    `latency_ms` maps batch sizes to milliseconds. `max_batch_size` 0 is a model without a batch dimension.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int
    latency_ms: dict[int, float]

    @property
    def table(self) -> LatencyTable:
        """The latencies of `latency_ms`."""
        return LatencyTable.from_ms(self.latency_ms)


# Made once: two threads that make the first decoder of a type crash (msgspec).
_decode = msgspec.json.Decoder(TimedFile).decode


def read_timed_file(path: Path) -> TimedFile:
    """Read the file of a timed model; raises ConfigError with the path."""
    text = read_text(path)
    try:
        file = _decode(text)
        _ = file.table  # a bad table is an error of the file, not of a later batch
    except (msgspec.DecodeError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from error
    for index, output in enumerate(file.outputs):
        echoed = file.inputs[index] if index < len(file.inputs) else None
        if echoed is None or (echoed.datatype, echoed.shape) != (output.datatype, output.shape):
            raise ConfigError(f"{path}: output '{output.name}': expected an input at {index} of its datatype and shape")
    if not file.outputs or file.max_batch_size < 0:
        raise ConfigError(f"{path}: expected at least one output and a max_batch_size of 0 or more")
    return file


def read_tensors(path: Path, wanted: Collection[str] = ()) -> FileTensors:
    """The tensors of a timed model, with all its outputs; raises ConfigError with the path."""
    del wanted
    file = read_timed_file(path)
    batchable = file.max_batch_size > 0
    inputs, outputs = (
        tuple(
            TensorSpec(tensor.name, tensor.datatype, ((VARIABLE,) if batchable else ()) + tensor.shape)
            for tensor in tensors
        )
        for tensors in (file.inputs, file.outputs)
    )
    reason = "" if batchable else "max_batch_size is 0 in the model's file"
    return FileTensors(inputs, outputs, batchable, "sluice_timed", file.max_batch_size, reason)
