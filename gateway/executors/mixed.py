"""An executor over worker processes, remote workers and Triton servers together."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from sluice.batcher.interface.config import ConfidenceSpec
from sluice.batcher.interface.decisions import DispatchBatch, LoadModel, UnloadModel
from sluice.gateway.config.triton_settings import TritonSettings
from sluice.gateway.executors.base import EventSink
from sluice.gateway.executors.remote.executor import RemoteExecutor
from sluice.gateway.executors.request_parts import FindSubmission
from sluice.gateway.executors.triton.partition import TritonPartition
from sluice.gateway.executors.triton.process import TritonProcess
from sluice.gateway.executors.triton.statistics import TritonStatistics
from sluice.gateway.executors.worker.executor import WorkerExecutor
from sluice.gateway.executors.worker.waiting import CallHandler
from sluice.gateway.tensors.body_memory import BodyMemory
from sluice.gateway.tensors.pipeline_wiring import PipelineWiring
from sluice.models.spec import ModelSpec
from sluice.mps.ipc.messages import ModelFile
from sluice.mps.supervisor.supervisor import Supervisor


class MixedExecutor:
    """Runs the batches of each partition where it is: on its worker process, a `remote` worker, or a Triton server.

    The assembly of the workers keeps the tensors for all, so stages of one request may run anywhere. `server_models`
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
        remote: RemoteExecutor | None = None,
    ) -> None:
        self._workers = workers
        self._remote = remote
        self._servers = {
            each.name: TritonPartition(
                each, server_models[each.name], confidence_specs, workers.assembly, clock, processes.get(each.name)
            )
            for each in servers
        }
        self._elsewhere: dict[str, TritonPartition | RemoteExecutor] = {**self._servers}
        if remote is not None:
            self._elsewhere |= dict.fromkeys(remote.names, remote)
            workers.ask_elsewhere = remote.ask_ready
        # If all are here, batches go straight to the workers, which saves a call for each.
        self.run: Callable[[DispatchBatch], None] = self._run if self._elsewhere else workers.run
        self.admit = workers.admit
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

    def answer_calls(self, calls: CallHandler, submission: FindSubmission) -> None:
        """Have the calls of models run by `calls`, and show models the requests that `submission` knows."""
        self._workers.calls = calls
        self._workers.submission = submission
        if self._remote is not None:
            self._remote.submission = submission
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
        """Start the workers, and connect to those that are elsewhere and to the servers."""
        self._workers.start(report)
        if self._remote is not None:
            self._remote.start(report)
        for server in self._servers.values():
            server.start(report)

    async def drain(self, timeout_s: float = 5.0) -> None:
        """End the calls and the workers, and release all shared memory."""
        for server in self._servers.values():
            await server.drain()
        if self._remote is not None:
            await self._remote.drain()
        await self._workers.drain(timeout_s)

    def add(
        self,
        wirings: Mapping[str, PipelineWiring],
        models: Mapping[str, ModelSpec],
        files: Mapping[str, Mapping[str, ModelFile]],
    ) -> None:
        """Add pipelines and models; `files` are the models' files, by partition and key."""
        remote = () if self._remote is None else self._remote.names
        self._workers.add(wirings, models, {name: each for name, each in files.items() if name not in remote})
        if self._remote is not None:
            self._remote.add(models, {name: each for name, each in files.items() if name in remote})

    def remove(self, pipelines: Iterable[str], models: Collection[str]) -> None:
        """Remove pipelines that get no requests, and models that no worker holds."""
        self._workers.remove(pipelines, models)
        if self._remote is not None:
            self._remote.remove(models)

    def recycle(self, partition: str) -> bool:
        """Replace the worker of a partition of this machine; returns false for another one, which stays as it is."""
        if partition in self._elsewhere:
            return False
        self._workers.recycle(partition)
        return True

    def _run(self, batch: DispatchBatch) -> None:
        """Start a batch; raises PartitionError if the partition cannot take it."""
        self._elsewhere.get(batch.partition, self._workers).run(batch)

    def revoke(self, batch: int) -> None:
        """Take a batch back from the partition that has it; too late is no error."""
        self._workers.revoke(batch)
        if self._remote is not None:
            self._remote.revoke(batch)
        for server in self._servers.values():
            server.revoke(batch)

    def load(self, order: LoadModel) -> None:
        """Begin to load a model."""
        if server := self._servers.get(order.partition):
            server.load(order.model)
        else:
            self._elsewhere_or_here(order.partition).load(order)

    def unload(self, order: UnloadModel) -> None:
        """Unload a model after its batches."""
        if server := self._servers.get(order.partition):
            server.unload(order.model)
        else:
            self._elsewhere_or_here(order.partition).unload(order)

    def _elsewhere_or_here(self, partition: str) -> RemoteExecutor | WorkerExecutor:
        """The executor of a partition that is no Triton server."""
        return self._remote if self._remote is not None and partition in self._remote.names else self._workers
