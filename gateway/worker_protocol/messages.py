"""The messages of a session between a gateway and a worker server.

A session is one call of the bidirectional method `SESSION` over gRPC. It begins with `Hello`, which is answered by
`Welcome` or `SessionRefusal`. `framing` has the form of messages and tensors on the wire. Times are
durations, since the clocks of two machines have nothing in common.
"""

import enum

import msgspec

from sluice.models.backends.metric_updates import MetricUpdate
from sluice.models.backends.requests import RequestFailure, RequestPart
from sluice.models.distribution.file_set import FileSet
from sluice.models.pipelines.pipeline import Confidence
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.sequence_batching import SequenceRow
from sluice.models.tensors.spec import DataType, DeclaredTensors
from sluice.mps.ipc.messages import LoadResult
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import Partition

SERVICE = "sluice.worker.Worker"
SESSION = f"/{SERVICE}/Session"
FETCH = "Fetch"
"""The unary method by which worker servers read files from each other: `FileWanted` is answered by `FilePart`."""
MOST_PART_BYTES = 256 << 10
"""The most bytes of a file in one message."""
KEY_METADATA = "sluice-worker-key"
"""The metadata that carries the key which gateways and worker servers share."""


class SessionTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor whose bytes follow the message; `shape` has the batch dimension first if the model has one.

    BYTES is in wire form: each element is four bytes of length (little-endian), then the bytes.
    """

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    nbytes: int


class RemoteModel(msgspec.Struct, frozen=True, array_like=True):
    """A model to load, as `sluice.mps.ipc.messages.ModelFile`, with its `files` in place of their path.

    The worker server gets the files by itself: from its machine, its cache, the caches of the worker servers at
    `peers`, the repository's URL, or the gateway. A model without `files` has a `path` on the worker server's machine.
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
    files: FileSet | None = None
    peers: tuple[str, ...] = ()


