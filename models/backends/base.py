"""The interface of a backend: a module of this package with `load(path, threads, config, gpu) -> Backend`.

`config` is the model's configuration in JSON, as Triton prints it; "" for a model without one. `gpu` is None for a
model that runs on cores.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from sluice.models.tensors.arrays import Array
from sluice.models.tensors.spec import TensorSpec


class GpuOptions(NamedTuple):
    """Options for the one GPU that the process sees; `memory_bytes` limits the memory kept for the model (0: none)."""

    memory_bytes: int = 0


class BackendResponse(NamedTuple):
    """One response of a decoupled model: outputs, or an `error`, or neither if it is only the mark of the end.

    After the one that `is_final` there is no other.
    """

    outputs: Mapping[str, Array]
    error: str | None = None
    is_final: bool = False

    @property
    def is_empty(self) -> bool:
        """True if it is nothing but the mark of the end."""
        return not self.outputs and self.error is None


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


@runtime_checkable
class DecoupledBackend(Backend, Protocol):
    """A backend whose model sends any number of responses to a request, one request at a time.

    After `begin`, each `receive` gives a response until it gives None: the run has ended. A response is to be `taken`
    before the next one is received. `run` gives no outputs.
    """

    @property
    def readable(self) -> tuple[int, ...]:
        """Descriptors, one of which is readable when `receive` does not wait."""
        ...

    def begin(self, inputs: Mapping[str, Array]) -> None:
        """Start a run on inputs that stay as they are until its end; raises BackendFailed."""
        ...

    def receive(self) -> BackendResponse | None:
        """The next response, whose outputs are valid until it is taken; raises BackendFailed, which ends the run."""
        ...

    def taken(self) -> None:
        """Let the model go on after a response that has been read."""
        ...

    def cancel(self) -> None:
        """Tell the model that its responses are not wanted any more; it still ends the run by itself."""
        ...
