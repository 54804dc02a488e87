"""One Triton server as a partition: a circuit breaker, its models, and the batches that it runs."""

import asyncio
import enum
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress

from sluice.batcher.interface.config import ConfidenceSpec
from sluice.batcher.interface.decisions import DispatchBatch
from sluice.batcher.interface.events import ModelLoaded, ModelLoadFailed, ModelUnloaded, PartitionLost, PartitionReady
from sluice.gateway.config.triton_settings import TritonSettings
from sluice.gateway.executors.base import EventSink
from sluice.gateway.executors.triton.batches import RequestLookup, TritonBatches
from sluice.gateway.executors.triton.client import TritonClient
from sluice.gateway.executors.triton.errors import ServerLost
from sluice.gateway.executors.triton.memory import TritonMemory
from sluice.gateway.executors.triton.models import TritonModels
from sluice.gateway.executors.triton.process import TritonProcess
from sluice.gateway.executors.triton.statistics import ModelCounts
from sluice.gateway.partitions.inventory import ProcessDetails
from sluice.gateway.tensors.assembly import Assembly
from sluice.models.errors import ServingError, WorkerGone
from sluice.models.spec import ModelSpec, public_key
from sluice.mps.isolation.back_off import BackOff

LAST_PROBE_S = 5.0
"""The longest time between two tries of a lost server."""
IDLE_S = 10.0
"""A server that was sent nothing for this time is asked whether it is still there."""
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
"""The first and the longest time between two tries to load a model; it doubles each time."""


