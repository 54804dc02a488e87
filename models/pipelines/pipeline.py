"""Pipelines: graphs of models and combiners, which clients address like a model."""

import enum
import re
from collections.abc import Iterable, Mapping

import msgspec

from sluice.models.spec import ModelSpec, revision_key
from sluice.models.tensors.spec import DataType, TensorSpec

REQUEST = "request"
"""The name under which stages and outputs refer to the tensors of the request itself."""
PLATFORM = "sluice_pipeline"
"""The platform that clients see for a pipeline."""
PERCENTILE = 99.0
"""The percentile of the latency that the objective is for, unless a pipeline has its own."""

MOST_COPIES = 7
"""The most partitions that the same rows of a stage may run on."""

_CLIENT_KEY = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_BINARY = "-bin"
"""The end of the keys of gRPC metadata that hold bytes."""


class Confidence(enum.StrEnum):
    """A measure of confidence in a row, in [0, 1], from a vector of probabilities; NaN counts as 0."""

    MAX = "max"
    MARGIN = "margin"
    ENTROPY = "entropy"


class Combiner(enum.StrEnum):
    """Ways to combine the answers of an ensemble's members."""

    MEAN = "mean"
    MOST_CONFIDENT = "most_confident"
    WEIGHTED_MEAN = "weighted_mean"
    VOTE = "vote"
    CONCAT = "concat"


class Late(enum.StrEnum):
    """The fate of a request that can no longer meet its deadline: it is still served, or dropped at once."""

    SERVE = "serve"
    EVICT = "evict"


class OnLate(enum.StrEnum):
    """The members that a combiner joins: it waits for all, or joins those that are there on time."""

    WAIT = "wait"
    PARTIAL = "partial"


def check_percentile(percentile: float) -> None:
    """Raise ValueError unless a percentile is above 50 and at most 100."""
    if not 50 < percentile <= 100:
        raise ValueError(f"expected a number above 50 and at most 100, such as 99.9, got {percentile:g}")


def check_client_key(name: str) -> None:
    """Raise ValueError unless a name can be that of an HTTP header and of a text in gRPC metadata."""
    if not _CLIENT_KEY.fullmatch(name) or name.endswith(_BINARY):
        raise ValueError(
            "expected the name of a header, of lower-case letters, digits, '-', '_' and '.', which does not end in "
            f"'{_BINARY}', got '{name:.80}'"
        )


def batch_key(item_shapes: Iterable[tuple[str, tuple[int, ...]]]) -> str:
    """The key of requests that may share a batch, from (name, item shape) of the inputs of variable shape."""
    return ";".join(f"{name}={','.join(map(str, shape))}" for name, shape in item_shapes)


class TensorSource(msgspec.Struct, frozen=True):
    """The origin of a tensor: `stage` names a stage, or is `request`."""

    stage: str
    tensor: str

    def __str__(self) -> str:
        return f"{self.stage}.{self.tensor}"


class When(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Run a stage only for the rows whose confidence in `stage.output` is below the threshold `below`, in (0, 1]."""

    stage: str
    output: str
    below: float
    confidence: Confidence = Confidence.MAX


class Compete(msgspec.Struct, frozen=True):
    """Run the rows of a stage on up to `copies` partitions, and take the first answer.

    They run again `after_ms` ms after their batch was sent (0: at once) or, with a `percentile` in (0, 100), once the
    batch has taken longer than that percentage of such batches.
    """

    copies: int
    after_ms: float = 0.0
    percentile: float = 0.0


class Stage(msgspec.Struct, frozen=True):
    """A checked stage: either `model` (a key such as `mlp:1`) or `combine` is set.

    It runs for the rows for which all its sources ran and, with `when`, whose confidence is below the threshold. A
    combiner's inputs are named "0", "1", …; its one output is named like the tensor of its first source. `weights` are
    those of a weighted mean. `variants` are all models that may run the stage, the most accurate, which is `model`,
    first; empty when there is no choice. `accuracies` are theirs, one each. With `compete`, several
    partitions may run the same rows.
    """

    name: str
    inputs: dict[str, TensorSource]
    model: str | None = None
    combine: Combiner | None = None
    when: When | None = None
    variants: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    compete: Compete | None = None
    accuracies: tuple[float, ...] = ()
    on_late: OnLate = OnLate.WAIT

    @property
    def models(self) -> tuple[str, ...]:
        """The keys of the models that may run the stage; empty for a combiner."""
        return self.variants or (() if self.model is None else (self.model,))


class Pipeline(msgspec.Struct, frozen=True):
    """A checked pipeline; a model served alone is a pipeline of one stage with the model's name.

    `stages` are in topological order. `sources` names, for every output, the stages that may have produced it: row i
    comes from the first source that ran it. `max_batch_size` limits a request's rows (the smallest of its models; 0 if
    its one model is not batchable). `weight` is its share of a model that other pipelines use as well, relative to
    their weights. `percentile` is the share of the admitted requests that are to be in time, in percent. `client_key`
    names the header that tells clients apart. `late`, `percentile` and `client_key` are None where the server's setting
    applies. `config` is its configuration as Triton prints it in JSON; "" without a `config.pbtxt`. With
    `response_cache`, answers may be reused for requests with equal inputs. `batching_note` is that of a model that is
    served alone. The BYTES of `text_inputs` must be UTF-8. A request of a `decoupled` one may have any number of
    responses.
    """

    name: str
    version: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    stages: tuple[Stage, ...]
    sources: dict[str, tuple[TensorSource, ...]]
    max_batch_size: int
    slo_ms: float | None = None
    late: Late | None = None
    platform: str = PLATFORM
    weight: float = 1.0
    config: str = ""
    revision: int = 0
    response_cache: bool = False
    percentile: float | None = None
    client_key: str | None = None
    batching_note: str = ""
    text_inputs: tuple[str, ...] = ()
    decoupled: bool = False

    @property
    def key(self) -> str:
        """The name of this revision in the scheduler, e.g. `digits-cascade:1`."""
        return revision_key(self.name, self.version, self.revision)

    @property
    def batchable(self) -> bool:
        """Return whether the tensors have a batch dimension in front."""
        return self.max_batch_size > 0

    def with_text_inputs(self, models: Mapping[str, ModelSpec]) -> "Pipeline":
        """The pipeline with the inputs that go to models, by key, which take only text."""
        names = {
            source.tensor
            for stage in self.stages
            if any(models[key].only_text for key in stage.models)
            for source in stage.inputs.values()
            if source.stage == REQUEST
        }
        text = tuple(each.name for each in self.inputs if each.name in names and each.datatype is DataType.BYTES)
        return msgspec.structs.replace(self, text_inputs=text)

    def wire_shape(self, tensor: TensorSpec) -> tuple[int, ...]:
        """The shape of one of the pipeline's tensors in the protocol."""
        return (-1, *tensor.shape) if self.batchable else tensor.shape
