"""What the gateway and a worker say to each other over their SEQPACKET socket (msgpack, one message a packet).

Descriptors of tensor regions travel beside `MapRegion` (to the worker) and `WorkerReady` or `OverflowCreated` (from it). Times are
CLOCK_MONOTONIC nanoseconds, which all processes of a machine share.
"""

import enum

import msgspec

from sluice.models.pipelines.pipeline import Confidence
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.profiles.measurement import Measurement, ModelMemory
from sluice.models.tensors.spec import DataType
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import Partition


class ModelFile(msgspec.Struct, frozen=True, array_like=True):
    """A model to load. `backend` names a module of `models.backends`; `menu` are the batch sizes to warm and time.

    A worker that is given the `table`, as one that restarts is, only warms. It weighs what it begins with, and of what
    comes later the models that nobody has `weighed`. `config` is the model's configuration in
    JSON, as Triton prints it; "" without one.
    """

    key: str
    path: str
    backend: str
    menu: tuple[int, ...]
    batchable: bool
    confidences: tuple[tuple[str, Confidence], ...] = ()
    table: LatencyTable | None = None
    config: str = ""
    memory_measured: bool = False


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A run of bytes in a tensor region; a tensor is one or more segments end to end."""

    region: int
    offset: int
    nbytes: int


class InputTensor(msgspec.Struct, frozen=True, array_like=True):
    """An input of a batch: `shape` as the backend gets it, with the batch dimension in front where there is one.

    BYTES is in wire form: for every element four bytes of length (little-endian), then the bytes.
    """

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    segments: tuple[Segment, ...]


class OutputTensor(msgspec.Struct, frozen=True, array_like=True):
    """An output of a batch, contiguous in its region.

    `row_offsets` is given for BYTES only: where each row starts, relative to `offset`, and the end of the last.
    """

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    region: int
    offset: int
    nbytes: int
    row_offsets: tuple[int, ...] | None = None


class StartWorker(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """First message to a worker: bind to `partition`, make an output region of `output_bytes`, load these models.

    `output_region` is the number under which everybody will know that region.
    """

    partition: Partition
    output_region: int
    output_bytes: int
    models: tuple[ModelFile, ...]


class AddModel(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Load one more model while batches run; answered by `ModelAdded`."""

    file: ModelFile


class DropModel(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Forget a model after the batches of it that were sent before; answered by `ModelDropped`.

    `AddModel` and `DropModel` are carried out, and answered, in the order in which they were sent.
    """

    key: str


class MeasureModel(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Measure a model thoroughly at the sizes of its menu, and hold it; answered by `ModelMeasured`.

    It is for a worker that holds no model, and is sent nothing else meanwhile.
    """

    file: ModelFile


class MapRegion(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Map the region whose descriptor comes with this message, under this number."""

    region: int
    nbytes: int


class UnmapRegion(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Forget a region: nothing refers to it any more. Sent to the maker of an overflow region as well."""

    region: int


class RunBatch(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Run a batch. `release` lists the slots of earlier `BatchFinished` messages that are no longer needed."""

    batch: int
    model: str
    inputs: tuple[InputTensor, ...]
    release: tuple[int, ...] = ()


class WithdrawBatch(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Take back a batch that has not started; answered by `BatchWithdrawn`, or by `BatchFinished` or `BatchRefused` when too late."""

    batch: int


ToWorker = StartWorker | AddModel | DropModel | MeasureModel | MapRegion | UnmapRegion | RunBatch | WithdrawBatch


class LoadResult(msgspec.Struct, frozen=True, array_like=True):
    """A model after loading: its latency table, or the reason why it did not load.

    `memory` is what it takes, if that could be told. `evidence` is what the worker finds of itself since, when it has
    loaded others before.
    """

    key: str
    table: LatencyTable | None
    error: str = ""
    evidence: Evidence | None = None
    memory: ModelMemory | None = None


class WorkerReady(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The worker is bound and has loaded what it could; the descriptor of its output region comes along.

    `cores` is the affinity mask that the kernel reports, `threads` the backend's thread count; `evidence` is for
    `sluice.mps.partitions.isolation_report`.
    """

    pid: int
    cores: tuple[int, ...]
    threads: int
    models: tuple[LoadResult, ...]
    evidence: Evidence = Evidence()


class ModelAdded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A model that was to be loaded is held from now on, or could not be loaded."""

    model: LoadResult


class ModelMeasured(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What measuring a model came to, or the reason why it cannot be measured; `evidence` as in `LoadResult`."""

    measurement: Measurement | None = None
    error: str = ""
    evidence: Evidence = Evidence()


class ModelDropped(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The worker does not hold the model any more, and its memory was given back."""

    key: str


class BatchFinished(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A batch ran from `started_ns` to `ended_ns`; `confidences` has one tuple a verdict of the model, a value a row.

    An output's `region` is the number of the worker's output region or of an overflow region. `slot` is the offset of
    the slot that holds the outputs in the output region, -1 when they are in an overflow region.
    """

    batch: int
    started_ns: int
    ended_ns: int
    outputs: tuple[OutputTensor, ...]
    slot: int
    confidences: tuple[tuple[float, ...], ...] = ()


class OverflowCreated(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Sent before the `BatchFinished` whose outputs did not fit: a region of their own, its descriptor comes along.

    `region` is negative, so that it never meets a number given by the gateway, and unique among all workers.
    """

    region: int
    nbytes: int


class BatchFault(enum.StrEnum):
    """What a batch failed by."""

    BATCH = "batch"
    """The model refused or failed it; some row may be to fault."""
    MEMORY = "memory"
    """There was not enough memory for it; smaller ones may run."""
    DEVICE = "device"
    """The context on the device is lost: nothing runs in this process any more, nor in others of its MPS daemon."""


class BatchRefused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The backend refused or failed a batch."""

    batch: int
    message: str
    fault: BatchFault = BatchFault.BATCH


class BatchWithdrawn(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A batch was taken back before it started."""

    batch: int


FromWorker = (
    WorkerReady
    | ModelAdded
    | ModelDropped
    | ModelMeasured
    | BatchFinished
    | OverflowCreated
    | BatchRefused
    | BatchWithdrawn
)
