"""Keeps one worker process alive for each partition and the tensor regions that all of them share.

Regions have one number for the whole gateway, given here and never used twice: inputs, outputs and messages name the
same region by the same number in every process; a worker is told of them once it is ready. Each start of a worker
makes a new output region with a number of its own; the old one stays mapped until `drop_region`, so tensors of a dead
worker remain readable while anybody needs them.
"""

import asyncio
import itertools
import os
import time
from collections.abc import Mapping, Sequence

import msgspec

from sluice.models.errors import PartitionError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.mps.daemon.client_contexts import TERMINATE_S
from sluice.mps.daemon.control import MpsControl
from sluice.mps.ipc.arena import Region
from sluice.mps.ipc.messages import (
    AddModel,
    BatchRefused,
    Done,
    DropModel,
    FromWorker,
    LoadedModel,
    MapRegion,
    ModelAdded,
    ModelDropped,
    ModelFile,
    Overflow,
    Ready,
    Revoked,
    UnmapRegion,
)
from sluice.mps.isolation.back_off import BackOff
from sluice.mps.partitions.cpu import check_partitions
from sluice.mps.partitions.isolation_report import shortfalls
from sluice.mps.partitions.partition import Partition
from sluice.mps.supervisor.callbacks import WorkerCallbacks
from sluice.mps.supervisor.hand_over import HandOver
from sluice.mps.supervisor.process import WorkerProcess, all_gone
from sluice.mps.supervisor.quarantine import USUAL, QuarantineSettings
from sluice.mps.supervisor.recovery import Recovery
from sluice.mps.supervisor.worker_slot import WorkerSlot
from sluice.mps.supervisor.worker_spec import WorkerSpec

KILL_TIMEOUT_S = 5.0
LATE = "it did not end in time"


