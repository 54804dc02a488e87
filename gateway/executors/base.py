"""The protocol of executors, which carry out the scheduler's decisions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sluice.batcher.interface.decisions import DispatchBatch, LoadModel, Member, UnloadModel
from sluice.batcher.interface.events import AnyEvent
from sluice.gateway.partitions.inventory import NO_DETAILS, ProcessDetails
from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.tensors.combiner import Combined
from sluice.gateway.tensors.request_tensors import BatchOutputs


class EventSink(Protocol):
    """Receives the events that an executor reports, on the event loop; never blocks and never calls back."""

    def __call__(self, event: AnyEvent, details: ProcessDetails = NO_DETAILS, /) -> None:
        """Receive an event, with details if it is about a partition."""
        ...


class Executor(Protocol):
    """Keeps the tensors of open requests and runs batches of them.

    Every batch that `run` accepts yields exactly one event; when `run` raises instead, the runtime reports the failure.
    For each request, `admit` is called first, and `take_outputs` or `discard` last.
    """

    def start(self, report: EventSink) -> None:
        """Begin; all events go to `report`."""
        ...

    def admit(
        self,
        request: int,
        pipeline: str,
        inputs: Mapping[str, Tensor],
        rows: int,
        input_bytes: int,
        shared: BatchOutputs | None = None,
    ) -> int:
        """Keep a request's inputs; returns the bytes that the outputs of its stages will take.

        Inputs that lie in shared memory are given as `shared`, too, to which a reference is kept as long as they are
        needed.
        """
        ...

    def run(self, batch: DispatchBatch) -> None:
        """Start a batch."""
        ...

    def revoke(self, batch: int) -> None:
        """Take a batch back if it has not started; its one event is reported either way."""
        ...

    def load(self, order: LoadModel) -> None:
        """Begin to load a model while batches run; one event follows, unless the partition is lost first."""
        ...

    def unload(self, order: UnloadModel) -> None:
        """Unload a model after the batches that were started; one event follows, unless the partition is lost first."""
        ...

    def combine(self, members: Sequence[Member]) -> list[Combined | Exception]:
        """Join the answers of ensembles and keep the results like a stage's outputs.

        Returns what came of each member; an exception fails its request alone.
        """
        ...

    def look_up_cache(self, member: Member) -> str | None:
        """Keep a stage's cached outputs as if it had run; returns the key of their shapes, None if it has to run.

        Only stages that use the cache are looked up.
        """
        ...

    def take_outputs(self, request: int) -> tuple[Mapping[str, Tensor], Callable[[], None]]:
        """The outputs of a request whose stages are done, by name, and a function to call when they were read.

        Everything else of the request is dropped, unless this raises: then `discard` follows.
        """
        ...

    def discard(self, request: int) -> None:
        """Drop a request that gets no answer; tensors that a running batch reads are kept until the batch ends."""
        ...
