"""The executor over remote workers: every slot of every class, and the sources that place their workers."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from sluice.batcher.interface.decisions import DispatchBatch, LoadModel, UnloadModel
from sluice.batcher.interface.events import AnyEvent, BatchCompleted, BatchFailed, BatchRevoked, LinkMeasured
from sluice.gateway.cluster.links import NodeLink
from sluice.gateway.cluster.nodes import NodeWatch
from sluice.gateway.cluster.source import WorkerSource
from sluice.gateway.executors.base import EventSink
from sluice.gateway.executors.remote.batches import RemoteBatchContext
from sluice.gateway.executors.remote.models import RemoteModels
from sluice.gateway.executors.remote.partition import RemotePartition
from sluice.gateway.executors.remote.session import OpenSession
from sluice.gateway.executors.remote.worker import WorkerContext
from sluice.gateway.executors.request_parts import CallingSubmission, FindSubmission, no_submission
from sluice.gateway.observability.custom_metrics import CustomMetrics
from sluice.gateway.partitions.inventory import NO_DETAILS, ProcessDetails
from sluice.gateway.tensors.assembly import Assembly
from sluice.gateway.tensors.body_memory import BodyMemory
from sluice.models.spec import ModelSpec
from sluice.mps.ipc.messages import LoadResult, ModelFile


class RemoteSlots(NamedTuple):
    """The partitions of one class: their `kind`, where their workers come from, and their models.

    By name of the slot, `files` are the models that each may hold, by key, and `initial` those that it begins with.
    """

    kind: str
    source: WorkerSource
    files: Mapping[str, Mapping[str, ModelFile]]
    initial: Mapping[str, Collection[str]]


class SharedParts(NamedTuple):
    """The parts that all executors share: the tensors of requests, and what models say of themselves.

    `bodies` is memory that workers of this machine read. `loaded` gets what came of loads, and `reported_ready` a
    partition, the number of a question to a model and its answer.
    """

    assembly: Assembly
    bodies: BodyMemory
    metrics: CustomMetrics
    loaded: Callable[[Sequence[LoadResult]], None]
    reported_ready: Callable[[str, int, bool], None]


class RemoteExecutor:
    """Runs batches on remote workers.

    `specs` are the specs of models by key. `open_session` opens sessions as a gateway of that `version`, and
    `models` brings models to workers. Limits are proved as for `WorkerContext`; times are as for `RemoteBatchContext`.
    """

    def __init__(
        self,
        classes: Mapping[str, RemoteSlots],
        shared: SharedParts,
        specs: Mapping[str, ModelSpec],
        open_session: OpenSession,
        models: RemoteModels,
        version: str,
        clock: Callable[[], int],
        timeout_s: float,
        *,
        strict: bool = False,
    ) -> None:
        self.submission: FindSubmission = no_submission
        """The submission of a request without an outcome, for models that see requests."""
        self._specs = dict(specs)
        self._sources = {name: each.source for name, each in classes.items()}
        self._models = models
        self._running: dict[int, RemotePartition] = {}
        self._sink: EventSink
        self._nodes = NodeWatch(self._measured)
        batches = RemoteBatchContext(
            shared.assembly,
            shared.bodies,
            self._specs,
            clock,
            timeout_s,
            shared.metrics,
            self._find,
            self._report,
        )
        context = WorkerContext(
            batches,
            open_session,
            self._nodes,
            version,
            strict,
            models,
            shared.loaded,
            shared.reported_ready,
        )
        self._partitions = {
            slot: RemotePartition(context, each.source, slot, each.kind, files, each.initial[slot])
            for each in classes.values()
            for slot, files in each.files.items()
        }

    @property
    def names(self) -> Collection[str]:
        """The names of all slots."""
        return self._partitions.keys()

    @property
    def sources(self) -> Mapping[str, WorkerSource]:
        """Where the workers of each class come from."""
        return self._sources

    @property
    def links(self) -> Mapping[str, NodeLink]:
        """The ways to the nodes that have had workers."""
        return self._nodes.links

    def start(self, report: EventSink) -> None:
        """Let the sources place workers."""
        self._sink = report
        for partition in self._partitions.values():
            partition.start()
        for source in self._sources.values():
            source.start(self._placed)

    async def drain(self) -> None:
        """End all sessions and sources."""
        for source in self._sources.values():
            await source.close()
        self._nodes.close()
        for partition in self._partitions.values():
            await partition.drain()

    def add(self, specs: Mapping[str, ModelSpec], files: Mapping[str, Mapping[str, ModelFile]]) -> None:
        """Add models; `files` are their files by partition and key."""
        self._specs.update(specs)
        for name, given in files.items():
            self._partitions[name].add(given)

    def remove(self, models: Collection[str]) -> None:
        """Remove models that no worker holds."""
        self._models.forget(models)
        for key in models:
            self._specs.pop(key, None)
        for partition in self._partitions.values():
            partition.remove(models)

    def run(self, batch: DispatchBatch) -> None:
        """Send a batch; raises PartitionError if its partition cannot take it."""
        partition = self._partitions[batch.partition]
        partition.run(batch)
        self._running[batch.batch] = partition

    def revoke(self, batch: int) -> None:
        """Ask for a batch back, if a worker has it."""
        if (partition := self._running.get(batch)) is not None:
            partition.revoke(batch)

    def load(self, order: LoadModel) -> None:
        """Have a worker load a model."""
        self._partitions[order.partition].load(order.model)

    def unload(self, order: UnloadModel) -> None:
        """Have a worker unload a model."""
        self._partitions[order.partition].unload(order.model)

    def ask_ready(self, number: int, model: str) -> frozenset[str]:
        """Send a question to the workers that hold a model; returns their partitions."""
        return frozenset(name for name, each in self._partitions.items() if each.ask_ready(number, model))

    def _find(self, request: int) -> CallingSubmission | None:
        return self.submission(request)

    def _placed(self, slot: str, address: str | None, reason: str) -> None:
        self._partitions[slot].placed(address, reason)

    def _measured(self, node: str, round_trip_ns: int, bytes_per_s: int) -> None:
        self._report(LinkMeasured(node, round_trip_ns, bytes_per_s))

    def _report(self, event: AnyEvent, details: ProcessDetails = NO_DETAILS) -> None:
        if isinstance(event, BatchCompleted | BatchFailed | BatchRevoked):
            del self._running[event.batch]
        self._sink(event, details)
