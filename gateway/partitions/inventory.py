"""The inventory of partitions: their models, the evidence of their limits, and their failures.

It is the only record of these outside the core. The runtime feeds it each event that an executor reports about a
partition; others read it, or subscribe to its changes.
"""

import asyncio
import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import msgspec

from sluice.batcher.interface.events import (
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    PartitionLost,
    PartitionReady,
    PartitionResized,
)
from sluice.models.spec import public_key
from sluice.mps.partitions.isolation_report import Evidence, isolation_violations
from sluice.mps.partitions.partition import CpuPartition, Partition

PartitionEvent = PartitionReady | PartitionLost | PartitionResized | ModelLoaded | ModelLoadFailed | ModelUnloaded


class Enforcement(enum.StrEnum):
    """The state of a partition's limits; `unknown` until a worker has reported evidence."""

    ENFORCED = "enforced"
    UNENFORCED = "unenforced"
    UNKNOWN = "unknown"


class RemoteSlot(msgspec.Struct, frozen=True, tag="remote", tag_field="kind"):
    """A partition on another machine whose worker is not known yet; its kind is that of the class."""

    name: str


class LinkReport(msgspec.Struct, frozen=True):
    """The way to a node: its quickest round trip of late, and its bandwidth in MB/s, if that is known."""

    round_trip_ms: float
    mb_per_s: float | None = None


class PartitionStatus(msgspec.Struct, frozen=True):
    """A partition of our workers, as `/v2/sluice/partitions` shows it.

    `worker` is the process id of its worker, None without one. `reasons` say why the partition is unenforced.
    `evidence` is from the latest worker, and `lost` says how that worker ended. `node` is the machine of a remote
    worker, "" for one of this machine, and `url` its address. `models` maps each loaded model to its bytes,
    `used_bytes` is the memory in use, None if it is not known, and `link` is the way to the node; only
    `Inventory.report` fills them in.
    """

    partition: Partition | RemoteSlot
    profile_kind: str
    worker: int | None = None
    enforcement: Enforcement = Enforcement.UNKNOWN
    reasons: tuple[str, ...] = ()
    evidence: Evidence | None = None
    lost: str = ""
    models: dict[str, int] = {}
    used_bytes: int | None = None
    node: str = ""
    url: str = ""
    link: LinkReport | None = None


class ProcessDetails(msgspec.Struct, frozen=True):
    """Facts about a partition's process that complete an event of the core.

    `worker` and `cores` are the process id and the affinity of a new worker, `evidence` is its report on its own
    limits, and `resized` is the partition if its share has changed, or if the worker is remote. `url` is the address of
    a Triton server or of a remote worker, which is on the `node`. `failed` maps models that did not load to the
    reasons. A `planned` loss is no fault, nor is that of a worker that never `was_up`.
    """

    worker: int | None = None
    cores: tuple[int, ...] = ()
    evidence: Evidence | None = None
    resized: Partition | None = None
    url: str = ""
    failed: Mapping[str, str] = {}
    planned: bool = False
    node: str = ""
    was_up: bool = True


NO_DETAILS = ProcessDetails()


class WorkerRefused(msgspec.Struct, frozen=True):
    """A strict server does not use a partition's worker, because its evidence does not prove the limits."""

    partition: str


class InventoryChange(NamedTuple):
    """One event as subscribers get it, after the inventory has recorded it."""

    event: PartitionEvent | WorkerRefused
    """The event of the executor, or the refusal of a worker in place of its `PartitionReady`."""
    details: ProcessDetails
    """The details that the executor reported with the event."""
    loaded: Sequence[str]
    """The models that the partition has newly loaded."""
    failed: Mapping[str, str]
    """The models that did not load, with the reasons."""
    loaded_first: bool
    """True if one of the `loaded` models was never loaded on any partition before."""
    shortfalls: Sequence[str]
    """New reasons why the partition is unenforced."""
    status: PartitionStatus | None
    """The partition after the event; None for a Triton server."""


