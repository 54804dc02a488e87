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
from collections.abc import Sequence
from typing import Protocol

import msgspec

from models.errors import PartitionError
from models.profile import LatencyTable
from mps.arena import Region
from mps.back_off import BackOff
from mps.cpu import check_partitions
from mps.messages import (
    Done,
    Failed,
    FromWorker,
    Loaded,
    LoadedModel,
    LoadModel,
    MapRegion,
    ModelFile,
    Overflow,
    Ready,
    Revoked,
    Unloaded,
    UnloadModel,
    UnmapRegion,
)
from mps.partition import CpuPartition
from mps.post import Post
from mps.process import WorkerProcess

KILL_TIMEOUT_S = 5.0


class WorkerSpec(msgspec.Struct, frozen=True):
    """One partition's worker: the models that it may hold, and the keys of those it begins with (None: all)."""

    partition: CpuPartition
    models: tuple[ModelFile, ...]
    output_bytes: int
    initial: tuple[str, ...] | None = None


class WorkerCallbacks(Protocol):
    """What the supervisor tells its owner, on the event loop's thread; none of these may block or raise."""

    def worker_ready(self, partition: str, worker: WorkerProcess, ready: Ready, output_region: int) -> None:
        """Take batches to `worker` by `worker.send(Run(...))`; its outputs will lie in region `output_region`."""

    def worker_lost(self, partition: str, reason: str) -> None:
        """Give up what was sent to the worker: its process is gone. Also called when a start failed before ready."""

    def model_loaded(self, partition: str, model: LoadedModel) -> None:
        """Take in how `Supervisor.load` ended: what it was told without a table did not load."""

    def model_unloaded(self, partition: str, key: str) -> None:
        """Take in that `Supervisor.unload` is done."""

    def message(self, partition: str, message: Done | Failed | Revoked) -> None:
        """Take an answer of a worker; all regions it names are mapped (`Supervisor.region`)."""


class Supervisor:
    """Starts a worker for each spec, restarts what dies, and shares regions among gateway and workers.

    All methods must be called on the event loop's thread.
    """

    def __init__(
        self, workers: Sequence[WorkerSpec], callbacks: WorkerCallbacks, ready_timeout_s: float = 120.0
    ) -> None:
        check_partitions([spec.partition for spec in workers])
        self._posts = [Post(spec, ready_timeout_s) for spec in workers]
        self._by_name = {post.name: post for post in self._posts}
        self._callbacks = callbacks
        self._tables: dict[tuple[str, str], LatencyTable] = {}
        self._regions: dict[int, Region] = {}
        self._numbers = itertools.count(1)
        self._draining = False

    def start(self) -> None:
        """Start all workers at once; `worker_ready` follows for each."""
        for post in self._posts:
            self._launch(post)

    def load(self, partition: str, file: ModelFile) -> None:
        """Have the worker of a partition hold one more model, as will those that follow it; `model_loaded` follows.

        Without a `table`, one that was measured on a partition of the same kind is taken. Nothing happens, and nothing
        follows, when there is no worker, or when it is lost first: `worker_ready` tells what the next one holds. One
        that takes longer than a worker has to get ready is killed.
        """
        post = self._by_name[partition]
        table = file.table or self._tables.get((post.kind, file.key))
        self._change(post, LoadModel(msgspec.structs.replace(file, table=table)))

    def unload(self, partition: str, key: str) -> None:
        """Have the worker of a partition give up a model after the batches that were sent; as `load`.

        `model_unloaded` follows.
        """
        self._change(self._by_name[partition], UnloadModel(key))

    def recycle(self, partition: str) -> None:
        """Have a new worker take the place of a partition's, at once; `worker_lost` and `worker_ready` follow."""
        post = self._by_name[partition]
        if post.ready and post.process:
            post.back_off = BackOff()
            post.process.kill("its memory is given back")

    def forget(self, key: str) -> None:
        """Have no worker begin with a model that is not served any more."""
        for post in self._posts:
            post.models.pop(key, None)
        for known in [each for each in self._tables if each[1] == key]:
            del self._tables[known]

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
        for post in self._posts:
            post.stop_waiting()
        processes = [post.process for post in self._posts if post.process]
        for process in processes:
            process.close()
        if not await _all_gone(processes, timeout_s):
            for process in processes:
                process.kill("it did not end in time")
            await _all_gone(processes, KILL_TIMEOUT_S)
        for region in self._regions.values():
            region.close()
        self._regions.clear()

    def _launch(self, post: Post) -> None:
        post.output_region = next(self._numbers)
        try:
            process = WorkerProcess(
                post.spec.partition,
                lambda message, fds: self._take(post, message, fds),
                lambda why: self._lost(post, why),
            )
        except OSError as error:
            self._lost(post, f"the worker cannot be started: {error}")
            return
        post.started(process)

    def _change(self, post: Post, change: LoadModel | UnloadModel) -> None:
        if not self._draining:
            post.change(change)

    def _take(self, post: Post, message: FromWorker, fds: tuple[int, ...]) -> None:
        assert post.process is not None
        match message:
            case Ready():
                output = _attach(fds, post.spec.output_bytes)
                post.stop_waiting()
                post.ready = True
                for number, region in self._regions.items():
                    post.send(MapRegion(number, region.nbytes), [region.fd])
                self._add(post.output_region, output, maker=post)
                post.back_off.ready(time.monotonic())
                for model in message.models:
                    if (file := post.models.get(model.key)) is not None:  # not forgotten since the worker was started
                        post.keep(file, model.table)
                        self._learn(post, model)
                self._callbacks.worker_ready(post.name, post.process, message, post.output_region)
            case Overflow():
                self._add(message.region, _attach(fds, message.nbytes), maker=post)
                post.unclaimed_overflow = message.region
            case Loaded():
                post.loaded(message.model)
                self._learn(post, message.model)
                self._callbacks.model_loaded(post.name, message.model)
            case Unloaded():
                post.unloaded(message.key)
                self._callbacks.model_unloaded(post.name, message.key)
            case Done() | Failed() | Revoked():
                post.unclaimed_overflow = None
                self._callbacks.message(post.name, message)

    def _learn(self, post: Post, model: LoadedModel) -> None:
        if model.table is not None:
            self._tables[post.kind, model.key] = model.table

    def _lost(self, post: Post, reason: str) -> None:
        post.lost()
        if post.unclaimed_overflow is not None:  # Its batch was never reported done.
            self.drop_region(post.unclaimed_overflow)
            post.unclaimed_overflow = None
        if not self._draining:
            post.wait(post.back_off.lost(time.monotonic()), lambda: self._launch(post))
            self._callbacks.worker_lost(post.name, reason)

    def _add(self, number: int, region: Region, maker: Post | None) -> None:
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


async def _all_gone(processes: Sequence[WorkerProcess], timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            for process in processes:
                await process.gone.wait()
    except TimeoutError:
        return False
    return True
