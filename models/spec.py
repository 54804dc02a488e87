"""What a model is to the rest of the system: its tensors and how far it can be batched."""

import msgspec

from sluice.models.dynamic_batching import DynamicBatching
from sluice.models.tensors.spec import TensorSpec


def revision_key(name: str, version: int, revision: int) -> str:
    """The name of a revision inside of Sluice, e.g. `mlp:1`, or `mlp:1@7` for one that is not the first."""
    return f"{name}:{version}@{revision}" if revision else f"{name}:{version}"


def public_key(key: str) -> str:
    """The name and version that clients know a revision by, e.g. `mlp:1`."""
    return key.partition("@")[0]


class ModelSpec(msgspec.Struct, frozen=True):
    """One version of one model, in one revision: what is loaded again is another one.

    `max_batch_size` is 0 for a model without a batch dimension: its tensors then have exactly the shapes of the specs
    and every request is a batch of its own. `config` is the model's configuration as Triton prints it in JSON,
    completed; "" without a `config.pbtxt`. `dynamic_batching` and `response_cache` are what that asks for, as are
    `replicas`, the partitions that are to hold the model as far as there are so many.
    """

    name: str
    version: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int
    platform: str = "onnxruntime_onnx"
    dynamic_batching: DynamicBatching | None = None
    response_cache: bool = False
    replicas: int = 1
    config: str = ""
    revision: int = 0

    @property
    def key(self) -> str:
        """The name under which the scheduler and the workers know this revision."""
        return revision_key(self.name, self.version, self.revision)

    @property
    def batchable(self) -> bool:
        """Whether several requests may share a batch."""
        return self.max_batch_size > 0

    @property
    def menu(self) -> tuple[int, ...]:
        """The batch sizes that are warmed and timed at load: 1, 2, 4 … and the maximum itself."""
        sizes = [1]
        while sizes[-1] * 2 < self.max_batch_size:
            sizes.append(sizes[-1] * 2)
        if self.max_batch_size > 1:
            sizes.append(self.max_batch_size)
        return tuple(sizes)

    def wire_shape(self, tensor: TensorSpec) -> tuple[int, ...]:
        """The shape the protocol shows for one of this model's tensors: with -1 in front when batchable."""
        return (-1, *tensor.shape) if self.batchable else tensor.shape
