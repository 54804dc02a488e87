"""Models that only take time: a backend that sleeps by its latency table, and a wrapper that slows any backend down."""

import time
from collections.abc import Mapping
from pathlib import Path

from sluice.models.backends.base import Backend, GpuOptions
from sluice.models.errors import BackendFailed
from sluice.models.tensors.arrays import Array
from sluice.models.tensors.spec import VARIABLE, TensorSpec
from sluice.models.triton_config.timed_file import TimedFile, read_timed_file


class TimedBackend:
    """Output i is input i, after the latency of the table for its rows; see `Backend`."""

    provider, threads = "", 0

    def __init__(self, file: TimedFile) -> None:
        self._batchable = file.max_batch_size > 0
        self._table = file.table
        self.inputs = self._whole(file.inputs)
        self.outputs = self._whole(file.outputs)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Sleep, then echo."""
        missing = [tensor.name for tensor in self.inputs if tensor.name not in inputs]
        if missing:
            raise BackendFailed(f"input '{missing[0]}' is missing")
        rows = inputs[self.inputs[0].name].shape[0] if self._batchable else 1
        time.sleep(self._table.latency_ns(rows) / 1e9)
        return {output.name: inputs[tensor.name] for output, tensor in zip(self.outputs, self.inputs, strict=False)}

    def _whole(self, items: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        batch = (VARIABLE,) if self._batchable else ()
        return tuple(TensorSpec(tensor.name, tensor.datatype, batch + tensor.shape) for tensor in items)


class SlowedBackend:
    """A backend whose every run takes `factor` times as long, while the core is free for the rest; see `Backend`."""

    def __init__(self, backend: Backend, factor: float) -> None:
        self.inputs = backend.inputs
        self.outputs = backend.outputs
        self.provider, self.threads = backend.provider, backend.threads
        self._backend = backend
        self._added = factor - 1

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run, then sleep; an error is raised at once."""
        started_ns = time.monotonic_ns()
        outputs = self._backend.run(inputs)
        time.sleep(self._added * (time.monotonic_ns() - started_ns) / 1e9)
        return outputs


def load(path: str, threads: int, config: str = "", gpu: GpuOptions | None = None) -> TimedBackend:
    """Load the timed model of a JSON file, which needs no configuration and no threads; raises ConfigError."""
    del threads, config, gpu
    return TimedBackend(read_timed_file(Path(path)))
