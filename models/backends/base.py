"""What a backend is: a module of this package with a function `load(path, threads, config, gpu) -> Backend`.

`config` is the model's configuration in JSON, as Triton prints it; "" for a model without one. `gpu` is None where the
model is to run on cores.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from sluice.models.tensors.arrays import Array
from sluice.models.tensors.spec import TensorSpec


class GpuOptions(NamedTuple):
    """How a model runs on the one GPU that its process sees; `memory_bytes` bounds what is kept for it (0: none)."""

    memory_bytes: int = 0


class Backend(Protocol):
    """A loaded model that runs on arrays, in one thread at a time.

    Shapes of `inputs` and `outputs` are those of whole arrays: the batch dimension, where there is one, is the first
    and is -1.
    """

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What `run` takes."""
        ...

    @property
    def provider(self) -> str:
        """What runs it, as ONNX Runtime calls it; "" where the model chooses by itself."""
        ...

    @property
    def threads(self) -> int:
        """How many threads run a batch; 0 where it does not tell."""
        ...

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What `run` gives."""
        ...

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; raises BackendFailed, and can be used again afterwards.

        BYTES elements are `bytes` or `str` objects both ways. The outputs may be the inputs, and hold until the next
        run.
        """
        ...
