"""Models that come and go while a worker runs batches."""

import os
import select
from collections import deque
from collections.abc import Generator, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from models.backends.base import Backend
from mps.channel import Channel
from mps.messages import Loaded, LoadedModel, LoadModel, ToWorker, Unloaded, UnloadModel
from mps.runner import Runner

MADE_AT_A_TIME = 2
"""Backends that are made at a time: more would take the cores from batches."""


class Loader:
    """Carries out orders to load and unload, one after the other; all methods belong to the thread that runs batches.

    A backend is made in another thread, which hardly ever holds the interpreter, though it shares the cores; so is the
    next one meanwhile, unless something is to be unloaded first. All runs that warm and time it are on this thread, one
    a step, so that neither they nor the batches disturb each other: what a batch of another model may have to wait for
    is one run of the new one.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._orders: deque[LoadModel | UnloadModel] = deque()
        self._threads = ThreadPoolExecutor(MADE_AT_A_TIME, "load")
        self._backends: dict[str, Future[Backend]] = {}
        self._steps: Generator[None, None, LoadedModel] | None = None
        self._made = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    @property
    def busy(self) -> bool:
        """Whether there is something to do, or to wait for."""
        return bool(self._orders)

    def take(self, order: LoadModel | UnloadModel) -> None:
        """Queue an order."""
        self._orders.append(order)
        self._make()

    def wait(self, channel: Channel[ToWorker]) -> None:
        """Return when `step` can go on, or when there is something to read."""
        order = self._orders[0]
        backend = self._backends.get(order.file.key) if isinstance(order, LoadModel) else None
        if backend is not None and not backend.done():
            ready = select.poll()
            ready.register(channel, select.POLLIN)
            ready.register(self._made, select.POLLIN)
            ready.poll()
            with suppress(BlockingIOError):
                os.eventfd_read(self._made)

    def step(self, queued: Set[str]) -> Loaded | Unloaded | None:
        """Do a bounded piece of work; the answer to the first order when that is done with it.

        `queued` are the models of batches that wait, which are not unloaded.
        """
        order = self._orders[0]
        answer: Loaded | Unloaded
        if isinstance(order, LoadModel):
            model = self._runner.held(order.file.key) or self._load(order)
            if model is None:
                return None
            answer = Loaded(model)
        elif order.key in queued:
            return None
        else:
            self._runner.unload(order.key)
            answer = Unloaded(order.key)
        self._orders.popleft()
        self._make()
        return answer

    def _make(self) -> None:
        """Have the backends made that are to be loaded next."""
        for order in self._orders:
            if not isinstance(order, LoadModel):
                return
            file = order.file
            if file.key not in self._backends and not self._runner.held(file.key):
                backend = self._backends[file.key] = self._threads.submit(self._runner.backend, file)
                backend.add_done_callback(lambda _: os.eventfd_write(self._made, 1))

    def _load(self, order: LoadModel) -> LoadedModel | None:
        backend = self._backends[order.file.key]
        if not backend.done():
            return None
        if self._steps is None:
            self._steps = self._runner.loading(order.file, backend.result)
        try:
            next(self._steps)
        except StopIteration as end:
            self._steps = None
            del self._backends[order.file.key]
            model: LoadedModel = end.value
            return model
        return None
