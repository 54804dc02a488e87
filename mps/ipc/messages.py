"""The messages between the gateway and a worker: commands to the worker, and its reports.

They travel over a SEQPACKET socket, one msgpack message a packet. Descriptors of tensor regions accompany `MapRegion`
(to the worker) and `WorkerReady` or `OverflowCreated` (from it). Times are CLOCK_MONOTONIC nanoseconds, which all
processes of a machine share.
"""

import enum

import msgspec

from sluice.models.backends.metric_updates import MetricUpdate
from sluice.models.backends.requests import CallRequest, CallResult, FailureCode, RequestFailure, RequestPart
from sluice.models.measuring.model_loading import DEFAULT_MODEL_LOADING, ModelLoadingSettings
from sluice.models.pipelines.pipeline import Confidence
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.profiles.measurement import Measurement, ModelMemory
from sluice.models.sequence_batching import SequenceRow
from sluice.models.tensors.spec import DataType, DeclaredTensors
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import Partition

RESPONSE_WINDOW = 16
"""The responses of a batch of a decoupled model that may be sent and not yet taken."""


class ModelFile(msgspec.Struct, frozen=True, array_like=True):
    """A model to load. `backend` names a module of `models.backends`; `menu` are the batch sizes to warm up and time.

    A worker that is given the `table`, such as a restarted one, only warms the model up. It measures the memory of
    models unless `memory_measured`. `confidences` are the outputs whose
    confidence is computed for each row. `config` is the model's configuration in JSON, as Triton prints it; "" if there
    is none. A model whose outputs are not as `declared` is not loaded; without it, the backend says what they are.
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
    declared: DeclaredTensors | None = None


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A run of bytes in a tensor region; a tensor is one or more segments end to end."""

    region: int
    offset: int
    nbytes: int


class InputTensor(msgspec.Struct, frozen=True, array_like=True):
    """An input of a batch: `shape` is as the backend gets it, with the batch dimension first if there is one.

    BYTES is in wire form: each element is four bytes of length (little-endian), then the bytes.
    """

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    segments: tuple[Segment, ...]


class OutputTensor(msgspec.Struct, frozen=True, array_like=True):
    """An output of a batch, contiguous in its region.

    `row_offsets` is given for BYTES only: the start of each row, relative to `offset`, and the end of the last row.
    """

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    region: int
    offset: int
    nbytes: int
    row_offsets: tuple[int, ...] | None = None


