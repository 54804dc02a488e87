"""Models that come and go while a worker runs batches."""

import os
import select
from collections import deque
from collections.abc import Generator, Set
from concurrent.futures import Future, ThreadPoolExecutor

from models.backends.base import Backend
from mps.channel import Channel
from mps.messages import Loaded, LoadedModel, LoadModel, ToWorker, Unloaded, UnloadModel
from mps.runner import Runner


class Loader:
    """Carries out orders to load and unload, one after the other; all methods belong to the thread that runs batches.

    A backend is made in another thread, which hardly ever holds the interpreter, though it shares the cores. All runs
    that warm and time it are on this thread, one a step, so that neither they nor the batches disturb each other: what
    a batch of another model may have to wait for is one run of the new one.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._orders: deque[LoadModel | UnloadModel] = deque()
        self._thread = ThreadPoolExecutor(1, "load")
        self._backend: Future[Backend] | None = None
        self._steps: Generator[None, None, LoadedModel] | None = None
        self._made = os.eventfd(0, os.EFD_CLOEXEC)

    @property
    def busy(self) -> bool:
        """Whether there is something to do, or to wait for."""
        return bool(self._orders)

    def take(self, order: LoadModel | UnloadModel) -> None:
        """Queue an order."""
        self._orders.append(order)

    def wait(self, channel: Channel[ToWorker]) -> None:
        """Return when `step` can go on, or when there is something to read."""
        if self._backend is not None and not self._backend.done():
            ready = select.poll()
            ready.register(channel, select.POLLIN)
            ready.register(self._made, select.POLLIN)
            ready.poll()

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
        return answer

    def _load(self, order: LoadModel) -> LoadedModel | None:
        if self._backend is None:
            self._backend = self._thread.submit(self._runner.backend, order.file)
            self._backend.add_done_callback(lambda _: os.eventfd_write(self._made, 1))
            return None
        if not self._backend.done():
            return None
        if self._steps is None:
            os.eventfd_read(self._made)
            self._steps = self._runner.loading(order.file, self._backend.result)
        try:
            next(self._steps)
        except StopIteration as end:
            self._backend = self._steps = None
            model: LoadedModel = end.value
            return model
        return None
