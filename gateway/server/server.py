"""A server from its first listening socket to the end of its last worker."""

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.gateway.deployment.deployer import Deployer
from sluice.gateway.deployment.load_waiter import LoadWaiter
from sluice.gateway.deployment.poll import Poll
from sluice.gateway.deployment.registry import ModelRegistry
from sluice.gateway.executors.triton.executor import MixedExecutor
from sluice.gateway.executors.worker.executor import WorkerExecutor
from sluice.gateway.grpc.transport.server import GrpcServer
from sluice.gateway.http.metrics_server import MetricsServer
from sluice.gateway.http.server import HttpServer
from sluice.gateway.observability.logs import log
from sluice.gateway.observability.metrics import ServerMetrics
from sluice.gateway.partitions.states import PartitionStates, PartitionStatus
from sluice.gateway.resizing.auto_resize import AutoResize
from sluice.gateway.runtime.driver import Runtime
from sluice.models.errors import PartitionError
from sluice.mps.ipc.messages import WorkerReady
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import Partition

logger = logging.getLogger(__name__)

LAST_RESPONSES_S = 2.0
"""Time for clients to take their last responses, after which connections are closed."""

YOUNG_OBJECTS = 20_000
"""New objects before the collector looks for cycles among them: requests make next to none, and are many at a time."""


class PartitionWatch:
    """Passes on how the workers are, and knows when all of them are up for the first time.

    With `strict`, nothing is served with a worker that does not prove its partition: `refused` is set, `refusal` tells.
    """

    def __init__(
        self,
        catalogue: ModelRegistry,
        metrics: ServerMetrics,
        loads: LoadWaiter,
        states: PartitionStates,
        *,
        strict: bool = False,
    ) -> None:
        self._catalogue = catalogue
        self._loads = loads
        self._metrics = metrics
        self._states = states
        self._strict = strict
        self.all_ready = asyncio.Event()
        self.refused = asyncio.Event()
        self.refusal = ""

    def worker_ready(self, partition: str, ready: WorkerReady) -> None:
        """A worker is up and has loaded what it could."""
        state = self._states.ready(partition, ready)
        if not self._weighed(state, ()):
            return
        failed = {model.key: model.error for model in ready.models if model.table is None}
        loaded = [model.key for model in ready.models if model.table is not None]
        for model, reason in failed.items():
            log(logger, logging.ERROR, "model failed to load", model=model, partition=partition, reason=reason)
        log(
            logger,
            logging.INFO,
            "worker ready",
            partition=partition,
            worker=ready.pid,
            cores=list(ready.cores),
            partition_is=state.enforcement.value,
            models=loaded,
        )
        self._metrics.partition_ready(partition)
        self._catalogue.partition_ready(partition, loaded, failed)
        self._loads.partition_ready(partition, loaded, failed)
        if self._catalogue.workers_ready():
            self.all_ready.set()

    def worker_lost(self, partition: str, reason: str) -> None:
        """A worker is gone; another one will be started."""
        log(logger, logging.ERROR, "worker lost", partition=partition, reason=reason)
        self._states.lost(partition, reason)
        self._metrics.partition_lost(partition)
        self._catalogue.partition_lost(partition)
        self._loads.partition_lost(partition, reason)

    def worker_retired(self, partition: str, reason: str) -> None:
        """A worker gets no more batches, as was planned; another one will be started."""
        log(logger, logging.INFO, "worker retired", partition=partition, reason=reason)
        self._states.lost(partition, reason)
        self._metrics.partition_retired(partition)
        self._catalogue.partition_lost(partition)
        self._loads.partition_lost(partition, reason)

    def worker_replaced(self, partition: Partition, ready: WorkerReady) -> None:
        """A worker on another share serves in place of the one before, with the same models."""
        state = self._states.replaced(partition, ready)
        self._weighed(state, ())
        log(
            logger,
            logging.INFO,
            "partition resized",
            partition=partition.name,
            kind=partition.profile_kind,
            worker=ready.pid,
            cores=list(ready.cores),
            partition_is=state.enforcement.value,
        )

    def partition_proved(self, partition: str, evidence: Evidence) -> None:
        """What a worker that is up has found of itself since it loaded one more model."""
        before = self._states.all()[partition].reasons
        self._weighed(self._states.proved(partition, evidence), before)

    def _weighed(self, state: PartitionStatus, before: Sequence[str]) -> bool:
        """Tell what is new of the reasons why a partition is unenforced; whether it may serve all the same."""
        for reason in state.reasons:
            if reason not in before:
                name = state.partition.name
                log(logger, logging.ERROR, "partition unenforced", partition=name, worker=state.worker, reason=reason)
        if not state.reasons or not self._strict:
            return True
        self.refusal = f"partition {state.partition.name} is unenforced: {'; '.join(state.reasons)}"
        self.refused.set()
        return False

    def triton_ready(self, partition: str, url: str, loaded: Sequence[str], failed: Mapping[str, str]) -> None:
        """A Triton server takes batches; `failed` maps models that it does not run to the reasons."""
        for model, reason in failed.items():
            log(logger, logging.ERROR, "model failed to load", model=model, partition=partition, reason=reason)
        log(logger, logging.INFO, "triton ready", partition=partition, url=url, models=list(loaded))
        self._metrics.partition_ready(partition)
        self._catalogue.partition_ready(partition, loaded, failed)
        self._loads.partition_ready(partition, loaded, failed)
        if self._catalogue.workers_ready():
            self.all_ready.set()

    def triton_lost(self, partition: str, url: str, reason: str) -> None:
        """A Triton server takes no batches, until `triton_ready`."""
        log(logger, logging.ERROR, "triton lost", partition=partition, url=url, reason=reason)
        self._metrics.partition_lost(partition)
        self._catalogue.partition_unreachable(partition)
        self._loads.partition_lost(partition, reason)
        if self._catalogue.workers_ready():
            self.all_ready.set()

    def model_loaded(self, partition: str, model: str) -> None:
        """A worker that is up holds one more model."""
        log(logger, logging.INFO, "model loaded", model=model, partition=partition)
        self._catalogue.model_loaded(partition, model)
        self._loads.model_loaded(partition, model)

    def model_load_failed(self, partition: str, model: str, reason: str) -> None:
        """A worker that is up could not load a model."""
        log(logger, logging.ERROR, "model failed to load", model=model, partition=partition, reason=reason)
        self._catalogue.model_load_failed(model, reason)
        self._loads.model_load_failed(partition, model, reason)

    def model_unloaded(self, partition: str, model: str) -> None:
        """A worker that is up does not hold a model any more."""
        log(logger, logging.INFO, "model unloaded", model=model, partition=partition)
        self._catalogue.model_unloaded(partition, model)
        self._loads.model_unloaded(partition, model)


