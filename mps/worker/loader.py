"""Loads and unloads models while the worker runs batches."""

import math
import os
import select
import time
from collections import deque
from collections.abc import Generator, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import msgspec

from sluice.models.measuring.model_loading import DEFAULT_MODEL_LOADING
from sluice.mps.ipc.channel import Channel
from sluice.mps.ipc.messages import AddModel, DropModel, LoadResult, ModelAdded, ModelDropped, ToWorker
from sluice.mps.worker.runner import ColdBackend, Runner

ALONE_S = 1.0
"""Time for which a model whose memory is measured is loaded alone."""


class Loader:
    """Carries out loads and unloads; all methods belong to the thread that runs batches.

    A load does not wait for the backends of loads before it. An unload waits for all orders before it, and orders after
    it wait for the unload, which gives them memory.

    A backend is created in another thread, which hardly ever holds the interpreter lock, though it shares the cores.
    The next backend is created meanwhile, unless something is to be unloaded first. The runs that warm up and time a
    model are on this thread, one a step, so that they and the batches do not disturb each other: a batch of another
    model waits for one such run at most.

    A model whose memory was never measured waits for models that are being created or warmed up, and these wait for it,
    but only for `ALONE_S`. A model that was not alone all the time is not measured, since its
    memory could not be separated from the others'.

    `concurrent` backends are created at a time; more would take the cores from batches.
    """

    def __init__(self, runner: Runner, concurrent: int = DEFAULT_MODEL_LOADING.concurrent) -> None:
        self._runner = runner
        self._orders: deque[AddModel | DropModel] = deque()
        self._threads = ThreadPoolExecutor(concurrent, "load")
        self._backends: dict[str, Future[ColdBackend]] = {}
        self._measured_alone = ""
        self._alone_until_s = 0.0
        self._held_back = False
        self._steps: Generator[None, None, LoadResult] | None = None
        self._warming: AddModel | None = None
        self._backend_created = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    @property
    def busy(self) -> bool:
        """Return whether there is something to do, or to wait for."""
        return bool(self._orders)

    def submit(self, order: AddModel | DropModel) -> None:
        """Queue a load or an unload."""
        self._orders.append(order)
        self._create_backends()

    def wait(self, channel: Channel[ToWorker]) -> None:
        """Return when `step` can go on, or when the channel has something to read."""
        if self._next() is None:
            ready = select.poll()
            ready.register(channel, select.POLLIN)
            ready.register(self._backend_created, select.POLLIN)
            left_s = self._alone_until_s - time.monotonic()
            ready.poll(max(math.ceil(left_s * 1000), 0) if self._held_back else None)
            with suppress(BlockingIOError):
                os.eventfd_read(self._backend_created)

    def step(self, queued: Set[str]) -> ModelAdded | ModelDropped | None:
        """Do a bounded piece of work; returns the answer to an order when it is finished.

        `queued` are the models of waiting batches, which are not unloaded.
        """
        if self._held_back:
            self._create_backends()
        order = self._next()
        answer: ModelAdded | ModelDropped
        if order is None:
            return None
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
        self._orders.remove(order)
        self._create_backends()
        return answer

    def _next(self) -> AddModel | DropModel | None:
        """The order to go on with; None while backends are being created."""
        if self._warming is not None:
            return self._warming
        for order in self._orders:
            if isinstance(order, DropModel):
                return order if order is self._orders[0] else None
            backend = self._backends.get(order.file.key)
            if self._runner.loaded(order.file.key) or (backend is not None and backend.done()):
                return order
        return None

    def _create_backends(self) -> None:
        """Start creating the backends that are to be loaded next."""
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
        if self._steps is None:
            self._steps = self._runner.load_steps(order.file, self._backends[key].result)
            self._warming = order
        try:
            next(self._steps)
        except StopIteration as end:
            self._steps = self._warming = None
            del self._backends[key]
            model: LoadResult = end.value
            return model if self._measured_alone == key else msgspec.structs.replace(model, memory=None)
        return None
