"""Waits until models are loaded or unloaded, and until partitions are up again."""

import asyncio
from collections.abc import Collection
from typing import Any, NamedTuple

from sluice.batcher.interface.decisions import AcceptChange, ChangeAnswer, RejectChange
from sluice.batcher.interface.events import PartitionLost, PartitionReady
from sluice.gateway.partitions.inventory import Inventory, InventoryChange
from sluice.models.errors import ConfigError, RejectedError

MAX_LOST_WORKERS = 3
"""The number of successive workers of a partition that may be lost while they load a model."""


class Placed(NamedTuple):
    """The partitions that were to load a model, none if it waits for requests.

    `failure` is the reason why none of them holds it; "" if one does.
    """

    partitions: tuple[str, ...]
    failure: str = ""


class _ExpectedModel:
    """A new model: it is `placed` by the scheduler, some of these `partitions` have not reported it yet.

    `reasons` are the failures on others. With `any_is_enough` the first partition that holds it is waited for.
    """

    def __init__(self) -> None:
        self.placed: tuple[str, ...] = ()
        self.partitions: set[str] = set()
        self.held = self.any_is_enough = False
        self.workers = MAX_LOST_WORKERS
        self.reasons: list[str] = []
        self.ended: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()

    def place(self, placed: tuple[str, ...], up: Collection[str]) -> None:
        """Record where the model is to be, and which of that is up; it has ended if that is nowhere."""
        self.placed = placed
        self.partitions = set(up or placed)
        self.any_is_enough = not up
        if not placed:
            self.ended.set_result(Placed(()))

    def settle(self, partition: str, reason: str) -> None:
        """Record that a partition has loaded the model, or the reason why it has not."""
        self.held |= not reason
        if reason:
            self.reasons.append(reason)
        elif self.any_is_enough:
            self.partitions.clear()
        self._without(partition)

    def lost(self, partition: str, reason: str) -> None:
        """Record the loss of a worker; its successor is awaited only if no other partition is."""
        if partition in self.partitions:
            self.workers -= 1
            if not self.workers:
                self.settle(
                    partition, f"{partition} lost {MAX_LOST_WORKERS} workers before they had loaded it: {reason}"
                )
            elif self.held or self.reasons or len(self.partitions) > 1:
                self._without(partition)

    def _without(self, partition: str) -> None:
        self.partitions.discard(partition)
        if not self.partitions and not self.ended.done():
            self.ended.set_result(Placed(self.placed, "" if self.held else self.reasons[0]))


class LoadWaiter:
    """Turns answers of the scheduler and changes of the inventory into results to wait for, on the event loop."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._expected: dict[str, _ExpectedModel] = {}
        self._leaving: dict[str, asyncio.Future[None]] = {}
        self._ready: dict[str, asyncio.Future[None]] = {}
        self._closed = False
        inventory.subscribe(self._changed)

    def wait_loaded(self, model: str) -> asyncio.Future[Placed]:
        """Done when each partition that is to hold a new model has loaded it, or failed to; to be called first.

        Partitions that are down do not count if another one is up; if none is, the first one to load it is enough. The
        result is an error if the model is rejected: RejectedError if there is no room for it now, ConfigError if there
        never is. Raises RejectedError once the server is stopping.
        """
        if self._closed:
            raise RejectedError("the server is stopping")
        expected = self._expected[model] = _ExpectedModel()
        expected.ended.add_done_callback(lambda _: self._expected.pop(model, None))
        return expected.ended

    def answered(self, answer: ChangeAnswer) -> None:
        """Take the scheduler's answer to a change, before anything of it is carried out."""
        match answer:
            case AcceptChange(placed):
                for model, partitions in placed.items():
                    if (expected := self._expected.get(model)) and not expected.ended.done():
                        up = [name for name in partitions if self._inventory.is_up(name)]
                        expected.place(partitions, up)
            case RejectChange(models, reason, passing):
                for model in models:
                    if (expected := self._expected.get(model)) and not expected.ended.done():
                        expected.ended.set_exception(RejectedError(reason) if passing else ConfigError(reason))

    async def wait_unloaded(self, model: str) -> None:
        """Wait until no partition holds a model that is being unloaded."""
        if self._inventory.holders(model):
            leaving = self._leaving[model] = asyncio.get_running_loop().create_future()
            await leaving

    async def wait_ready(self, partition: str) -> None:
        """Wait until a worker of a partition gets ready; one may wait at a time."""
        ready = self._ready[partition] = asyncio.get_running_loop().create_future()
        await ready

    def close(self) -> None:
        """End all waiting with a RejectedError, since the server is stopping."""
        self._closed = True
        coming = [expected.ended for expected in self._expected.values()]
        waiting: list[asyncio.Future[Any]] = [*coming, *self._leaving.values(), *self._ready.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(RejectedError("the server is stopping"))

    def _changed(self, change: InventoryChange) -> None:
        event, partition = change.event, change.event.partition
        for model in change.loaded:
            self._settle(partition, model, "")
        for model, reason in change.failed.items():
            self._settle(partition, model, reason)
        match event:
            case PartitionReady():
                if (ready := self._ready.pop(partition, None)) and not ready.done():
                    ready.set_result(None)
            case PartitionLost():
                for expected in list(self._expected.values()):
                    expected.lost(partition, event.reason)
        self._note_unloaded()

    def _settle(self, partition: str, model: str, reason: str) -> None:
        if expected := self._expected.get(model):
            expected.settle(partition, reason)

    def _note_unloaded(self) -> None:
        for model in [model for model in self._leaving if not self._inventory.is_held(model)]:
            leaving = self._leaving.pop(model)
            if not leaving.done():
                leaving.set_result(None)
