"""A server from its first listening socket to the end of its last worker."""

import asyncio
import contextlib
import gc
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.gateway.deployment.deployer import Deployer
from sluice.gateway.deployment.poll import Poll
from sluice.gateway.deployment.registry import ModelRegistry
from sluice.gateway.executors.mixed import MixedExecutor
from sluice.gateway.observability.logs import log, log_lines, reopen
from sluice.gateway.partitions.inventory import Inventory
from sluice.gateway.partitions.worker_memory import MemorySampler
from sluice.gateway.resizing.auto_resize import AutoResize
from sluice.gateway.runtime.driver import Runtime
from sluice.gateway.server.client_servers import ClientServers
from sluice.gateway.server.landing import Landing, landing_of
from sluice.gateway.server.reload import Reload
from sluice.gateway.server.signals import ServerSignals, SignalActions
from sluice.gateway.tracing.export import SpanExport
from sluice.models.errors import PartitionError
from sluice.models.repository.names import is_foreign

logger = logging.getLogger(__name__)

LAST_RESPONSES_S = 2.0
"""Time for clients to take their last responses, after which connections are closed."""

GO_S = 0.3
"""Time for clients to hear that they are to go, at the end of the delay before a drain."""

YOUNG_OBJECTS = 20_000
"""New objects before the collector looks for cycles among them: requests make hardly any, and many are open."""


