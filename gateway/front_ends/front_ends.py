"""The front ends of a server, in the gateway's process: started, watched, replaced and stopped."""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.deployment.registry import ModelRegistry
from sluice.gateway.front_door.metrics import FrontDoorCounts
from sluice.gateway.front_ends.messages import AskCounts, Start, Stop
from sluice.gateway.front_ends.outputs import RegionIndex
from sluice.gateway.front_ends.port import FrontEndPort
from sluice.gateway.front_ends.snapshot import Serving, changes
from sluice.gateway.front_ends.templates import Served
from sluice.gateway.inference.local import LocalDataPlane
from sluice.gateway.observability.logs import log
from sluice.gateway.observability.metrics import MetricsSource
from sluice.gateway.protocol.signature import Signature
from sluice.gateway.tensors.input_slots import SharedRegions
from sluice.models.errors import ConfigError, PartitionError
from sluice.mps.ipc.arena import Region
from sluice.mps.isolation.back_off import BackOff
from sluice.mps.partitions.cpu import usable_cores
from sluice.mps.supervisor.child import Child
from sluice.mps.supervisor.process import wait_for_exit
from sluice.mps.supervisor.spare import SpareWorker
from sluice.mps.supervisor.supervisor import RegionWatcher

START_TIMEOUT_S = 30.0
"""A front end that does not accept connections by then is killed."""
READY_DELAY_S = 0.5
"""The longest delay before a front end is started again that had accepted connections."""
COUNTS_TIMEOUT_S = 0.5
"""The time for front ends to report their counts, after which the last ones are used."""
CHECK_S = 5.0
MAX_UNANSWERED = 3
"""Checks, one each CHECK_S, after which a front end that has not answered is hung and is killed."""
EXIT_S = 1.0
"""The time for a front end to exit, after the time that it is given, before it is killed."""

logger = logging.getLogger(__name__)


class WatchedRegions(SharedRegions, Protocol):
    """Regions that are shared with workers, and are watched."""

    def watch_regions(self, watcher: RegionWatcher) -> None:
        """Report all regions to a watcher, those that there are and later ones."""
        ...


class _Slot:
    """The place of a front end: its listening sockets stay while its process is replaced."""

    def __init__(self, name: str, listeners: Sequence[socket.socket]) -> None:
        self.name = name
        self.listeners: Sequence[socket.socket] = listeners
        self.back_off = BackOff()
        self.port: FrontEndPort | None = None
        self.published: Serving = {}
        self.timer: asyncio.TimerHandle | None = None


