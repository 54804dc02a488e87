"""A model's configuration as `config.pbtxt` and Triton's protocol write it: the fields that Sluice honours.

The names are those of Triton's `ModelConfig`, so that one form is read from its text and its JSON and printed again.
"""

import msgspec

from sluice.models.dynamic_batching import DynamicBatching
from sluice.models.tensors.spec import DataType, TensorSpec

ENSEMBLE = "ensemble"
"""The platform of a configuration that describes a pipeline."""

DATA_TYPE = {DataType.BYTES: "TYPE_STRING"} | {
    datatype: f"TYPE_{datatype}" for datatype in DataType if datatype is not DataType.BYTES
}
"""How a configuration calls the datatypes of the protocol."""
UNTYPED = "TYPE_INVALID"
_DATATYPE = {name: datatype for datatype, name in DATA_TYPE.items()}


class Reshape(msgspec.Struct, frozen=True, omit_defaults=True):
    """The shape of an item as the model has it, where clients see `dims`."""

    shape: tuple[int, ...] = ()


class TensorConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An input or output; what is left out is completed from the model's file."""

    name: str = ""
    data_type: str = UNTYPED
    dims: tuple[int, ...] = ()
    reshape: Reshape | None = None

    @property
    def datatype(self) -> DataType | None:
        """The datatype as the protocol calls it; None when none is given or Sluice does not serve it."""
        return _DATATYPE.get(self.data_type)

    @property
    def model_shape(self) -> tuple[int, ...]:
        """The shape of an item as the model has it."""
        return self.dims if self.reshape is None else self.reshape.shape

    def spec(self, labels: tuple[str, ...] = ()) -> TensorSpec:
        """The tensor as clients see it; its datatype has been checked."""
        assert self.datatype is not None
        return TensorSpec(self.name, self.datatype, self.dims, labels)


class InputConfig(TensorConfig, frozen=True, kw_only=True, omit_defaults=True):
    """An input."""

    format: str = "FORMAT_NONE"
    optional: bool = False

    def spec(self, labels: tuple[str, ...] = ()) -> TensorSpec:
        """The tensor as clients see it; its datatype has been checked."""
        return msgspec.structs.replace(super().spec(labels), optional=self.optional)


class OutputConfig(TensorConfig, frozen=True, kw_only=True, omit_defaults=True):
    """An output; `label_filename` is a file beside the configuration that names its elements, one a line."""

    label_filename: str = ""


class Latest(msgspec.Struct, frozen=True, omit_defaults=True):
    """So many of the highest versions."""

    num_versions: int = 0


class All(msgspec.Struct, frozen=True, omit_defaults=True):
    """All versions."""


class Specific(msgspec.Struct, frozen=True, omit_defaults=True):
    """These versions."""

    versions: tuple[int, ...] = ()


class VersionPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which versions of a model are served; at most one is set, and without any it is the latest one."""

    latest: Latest | None = None
    all: All | None = None
    specific: Specific | None = None


class EnsembleStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step of an ensemble; the maps go from the model's tensors to the ensemble's. Version -1 is the latest."""

    model_name: str = ""
    model_version: int = 0
    input_map: dict[str, str] = {}
    output_map: dict[str, str] = {}


class Ensembling(msgspec.Struct, frozen=True, omit_defaults=True):
    """The steps of an ensemble, which run as soon as their tensors are there."""

    step: tuple[EnsembleStep, ...] = ()


class InstanceGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Copies of a model that may run at a time."""

    name: str = ""
    kind: str = "KIND_AUTO"
    count: int = 0
    gpus: tuple[int, ...] = ()


class Parameter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A parameter of a backend."""

    string_value: str = ""


class WarmUpInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An input of a warm-up run: an item of the shape `dims`, of zeros or random."""

    data_type: str = UNTYPED
    dims: tuple[int, ...] = ()
    zero_data: bool = False
    random_data: bool = False


class WarmUp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A batch of `batch_size` equal rows that is run `count` times (0 counts as 1) before a model is ready."""

    name: str = ""
    batch_size: int = 0
    inputs: dict[str, WarmUpInput] = {}
    count: int = 0


class ResponseCacheSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether answers are kept for requests with equal inputs."""

    enable: bool = False


class GraphOptimization(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far ONNX Runtime optimizes a model's graph: 0 all the way, -1 basic, 1 extended, 2 not at all."""

    level: int = 0


class Optimization(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a backend optimizes a model."""

    graph: GraphOptimization | None = None


class TritonModelConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A configuration; `max_batch_size` is None where it is not given."""

    name: str = ""
    platform: str = ""
    backend: str = ""
    version_policy: VersionPolicy | None = None
    max_batch_size: int | None = None
    input: tuple[InputConfig, ...] = ()
    output: tuple[OutputConfig, ...] = ()
    dynamic_batching: DynamicBatching | None = None
    ensemble_scheduling: Ensembling | None = None
    instance_group: tuple[InstanceGroup, ...] = ()
    default_model_filename: str = ""
    parameters: dict[str, Parameter] = {}
    optimization: Optimization | None = None
    model_warmup: tuple[WarmUp, ...] = ()
    response_cache: ResponseCacheSettings | None = None

    @property
    def is_ensemble(self) -> bool:
        """Whether it describes a pipeline."""
        return self.platform == ENSEMBLE or self.ensemble_scheduling is not None

    @property
    def tensors(self) -> tuple[TensorConfig, ...]:
        """Inputs and outputs."""
        return (*self.input, *self.output)


decode_config = msgspec.json.Decoder(TritonModelConfig).decode
"""Reads a configuration from JSON. Made once: two threads that make the first decoder of a type crash (msgspec)."""
