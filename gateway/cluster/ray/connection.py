"""The gateway's leases at the keeper of a Ray namespace; every call may block for a few seconds."""

from collections.abc import Iterator
from typing import Any

import ray

from sluice.gateway.cluster.ray.keeper_actor import keeper
from sluice.gateway.cluster.ray.messages import Begin, FromRay, Granted, WorkerAt
from sluice.gateway.cluster.ray.reach import answers
from sluice.gateway.cluster.ray.registry import ClassSpec, Renewal
from sluice.gateway.cluster.ray.worker_actor import CALL_TIMEOUT_S


class NoRayAnswer(Exception):
    """The cluster does not answer, or does not give what is asked of it; the message is a sentence."""


class RayConnection:
    """The classes of a gateway at their keeper. Raises NoRayAnswer if there is no cluster at the address."""

    def __init__(self, begin: Begin) -> None:
        self._gateway = begin.gateway
        first = next(iter(begin.classes.values())).settings
        self._namespace = first.namespace
        self._specs = {
            name: ClassSpec(order.settings, order.slots, begin.key, begin.version)
            for name, order in begin.classes.items()
        }
        self.wanted = {name: order.want for name, order in begin.classes.items()}
        self._held = {name: dict(order.held) for name, order in begin.classes.items()}
        self._workers: dict[tuple[str, int], tuple[int, str, str]] = {}
        self._to_open = list(self._specs)
        if not answers(first.address):
            raise NoRayAnswer(f"no Ray cluster at {first.address}: nothing listens there")
        try:
            ray.init(address=first.address, namespace=self._namespace, log_to_driver=False, logging_level="ERROR")
        except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
            raise NoRayAnswer(f"no Ray cluster at {first.address}: {str(error).splitlines()[0]}") from error
        self._keeper: Any = None

    def give_up(self, name: str, slots: tuple[int, ...]) -> None:
        """Do not keep the leases of these slots."""
        for slot in slots:
            self._held[name].pop(slot, None)
            self._workers.pop((name, slot), None)  # it is reported again if the slot comes back

    def renew(self) -> Iterator[FromRay]:
        """Renew all leases; yields what has changed. Raises NoRayAnswer."""
        try:
            if self._keeper is None:
                self._keeper = keeper(self._namespace)
            for name in list(self._to_open):
                reason = ray.get(self._keeper.open_class.remote(name, self._specs[name]), timeout=CALL_TIMEOUT_S)
                if reason:
                    raise NoRayAnswer(reason)
                self._to_open.remove(name)
            asked = {name: (self.wanted[name], self._held[name]) for name in self._specs}
            renewals = ray.get(self._keeper.renew.remote(self._gateway, asked), timeout=CALL_TIMEOUT_S)
        except (ray.exceptions.ActorDiedError, ValueError) as error:
            self._keeper, self._to_open = None, list(self._specs)
            raise NoRayAnswer(f"the keeper of leases has ended: {str(error).splitlines()[0]}") from error
        except ray.exceptions.RayError as error:
            raise NoRayAnswer(f"the keeper of leases does not answer: {str(error).splitlines()[0]}") from error
        for name, renewal in renewals.items():
            if renewal is None:
                self._to_open.append(name)  # the keeper was restarted
            else:
                yield from self._changes(name, renewal)

    def leave(self) -> None:
        """Give up all leases, as far as the keeper answers."""
        try:
            if self._keeper is not None:
                ray.get(self._keeper.leave.remote(self._gateway), timeout=CALL_TIMEOUT_S)
        except ray.exceptions.RayError:
            return

    def _changes(self, name: str, renewal: Renewal) -> Iterator[FromRay]:
        if renewal.leases != self._held[name]:
            self._held[name] = dict(renewal.leases)
            yield Granted(name, renewal.leases)
        for slot in [slot for each, slot in self._workers if each == name and slot not in renewal.leases]:
            del self._workers[name, slot]
        for slot, worker in renewal.workers.items():
            if self._workers.get((name, slot)) != worker:
                self._workers[name, slot] = worker
                yield WorkerAt(name, slot, *worker)
