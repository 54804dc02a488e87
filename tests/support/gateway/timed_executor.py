"""An executor without tensors: batches take as long as a service model says."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from sluice.batcher.drivers.simulated_machine import Service
from sluice.batcher.interface.decisions import CombineOutputs, DispatchBatch, LoadModel, Member, UnloadModel
from sluice.batcher.interface.events import (
    AnyEvent,
    BatchCompleted,
    BatchRevoked,
    ModelLoaded,
    ModelUnloaded,
    PartitionReady,
)
from sluice.gateway.executors.base import EventSink
from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.tensors.combiner import Combined
from sluice.gateway.tensors.request_tensors import BatchOutputs
from sluice.models.units import NS_PER_S


class TimedExecutor:
    """Runs the batches of each partition one after the other on the loop's clock; answers have no outputs.

    `clock` is the loop's clock in nanoseconds. `ready` are the events to begin with.
    """

    def __init__(self, service: Service, clock: Callable[[], int], ready: Sequence[AnyEvent]) -> None:
        self._service = service
        self._clock = clock
        self._ready = ready
        self._tables = {
            key: table for event in ready if isinstance(event, PartitionReady) for key, table in event.tables.items()
        }
        self._loop = asyncio.get_running_loop()
        self._free_ns: dict[str, int] = {}
        self._pending: dict[int, tuple[asyncio.TimerHandle, str, int]] = {}
        self._report: EventSink

    def start(self, report: EventSink) -> None:
        """Report that the partitions are ready."""
        self._report = report
        for event in self._ready:
            report(event)

    def admit(
        self,
        request: int,
        pipeline: str,
        inputs: Mapping[str, Tensor],
        rows: int,
        input_bytes: int,
        shared: BatchOutputs | None = None,
    ) -> int:
        """Outputs take no memory here."""
        return 0

    def run(self, batch: DispatchBatch) -> None:
        """Start a batch, at once or when the partition's last one ends."""
        started_ns = max(self._clock(), self._free_ns.get(batch.partition, 0))
        ended_ns = started_ns + self._service.batch_ns(batch)
        self._free_ns[batch.partition] = ended_ns
        event = BatchCompleted(batch.batch, started_ns, ended_ns, self._service.batch_confidences(batch))
        handle = self._loop.call_at(ended_ns / NS_PER_S, self._completed, event)
        self._pending[batch.batch] = handle, batch.partition, started_ns

    def revoke(self, batch: int) -> None:
        """Take a batch back that waits for the one before it."""
        handle, partition, started_ns = self._pending.get(batch, (None, "", 0))
        if handle is not None and started_ns > self._clock():
            handle.cancel()
            del self._pending[batch]
            self._free_ns[partition] = started_ns
            self._report(BatchRevoked(batch))

    def load(self, order: LoadModel) -> None:
        """Loading takes no time; the table is that of a partition that began with the model."""
        self._report(ModelLoaded(order.partition, order.model, self._tables[order.model]))

    def unload(self, order: UnloadModel) -> None:
        """Unload when the partition has run what it was given."""
        unloaded = ModelUnloaded(order.partition, order.model)
        free_ns = self._free_ns.get(order.partition, 0)
        if free_ns <= self._clock():
            self._report(unloaded)
        else:
            self._loop.call_at(free_ns / NS_PER_S, self._report, unloaded)

    def combine(self, members: Sequence[Member]) -> list[Combined | Exception]:
        """Nothing is joined."""
        return [(self._service.combined_confidences(CombineOutputs(member)), "", 0) for member in members]

    def look_up_cache(self, member: Member) -> str | None:
        """Nothing is known."""
        return None

    def take_outputs(self, request: int) -> tuple[Mapping[str, Tensor], Callable[[], None]]:
        """No outputs."""
        return {}, _nothing

    def discard(self, request: int) -> None:
        """Nothing is kept."""

    def _completed(self, event: BatchCompleted) -> None:
        del self._pending[event.batch]
        self._report(event)


def _nothing() -> None:
    """Release nothing: the answers have no outputs."""