class Inventory:
    """Holds all partitions: those of our workers, and the Triton `servers` by name, which Sluice does not start.

    `remote` has the kinds of the partitions whose workers are on other machines, by name. With `strict`, a worker is
    not used unless its evidence proves the limits: `refused` is set, and `refusal` is the reason. (Such a remote worker
    is never reported.) The remote ones in `vacant` may have no worker at the start, and with `starts_on_demand` a
    request has one started, so that the server serves without any. `memory_of` gives the bytes of each model on a
    partition, and `link_of` the way to a node.
    """

    def __init__(
        self,
        partitions: Iterable[Partition],
        servers: Iterable[str] = (),
        *,
        remote: Mapping[str, str] = {},
        strict: bool = False,
        vacant: Collection[str] = (),
        starts_on_demand: bool = False,
        memory_of: Callable[[str], dict[str, int]] = lambda partition: {},
    ) -> None:
        self._statuses = {each.name: PartitionStatus(each, each.profile_kind) for each in partitions}
        self._remote = frozenset(remote)
        self._statuses |= {name: PartitionStatus(RemoteSlot(name), kind) for name, kind in remote.items()}
        self.names: tuple[str, ...] = (*self._statuses, *servers)
        self._strict = strict
        self._memory_of = memory_of
        self.link_of: Callable[[str], LinkReport | None] = lambda node: None
        self._subscribers: list[Callable[[InventoryChange], None]] = []
        self._held: dict[str, set[str]] = {}  # models by partition, for partitions that are up
        self._starts_on_demand = starts_on_demand
        self._unreachable: set[str] = set(vacant)  # what is elsewhere and was lost, or could not be reached yet
        self._were_all_up = self._unreachable.issuperset(self.names)
        self._loaded_ever: set[str] = set()
        self._failed: dict[str, str] = {}
        self._losses: Counter[str] = Counter()
        self.in_service = asyncio.Event()
        if self.is_serving:
            self.in_service.set()
        self.refused = asyncio.Event()
        self.refusal = ""

    def subscribe(self, subscriber: Callable[[InventoryChange], None]) -> None:
        """Call `subscriber` with each change from now on; subscribers are called in this order."""
        self._subscribers.append(subscriber)

    # -- partitions

    @property
    def statuses(self) -> Mapping[str, PartitionStatus]:
        """The partitions of our workers by name, without `models`."""
        return self._statuses

    @property
    def partitions(self) -> list[Partition]:
        """The partitions of this machine, at their present shares."""
        return [
            status.partition
            for name, status in self._statuses.items()
            if name not in self._remote and not isinstance(status.partition, RemoteSlot)
        ]

    @property
    def kinds(self) -> dict[str, str]:
        """The present kinds of the partitions of our workers, by name."""
        return {name: status.profile_kind for name, status in self._statuses.items()}

    @property
    def processes(self) -> dict[str, int]:
        """The process ids of the workers of this machine, by partition."""
        return {
            name: status.worker
            for name, status in self._statuses.items()
            if status.worker is not None and name not in self._remote
        }

    @property
    def has_remote(self) -> bool:
        """True if some partitions have their workers on other machines."""
        return bool(self._remote)

    @property
    def nodes(self) -> dict[str, str]:
        """The nodes of the remote workers that are up, by partition."""
        return {name: self._statuses[name].node for name in self._held if name in self._remote}

    def is_remote(self, partition: str) -> bool:
        """True for a partition whose workers are on other machines."""
        return partition in self._remote

    def report(self, used: Mapping[str, int] = {}) -> list[PartitionStatus]:
        """The partitions of our workers with the models that they hold; `used` are the bytes in use."""
        return [
            msgspec.structs.replace(
                status,
                models=self._memory_of(name),
                used_bytes=used.get(name),
                link=self.link_of(status.node) if status.node else None,
            )
            for name, status in self._statuses.items()
        ]

    def memory_usage(self) -> dict[str, list[dict[str, Any]]]:
        """The memory of each loaded model, by public key, as the protocol's `memory_usage`: an entry for each device.

        All cores are the device 0 of type CPU. GPUs, and MIG instances, are numbered in the order of the partitions.
        """
        devices: list[str] = []
        found: dict[str, dict[tuple[str, int], int]] = {}
        for name, status in self._statuses.items():
            partition = status.partition
            device = "CPU", 0
            if not isinstance(partition, CpuPartition | RemoteSlot):
                if partition.uuid not in devices:
                    devices.append(partition.uuid)
                device = "GPU", devices.index(partition.uuid)
            for key, nbytes in self._memory_of(name).items():
                usage = found.setdefault(public_key(key), {})
                usage[device] = usage.get(device, 0) + nbytes
        return {
            key: [{"type": type, "id": id, "byte_size": nbytes} for (type, id), nbytes in usage.items()]
            for key, usage in found.items()
        }

    def enforced(self) -> dict[str, bool]:
        """True for each partition whose limits are enforced, False for unenforced ones; without unknown ones."""
        return {
            name: status.enforcement is Enforcement.ENFORCED
            for name, status in self._statuses.items()
            if status.enforcement is not Enforcement.UNKNOWN
        }

    def is_up(self, partition: str) -> bool:
        """True if a partition takes batches."""
        return partition in self._held

    def is_vacant(self, partition: str) -> bool:
        """True for a partition of another machine where no worker is placed, which is no fault."""
        is_remote = partition in self._remote
        return is_remote and partition in self._unreachable and not self._statuses[partition].url

    def losses(self, partition: str) -> int:
        """The number of times that the process of a partition was lost unexpectedly."""
        return self._losses[partition]

    @property
    def any_up(self) -> bool:
        """True if some partition takes batches, or is started for a request."""
        return self._starts_on_demand or bool(self._held)

    @property
    def is_serving(self) -> bool:
        """True once all partitions have been up together, and while at least one is up.

        What is on another machine and could not be reached counts as up for the first condition.
        """
        return self._were_all_up and self.any_up

    # -- models

    def is_held(self, model: str) -> bool:
        """True if a partition that is up holds a model."""
        return any(model in held for held in self._held.values())

    def holders(self, model: str) -> list[str]:
        """The partitions that are up and hold a model."""
        return [partition for partition, held in self._held.items() if model in held]

    @property
    def loaded_ever(self) -> Set[str]:
        """The models that some partition has held, until `forget`."""
        return self._loaded_ever

    @property
    def failed(self) -> Mapping[str, str]:
        """The latest reason why a model did not load, for each that failed somewhere, until `forget`."""
        return self._failed

    def forget(self, model: str) -> None:
        """Drop the history of a model that no partition will hold again."""
        self._loaded_ever.discard(model)
        self._failed.pop(model, None)

    # -- events

    def apply(self, event: PartitionEvent, details: ProcessDetails = NO_DETAILS) -> None:
        """Record an event that an executor reports, and notify the subscribers."""
        name, found = event.partition, self._assess(event.partition, details)
        change: PartitionEvent | WorkerRefused = event
        loaded: Sequence[str] = ()
        failed = details.failed
        match event:
            case PartitionReady() if found and self._strict and name not in self._remote:
                change, failed = WorkerRefused(name), {}
            case PartitionReady():
                loaded = tuple(event.tables)
                self._held[name] = set(loaded)
            case PartitionLost():
                self._held.pop(name, None)
                self._losses[name] += not details.planned and details.was_up
                self._lost(name, event.reason, details)
            case ModelLoaded():
                loaded = (event.model,)
                if name in self._held:
                    self._held[name].add(event.model)
            case ModelLoadFailed():
                failed = {event.model: event.reason}
            case ModelUnloaded():
                self._held.get(name, set()).discard(event.model)
        loaded_first = not self._loaded_ever.issuperset(loaded)
        self._loaded_ever.update(loaded)
        self._failed.update(failed)
        self._were_all_up |= self._unreachable.union(self._held).issuperset(self.names)
        status = self._statuses.get(name)
        for subscriber in self._subscribers:
            subscriber(InventoryChange(change, details, loaded, failed, loaded_first, found, status))
        if self.is_serving:
            self.in_service.set()

    def _assess(self, name: str, details: ProcessDetails) -> list[str]:
        """Compare the worker's evidence with its partition; returns the new violations."""
        if details.evidence is None:
            return []
        status = self._statuses[name]
        if details.resized is not None:
            status = PartitionStatus(details.resized, details.resized.profile_kind, node=details.node, url=details.url)
        if details.worker is not None:
            status = msgspec.structs.replace(status, worker=details.worker, reasons=(), lost="")
        assert not isinstance(status.partition, RemoteSlot), "evidence comes from a worker that is known"
        reasons = tuple(isolation_violations(status.partition, details.evidence))
        enforcement = Enforcement.UNENFORCED if reasons else Enforcement.ENFORCED
        self._statuses[name] = msgspec.structs.replace(
            status, enforcement=enforcement, reasons=reasons, evidence=details.evidence
        )
        if reasons and self._strict and name not in self._remote:
            self.refusal = f"partition {name} is unenforced: {'; '.join(reasons)}"
            self.refused.set()
        return [reason for reason in reasons if reason not in status.reasons]

    def _lost(self, name: str, reason: str, details: ProcessDetails) -> None:
        """Record the loss of a partition's process; the limits of the next process are not known yet."""
        status = self._statuses.get(name)
        if status is None or name in self._remote:
            self._unreachable.add(name)
        if status is not None:
            self._statuses[name] = msgspec.structs.replace(
                status,
                worker=None,
                enforcement=Enforcement.UNKNOWN,
                reasons=(),
                lost=reason,
                node=details.node,
                url=details.url,
            )