class FileWanted(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Read a part of a file of a set: `nbytes` from `offset`, fewer at its end; answered by the `FilePart` `number`."""

    number: int
    digest: str
    path: str
    offset: int
    nbytes: int


class FilePart(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A part of a file, or the reason why it cannot be read."""

    number: int
    data: bytes = b""
    error: str = ""


class Hello(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The first message of a gateway. Its version must be that of the worker server, and so must the `kind` ("": any).

    The session is the gateway's lease of the worker. It ends with the call, or when nothing has come for `lease_s`.
    `workers` is the number of workers of the class that the gateway has already; the holder of the worker hears it.
    """

    version: str
    gateway: str
    lease_s: float
    kind: str = ""
    workers: int = 0


class RemoteLoad(msgspec.Struct, frozen=True, tag="Load", array_like=True):
    """Load a model while batches run; answered by `Loaded`, at once if the worker holds the same model already."""

    model: RemoteModel


class RemoteUnload(msgspec.Struct, frozen=True, tag="Unload", array_like=True):
    """Unload a model after the batches of it that were sent before; answered by `Unloaded`."""

    key: str


class RemoteRun(msgspec.Struct, frozen=True, tag="Run", array_like=True):
    """Run a batch; answered by `Finished`, `RunRefused` or `Withdrawn`.

    `batch` is a number that the session has not used before. The batch is refused if it has not begun `deadline_in_ns`
    after it arrived (0: no deadline). `requests` and `sequences` are as in `sluice.mps.ipc.messages.RunBatch`.
    """

    batch: int
    model: str
    inputs: tuple[SessionTensor, ...]
    deadline_in_ns: int = 0
    requests: tuple[RequestPart, ...] = ()
    sequences: tuple[SequenceRow, ...] = ()


class Withdraw(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Take back a batch that has not begun; too late is no error, and the batch has its one answer either way."""

    batch: int


class AskModelReady(msgspec.Struct, frozen=True, tag="AskReady", array_like=True):
    """Ask a model that says by itself whether it is ready; answered by `ModelReadiness` of that number."""

    number: int
    key: str


class Ping(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Renews the lease; answered by `Pong`. `sent_ns` is for the sender alone."""

    number: int
    sent_ns: int


class Drain(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The gateway is leaving: what has not begun is taken back, and what has begun is answered."""


FromGateway = Hello | RemoteLoad | RemoteUnload | RemoteRun | Withdraw | AskModelReady | Ping | Drain | FilePart


class ServedWorker(msgspec.Struct, frozen=True, array_like=True):
    """A worker process that is up: what `sluice.mps.ipc.messages.WorkerReady` says of it.

    `cores` is its affinity mask, and `models` are those that it holds.
    """

    pid: int
    cores: tuple[int, ...]
    evidence: Evidence
    models: tuple[LoadResult, ...] = ()


class Welcome(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The gateway has the worker; `session` is the number of its lease.

    `kind` is the key of latency tables for `partition`. `models` of `worker` are those that an earlier session has left
    loaded: the worker server drops them unless they are loaded again before the first batch.
    """

    version: str
    name: str
    node: str
    kind: str
    partition: Partition
    worker: ServedWorker
    session: int
    peers_url: str = ""


class SessionRefusal(msgspec.Struct, frozen=True, tag="Refusal", array_like=True):
    """The gateway does not get the worker, and the call ends.

    With `retry` it may do so later. `holder` is the gateway that has the worker, if that is the reason.
    """

    reason: str
    retry: bool = True
    holder: str = ""


class Asked(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Another gateway, which has that many workers, has asked for the worker, and was refused."""

    gateway: str
    workers: int = 0


class Loaded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A load has finished: the model is loaded, or could not be."""

    model: LoadResult


class Unloaded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The worker no longer holds the model."""

    key: str


class Finished(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A batch waited `waited_ns` after its last byte had come, then ran for `ran_ns`.

    `confidences`, `errors` and `metrics` are as in `sluice.mps.ipc.messages.BatchFinished`.
    """

    batch: int
    waited_ns: int
    ran_ns: int
    outputs: tuple[SessionTensor, ...]
    confidences: tuple[tuple[float, ...], ...] = ()
    errors: tuple[RequestFailure, ...] = ()
    metrics: tuple[MetricUpdate, ...] = ()


class Fault(enum.StrEnum):
    """The cause of a batch's failure."""

    BATCH = "batch"
    """The model refused the batch or failed; one of its rows may be the cause."""
    MEMORY = "memory"
    """The model ran out of memory; smaller batches may run."""
    STATES = "states"
    """The states of all sequences of the model in this worker are gone."""
    RESOURCES = "resources"
    """The worker server had no room for the batch, or does not hold its model."""
    DEADLINE = "deadline"
    """The batch had not begun by its deadline."""
    LOST = "lost"
    """The worker process ended with the batch."""


class RunRefused(msgspec.Struct, frozen=True, tag="Refused", array_like=True):
    """A batch did not run, or failed."""

    batch: int
    message: str
    fault: Fault = Fault.BATCH


class Withdrawn(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A batch was taken back before it began."""

    batch: int


class ModelReadiness(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A model is ready, or not, by its own account."""

    number: int
    is_ready: bool


class Pong(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answer to the `Ping` of that number; `echo_ns` is the time that it spent here."""

    number: int
    sent_ns: int
    echo_ns: int


class WorkerLost(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The worker process has ended, and is started again. Its batches have been refused, and its models are gone."""

    reason: str


class WorkerBack(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The worker process is up again, with the models that could be loaded."""

    worker: ServedWorker


class Draining(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The worker server is stopping: it refuses batches that come from now on, and ends the call after the others."""

    reason: str


FromWorkerServer = (
    Welcome
    | SessionRefusal
    | Asked
    | Loaded
    | Unloaded
    | Finished
    | RunRefused
    | Withdrawn
    | ModelReadiness
    | Pong
    | WorkerLost
    | WorkerBack
    | Draining
    | FileWanted
)


def message_name(message: msgspec.Struct) -> str:
    """The name of a message on the wire."""
    return str(type(message).__struct_config__.tag)