@dataclass(frozen=True, slots=True)
class Server:
    """The parts of a server."""

    registry: ModelRegistry
    inventory: Inventory
    runtime: Runtime
    executor: MixedExecutor
    client_servers: ClientServers
    reload: Reload
    deployer: Deployer
    spans: SpanExport | None = None
    poll: Poll | None = None
    auto_resize: AutoResize | None = None
    memory_sampler: MemorySampler | None = None

    def start_progress(self) -> tuple[int, int] | None:
        """The number of models that were tried so far, and of all to be loaded; None once the server is in service.

        It may be called from any thread.
        """
        return None if self.inventory.in_service.is_set() else self.executor.regions.start_progress

    async def run(self, ready_file: Path | None, signals: ServerSignals) -> int:
        """Serve until a signal to stop, then leave and finish the open requests; a second one ends the server at once.

        `ready_file` gets the ports and the process id when all workers are up. Returns the exit status: 0, or 1 when
        requests were abandoned or the scheduler failed. Raises PartitionError, after the end, if it ended because a
        partition did not prove its limits under `strict`.
        """
        stop, force = asyncio.Event(), asyncio.Event()
        actions = SignalActions(stop.set, force.set, self.reload, reopen, _log_ignored)
        signals.attach(asyncio.get_running_loop(), actions)
        self.runtime.start()
        if self.spans is not None:
            self.spans.start()
        ends = self.client_servers
        await ends.grpc.start()
        if ends.metrics is not None:
            await ends.metrics.start()
        http = asyncio.create_task(ends.http.serve())
        if ends.front_ends is not None:
            ends.front_ends.start()
        host, http_port, grpc_port = ends.address
        log(
            logger, logging.INFO, "server started", host=host, http_port=http_port, grpc_port=grpc_port, pid=os.getpid()
        )
        announced = asyncio.create_task(self._announce(ready_file))
        looks = self.poll, self.auto_resize, self.memory_sampler
        tasks = [asyncio.create_task(each.run()) for each in looks if each is not None]
        stopped = asyncio.create_task(stop.wait())
        failed = asyncio.create_task(self.runtime.failed.wait())
        refused = asyncio.create_task(self.inventory.refused.wait())
        forced = asyncio.create_task(force.wait())
        try:
            await asyncio.wait({http, stopped, failed, refused}, return_when=asyncio.FIRST_COMPLETED)
            delay_s = self.reload.config.drain_delay_s
            if delay_s and stopped.done():
                await self._leave(delay_s, {http, failed, refused, forced})
            else:
                delay_s = 0.0
            given_up = await self._drain(self.reload.config.drain_timeout_s - delay_s, forced)
        finally:
            announced.cancel()
            for task in tasks:
                task.cancel()
            self.deployer.close()
            stopped.cancel()
            failed.cancel()
            refused.cancel()
            forced.cancel()
            await self._close(http)
            signals.detach()
        log(logger, logging.INFO, "server stopped", given_up=given_up)
        if self.inventory.refusal:
            raise PartitionError(self.inventory.refusal)
        return 1 if given_up or self.runtime.failed.is_set() else 0

    async def _announce(self, ready_file: Path | None) -> None:
        """Announce once that all workers are up, unless the server stops already."""
        await self.inventory.in_service.wait()
        if (front_ends := self.client_servers.front_ends) is not None:
            await front_ends.all_ready.wait()
        if self.registry.leaving:
            return
        # The objects made until now stay: the collector need not look at them again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)
        landing = self._landing()
        if self.registry.server_ready():
            log_lines(logger, logging.INFO, "server ready", landing.lines, **landing.fields)
        else:
            event = "server not ready: no model could be loaded"
            log_lines(logger, logging.ERROR, event, landing.lines, **landing.fields)
        if ready_file is not None:
            self._write_ready_file(ready_file)

    def _landing(self) -> Landing:
        registry, ends = self.registry, self.client_servers
        served = [pipeline for (_, version), pipeline in registry.serving.items() if not version]
        return landing_of(
            ends.address,
            None if ends.metrics is None else ends.metrics.port,
            served,
            sum(not is_foreign(name) and registry.broken(name) is not None for name in registry.names()),
            len(self.inventory.kinds),
            tls=self.reload.config.tls is not None,
        )

    def _write_ready_file(self, path: Path) -> None:
        host, http_port, grpc_port = self.client_servers.address
        scratch = path.with_name(f"{path.name}.{os.getpid()}")
        ports = {"host": host, "http_port": http_port, "grpc_port": grpc_port, "pid": os.getpid()}
        if self.client_servers.metrics is not None:
            ports["metrics_port"] = self.client_servers.metrics.port
        scratch.write_text(json.dumps(ports))
        scratch.replace(path)

    async def _leave(self, delay_s: float, ends: set[asyncio.Task[Any]]) -> None:
        """Serve on for that time without being ready, or until one of `ends` is done.

        Load balancers find out meanwhile that this server takes no requests. Halfway, clients are asked to go:
        earlier, their new connections would lead here again.
        """
        self.registry.start_leaving()
        log(logger, logging.INFO, "not ready from now on; still serving", drain_delay_s=delay_s)
        half_s, last_s = delay_s / 2, min(GO_S, delay_s / 4)
        if await _is_any_done(ends, half_s):
            return
        self.client_servers.ask_to_go(last=False)
        if await _is_any_done(ends, half_s - last_s):
            return
        self.client_servers.ask_to_go(last=True)
        await _is_any_done(ends, last_s)

    async def _drain(self, timeout_s: float, forced: asyncio.Task[Any]) -> int:
        """Finish the open requests while new ones are refused; returns how many were abandoned."""
        self.registry.start_draining()
        log(logger, logging.INFO, "drain begun", in_flight=self.runtime.in_flight)
        drained = asyncio.create_task(self.runtime.drain(max(timeout_s, 0)))
        await asyncio.wait({drained, forced}, return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()
        given_up = self.runtime.close()
        log(logger, logging.INFO, "drain ended", given_up=given_up)
        return given_up

    async def _close(self, http: asyncio.Task[None]) -> None:
        """Let clients take their responses, then end connections and workers."""
        self.runtime.close()
        ends = self.client_servers
        closing = asyncio.create_task(ends.grpc.stop(LAST_RESPONSES_S))
        if ends.front_ends is not None:
            await ends.front_ends.stop(LAST_RESPONSES_S)
        ends.http.should_exit = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(http), LAST_RESPONSES_S)
        ends.http.force_exit = True
        if ends.metrics is not None:
            await ends.metrics.stop()
        await asyncio.gather(http, closing)
        await asyncio.gather(self.executor.drain(), *([] if self.spans is None else [self.spans.stop()]))


async def _is_any_done(tasks: set[asyncio.Task[Any]], timeout_s: float) -> bool:
    done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


def _log_ignored(name: str) -> None:
    log(logger, logging.INFO, "signal ignored", signal=name)
