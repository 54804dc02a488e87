"""A model's configuration with the fields that Sluice honours, as `config.pbtxt` and Triton's protocol write it.

The names are those of Triton's `ModelConfig`, so that one type serves for reading text and JSON and for printing.
"""

import msgspec

from sluice.models.dynamic_batching import DynamicBatching
from sluice.models.sequence_batching import SequenceBatching
from sluice.models.tensors.spec import DataType, TensorSpec

ENSEMBLE = "ensemble"
"""The platform of a configuration that describes a pipeline."""

DATA_TYPE = {DataType.BYTES: "TYPE_STRING"} | {
    datatype: f"TYPE_{datatype}" for datatype in DataType if datatype is not DataType.BYTES
}
"""The names of the protocol's datatypes in configurations."""
UNTYPED = "TYPE_INVALID"
DATATYPE = {name: datatype for datatype, name in DATA_TYPE.items()}
"""The same the other way round."""


class Reshape(msgspec.Struct, frozen=True, omit_defaults=True):
    """The shape of an item in the model, where clients see `dims`."""

    shape: tuple[int, ...] = ()


class TensorConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An input or output; missing fields are completed from the model's file."""

    name: str = ""
    data_type: str = UNTYPED
    dims: tuple[int, ...] = ()
    reshape: Reshape | None = None

    @property
    def datatype(self) -> DataType | None:
        """The protocol's name of the datatype; None if it is missing or not supported."""
        return DATATYPE.get(self.data_type)

    @property
    def model_shape(self) -> tuple[int, ...]:
        """The shape of an item in the model."""
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


class LatestVersions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The `num_versions` highest versions."""

    num_versions: int = 0


class AllVersions(msgspec.Struct, frozen=True, omit_defaults=True):
    """All versions."""


class SpecificVersions(msgspec.Struct, frozen=True, omit_defaults=True):
    """These versions."""

    versions: tuple[int, ...] = ()


class VersionPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The versions of a model to serve; at most one field is set, and by default it is the latest version."""

    latest: LatestVersions | None = None
    all: AllVersions | None = None
    specific: SpecificVersions | None = None


class EnsembleStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step of an ensemble; the maps lead from the model's tensors to the ensemble's. Version -1 is the latest."""

    model_name: str = ""
    model_version: int = 0
    input_map: dict[str, str] = {}
    output_map: dict[str, str] = {}


class EnsembleScheduling(msgspec.Struct, frozen=True, omit_defaults=True):
    """The steps of an ensemble, which run as soon as their inputs exist."""

    step: tuple[EnsembleStep, ...] = ()


class InstanceGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Copies of a model that may run at the same time."""

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
    """The setting that caches answers for requests with equal inputs."""

    enable: bool = False


class TransactionPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The way a model answers: a `decoupled` one sends any number of responses to a request."""

    decoupled: bool = False


class GraphOptimization(msgspec.Struct, frozen=True, omit_defaults=True):
    """ONNX Runtime's level of graph optimization: 0 all, -1 basic, 1 extended, 2 none."""

    level: int = 0


class Accelerator(msgspec.Struct, frozen=True, omit_defaults=True):
    """A provider of ONNX Runtime by Triton's name, such as `tensorrt`."""

    name: str = ""
    parameters: dict[str, str] = {}


class ExecutionAccelerators(msgspec.Struct, frozen=True, omit_defaults=True):
    """The accelerators that a model is to run on, for instances on GPUs and on processors."""

    gpu_execution_accelerator: tuple[Accelerator, ...] = ()
    cpu_execution_accelerator: tuple[Accelerator, ...] = ()


class Optimization(msgspec.Struct, frozen=True, omit_defaults=True):
    """The backend's optimization of a model."""

    graph: GraphOptimization | None = None
    execution_accelerators: ExecutionAccelerators | None = None


class TritonModelConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A configuration; `max_batch_size` is None if it is not given.

    `unused` has a sentence for each field that is given and has no effect; it is not printed.
    """

    name: str = ""
    platform: str = ""
    backend: str = ""
    version_policy: VersionPolicy | None = None
    max_batch_size: int | None = None
    input: tuple[InputConfig, ...] = ()
    output: tuple[OutputConfig, ...] = ()
    dynamic_batching: DynamicBatching | None = None
    sequence_batching: SequenceBatching | None = None
    ensemble_scheduling: EnsembleScheduling | None = None
    instance_group: tuple[InstanceGroup, ...] = ()
    default_model_filename: str = ""
    parameters: dict[str, Parameter] = {}
    optimization: Optimization | None = None
    model_warmup: tuple[WarmUp, ...] = ()
    response_cache: ResponseCacheSettings | None = None
    model_transaction_policy: TransactionPolicy | None = None
    unused: tuple[str, ...] = ()

    @property
    def is_decoupled(self) -> bool:
        """Return whether a request may have any number of responses."""
        return self.model_transaction_policy is not None and self.model_transaction_policy.decoupled

    @property
    def is_ensemble(self) -> bool:
        """Return whether it describes a pipeline."""
        return self.platform == ENSEMBLE or self.ensemble_scheduling is not None

    @property
    def computed(self) -> frozenset[str]:
        """The outputs of the model's file that are computed: those of requests and of states; all if it is empty."""
        if not self.output:
            return frozenset()
        states = () if self.sequence_batching is None else self.sequence_batching.state
        return frozenset([*(tensor.name for tensor in self.output), *(state.output_name for state in states)])

    @property
    def tensors(self) -> tuple[TensorConfig, ...]:
        """Inputs and outputs."""
        return (*self.input, *self.output)


decode_config = msgspec.json.Decoder(TritonModelConfig).decode
"""Reads a configuration from JSON. Made once: two threads that make the first decoder of a type crash (msgspec)."""
