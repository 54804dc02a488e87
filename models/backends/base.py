"""The interface of a backend: a module of this package with `load(path, threads, config, gpu) -> Backend`.

`config` is the model's configuration in JSON, as Triton prints it; "" for a model without one. `gpu` is None for a
model that runs on cores.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from sluice.models.tensors.arrays import Array
from sluice.models.tensors.spec import TensorSpec


class GpuOptions(NamedTuple):
    """Options for the one GPU that the process sees; `memory_bytes` limits the memory kept for the model (0: none)."""

    memory_bytes: int = 0


class Backend(Protocol):
    """A loaded model that runs on arrays, in one thread at a time.

    Shapes of `inputs` and `outputs` are those of whole arrays: the batch dimension, if there is one, comes first and is
    -1.
    """

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of `run`."""
        ...

    @property
    def provider(self) -> str:
        """ONNX Runtime's name of the provider that runs the model; "" if the model chooses by itself."""
        ...

    @property
    def threads(self) -> int:
        """The number of threads that run a batch; 0 if unknown."""
        ...

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs of `run`."""
        ...

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; raises BackendFailed, and can be used again afterwards.

        BYTES elements are `bytes` or `str` objects both ways. The outputs may be the inputs, and are valid until the
        next run.
        """
        ...