class Breaker(enum.StrEnum):
    """The state of a circuit breaker: `closed` lets batches through, and `half_open` tries the server."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class TritonPartition:
    """Runs batches on one server, each as one call, and keeps the server and its models running.

    `specs` are the models that the server may hold, and begins with, by key. `confidence_specs` are the confidences
    that each model reports. `process` belongs to a server that we run; it is started again when it ends. A call that
    fails for more than its content opens the breaker: the partition is lost with its batches. It is ready again when
    the server is, and has run a batch of every size. Models that do not load then are tried again beside the batches.
    """

    def __init__(
        self,
        settings: TritonSettings,
        specs: Mapping[str, ModelSpec],
        confidence_specs: Mapping[str, Sequence[ConfidenceSpec]],
        assembly: Assembly,
        clock: Callable[[], int],
        process: TritonProcess | None = None,
    ) -> None:
        self.breaker = Breaker.OPEN
        self._settings = settings
        self._name = settings.name
        self._process = process
        self._client = TritonClient(settings.url, settings.http_url)
        self._memory = (
            TritonMemory(self._client, settings.name, specs.values(), settings.http_url) if settings.local else None
        )
        self._models = TritonModels(self._client, self._memory, specs, clock)
        self._batches = TritonBatches(
            self._client, self._memory, self._models, confidence_specs, assembly, settings.timeout_s, self._open, clock
        )
        self._held: set[str] = set()
        self._changing = asyncio.Lock()
        self._changes: set[asyncio.Task[None]] = set()
        self._lost = asyncio.Event()
        self._serving: asyncio.Task[None]
        self._report: EventSink

    def show_requests(self, submission: RequestLookup) -> None:
        """Have batches carry the traces of the requests that `submission` knows."""
        self._batches.submission = submission

    def start(self, report: EventSink) -> None:
        """Connect, and report the models that the server holds once it is ready."""
        self._report = report
        self._batches.start(report)
        self._serving = asyncio.get_running_loop().create_task(self._serve())

    async def drain(self) -> None:
        """Cancel the calls in flight; the server stays, and a process of ours is left to its launcher."""
        if self._process is not None:
            self._process.unwatch()
        tasks = [self._serving, *self._changes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._batches.drain()
        if self._memory is not None:
            with suppress(ServerLost):
                await self._memory.unregister()
        await self._client.close()

    def run(self, batch: DispatchBatch) -> None:
        """Send a batch; raises WorkerGone when the breaker is open."""
        if self.breaker is not Breaker.CLOSED:
            raise WorkerGone(f"the Triton server {self._name} is not in service")
        self._batches.run(batch)

    async def counts(self) -> dict[str, ModelCounts]:
        """The server's counts of our models, by `name:version`; nothing while it is lost."""
        if self.breaker is not Breaker.CLOSED:
            return {}
        ours = {public_key(key) for key in self._models.specs}
        return {model: counts for model, counts in (await self._client.statistics()).items() if model in ours}

    def revoke(self, batch: int) -> None:
        """Take a batch back that waits behind another one; too late is no error."""
        self._batches.revoke(batch)

    # -- the server

    async def _serve(self) -> None:
        back_off = BackOff()
        while True:
            self.breaker = Breaker.HALF_OPEN
            try:
                failed = await self._bring_up()
            except (ServerLost, OSError) as error:
                self._open(str(error))
            else:
                self._close(failed)
                back_off.ready(time.monotonic())
                await self._watch()
            await asyncio.sleep(min(back_off.lost(time.monotonic()), LAST_PROBE_S))

    async def _watch(self) -> None:
        """Return when the server is lost; after a long time without answers, ask whether it is there."""
        while True:
            answered = self._batches.answered
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE_S):
                    await self._lost.wait()
                    return
            if self._batches.answered == answered and not self._batches.running:
                try:
                    await self._client.check_server()
                except ServerLost as error:
                    self._open(str(error))

    async def _bring_up(self) -> dict[str, str]:
        """Bring up the server and its models; returns the reasons why some models do not run.

        Raises ServerLost, or OSError when its process cannot be started.
        """
        if self._process is None:
            await self._client.check_server()
        else:
            await self._process.wait_ready(self._client.check_server)
            self._process.watch(self._process_ended)
        if self._memory is not None:
            await self._memory.register()
        failed: dict[str, str] = {}
        for key in self._models.specs:
            try:
                await self._models.bring_up(key)
            except ServerLost:
                raise
            except ServingError as error:
                failed[key] = str(error)
        return failed

    def _close(self, failed: Mapping[str, str]) -> None:
        """Close the breaker: the partition is in service."""
        self.breaker = Breaker.CLOSED
        self._lost.clear()
        self._held = self._models.specs.keys() - failed.keys()
        tables = {key: self._models.tables[key] for key in self._models.specs if key in self._held}
        self._report(PartitionReady(self._name, tables), ProcessDetails(url=self._settings.url, failed=failed))
        for key in failed:
            self._change(self._revive(key))

    def _open(self, reason: str) -> None:
        """Open the breaker: the partition is lost with its batches.

        The loss is reported once, also of a server that could not be reached the first time.
        """
        self.breaker = Breaker.OPEN
        if self._lost.is_set():
            return
        self._lost.set()
        self._report(PartitionLost(self._name, reason), ProcessDetails(url=self._settings.url))
        for change in self._changes:
            if change is not asyncio.current_task():
                change.cancel()
        self._batches.abandon(reason)

    def _process_ended(self) -> None:
        assert self._process is not None
        self._process.unwatch()
        if (reason := self._process.ended()) is not None:
            self._open(reason)

    # -- models

    def load(self, key: str) -> None:
        """Have the server load a model; no event follows when the server is lost first."""
        if self.breaker is Breaker.CLOSED:
            self._change(self._load(key))

    def unload(self, key: str) -> None:
        """Have the server unload a model after its batches; no event follows when the server is lost first."""
        if self.breaker is Breaker.CLOSED:
            self._change(self._unload(key))

    def _change(self, change: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._carry_out(change))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)

    async def _carry_out(self, change: Coroutine[None, None, None]) -> None:
        """Make a change; a lost server is reported in place of the model."""
        try:
            await change
        except ServerLost as error:
            self._open(str(error))

    async def _load(self, key: str) -> None:
        if (reason := await self._bring_up_one(key)) is not None:
            self._report(ModelLoadFailed(self._name, key, reason))

    async def _revive(self, key: str) -> None:
        """Try to load a model that failed until it loads."""
        delay_s = FIRST_RETRY_S
        while key not in self._held:
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, LAST_RETRY_S)
            await self._bring_up_one(key)

    async def _bring_up_one(self, key: str) -> str | None:
        """Load a model, one at a time, and report it; returns the reason if it does not load."""
        async with self._changing:
            try:
                await self._models.bring_up(key)
            except ServerLost:
                raise
            except ServingError as error:
                return str(error)
        self._held.add(key)
        self._report(ModelLoaded(self._name, key, self._models.tables[key]))
        return None

    async def _unload(self, key: str) -> None:
        async with self._changing:
            if batches := self._batches.of(key):
                await asyncio.wait(batches)
            await self._models.unload(key)
        self._held.discard(key)
        self._report(ModelUnloaded(self._name, key))