class StartWorker(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The first command to a worker: bind to `partition`, make an output region of `output_bytes`, load these models.

    `output_region` is the number of that region in every process. `loading` is also for models that are loaded later.
    Answered by `WorkerReady`.
    """

    partition: Partition
    output_region: int
    output_bytes: int
    models: tuple[ModelFile, ...]
    loading: ModelLoadingSettings = DEFAULT_MODEL_LOADING


class AddModel(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Load one more model while batches run; answered by `ModelAdded`."""

    file: ModelFile


class DropModel(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Unload a model after the batches of it that were sent before; answered by `ModelDropped`.

    `AddModel` and `DropModel` are carried out, and answered, in the order in which they were sent, but a model that is
    created sooner than models before it is answered before them.
    """

    key: str


class MeasureModel(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Measure a model thoroughly at the batch sizes of its menu, and hold it; answered by `ModelMeasured`.

    It is for a worker that holds no model and is sent nothing else meanwhile.
    """

    file: ModelFile


class MapRegion(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Map the region whose descriptor comes with this message, under this number."""

    region: int
    nbytes: int


class UnmapRegion(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Unmap a region that nothing refers to any more. It is also sent to the worker that made an overflow region."""

    region: int


class RunBatch(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Run a batch. `release` lists the slots of earlier `BatchFinished` reports that are no longer needed.

    `requests` are those that the rows belong to, in their order, for models that see them. `sequences` has the part of
    each row in its sequence, in order, for a model with sequences.
    """

    batch: int
    model: str
    inputs: tuple[InputTensor, ...]
    release: tuple[int, ...] = ()
    requests: tuple[RequestPart, ...] = ()
    sequences: tuple[SequenceRow, ...] = ()


class AnswerCall(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answer to `CallModel`; the descriptor of its outputs comes along, if it has any."""

    call: int
    result: CallResult


class AskReady(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Ask a model that says by itself whether it is ready; answered by `ReadinessReport` of that number."""

    number: int
    model: str


class WithdrawBatch(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Take back a batch that has not started.

    Answered by `BatchWithdrawn`, or by `BatchFinished` or `BatchRefused` when it is too late. A batch with a claim is
    taken back by that, without a message.
    """

    batch: int


class ResponseTaken(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The outputs of a `ResponseSent` of a batch are no longer needed; its slot is free, -1 if it had none."""

    batch: int
    slot: int


class CancelResponses(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The client of a batch of a decoupled model has gone. The model hears of it, and ends the batch as it likes."""

    batch: int


ToWorker = (
    StartWorker
    | AddModel
    | DropModel
    | MeasureModel
    | MapRegion
    | UnmapRegion
    | RunBatch
    | WithdrawBatch
    | AnswerCall
    | AskReady
    | ResponseTaken
    | CancelResponses
)


class LoadResult(msgspec.Struct, frozen=True, array_like=True):
    """A model after loading: its latency table, or the reason why it did not load.

    `memory` is the memory that it takes, if that could be measured. `evidence` is the worker's evidence after this
    load, if the worker was ready before. `metrics` are those that the model defines;
    it `tells_ready` if it says by itself whether it is ready.
    """

    key: str
    table: LatencyTable | None
    error: str = ""
    evidence: Evidence | None = None
    memory: ModelMemory | None = None
    metrics: tuple[MetricUpdate, ...] = ()
    tells_ready: bool = False


class ModelsLoading(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A worker that is not ready yet has tried to load that many of its models, and goes on with the next one."""

    done: int


class WorkerReady(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The worker is bound and has loaded the models that it could; its output region's descriptor comes along.

    `cores` is the affinity mask that the kernel reports, `threads` the backend's thread count; `evidence` is for
    `sluice.mps.partitions.isolation_report`.
    """

    pid: int
    cores: tuple[int, ...]
    threads: int
    models: tuple[LoadResult, ...]
    evidence: Evidence = Evidence()


class ModelAdded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """An ordered load has finished: the model is loaded, or could not be."""

    model: LoadResult


class ModelMeasured(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The result of measuring a model, or the reason why it cannot be measured; `evidence` is as in `LoadResult`."""

    measurement: Measurement | None = None
    error: str = ""
    evidence: Evidence = Evidence()


class ModelDropped(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The worker no longer holds the model and has freed its memory."""

    key: str


class BatchFinished(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A batch ran from `started_ns` to `ended_ns`; `confidences` has one tuple for each confidence of the model.

    Such a tuple has one value a row. An output's `region` is the number of the worker's output region or of an overflow
    region. `slot` is the offset of the outputs' slot in the output region, -1 when they are in an overflow region.
    `errors` are those of requests of the batch, whose rows have no meaning. `metrics` are the changes of the metrics
    that the model defines. A batch of a decoupled model ends without outputs: they were sent as responses.
    """

    batch: int
    started_ns: int
    ended_ns: int
    outputs: tuple[OutputTensor, ...]
    slot: int
    confidences: tuple[tuple[float, ...], ...] = ()
    errors: tuple[RequestFailure, ...] = ()
    metrics: tuple[MetricUpdate, ...] = ()


class BatchWaits(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The model of a batch has called another one: the worker runs other batches while it waits."""

    batch: int


class CallModel(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The model of a batch calls another one; the descriptor of the inputs comes along. Answered by `AnswerCall`.

    The answer is no longer expected once the batch has ended.
    """

    batch: int
    call: int
    request: CallRequest


class ReadinessReport(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A model is ready, or not, by its own account."""

    number: int
    is_ready: bool


class ResponseSent(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A response of a decoupled model to the request of a batch, which still runs.

    It has outputs, of which a response need not have all, or an `error`, or neither if it only says that it
    `is_final`. `slot` is as in `BatchFinished`, and -1 without outputs. Answered by `ResponseTaken`.
    """

    batch: int
    outputs: tuple[OutputTensor, ...]
    slot: int
    error: str | None = None
    code: FailureCode = FailureCode.INTERNAL
    is_final: bool = False


class OverflowCreated(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The outputs of the next `BatchFinished` or `ResponseSent` did not fit: a descriptor of a region comes along.

    `region` is negative, so that it differs from all numbers that the gateway gives, and unique among all workers.
    """

    region: int
    nbytes: int


class BatchFault(enum.StrEnum):
    """The cause of a batch's failure."""

    BATCH = "batch"
    """The model refused the batch or failed; one of its rows may be the cause."""
    MEMORY = "memory"
    """There was not enough memory for the batch; smaller ones may run."""
    STATES = "states"
    """The states of all sequences of the model in this worker are gone."""
    DEVICE = "device"
    """The context on the device is lost: later batches of this process, and of its MPS daemon's other clients, fail."""


class BatchRefused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The backend refused or failed a batch."""

    batch: int
    message: str
    fault: BatchFault = BatchFault.BATCH


class BatchWithdrawn(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A batch was taken back before it started."""

    batch: int


BatchReport = BatchFinished | ResponseSent | BatchRefused | BatchWithdrawn | BatchWaits
"""The messages about a batch."""

FromWorker = (
    WorkerReady
    | ModelsLoading
    | ModelAdded
    | ModelDropped
    | ModelMeasured
    | BatchFinished
    | ResponseSent
    | OverflowCreated
    | BatchRefused
    | BatchWithdrawn
    | BatchWaits
    | CallModel
    | ReadinessReport
)
