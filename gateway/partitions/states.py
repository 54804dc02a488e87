"""How the partitions of our workers are, and whether it is proved that they hold what they promise."""

import enum
from collections.abc import Callable, Mapping, Sequence

import msgspec

from sluice.mps.ipc.messages import WorkerReady
from sluice.mps.partitions.isolation_report import Evidence, isolation_violations
from sluice.mps.partitions.partition import Partition


class Enforcement(enum.StrEnum):
    """What is known of the limits of a partition."""

    ENFORCED = "enforced"
    UNENFORCED = "unenforced"
    UNKNOWN = "unknown"


class PartitionStatus(msgspec.Struct, frozen=True):
    """A partition; `reasons` tell why it is unenforced, `worker` is its process while one is up.

    `evidence` is that of the latest worker, and `lost` how that came to its end, and what follows from it. `models` are
    the bytes that each model takes that is held, as far as that is asked for.
    """

    partition: Partition
    profile_kind: str
    worker: int | None = None
    enforcement: Enforcement = Enforcement.UNKNOWN
    reasons: tuple[str, ...] = ()
    evidence: Evidence | None = None
    lost: str = ""
    models: dict[str, int] = {}


class PartitionStates:
    """The states of all partitions of our workers, by name; `held` tells what the models take that one holds."""

    def __init__(
        self, partitions: Sequence[Partition], held: Callable[[str], dict[str, int]] = lambda name: {}
    ) -> None:
        self._held = held
        self._states = {each.name: PartitionStatus(each, each.profile_kind) for each in partitions}

    def all(self) -> Mapping[str, PartitionStatus]:
        """The states as they are now."""
        return self._states

    def report(self) -> list[PartitionStatus]:
        """The states with the models that are held."""
        return [msgspec.structs.replace(state, models=self._held(name)) for name, state in self._states.items()]

    def enforced(self) -> dict[str, bool]:
        """Whether the partitions of which it is known are enforced."""
        return {
            name: state.enforcement is Enforcement.ENFORCED
            for name, state in self._states.items()
            if state.enforcement is not Enforcement.UNKNOWN
        }

    def ready(self, partition: str, ready: WorkerReady) -> PartitionStatus:
        """A worker is up: weigh its evidence."""
        self._set(partition, worker=ready.pid, lost="")
        return self.proved(partition, ready.evidence)

    def proved(self, partition: str, evidence: Evidence) -> PartitionStatus:
        """A worker that is up has found this of itself: weigh it."""
        reasons = tuple(isolation_violations(self._states[partition].partition, evidence))
        found = Enforcement.UNENFORCED if reasons else Enforcement.ENFORCED
        return self._set(partition, enforcement=found, reasons=reasons, evidence=evidence)

    def replaced(self, partition: Partition, ready: WorkerReady) -> PartitionStatus:
        """A worker is up on another share of a partition: weigh its evidence."""
        self._states[partition.name] = PartitionStatus(partition, partition.profile_kind)
        return self.ready(partition.name, ready)

    def lost(self, partition: str, reason: str) -> None:
        """The worker is gone: what the next one will have is not known."""
        self._set(partition, worker=None, enforcement=Enforcement.UNKNOWN, reasons=(), lost=reason)

    def _set(self, partition: str, **changes: object) -> PartitionStatus:
        state = self._states[partition] = msgspec.structs.replace(self._states[partition], **changes)
        return state
