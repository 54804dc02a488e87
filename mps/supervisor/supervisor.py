"""Keeps one worker process running for each partition, and shares the tensor regions among the gateway and all workers.

A region has one number in the whole gateway, given here and never used twice: inputs, outputs and messages name a
region by the same number in every process. A worker learns of the regions once it is ready. Each start of a worker
makes a new output region with a new number; the old one stays mapped until `drop_region`, so that the outputs of a lost
worker remain readable as long as they are needed.
"""

import asyncio
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from sluice.models.errors import PartitionError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.daemon.client_contexts import TERMINATE_S
from sluice.mps.daemon.control import MpsControl
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.messages import (
    AddModel,
    BatchFinished,
    BatchRefused,
    BatchReport,
    BatchWaits,
    BatchWithdrawn,
    CallModel,
    DropModel,
    FromWorker,
    LoadResult,
    MapRegion,
    ModelAdded,
    ModelDropped,
    ModelFile,
    ModelMeasured,
    ModelsLoading,
    OverflowCreated,
    ReadinessReport,
    ResponseSent,
    UnmapRegion,
    WorkerReady,
)
from sluice.mps.ipc.places import check_places
from sluice.mps.isolation.back_off import BackOff
from sluice.mps.partitions.cpu import check_partitions
from sluice.mps.partitions.isolation_report import isolation_violations
from sluice.mps.partitions.partition import Partition
from sluice.mps.supervisor.callbacks import WorkerCallbacks
from sluice.mps.supervisor.child import Launch, launch_worker
from sluice.mps.supervisor.hand_over import HandOver
from sluice.mps.supervisor.process import WorkerProcess, wait_for_exit
from sluice.mps.supervisor.quarantine import DEFAULT_QUARANTINE, QuarantineSettings
from sluice.mps.supervisor.recovery import Recovery
from sluice.mps.supervisor.spare import SpareWorker
from sluice.mps.supervisor.worker_slot import WorkerSlot
from sluice.mps.supervisor.worker_spec import WorkerSpec

KILL_TIMEOUT_S = 5.0
LATE = "it did not exit in time"


class RegionWatcher(Protocol):
    """Follows the regions that the gateway's process has mapped."""

    def region_added(self, number: int, region: Region) -> None:
        """Take a new region, which the supervisor owns."""
        ...

    def region_dropped(self, number: int) -> None:
        """Forget a region to which nothing refers any more."""
        ...