class FrontEnds(MetricsSource):
    """Front ends that listen on `listeners`, for HTTP and gRPC or for HTTP alone; `listen` makes such sockets again.

    Each gets `config` and `limits`: the most connections over HTTP and over gRPC, and the size of its buffer. `launch`
    starts them. `attach` takes connections of the relay. With `spare_worker`, a process that has imported its libraries
    waits to be the next front end.
    """

    def __init__(
        self,
        config: ServerConfig,
        listeners: Sequence[Sequence[socket.socket]],
        listen: Callable[[], Sequence[socket.socket]],
        limits: tuple[int, int, int],
        dataplane: LocalDataPlane,
        registry: ModelRegistry,
        regions: WatchedRegions,
        attach: Callable[[socket.socket], None],
        launch: Callable[[], Child],
    ) -> None:
        self._start = Start(msgspec.json.encode(config), *limits, logging.getLogger().getEffectiveLevel())
        self._slots = [_Slot(f"front end {number}", each) for number, each in enumerate(listeners)]
        self._listen = listen
        self._dataplane = dataplane
        self._client_key = config.client_key
        self._registry = registry
        self._regions = regions
        self._attach = attach
        self._launch = launch
        self._spare = SpareWorker(lambda partition, stdout: launch()) if config.spare_worker else None
        self._index = RegionIndex()
        self._served: dict[str, Served] = {}
        self._served_of: object = None
        self._due = False
        self._stopping = False
        self._faults: Counter[str] = Counter()
        """Faults that front ends counted which have gone."""
        self._losses = 0
        self._checking: asyncio.TimerHandle | None = None
        self.all_ready = asyncio.Event()
        """Set when all have been ready for the first time."""
        regions.watch_regions(self)
        registry.subscribe(self._serving_changed)

    @property
    def ready(self) -> int:
        """The number of front ends that accept connections."""
        return sum(slot.port is not None and slot.port.is_ready for slot in self._slots)

    @property
    def process_ids(self) -> dict[str, int]:
        """The process of each front end that has one, by name."""
        return {slot.name: slot.port.process.pid for slot in self._slots if slot.port is not None}

    def start(self) -> None:
        """Start all front ends."""
        for slot in self._slots:
            self._start_process(slot)
        self._checking = asyncio.get_running_loop().call_later(CHECK_S, self._check)

    async def stop(self, timeout_s: float) -> None:
        """Accept no connections, and let the front ends answer the open requests; after that time they are killed."""
        self._stopping = True
        if self._checking is not None:
            self._checking.cancel()
        ports = [slot.port for slot in self._slots if slot.port is not None]
        for slot in self._slots:
            if slot.timer is not None:
                slot.timer.cancel()
            self._close_listeners(slot)
        for port in ports:
            port.send(Stop(timeout_s))
        if self._spare is not None:
            await self._spare.close()
        if not await wait_for_exit([port.process.exited for port in ports], timeout_s + EXIT_S):
            for port in ports:
                port.process.kill("it did not stop in time")
            await wait_for_exit([port.process.exited for port in ports], EXIT_S)

    # -- processes

    def _start_process(self, slot: _Slot) -> None:
        slot.timer = None
        try:
            slot.listeners = slot.listeners or self._listen()
            slot.port = port = FrontEndPort(
                slot.name,
                self._launch() if self._spare is None else self._spare.launch(None, None),
                self._dataplane,
                self,
                self._regions,
                self._index,
                self._attach,
                lambda: self._ready(slot),
                lambda reason: self._lost(slot, reason),
            )
        except (OSError, PartitionError, ConfigError) as error:
            self._lost(slot, f"the front end cannot be started: {error}")
            return
        port.send(self._start, [each.fileno() for each in slot.listeners])
        slot.published = {}
        self._publish(slot)
        process = port.process
        slot.timer = asyncio.get_running_loop().call_later(
            START_TIMEOUT_S, lambda: process.kill(f"it was not ready within {START_TIMEOUT_S:g} s")
        )

    def _ready(self, slot: _Slot) -> None:
        if slot.timer is not None:
            slot.timer.cancel()
            slot.timer = None
        slot.back_off.ready(asyncio.get_running_loop().time())
        assert slot.port is not None
        log(logger, logging.INFO, "front end ready", name=slot.name, pid=slot.port.process.pid)
        if self.ready == len(self._slots):
            self.all_ready.set()
            if self._spare is not None and not self._stopping:
                self._spare.prepare()  # not while others start, which it would slow down

    def _lost(self, slot: _Slot, reason: str) -> None:
        """Start another process, at once for the first time; meanwhile connections wait in the listening socket."""
        port, slot.port = slot.port, None
        if slot.timer is not None:
            slot.timer.cancel()
            slot.timer = None
        if port is not None:
            self._faults.update(port.counts.faults)
        if self._stopping:
            return
        self._losses += 1
        loop = asyncio.get_running_loop()
        delay_s = slot.back_off.lost(loop.time(), answered=port is not None and port.has_answered)
        if port is not None and port.was_ready:
            delay_s = min(delay_s, READY_DELAY_S)
        log(logger, logging.WARNING, "front end lost", name=slot.name, reason=reason, restart_in_s=delay_s)
        if delay_s and self.ready:
            self._close_listeners(slot)  # connections go to the other front ends
        slot.timer = loop.call_later(delay_s, self._start_process, slot)

    def _check(self) -> None:
        """Ask each front end for its counts, and kill those that no longer answer."""
        self._checking = asyncio.get_running_loop().call_later(CHECK_S, self._check)
        for slot in self._slots:
            if (port := slot.port) is None or not port.is_ready:
                continue
            if port.unanswered >= MAX_UNANSWERED:
                port.process.kill("the front end does not answer")
            else:
                port.unanswered += 1
                port.send(AskCounts())

    def _close_listeners(self, slot: _Slot) -> None:
        for each in slot.listeners:
            each.close()
        slot.listeners = ()

    # -- what is served

    @property
    def serving(self) -> Serving:
        """The pipelines by name and version, another object at each change."""
        return self._registry.serving

    def find(self, name: str, version: str, key: str) -> Served | None:
        """The pipeline that clients get now by a name and a version; None if it is not of that key."""
        pipeline = self._registry.serving.get((name, version))
        if pipeline is None:
            return None
        served = self._served.get(key)
        if served is None or served.pipeline is not pipeline:
            if pipeline.key != key:
                return None
            served = self._served[key] = Served(pipeline, Signature(pipeline, self._client_key))
        return served

    def _serving_changed(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._publish_all)

    def _publish_all(self) -> None:
        self._due = False
        keys = {pipeline.key for pipeline in self._registry.serving.values()}
        self._served = {key: served for key, served in self._served.items() if key in keys}
        for slot in self._slots:
            if slot.port is not None:
                self._publish(slot)

    def _publish(self, slot: _Slot) -> None:
        assert slot.port is not None
        now = self._registry.serving
        for change in changes(slot.published, now, self._registry.draining):
            slot.port.send(change)
        slot.published = now

    # -- memory

    def region_added(self, number: int, region: Region) -> None:
        """Take a region of the workers, or of a front end."""
        self._index.region_added(number, region)

    def region_dropped(self, number: int) -> None:
        """Forget a region."""
        self._index.region_dropped(number)
        for slot in self._slots:
            if slot.port is not None:
                slot.port.region_dropped(number)

    # -- metrics

    def counts(self) -> FrontDoorCounts:
        """The counts of all front ends together."""
        faults = self._faults.copy()
        http = grpc = buffer_bytes = 0
        for slot in self._slots:
            if slot.port is not None:
                http += slot.port.counts.http_connections
                grpc += slot.port.counts.grpc_connections
                buffer_bytes += slot.port.counts.buffer_bytes
                faults.update(slot.port.counts.faults)
        return FrontDoorCounts(http, grpc, buffer_bytes, faults)

    def input_bytes(self) -> int:
        """Bytes in use of the memory of all front ends for inputs."""
        return sum(slot.port.counts.input_bytes for slot in self._slots if slot.port is not None)

    async def refresh(self) -> None:
        """Ask the front ends for their counts."""
        ports = [slot.port for slot in self._slots if slot.port is not None and slot.port.is_ready]
        for port in ports:
            port.counted.clear()
            port.send(AskCounts())
        try:
            async with asyncio.timeout(COUNTS_TIMEOUT_S):
                for port in ports:
                    await port.counted.wait()
        except TimeoutError:
            pass

    def collect(self) -> Iterator[Metric]:
        """The families, for prometheus_client."""
        yield GaugeMetricFamily("sluice_front_ends", "Front-end processes that accept connections.", self.ready)
        yield CounterMetricFamily(
            "sluice_front_end_losses",
            "Front-end processes that have ended unexpectedly and were replaced.",
            self._losses,
        )


def front_end_count(setting: int | str) -> int:
    """The number of front ends for the setting `front_ends`: `auto` is one for each four cores, from 8 cores on."""
    if isinstance(setting, int):
        return setting
    cores = len(usable_cores())
    return 0 if cores < AUTO_CORES else min(cores // CORES_EACH, MAX_AUTO)


AUTO_CORES = 8
CORES_EACH = 4
MAX_AUTO = 8