@dataclass(frozen=True, slots=True)
class Server:
    """The parts of a server; `address` is (host, HTTP port, gRPC port)."""

    catalogue: ModelRegistry
    runtime: Runtime
    executor: WorkerExecutor | MixedExecutor
    watch: PartitionWatch
    http: HttpServer
    grpc: GrpcServer
    address: tuple[str, int, int]
    drain_timeout_s: float
    lifecycle: Deployer
    poll: Poll | None = None
    auto_resize: AutoResize | None = None
    metrics: MetricsServer | None = None

    async def run(self, ready_file: Path | None) -> int:
        """Serve until SIGTERM or SIGINT, then finish what is in flight; a second signal ends it at once.

        `ready_file` gets the ports and the process id when all workers are up. Returns the exit status: 0, or 1 when
        requests were given up or the scheduler failed. Raises PartitionError, once it has ended, when it ended because
        a partition is not proved that has to be.
        """
        stop, force = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: force.set() if stop.is_set() else stop.set())
        self.runtime.start()
        await self.grpc.start()
        if self.metrics is not None:
            await self.metrics.start()
        http = asyncio.create_task(self.http.serve())
        host, http_port, grpc_port = self.address
        log(
            logger, logging.INFO, "server started", host=host, http_port=http_port, grpc_port=grpc_port, pid=os.getpid()
        )
        announced = asyncio.create_task(self._announce(ready_file))
        looks = [asyncio.create_task(each.run()) for each in (self.poll, self.auto_resize) if each is not None]
        stopped = asyncio.create_task(stop.wait())
        failed = asyncio.create_task(self.runtime.failed.wait())
        refused = asyncio.create_task(self.watch.refused.wait())
        try:
            await asyncio.wait({http, stopped, failed, refused}, return_when=asyncio.FIRST_COMPLETED)
            given_up = await self._drain(force)
        finally:
            announced.cancel()
            for look in looks:
                look.cancel()
            self.lifecycle.close()
            stopped.cancel()
            failed.cancel()
            refused.cancel()
            await self._close(http)
        log(logger, logging.INFO, "server stopped", given_up=given_up)
        if self.watch.refusal:
            raise PartitionError(self.watch.refusal)
        return 1 if given_up or self.runtime.failed.is_set() else 0

    async def _announce(self, ready_file: Path | None) -> None:
        """Tell once that all workers are up."""
        await self.watch.all_ready.wait()
        # What has been made until now stays: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)
        if self.catalogue.server_ready():
            log(logger, logging.INFO, "server ready")
        else:
            log(logger, logging.ERROR, "server not ready: what it was to serve did not load")
        if ready_file is not None:
            self._write_ready_file(ready_file)

    def _write_ready_file(self, path: Path) -> None:
        host, http_port, grpc_port = self.address
        scratch = path.with_name(f"{path.name}.{os.getpid()}")
        told = {"host": host, "http_port": http_port, "grpc_port": grpc_port, "pid": os.getpid()}
        if self.metrics is not None:
            told["metrics_port"] = self.metrics.port
        scratch.write_text(json.dumps(told))
        scratch.replace(path)

    async def _drain(self, force: asyncio.Event) -> int:
        """Finish what is in flight while new requests are refused; returns how many requests were given up."""
        self.catalogue.draining = True
        log(logger, logging.INFO, "drain begun", in_flight=self.runtime.in_flight)
        drained = asyncio.create_task(self.runtime.drain(self.drain_timeout_s))
        forced = asyncio.create_task(force.wait())
        await asyncio.wait({drained, forced}, return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()
        forced.cancel()
        given_up = self.runtime.close()
        log(logger, logging.INFO, "drain ended", given_up=given_up)
        return given_up

    async def _close(self, http: asyncio.Task[None]) -> None:
        """Let clients take their responses, then end connections and workers."""
        self.runtime.close()
        self.http.should_exit = True
        closing = asyncio.create_task(self.grpc.stop(LAST_RESPONSES_S))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(http), LAST_RESPONSES_S)
        self.http.force_exit = True
        if self.metrics is not None:
            await self.metrics.stop()
        await asyncio.gather(http, closing)
        await self.executor.drain()
