"""Which models partitions hold, and who waits for some to come or to go."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sluice.models.errors import RejectedError

WORKERS = 3
"""Workers of a partition that a model is waited for, one after the other, when they go before they have loaded it."""


class _Expected:
    """A model on its way in: `partitions` have not told yet, `reasons` are why others do not hold it."""

    def __init__(self, partitions: Collection[str]) -> None:
        self.partitions = set(partitions)
        self.held = False
        self.workers = WORKERS
        self.reasons: list[str] = []
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def told(self, partition: str, reason: str) -> None:
        """A partition holds it, or does not for a reason."""
        self.held |= not reason
        if reason:
            self.reasons.append(reason)
        self._without(partition)

    def lost(self, partition: str, reason: str) -> None:
        """The worker of a partition is gone; the next one is waited for only if no other partition is."""
        if partition in self.partitions:
            self.workers -= 1
            if not self.workers:
                self.told(partition, f"{partition} lost {WORKERS} workers before they had loaded it: {reason}")
            elif self.held or self.reasons or len(self.partitions) > 1:
                self._without(partition)

    def _without(self, partition: str) -> None:
        self.partitions.discard(partition)
        if not self.partitions and not self.ended.done():
            self.ended.set_result("" if self.held else self.reasons[0])


class LoadWaiter:
    """Is told what partitions hold; all methods belong to the event loop."""

    def __init__(self) -> None:
        self._holds: dict[str, set[str]] = {}
        self._expected: dict[str, _Expected] = {}
        self._leaving: dict[str, asyncio.Future[None]] = {}
        self._ready: dict[str, asyncio.Future[None]] = {}
        self._closed = False

    def holders(self, model: str) -> list[str]:
        """The partitions that are up and hold a model."""
        return [partition for partition, models in self._holds.items() if model in models]

    def come(self, model: str, partitions: Iterable[str]) -> asyncio.Future[str]:
        """Is done when all partitions of these that are up (or all, if none is) have loaded a model, or could not.

        Its result is why none of them holds it, "" if one does. Raises RejectedError once the server is stopping.
        """
        if self._closed:
            raise RejectedError("the server is stopping")
        names = list(partitions)
        expected = self._expected[model] = _Expected([each for each in names if each in self._holds] or names)
        expected.ended.add_done_callback(lambda _: self._expected.pop(model, None))
        return expected.ended

    async def go(self, model: str) -> None:
        """Wait until no partition holds a model that is to go."""
        if self.holders(model):
            leaving = self._leaving[model] = asyncio.get_running_loop().create_future()
            await leaving

    async def back(self, partition: str) -> None:
        """Wait until a worker of a partition gets ready; one may wait at a time."""
        ready = self._ready[partition] = asyncio.get_running_loop().create_future()
        await ready

    def partition_ready(self, partition: str, loaded: Iterable[str], failed: Mapping[str, str]) -> None:
        """A worker is up."""
        self._holds[partition] = set(loaded)
        for model in self._holds[partition]:
            self._told(partition, model, "")
        for model, reason in failed.items():
            self._told(partition, model, reason)
        if (ready := self._ready.pop(partition, None)) and not ready.done():
            ready.set_result(None)

    def partition_lost(self, partition: str, reason: str) -> None:
        """A worker is gone, but what it was to load is not why: that has been told, if it is."""
        held = self._holds.pop(partition, set())
        for expected in list(self._expected.values()):
            expected.lost(partition, reason)
        for model in held:
            self._gone(model)

    def model_loaded(self, partition: str, model: str) -> None:
        """A worker holds one more model."""
        self._holds.setdefault(partition, set()).add(model)
        self._told(partition, model, "")

    def model_load_failed(self, partition: str, model: str, reason: str) -> None:
        """A worker could not load a model."""
        self._told(partition, model, reason)

    def model_unloaded(self, partition: str, model: str) -> None:
        """A worker does not hold a model any more."""
        self._holds.get(partition, set()).discard(model)
        self._gone(model)

    def close(self) -> None:
        """The server is stopping: nothing comes, goes or returns any more. Who waits gets a RejectedError."""
        self._closed = True
        coming = [expected.ended for expected in self._expected.values()]
        waiting: list[asyncio.Future[Any]] = [*coming, *self._leaving.values(), *self._ready.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(RejectedError("the server is stopping"))

    def _told(self, partition: str, model: str, reason: str) -> None:
        if expected := self._expected.get(model):
            expected.told(partition, reason)

    def _gone(self, model: str) -> None:
        if model in self._leaving and not self.holders(model) and not self._leaving[model].done():
            self._leaving.pop(model).set_result(None)