class Supervisor:
    """Starts a worker for each spec, restarts what dies, and shares regions among gateway and workers.

    `recovery` says when what dies is restarted; `controls` are of the MPS daemons, by device. `_posts` are also those
    of workers that are to take the place of others, and of those whose place was taken. All methods must be called on
    the event loop's thread.
    """

    def __init__(
        self,
        workers: Sequence[WorkerSpec],
        callbacks: WorkerCallbacks,
        ready_timeout_s: float = 120.0,
        quarantine: QuarantineSettings = USUAL,
        controls: Mapping[str, MpsControl] = {},
    ) -> None:
        check_partitions([spec.partition for spec in workers])
        self._posts = [WorkerSlot(spec, ready_timeout_s, self._end) for spec in workers]
        self._by_name = {post.name: post for post in self._posts}
        self.recovery = Recovery(self._posts, self._by_name, self._launch, quarantine, controls)
        self._hand_overs: dict[str, HandOver] = {}
        self._retiring: dict[WorkerProcess, WorkerSlot] = {}
        self._callbacks = callbacks
        self._tables: dict[tuple[str, str], LatencyTable] = {}
        self._weighed: set[tuple[str, str]] = set()
        self._regions: dict[int, Region] = {}
        self._numbers = itertools.count(1)
        self._draining = False

    def start(self) -> None:
        """Start all workers at once; `worker_ready` follows for each."""
        self.recovery.start()
        for post in self._posts:
            self._launch(post)

    def load(self, partition: str, file: ModelFile) -> None:
        """Have the worker of a partition hold one more model, as will those that follow it; `model_loaded` follows.

        Without a `table`, one that was measured on a partition of the same kind is taken; nor is a model weighed again
        that was weighed on one. Nothing happens, and nothing follows, when there is no worker, or when it is lost
        first: `worker_ready` tells what the next one holds. One that takes longer than a worker has to get ready is
        ended.
        """
        post = self._by_name[partition]
        known = post.kind, file.key
        table = file.table or self._tables.get(known)
        self._change(post, AddModel(msgspec.structs.replace(file, table=table, weighed=known in self._weighed)))

    def unload(self, partition: str, key: str) -> None:
        """Have the worker of a partition give up a model after the batches that were sent; as `load`.

        `model_unloaded` follows.
        """
        self._change(self._by_name[partition], DropModel(key))

    def recycle(self, partition: str) -> None:
        """Have a new worker take the place of a partition's, at once; `worker_lost` and `worker_ready` follow."""
        post = self._by_name[partition]
        if post.ready and post.process:
            post.back_off = BackOff()
            self.recovery.excuse(partition)
            post.end("its memory is given back")

    def resize(self, partition: Partition, tables: Mapping[str, LatencyTable]) -> asyncio.Future[None]:
        """Have a worker on another share take the place of a partition's, which serves until that one is ready for it.

        It has to hold all models that the one before holds; `tables` are what is known of their speed there, by key,
        and the others are timed. `worker_replaced` comes before the future is done. It gets a PartitionError, and
        nothing has changed, when the new worker cannot take over. Raises PartitionError for cores that others have or
        are to have, when no worker is up or one is to be replaced already, and when all are about to end.
        """
        post = self._by_name[partition.name]
        if self._draining:
            raise PartitionError("the server is stopping")
        if not post.ready:
            raise PartitionError(f"partition {post.name}: its worker is not up")
        if post.name in self._hand_overs:
            raise PartitionError(f"partition {post.name}: it is being resized already")
        for posts in (self._by_name.values(), [each.successor for each in self._hand_overs.values()]):
            check_partitions([partition, *(each.spec.partition for each in posts if each is not post)])
        hand_over = HandOver(post, partition, tables, self._tables)
        self._hand_overs[post.name] = hand_over
        self._posts.append(hand_over.successor)
        self._launch(hand_over.successor)
        return hand_over.done

    def keep(self, partition: str, reason: str) -> None:
        """Let a partition keep its worker, if another one is to take its place."""
        if hand_over := self._hand_overs.pop(partition, None):
            hand_over.fail(reason)

    def retire(self, worker: WorkerProcess) -> None:
        """Have a worker end that another one has taken the place of; `worker_gone` follows."""
        worker.close()
        post = self._retiring[worker]
        post.wait(KILL_TIMEOUT_S, lambda: post.end(LATE))

    def forget(self, key: str) -> None:
        """Have no worker begin with a model that is not served any more."""
        for post in self._posts:
            post.models.pop(key, None)
        for known in [each for each in self._tables if each[1] == key]:
            del self._tables[known]
            self._weighed.discard(known)

    def share_region(self, region: Region) -> int:
        """Give a region of the gateway to every worker, present and future; returns its number (>= 1).

        The supervisor owns the region from now on.
        """
        number = next(self._numbers)
        self._add(number, region, maker=None)
        return number

    def region(self, number: int) -> Region:
        """The region of that number as mapped here; raises KeyError when it was dropped."""
        return self._regions[number]

    def drop_region(self, number: int) -> None:
        """Unmap a region everywhere, once nobody refers to it; harmless when it was dropped before.

        For overflow regions (negative numbers), output regions of lost workers and the gateway's own. Raises
        PartitionError for the output region of a running worker.
        """
        if any(post.output_region == number for post in self._posts if post.ready):
            raise PartitionError(f"region {number} is the output region of a running worker")
        if region := self._regions.pop(number, None):
            region.close()
            for post in self._posts:
                post.send(UnmapRegion(number))

    async def drain(self, timeout_s: float = 5.0) -> None:
        """Let every worker end, kill what has not after `timeout_s`, and drop all regions; nothing restarts."""
        self._draining = True
        for name in list(self._hand_overs):
            self.keep(name, "the server is stopping")
        for post in self._posts:
            post.stop_waiting()
        await self.recovery.close()
        processes = [post.process for post in self._posts if post.process]
        for process in processes:
            process.close()
        gone = [process.gone for process in processes]
        if not await all_gone(gone, timeout_s):
            for post in self._posts:
                post.end(LATE)
            await all_gone(gone, TERMINATE_S + KILL_TIMEOUT_S)
        for region in self._regions.values():
            region.close()
        self._regions.clear()

    def _launch(self, post: WorkerSlot) -> None:
        post.output_region = next(self._numbers)
        try:
            process = WorkerProcess(
                post.spec.partition,
                lambda message, fds: self._take(post, message, fds),
                lambda why: self._lost(post, why),
            )
        except (OSError, PartitionError) as error:
            self._lost(post, f"the worker cannot be started: {error}")
            return
        post.started(process)

    def _end(self, partition: str, process: WorkerProcess, reason: str) -> None:
        self.recovery.end(partition, process, reason)

    def _change(self, post: WorkerSlot, change: AddModel | DropModel) -> None:
        if not self._draining:
            post.change(change)

    def _take(self, post: WorkerSlot, message: FromWorker, fds: tuple[int, ...]) -> None:
        assert post.process is not None
        match message:
            case Ready():
                self._came_up(post, message, fds)
            case Overflow():
                self._add(message.region, _attach(fds, message.nbytes), maker=post)
                post.unclaimed_overflow = message.region
            case ModelAdded():
                post.loaded(message.model)
                self._learn(post, message.model)
                if self._by_name[post.name] is post:
                    self._callbacks.model_loaded(post.name, message.model)
                self._compare(post, message.model)
            case ModelDropped():
                post.unloaded(message.key)
                if self._by_name[post.name] is post:
                    self._callbacks.model_unloaded(post.name, message.key)
                self._compare(post)
            case Done() | BatchRefused() | Revoked():
                post.unclaimed_overflow = None
                self._callbacks.message(post.name, message)

    def _came_up(self, post: WorkerSlot, ready: Ready, fds: tuple[int, ...]) -> None:
        output = _attach(fds, post.spec.output_bytes)
        post.stop_waiting()
        post.ready = True
        for number, region in self._regions.items():
            post.send(MapRegion(number, region.nbytes), [region.fd])
        self._add(post.output_region, output, maker=post)
        post.back_off.ready(time.monotonic())
        post.shortfalls = shortfalls(post.spec.partition, ready.evidence)
        for model in ready.models:
            if model.table is not None:
                post.tables[model.key] = model.table
            if (file := post.models.get(model.key)) is not None:  # not forgotten since the worker was started
                post.keep(file, model.table)
                self._learn(post, model)
        if self._by_name[post.name] is post:
            assert post.process is not None, "who came up is there"
            self.recovery.ready(post.name)
            self._callbacks.worker_ready(post.name, post.process, ready, post.output_region)
        elif (hand_over := self._hand_overs.get(post.name)) and hand_over.successor is post:
            if reason := hand_over.came_up(ready):
                self.keep(post.name, reason)
            else:
                self._compare(post)

    def _compare(self, post: WorkerSlot, model: LoadedModel | None = None) -> None:
        """Hand a partition over if a worker is there that can take over; `model` is what it has just loaded, or not."""
        hand_over = self._hand_overs.get(post.name)
        if hand_over is None:
            return
        if model is not None and post is hand_over.successor and (reason := hand_over.refused(model)):
            self.keep(post.name, reason)
        elif hand_over.is_due():
            self._hand_over(self._by_name[post.name], hand_over)

    def _hand_over(self, post: WorkerSlot, hand_over: HandOver) -> None:
        successor, ready = hand_over.successor, hand_over.ready
        assert post.process is not None, "who hands over is up"
        assert successor.process is not None and ready is not None, "who takes over is up"  # noqa: PT018
        del self._hand_overs[post.name]
        self._by_name[post.name] = successor
        self._retiring[post.process] = post
        tables = hand_over.complete()
        self._tables.update(((successor.kind, key), table) for key, table in tables.items())
        self._callbacks.worker_replaced(post.name, successor.process, ready, successor.output_region, tables)

    def _learn(self, post: WorkerSlot, model: LoadedModel) -> None:
        if model.table is not None:
            self._tables[post.kind, model.key] = model.table
        if model.memory is not None:
            self._weighed.add((post.kind, model.key))

    def _lost(self, post: WorkerSlot, reason: str) -> None:
        process = post.process
        post.lost()
        if post.unclaimed_overflow is not None:  # Its batch was never reported done.
            self.drop_region(post.unclaimed_overflow)
            post.unclaimed_overflow = None
        if self._draining:
            return
        hand_over = self._hand_overs.get(post.name)
        if post is not self._by_name[post.name]:
            self._posts.remove(post)
            if process in self._retiring:
                del self._retiring[process]
                self._callbacks.worker_gone(process, reason)
            else:
                self.drop_region(post.output_region)
                if hand_over is not None and hand_over.successor is post:
                    self.keep(post.name, reason)
        else:
            self.keep(post.name, f"the worker whose place it was to take was lost: {reason}")
            self._callbacks.worker_lost(post.name, self.recovery.lost(post, reason))

    def _add(self, number: int, region: Region, maker: WorkerSlot | None) -> None:
        self._regions[number] = region
        for post in self._posts:
            if post is not maker:
                post.send(MapRegion(number, region.nbytes), [region.fd])


def _attach(fds: tuple[int, ...], nbytes: int) -> Region:
    if len(fds) != 1:
        for fd in fds:
            os.close(fd)
        raise PartitionError(f"expected one descriptor of a region with the message, got {len(fds)}")
    return Region.attach(fds[0], nbytes)
