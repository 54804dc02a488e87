"""An executor over worker processes and Triton servers together."""

from collections.abc import Callable, Mapping, Sequence

from sluice.batcher.interface.config import ConfidenceSpec
from sluice.batcher.interface.decisions import DispatchBatch, LoadModel, UnloadModel
from sluice.gateway.config.triton_settings import TritonSettings
from sluice.gateway.executors.base import EventSink
from sluice.gateway.executors.triton.partition import TritonPartition
from sluice.gateway.executors.triton.process import TritonProcess
from sluice.gateway.executors.triton.statistics import TritonStatistics
from sluice.gateway.executors.worker.executor import WorkerExecutor
from sluice.gateway.executors.worker.waiting import CallHandler, CallingSubmission
from sluice.gateway.tensors.body_memory import BodyMemory
from sluice.models.spec import ModelSpec
from sluice.mps.supervisor.supervisor import Supervisor


class MixedExecutor:
    """Runs the batches of each partition on its worker process or, if there are `servers`, its Triton server.

    The assembly of the workers keeps the tensors for both, so stages of one request may run on either. `server_models`
    are the models that each server may hold, by server name. `confidence_specs` are the confidences that each model
    reports, by key. `processes` are those of the servers that we run.
    """

    def __init__(
        self,
        workers: WorkerExecutor,
        servers: Sequence[TritonSettings],
        server_models: Mapping[str, Mapping[str, ModelSpec]],
        confidence_specs: Mapping[str, Sequence[ConfidenceSpec]],
        clock: Callable[[], int],
        processes: Mapping[str, TritonProcess] = {},
    ) -> None:
        self._workers = workers
        self._servers = {
            each.name: TritonPartition(
                each, server_models[each.name], confidence_specs, workers.assembly, clock, processes.get(each.name)
            )
            for each in servers
        }
        # Without servers, batches go straight to the workers, which saves a call for each.
        self.run: Callable[[DispatchBatch], None] = self._run if self._servers else workers.run
        self.admit = workers.admit
        self.add = workers.add
        self.remove = workers.remove
        self.recycle = workers.recycle
        self.resize = workers.resize
        self.combine = workers.combine
        self.look_up_cache = workers.look_up_cache
        self.take_outputs = workers.take_outputs
        self.discard = workers.discard
        self.says_ready = workers.says_ready
        self.responses = workers.responses

    @property
    def regions(self) -> Supervisor:
        """The memory that this process and the workers share."""
        return self._workers.regions

    def answer_calls(self, calls: CallHandler, submission: Callable[[int], CallingSubmission | None]) -> None:
        """Have the calls of models run by `calls`, and show models the requests that `submission` knows."""
        self._workers.calls = calls
        self._workers.submission = submission
        for server in self._servers.values():
            server.show_requests(submission)

    @property
    def bodies(self) -> BodyMemory:
        """The memory that large requests are received into."""
        return self._workers.bodies

    @property
    def arena_bytes(self) -> int:
        """Bytes of the input arena in use; batches for Triton take none."""
        return self._workers.arena_bytes

    @property
    def breakers(self) -> dict[str, str]:
        """The state of each server's circuit breaker, by its name."""
        return {name: server.breaker for name, server in self._servers.items()}

    @property
    def statistics(self) -> TritonStatistics:
        """The counts that the servers keep."""
        return TritonStatistics(self._servers)

    def start(self, report: EventSink) -> None:
        """Start the workers and connect to the servers."""
        self._workers.start(report)
        for server in self._servers.values():
            server.start(report)

    async def drain(self, timeout_s: float = 5.0) -> None:
        """End the calls and the workers, and release all shared memory."""
        for server in self._servers.values():
            await server.drain()
        await self._workers.drain(timeout_s)

    def _run(self, batch: DispatchBatch) -> None:
        """Start a batch; raises PartitionError if the partition cannot take it."""
        self._servers.get(batch.partition, self._workers).run(batch)

    def revoke(self, batch: int) -> None:
        """Take a batch back from the partition that has it; too late is no error."""
        self._workers.revoke(batch)
        for server in self._servers.values():
            server.revoke(batch)

    def load(self, order: LoadModel) -> None:
        """Begin to load a model."""
        if server := self._servers.get(order.partition):
            server.load(order.model)
        else:
            self._workers.load(order)

    def unload(self, order: UnloadModel) -> None:
        """Unload a model after its batches."""
        if server := self._servers.get(order.partition):
            server.unload(order.model)
        else:
            self._workers.unload(order)