class Supervisor:
    """Starts a worker for each spec, restarts lost ones, and shares regions among gateway and workers.

    `recovery` decides when a worker is restarted; `controls` are those of the MPS daemons, by device, and `launch`
    starts the processes. With `spare`, a process that has imported its libraries waits to be the next worker, which is
    then ready sooner. `_slots` also contains the slots of workers that are to replace others, and of replaced workers
    that still run. All methods must be called on the event loop's thread.
    """

    def __init__(
        self,
        workers: Sequence[WorkerSpec],
        callbacks: WorkerCallbacks,
        ready_timeout_s: float = 120.0,
        quarantine: QuarantineSettings = DEFAULT_QUARANTINE,
        controls: Mapping[str, MpsControl] = {},
        *,
        spare: bool = False,
        launch: Launch = launch_worker,
    ) -> None:
        check_partitions([spec.partition for spec in workers])
        self._slots = [WorkerSlot(spec, ready_timeout_s, self._end_worker) for spec in workers]
        self._by_name = {slot.name: slot for slot in self._slots}
        self.recovery = Recovery(self._slots, self._by_name, self._start_worker, quarantine, controls)
        self._hand_overs: dict[str, HandOver] = {}
        self._retiring: dict[WorkerProcess, WorkerSlot] = {}
        self._callbacks = callbacks
        self._tables: dict[tuple[str, str], LatencyTable] = {}
        self._memory_measured: set[tuple[str, str]] = set()
        self._regions: dict[int, Region] = {}
        self._watchers: list[RegionWatcher] = []
        self._numbers = itertools.count(1)
        self._spare = SpareWorker(launch) if spare else None
        self._launch = launch if self._spare is None else self._spare.launch
        self._draining = False

    def start(self) -> None:
        """Start all workers at once; `worker_ready` follows for each."""
        self.recovery.start()
        for slot in self._slots:
            self._start_worker(slot)

    @property
    def start_progress(self) -> tuple[int, int]:
        """The models that workers have tried to load so far, and all that they are to load, over all partitions."""
        slots = list(self._by_name.values())  # it is called from another thread
        tried = sum(len(slot.models) if slot.ready else min(slot.tried_models, len(slot.models)) for slot in slots)
        return tried, sum(len(slot.models) for slot in slots)

    def load(self, partition: str, file: ModelFile) -> None:
        """Make the worker of a partition hold one more model, as will its successors; `model_loaded` follows.

        A model without a `table` gets the table that was measured on a partition of the same kind, if there is one; its
        memory is not measured again either. Nothing follows when there is no worker, or when it is lost first:
        `worker_ready` then reports the models of the next worker. A worker that takes longer for the model than for its
        own start is ended.
        """
        slot = self._by_name[partition]
        known = slot.kind, file.key
        table = file.table or self._tables.get(known)
        self._change(
            slot, AddModel(msgspec.structs.replace(file, table=table, memory_measured=known in self._memory_measured))
        )

    def unload(self, partition: str, key: str) -> None:
        """Make the worker of a partition unload a model after the batches that it was sent; otherwise as `load`.

        `model_unloaded` follows.
        """
        self._change(self._by_name[partition], DropModel(key))

    def recycle(self, partition: str) -> None:
        """Restart the worker of a partition at once, to free its memory; `worker_lost` and `worker_ready` follow."""
        slot = self._by_name[partition]
        if slot.ready and slot.process:
            slot.back_off = BackOff()
            self.recovery.expect_exit(partition)
            slot.end("it is recycled to free its memory")

    def resize(self, partition: Partition, tables: Mapping[str, LatencyTable]) -> asyncio.Future[None]:
        """Replace the worker of a partition by one with another share; the old one serves until the new one is ready.

        The new worker has to hold all models of the old one; `tables` are their known latency tables there, by key, and
        the other models are timed. `worker_replaced` comes before the future is done. When the new worker cannot take
        over, the future gets a PartitionError and nothing has changed. Raises PartitionError for cores that another
        partition has or is to get, when no worker is ready or a replacement is under way, and when the server is
        stopping.
        """
        slot = self._by_name[partition.name]
        if self._draining:
            raise PartitionError("the server is stopping")
        if not slot.ready:
            raise PartitionError(f"partition {slot.name}: its worker is not ready")
        if slot.name in self._hand_overs:
            raise PartitionError(f"partition {slot.name}: a resize is already under way")
        for slots in (self._by_name.values(), [each.successor for each in self._hand_overs.values()]):
            check_partitions([partition, *(each.spec.partition for each in slots if each is not slot)])
        hand_over = HandOver(slot, partition, tables, self._tables)
        self._hand_overs[slot.name] = hand_over
        self._slots.append(hand_over.successor)
        self._start_worker(hand_over.successor)
        return hand_over.done

    def cancel_replacement(self, partition: str, reason: str) -> None:
        """Keep the worker of a partition, if a replacement is under way."""
        if hand_over := self._hand_overs.pop(partition, None):
            hand_over.fail(reason)

    def retire(self, worker: WorkerProcess) -> None:
        """End a worker that has been replaced; `worker_gone` follows."""
        worker.close()
        slot = self._retiring[worker]
        slot.call_later(KILL_TIMEOUT_S, lambda: slot.end(LATE))

    def forget_model(self, key: str) -> None:
        """Forget a model that is no longer served: no worker starts with it from now on."""
        for slot in self._slots:
            slot.models.pop(key, None)
        for known in [each for each in self._tables if each[1] == key]:
            del self._tables[known]
            self._memory_measured.discard(known)

    def share_region(self, region: Region) -> int:
        """Give a region of the gateway to every worker, present and future; returns its number (>= 1).

        The supervisor owns the region from now on.
        """
        number = next(self._numbers)
        self._add_region(number, region, maker=None)
        return number

    def watch_regions(self, watcher: RegionWatcher) -> None:
        """Report all regions to a watcher, those that there are and later ones."""
        self._watchers.append(watcher)
        for number, region in self._regions.items():
            watcher.region_added(number, region)

    def region(self, number: int) -> Region:
        """The region of that number as mapped here; raises KeyError when it was dropped."""
        return self._regions[number]

    def drop_region(self, number: int) -> None:
        """Unmap a region everywhere, once nothing refers to it; dropping it again is harmless.

        This is for overflow regions (negative numbers), output regions of lost workers and the gateway's own regions.
        Raises PartitionError for the output region of a running worker.
        """
        if any(slot.output_region == number for slot in self._slots if slot.ready):
            raise PartitionError(f"region {number} is the output region of a running worker")
        if region := self._regions.pop(number, None):
            for watcher in self._watchers:
                watcher.region_dropped(number)
            region.close()
            for slot in self._slots:
                slot.send(UnmapRegion(number))

    async def drain(self, timeout_s: float = 5.0) -> None:
        """Let every worker exit, kill those that have not after `timeout_s`, and drop all regions."""
        self._draining = True
        for name in list(self._hand_overs):
            self.cancel_replacement(name, "the server is stopping")
        for slot in self._slots:
            slot.cancel_timer()
        await self.recovery.close()
        if self._spare is not None:
            await self._spare.close()
        processes = [slot.process for slot in self._slots if slot.process]
        for process in processes:
            process.close()
        gone = [process.exited for process in processes]
        if not await wait_for_exit(gone, timeout_s):
            for slot in self._slots:
                slot.end(LATE)
            await wait_for_exit(gone, TERMINATE_S + KILL_TIMEOUT_S)
        for region in self._regions.values():
            region.close()
        self._regions.clear()

    def _start_worker(self, slot: WorkerSlot) -> None:
        slot.output_region = next(self._numbers)
        try:
            process = WorkerProcess(
                slot.spec.partition,
                lambda message, fds: self._handle(slot, message, fds),
                lambda why: self._worker_lost(slot, why),
                launch=self._launch,
            )
        except (OSError, PartitionError) as error:
            self._worker_lost(slot, f"the worker cannot be started: {error}")
            return
        slot.process_started(process)

    def _end_worker(self, partition: str, process: WorkerProcess, reason: str) -> None:
        self.recovery.end_worker(partition, process, reason)

    def _change(self, slot: WorkerSlot, change: AddModel | DropModel) -> None:
        if not self._draining:
            slot.request_change(change)

    def _handle(self, slot: WorkerSlot, message: FromWorker, fds: tuple[int, ...]) -> None:
        """Handle a message of a worker; raises PartitionError for one that does not fit what it was sent."""
        if isinstance(message, WorkerReady | OverflowCreated):
            region = _attach(fds, slot.spec.output_bytes if isinstance(message, WorkerReady) else message.nbytes)
            try:
                self._region_made(slot, message, region)
            except PartitionError:
                region.close()
                raise
            return
        if isinstance(message, CallModel):
            self._model_called(slot, message, fds)
            return
        if fds:
            _close_all(fds)
            raise PartitionError(f"{type(message).__name__} came with {len(fds)} descriptors, expected none")
        if isinstance(message, ModelsLoading):
            slot.tried_models = message.done
            return
        if not slot.ready:
            raise PartitionError(f"{type(message).__name__} came before it was ready")
        match message:
            case ModelAdded() | ModelDropped():
                self._models_changed(slot, message)
            case BatchFinished() | ResponseSent():
                check_places(message, self._regions, slot.output_region, slot.unclaimed_overflow)
                self._answered(slot, message)
                if message.slot < 0:
                    slot.unclaimed_overflow = None
            case BatchRefused() | BatchWithdrawn() | BatchWaits():
                self._answered(slot, message)
            case ReadinessReport():
                self._callbacks.readiness_reported(slot.name, message)
            case ModelMeasured():
                raise PartitionError("a model was measured, which was not ordered")

    def _models_changed(self, slot: WorkerSlot, message: ModelAdded | ModelDropped) -> None:
        if isinstance(message, ModelAdded):
            slot.model_loaded(message.model)
            self._record_measurements(slot, message.model)
            if self._by_name[slot.name] is slot:
                self._callbacks.model_loaded(slot.name, message.model)
            self._try_hand_over(slot, message.model)
            return
        slot.model_unloaded(message.key)
        if self._by_name[slot.name] is slot:
            self._callbacks.model_unloaded(slot.name, message.key)
        self._try_hand_over(slot)

    def _model_called(self, slot: WorkerSlot, message: CallModel, fds: tuple[int, ...]) -> None:
        if len(fds) != 1 or slot.process is None or not slot.ready:
            _close_all(fds)
            raise PartitionError(f"a model called another one with {len(fds)} descriptors of its inputs, expected one")
        self._callbacks.model_called(slot.name, slot.process, message, fds[0])

    def _answered(self, slot: WorkerSlot, answer: BatchReport) -> None:
        assert slot.process is not None
        self._callbacks.message(slot.name, slot.process, answer)
        slot.answered = True  # not by an answer that is refused: a worker that sends such ones is of no use

    def _region_made(self, slot: WorkerSlot, message: WorkerReady | OverflowCreated, region: Region) -> None:
        if isinstance(message, WorkerReady):
            if slot.ready:
                raise PartitionError("it got ready twice")
            self._worker_ready(slot, message, region)
            return
        if message.region >= 0 or message.region in self._regions or slot.unclaimed_overflow is not None:
            raise PartitionError(f"region {message.region} cannot be an overflow region now")
        self._add_region(message.region, region, maker=slot)
        slot.unclaimed_overflow = message.region

    def _worker_ready(self, slot: WorkerSlot, ready: WorkerReady, output: Region) -> None:
        slot.cancel_timer()
        slot.ready = True
        for number, region in self._regions.items():
            slot.send(MapRegion(number, region.nbytes), [region.fd])
        self._add_region(slot.output_region, output, maker=slot)
        slot.back_off.ready(asyncio.get_running_loop().time())
        slot.violations = isolation_violations(slot.spec.partition, ready.evidence)
        for model in ready.models:
            if model.table is not None:
                slot.tables[model.key] = model.table
            if (file := slot.models.get(model.key)) is not None:  # still served
                slot.remember_model(file, model.table)
                self._record_measurements(slot, model)
        if self._by_name[slot.name] is slot:
            assert slot.process is not None, "a ready worker has a process"
            self.recovery.worker_ready(slot.name)
            self._callbacks.worker_ready(slot.name, slot.process, ready, slot.output_region)
        elif (hand_over := self._hand_overs.get(slot.name)) and hand_over.successor is slot:
            if reason := hand_over.worker_ready(ready):
                self.cancel_replacement(slot.name, reason)
            else:
                self._try_hand_over(slot)
        starting = any(each.process is not None and not each.ready for each in self._slots)
        if self._spare is not None and not starting and not self._draining:
            self._spare.prepare()  # not while workers start, which it would slow down

    def _try_hand_over(self, slot: WorkerSlot, model: LoadResult | None = None) -> None:
        """Complete the partition's hand-over if the new worker is up to it; `model` is the latest load result."""
        hand_over = self._hand_overs.get(slot.name)
        if hand_over is None:
            return
        if model is not None and slot is hand_over.successor and (reason := hand_over.load_failure(model)):
            self.cancel_replacement(slot.name, reason)
        elif hand_over.reconcile():
            self._replace_worker(self._by_name[slot.name], hand_over)

    def _replace_worker(self, slot: WorkerSlot, hand_over: HandOver) -> None:
        successor, ready = hand_over.successor, hand_over.ready
        assert slot.process is not None, "the old worker is running"
        assert successor.process is not None and ready is not None, "the new worker is ready"  # noqa: PT018
        del self._hand_overs[slot.name]
        self._by_name[slot.name] = successor
        self._retiring[slot.process] = slot
        tables = hand_over.complete()
        self._tables.update(((successor.kind, key), table) for key, table in tables.items())
        self._callbacks.worker_replaced(slot.name, successor.process, ready, successor.output_region, tables)

    def _record_measurements(self, slot: WorkerSlot, model: LoadResult) -> None:
        if model.table is not None:
            self._tables[slot.kind, model.key] = model.table
        if model.memory is not None:
            self._memory_measured.add((slot.kind, model.key))
            if (file := slot.models.get(model.key)) is not None:
                slot.models[model.key] = msgspec.structs.replace(file, memory_measured=True)

    def _worker_lost(self, slot: WorkerSlot, reason: str) -> None:
        process = slot.process
        answered = slot.answered
        slot.process_lost()
        if slot.unclaimed_overflow is not None:  # Its batch was never reported as finished.
            self.drop_region(slot.unclaimed_overflow)
            slot.unclaimed_overflow = None
        if self._draining:
            return
        hand_over = self._hand_overs.get(slot.name)
        if slot is not self._by_name[slot.name]:
            self._slots.remove(slot)
            if process in self._retiring:
                del self._retiring[process]
                self._callbacks.worker_gone(process, reason)
            else:
                self.drop_region(slot.output_region)
                if hand_over is not None and hand_over.successor is slot:
                    self.cancel_replacement(slot.name, reason)
        else:
            self.cancel_replacement(slot.name, f"the worker that it was to replace was lost: {reason}")
            explained = self._callbacks.runs_retry(slot.name)
            reason = self.recovery.worker_lost(slot, reason, answered=answered, explained=explained)
            self._callbacks.worker_lost(slot.name, reason)

    def _add_region(self, number: int, region: Region, maker: WorkerSlot | None) -> None:
        self._regions[number] = region
        for watcher in self._watchers:
            watcher.region_added(number, region)
        for slot in self._slots:
            if slot is not maker:
                slot.send(MapRegion(number, region.nbytes), [region.fd])


def _attach(fds: tuple[int, ...], nbytes: int) -> Region:
    if len(fds) != 1:
        _close_all(fds)
        raise PartitionError(f"message of a worker: expected one descriptor of a region, got {len(fds)}")
    return Region.attach(fds[0], nbytes)


def _close_all(fds: tuple[int, ...]) -> None:
    for fd in fds:
        os.close(fd)
