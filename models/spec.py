"""The specification of a model: its tensors, its batching, and the keys of its versions and revisions."""

import msgspec

from sluice.models.dynamic_batching import DynamicBatching
from sluice.models.sequence_batching import SequenceBatching
from sluice.models.tensors.spec import DeclaredTensors, TensorSpec


def revision_key(name: str, version: int, revision: int) -> str:
    """The internal name of a revision, e.g. `mlp:1`, or `mlp:1@7` if it is not the first."""
    return f"{name}:{version}@{revision}" if revision else f"{name}:{version}"


def public_key(key: str) -> str:
    """The name and version that clients use for a revision, e.g. `mlp:1`."""
    return key.partition("@")[0]


def describe_batching(max_batch_size: int, note: str) -> str:
    """The batches of a model or a pipeline in words, with the note on them."""
    batches = f"batches of up to {max_batch_size}" if max_batch_size else "no batches"
    return f"{batches}: {note}" if note else batches


class ModelSpec(msgspec.Struct, frozen=True):
    """One version of one model, in one revision: a model that is loaded again is another revision.

    `max_batch_size` is 0 for a model without a batch dimension: its tensors then have exactly the shapes of the specs
    and every request is a batch of its own. `config` is the model's completed configuration as Triton prints it in
    JSON; "" without a `config.pbtxt`. It is the source of `dynamic_batching`, `sequence_batching`, `response_cache` and
    `replicas`, the number of partitions that are to hold the model if there are enough. A `decoupled` model sends any
    number of responses to a request; its tensors have their batch dimension in the specs, and each request is a batch
    of its own. `notes` are sentences about what has no effect in it. `batching_note` is the reason why the model is not
    batched, or is only batched row by row. With `only_text`, its BYTES must be UTF-8.
    """

    name: str
    version: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int
    platform: str = "onnxruntime_onnx"
    dynamic_batching: DynamicBatching | None = None
    sequence_batching: SequenceBatching | None = None
    response_cache: bool = False
    replicas: int = 1
    config: str = ""
    revision: int = 0
    batching_note: str = ""
    only_text: bool = False
    decoupled: bool = False
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name of this revision in the scheduler and the workers."""
        return revision_key(self.name, self.version, self.revision)

    @property
    def batchable(self) -> bool:
        """Return whether several requests may share a batch."""
        return self.max_batch_size > 0

    @property
    def sees_requests(self) -> bool:
        """Return whether the model gets the requests of a batch one by one, as Python models do."""
        return self.platform == "python"

    @property
    def declared(self) -> DeclaredTensors:
        """The tensors of a run for a worker, which needs no labels; those of a decoupled model have no outputs."""
        outputs = () if self.decoupled else self.outputs
        return DeclaredTensors(self.inputs, tuple(msgspec.structs.replace(output, labels=()) for output in outputs))

    @property
    def menu(self) -> tuple[int, ...]:
        """The batch sizes that are warmed up and timed at load: 1, 2, 4 … and the maximum itself."""
        sizes = [1]
        while sizes[-1] * 2 < self.max_batch_size:
            sizes.append(sizes[-1] * 2)
        if self.max_batch_size > 1:
            sizes.append(self.max_batch_size)
        return tuple(sizes)

    def wire_shape(self, tensor: TensorSpec) -> tuple[int, ...]:
        """The shape of one of this model's tensors in the protocol: with -1 in front when batchable."""
        return (-1, *tensor.shape) if self.batchable else tensor.shape
