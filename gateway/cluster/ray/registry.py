"""The classes of a Ray namespace: leases, and the worker of each slot; without Ray and clock."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sluice.gateway.cluster.ray.leases import Lease, Leases
from sluice.gateway.config.ray_settings import RaySettings

LEASE_S = 3.0
"""A gateway that has not renewed its leases for this time has lost them."""


class ClassSpec(NamedTuple):
    """The agreement of all gateways that share a class; `key` is that of the workers, "" for none."""

    settings: RaySettings
    slots: int
    key: str
    version: str

    def difference(self, other: "ClassSpec") -> str:
        """The first thing in which another one differs, in words; "" if in none."""
        if self.version != other.version:
            return f"version {self.version}, not {other.version}"
        if self.key != other.key:
            return "another key"
        if self.slots != other.slots:
            return f"{self.slots} slots, not {other.slots}"
        for name in self.settings.__struct_fields__:
            mine, theirs = getattr(self.settings, name), getattr(other.settings, name)
            if mine != theirs and name not in ("address", "min"):
                return f"{name} {mine}, not {theirs}"
        return ""


class WorkerInfo(NamedTuple):
    """The newest worker of a slot: its number, its node, and its address ("" with the reason while it has none)."""

    number: int
    node_id: str
    node: str
    url: str
    reason: str
    heard_s: float


class Renewal(NamedTuple):
    """A gateway's leases in a class, slots by epoch, with the workers of these slots: number, url and reason."""

    leases: dict[int, int]
    workers: dict[int, tuple[int, str, str]]


class _Class:
    def __init__(self, spec: ClassSpec, leases: Leases) -> None:
        self.spec = spec
        self.leases = leases
        self.workers: dict[int, WorkerInfo] = {}
        self.waiting: dict[int, str] = {}
        """Why slots have no worker yet."""
        self.is_ending = False
        """Its workers end, since gateways have come with other settings."""


class Registry:
    """The classes of a namespace. Times are seconds of a clock that does not go back.

    `first_number` must be above all epochs and numbers that a registry before this one has given out.
    """

    def __init__(self, first_number: int) -> None:
        self._number = first_number
        self._classes: dict[str, _Class] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes."""
        return tuple(self._classes)

    def spec(self, name: str) -> ClassSpec:
        """The agreement on a class."""
        return self._classes[name].spec

    def open_class(self, name: str, spec: ClassSpec, now_s: float) -> str:
        """Have a class; returns why this cannot be, "" if it can.

        A class that no gateway uses any more is replaced, once its workers have ended.
        """
        known = self._classes.get(name)
        if known is not None:
            known.leases.expire(now_s)
            difference = spec.difference(known.spec)
            if not difference:
                return ""
            if known.leases.gateways:
                others = ", ".join(sorted(known.leases.gateways))
                return (
                    f"partitions {name} are shared with gateway {others}, but differ: {difference}; "
                    "expected equal settings, or another name or namespace"
                )
            known.is_ending = True
            if known.workers:
                return f"partitions {name}: the workers of former settings are being ended ({difference})"
        self._classes[name] = _Class(spec, Leases(spec.slots, LEASE_S, self._next(), now_s))
        return ""

    def renew(self, gateway: str, name: str, want: int, held: Mapping[int, int], now_s: float) -> Renewal | None:
        """Renew a gateway's leases in a class; None if the class is not open."""
        known = self._classes.get(name)
        if known is None or known.is_ending:
            return None
        leases = known.leases.renew(gateway, want, held, now_s)
        workers = {}
        for slot in leases:
            info = known.workers.get(slot)
            if info is not None:
                workers[slot] = (info.number, info.url, info.reason)
            elif slot in known.waiting:
                workers[slot] = (0, "", known.waiting[slot])
        return Renewal(leases, workers)

    def leave(self, gateway: str, now_s: float) -> None:
        """A gateway gives up all that it has."""
        for each in self._classes.values():
            each.leases.leave(gateway, now_s)

    def new_number(self) -> int:
        """The number of a worker that starts, above all others."""
        return self._next()

    def report(self, name: str, slot: int, info: WorkerInfo) -> bool:
        """A worker says where it is; False if it has been replaced by a newer one, and is to end."""
        known = self._classes.get(name)
        if known is None or not 0 <= slot < known.spec.slots:
            return True  # this registry is new, and does not know yet
        if (newest := known.workers.get(slot)) is not None and newest.number > info.number:
            return False
        self._number = max(self._number, info.number)
        known.workers[slot] = info
        known.waiting.pop(slot, None)
        return True

    def forget(self, name: str, slot: int) -> None:
        """The worker of a slot has ended for good."""
        self._classes[name].workers.pop(slot, None)

    def wait(self, name: str, slot: int, reason: str) -> None:
        """A slot has no worker yet, for this reason."""
        self._classes[name].waiting[slot] = reason

    def leased(self, name: str) -> Mapping[int, Lease]:
        """The leases of a class by slot."""
        return self._classes[name].leases.leases

    def workers(self, name: str) -> Mapping[int, WorkerInfo]:
        """The workers of a class by slot."""
        return self._classes[name].workers

    def wanted(self, name: str, now_s: float) -> int:
        """The number of workers that all gateways together can use."""
        known = self._classes[name]
        known.leases.expire(now_s)
        return known.leases.wanted()

    def unused(self, name: str, now_s: float) -> list[int]:
        """The slots that no gateway has had for the time for which workers are kept."""
        known = self._classes[name]
        known.leases.expire(now_s)
        if known.is_ending:
            return list(range(known.spec.slots))
        keep_s = known.spec.settings.keep_s
        return [slot for slot in range(known.spec.slots) if known.leases.idle_s(slot, now_s) > keep_s]

    def end_unused(self, now_s: float) -> None:
        """Have all workers end of classes that have no gateway."""
        for each in self._classes.values():
            each.leases.expire(now_s)
            each.is_ending = each.is_ending or not each.leases.gateways

    def gateways(self) -> dict[str, dict[str, int]]:
        """The gateways, and how many workers of each class they want."""
        listed: dict[str, dict[str, int]] = {}
        for name, each in self._classes.items():
            for gateway, want in each.leases.gateways.items():
                listed.setdefault(gateway, {})[name] = want
        return listed

    def document(self) -> dict[str, Any]:
        """All that is known, for people."""
        rows = []
        for name, each in self._classes.items():
            for slot in sorted({*each.leases.leases, *each.workers, *each.waiting}):
                lease, info = each.leases.leases.get(slot), each.workers.get(slot)
                rows.append(
                    {
                        "partition": f"{name}-{slot}",
                        "node": info.node if info is not None else "",
                        "url": info.url if info is not None else "",
                        "gateway": lease.gateway if lease is not None else "",
                        "reason": info.reason if info is not None else each.waiting.get(slot, ""),
                    }
                )
        return {"gateways": self.gateways(), "partitions": rows}

    def _next(self) -> int:
        self._number += 1
        return self._number
