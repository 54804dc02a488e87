"""Models that come and go while a worker runs batches."""

import math
import os
import select
import time
from collections import deque
from collections.abc import Generator, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import msgspec

from sluice.mps.ipc.channel import Channel
from sluice.mps.ipc.messages import AddModel, DropModel, LoadResult, ModelAdded, ModelDropped, ToWorker
from sluice.mps.worker.runner import ColdBackend, Runner

CONCURRENT_LOADS = 2
"""Backends that are made at a time: more would take the cores from batches."""
ALONE_S = 1.0
"""Time for which a model that is to be weighed is by itself, before the next one is made beside it."""


class Loader:
    """Carries out orders to load and unload, one after the other; all methods belong to the thread that runs batches.

    A backend is made in another thread, which hardly ever holds the interpreter, though it shares the cores; so is the
    next one meanwhile, unless something is to be unloaded first. All runs that warm and time it are on this thread, one
    a step, so that neither they nor the batches disturb each other: what a batch of another model may have to wait for
    is one run of the new one.

    A model that nobody has weighed waits for others that are being made or warmed, and these for it, but only for
    `ALONE_S`: who has not been by itself all the time is not weighed, as nobody could say what of it all is its own.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._orders: deque[AddModel | DropModel] = deque()
        self._threads = ThreadPoolExecutor(CONCURRENT_LOADS, "load")
        self._backends: dict[str, Future[ColdBackend]] = {}
        self._measured_alone = ""
        self._alone_until_s = 0.0
        self._held_back = False
        self._steps: Generator[None, None, LoadResult] | None = None
        self._backend_created = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    @property
    def busy(self) -> bool:
        """Whether there is something to do, or to wait for."""
        return bool(self._orders)

    def submit(self, order: AddModel | DropModel) -> None:
        """Queue an order."""
        self._orders.append(order)
        self._create_backends()

    def wait(self, channel: Channel[ToWorker]) -> None:
        """Return when `step` can go on, or when there is something to read."""
        order = self._orders[0]
        backend = self._backends.get(order.file.key) if isinstance(order, AddModel) else None
        if backend is not None and not backend.done():
            ready = select.poll()
            ready.register(channel, select.POLLIN)
            ready.register(self._backend_created, select.POLLIN)
            left_s = self._alone_until_s - time.monotonic()
            ready.poll(max(math.ceil(left_s * 1000), 0) if self._held_back else None)
            with suppress(BlockingIOError):
                os.eventfd_read(self._backend_created)

    def step(self, queued: Set[str]) -> ModelAdded | ModelDropped | None:
        """Do a bounded piece of work; the answer to the first order when that is done with it.

        `queued` are the models of batches that wait, which are not unloaded.
        """
        if self._held_back:
            self._create_backends()
        order = self._orders[0]
        answer: ModelAdded | ModelDropped
        if isinstance(order, AddModel):
            model = self._runner.loaded(order.file.key) or self._load(order)
            if model is None:
                return None
            answer = ModelAdded(model)
        elif order.key in queued:
            return None
        else:
            self._runner.unload(order.key)
            answer = ModelDropped(order.key)
        self._orders.popleft()
        self._create_backends()
        return answer

    def _create_backends(self) -> None:
        """Have the backends made that are to be loaded next."""
        self._held_back = False
        for order in self._orders:
            if not isinstance(order, AddModel):
                return
            file = order.file
            if file.key not in self._backends and not self._runner.loaded(file.key):
                measure_memory = not self._backends and not file.memory_measured
                if not self._backends:
                    self._alone_until_s = time.monotonic() + ALONE_S
                elif (self._measured_alone or not file.memory_measured) and time.monotonic() < self._alone_until_s:
                    self._held_back = True
                    return
                self._measured_alone = file.key if measure_memory else ""
                backend = self._backends[file.key] = self._threads.submit(
                    self._runner.create_backend, file, measure_memory=measure_memory
                )
                backend.add_done_callback(lambda _: os.eventfd_write(self._backend_created, 1))

    def _load(self, order: AddModel) -> LoadResult | None:
        key = order.file.key
        backend = self._backends[key]
        if not backend.done():
            return None
        if self._steps is None:
            self._steps = self._runner.load_steps(order.file, backend.result)
        try:
            next(self._steps)
        except StopIteration as end:
            self._steps = None
            del self._backends[key]
            model: LoadResult = end.value
            return model if self._measured_alone == key else msgspec.structs.replace(model, memory=None)
        return None
