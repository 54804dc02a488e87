"""One slot of a class of remote partitions, over all the workers that are placed there."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress

from sluice.batcher.interface.decisions import DispatchBatch
from sluice.batcher.interface.events import ModelLoaded, ModelLoadFailed, ModelUnloaded, PartitionLost, PartitionReady
from sluice.gateway.cluster.source import WorkerSource
from sluice.gateway.executors.remote.worker import RemoteWorker, UnusableWorker, WorkerContext, WorkerFacts
from sluice.gateway.partitions.inventory import ProcessDetails
from sluice.gateway.worker_protocol.client import SessionRefused
from sluice.models.errors import PartitionError, WorkerGone
from sluice.mps.ipc.messages import LoadResult, ModelFile
from sluice.mps.isolation.back_off import BackOff

logger = logging.getLogger(__name__)

PLACE_S = 5.0
"""A slot without a worker is reported as down after this time."""
LONGEST_PAUSE_S = 2.0
"""The longest pause between two tries of a worker that cannot be reached."""
REFUSED_S = 5.0
"""The pause after a worker was refused, or has refused us."""
GIVE_UP_S = 1.0
"""The time for the batches of a worker that is given up."""
NOT_PLACED = "no worker is placed there yet"


class RemotePartition:
    """Keeps a session with the worker at the address where the `source` has placed it, and reports what becomes of it.

    `files` are the models that the slot may hold, by key, and `initial` those that its first worker begins with. A
    worker that is not there is tried again, one that refuses the gateway, or is refused by it, at most every 5 s. One
    that serves another gateway is tried again when the source says so.
    """

    def __init__(
        self,
        context: WorkerContext,
        source: WorkerSource,
        slot: str,
        kind: str,
        files: Mapping[str, ModelFile],
        initial: Iterable[str],
    ) -> None:
        self._context = context
        self._source = source
        self._slot = slot
        self._kind = kind
        self._files = dict(files)
        self._models = {key: self._files[key] for key in initial}
        self._report = context.batches.report
        self._address: str | None = None
        self._worker: RemoteWorker | None = None
        self._leaving: dict[RemoteWorker, asyncio.Task[None]] = {}
        self._serving: asyncio.Task[None] | None = None
        self._again = asyncio.Event()
        self._reported = ""
        self._measured_on = ""
        self._back_off = BackOff()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def node(self) -> str:
        """The node of the worker that is up; "" without one."""
        return self._worker.node if self._worker is not None and self._worker.is_up else ""

    def start(self) -> None:
        """Report the slot as down if no worker is placed there soon."""
        self._timer = asyncio.get_running_loop().call_later(PLACE_S, self._not_placed)

    def placed(self, address: str | None, reason: str) -> None:
        """Use the worker at an address from now on; None: the slot has no worker, for that reason."""
        if self._serving is not None and address == self._address and not self._serving.done():
            self._again.set()
            return
        self._address = address
        self._release(reason or f"its worker is at {address} from now on")
        if address is not None:
            self._serving = asyncio.get_running_loop().create_task(self._serve(address))
        elif not self._leaving:
            self._down(reason)

    async def drain(self) -> None:
        """End all sessions."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = [task for task in (self._serving, *self._leaving.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in (self._worker, *self._leaving):
            if worker is not None:
                worker.close("the gateway is stopping")

    # -- orders

    def add(self, files: Mapping[str, ModelFile]) -> None:
        """Add models that the slot may hold."""
        self._files.update(files)

    def remove(self, models: Iterable[str]) -> None:
        """Remove models that no worker holds."""
        for key in models:
            self._files.pop(key, None)
            self._models.pop(key, None)

    def run(self, batch: DispatchBatch) -> None:
        """Send a batch; raises WorkerGone without a worker, and PartitionError if its session has no room."""
        if self._worker is None or not self._worker.is_up:
            raise WorkerGone(f"partition {self._slot} has no worker")
        self._worker.run(batch)

    def revoke(self, batch: int) -> None:
        """Ask for a batch back, whichever worker has it."""
        for worker in (self._worker, *self._leaving):
            if worker is not None:
                worker.revoke(batch)

    def load(self, key: str) -> None:
        """Load a model; a worker that is gone is not asked, since its loss was reported."""
        if self._worker is not None and self._worker.is_up:
            self._worker.load(self._files[key])

    def unload(self, key: str) -> None:
        """Unload a model; not asked if the worker is gone."""
        if self._worker is not None and self._worker.is_up:
            self._worker.unload(key)

    def ask_ready(self, number: int, key: str) -> bool:
        """Ask a model whether it is ready; returns false if no worker holds it."""
        return self._worker is not None and self._worker.ask_ready(number, key)

    # -- workers

    async def _serve(self, address: str) -> None:
        """Keep a session with the worker at an address."""
        loop, back_off = asyncio.get_running_loop(), BackOff()
        self._back_off = back_off
        while True:
            self._again.clear()
            worker = RemoteWorker(self._context, self, self._slot, self._kind, address, self._models)
            try:
                await worker.open()
            except SessionRefused as refusal:
                if refusal.holder:  # the slot is vacant: another gateway has the worker, which is no fault
                    self._down(str(refusal))
                    self._source.refused(self._slot, refusal.holder)
                    return
                self._down(str(refusal), address)
                pause_s = LONGEST_PAUSE_S if refusal.retry else REFUSED_S
            except UnusableWorker as refusal:
                self._down(str(refusal), address)
                pause_s = REFUSED_S
            except PartitionError as error:
                self._down(str(error), address)
                pause_s = min(back_off.lost(loop.time()), LONGEST_PAUSE_S)
            except Exception as error:
                logger.exception("the worker at %s could not be tried", address)
                self._down(f"the worker at {address} could not be tried: internal error: {error}", address)
                pause_s = REFUSED_S
            else:
                is_refused = await asyncio.shield(worker.ended)
                self._worker = None
                self._source.lost(self._slot)
                pause_s = REFUSED_S if is_refused else min(back_off.lost(loop.time()), LONGEST_PAUSE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._again.wait()

    def _release(self, reason: str) -> None:
        """Give the present worker up; its batches may end."""
        if self._serving is not None:
            self._serving.cancel()
            self._serving = None
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.leave(reason)
            task = asyncio.get_running_loop().create_task(worker.close_when_idle(reason, GIVE_UP_S))
            self._leaving[worker] = task
            task.add_done_callback(lambda _: self._leaving.pop(worker, None))

    def _not_placed(self) -> None:
        if self._address is None:
            self._down(NOT_PLACED)

    def _down(self, reason: str, url: str = "") -> None:
        """Report that the slot has no worker, once for each reason."""
        if reason != self._reported:
            self._reported = reason
            details = ProcessDetails(url=url, was_up=False)
            self._report(PartitionLost(self._slot, reason), details)

    # -- reports of workers

    def worker_found(self, worker: RemoteWorker) -> None:
        """Keep the session; what was measured on another node does not count."""
        self._worker = worker
        self._source.leased(self._slot)
        if worker.node != self._measured_on:
            self._measured_on = worker.node
            self._models.update({key: self._files[key] for key in self._models.keys() & self._files.keys()})

    def worker_ready(self, worker: RemoteWorker, facts: WorkerFacts) -> None:
        """Take the worker into service."""
        self._reported = ""
        self._back_off.ready(asyncio.get_running_loop().time())
        memory = {each.key: each.memory for each in facts.results if each.memory is not None}
        details = ProcessDetails(
            facts.worker.pid,
            facts.worker.cores,
            facts.evidence,
            facts.partition,
            facts.url,
            facts.failed,
            node=facts.node,
        )
        self._report(PartitionReady(self._slot, dict(facts.tables), memory, facts.node), details)

    def worker_lost(
        self, worker: RemoteWorker, reason: str, *, planned: bool, is_node_lost: bool, failed: Mapping[str, str]
    ) -> None:
        """Report the loss."""
        if not worker.was_up and not failed:
            self._down(reason, worker.url)
            return
        self._reported = reason
        url = "" if self._address is None else worker.url
        details = ProcessDetails(url=url, node=worker.node, failed=failed, planned=planned)
        self._report(PartitionLost(self._slot, reason, is_node_lost), details)

    @property
    def leases(self) -> int:
        """The workers of the class that the gateway has."""
        return self._source.leases

    def worker_asked_for(self, gateway: str, workers: int) -> None:
        """Let the source decide which worker is given up, if any."""
        self._source.asked(self._slot, gateway, workers)

    def model_loaded(self, worker: RemoteWorker, result: LoadResult) -> None:
        """Report a load."""
        details = ProcessDetails(evidence=result.evidence)
        if result.table is None:
            self._report(ModelLoadFailed(self._slot, result.key, result.error), details)
        else:
            self._report(ModelLoaded(self._slot, result.key, result.table, result.memory), details)

    def model_unloaded(self, worker: RemoteWorker, key: str) -> None:
        """Report that a model was unloaded."""
        self._report(ModelUnloaded(self._slot, key))
