"""Partitions that get another share of the machine while they serve."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from sluice.batcher.interface.config import PartitionConfig
from sluice.gateway.deployment.dependencies import DependencyGraph
from sluice.gateway.deployment.rollout import Deployment
from sluice.gateway.deployment.stored_profiles import stored_entries, stored_tables
from sluice.gateway.executors.triton.executor import MixedExecutor
from sluice.gateway.executors.worker.executor import WorkerExecutor
from sluice.gateway.partitions.states import PartitionStates
from sluice.models.errors import NotFoundError, PartitionError, RequestError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.repository.scan import REMOTE, ModelEntry
from sluice.mps.nvidia.free_memory import check_spare_memory
from sluice.mps.partitions.capacity_check import check_capacity
from sluice.mps.partitions.cpu import check_partitions
from sluice.mps.partitions.partition import CpuPartition, MpsPartition, Partition, ShareMode

RESIZE_TIMEOUT_S = 300.0
"""Time for a new worker to load, warm and time all models."""


class Asked(NamedTuple):
    """Who asked for another share: `client`, `plan` or `load`; and why, in a word."""

    by: str
    reason: str


BY_CLIENT = Asked("client", "request")


class Resizing:
    """Has new workers, on other shares, take the place of those that serve.

    `beside` are partitions of other processes, `configure` tells how the scheduler is to know one of ours.
    `done` counts resizes by partition and who asked.
    """

    def __init__(
        self,
        states: PartitionStates,
        names: DependencyGraph,
        deployment: Deployment,
        executor: WorkerExecutor | MixedExecutor,
        beside: Sequence[Partition],
        configure: Callable[[Partition], PartitionConfig],
    ) -> None:
        self._states = states
        self._names = names
        self._deployment = deployment
        self._executor = executor
        self._beside = beside
        self._configure = configure
        self.done: Counter[tuple[str, Asked]] = Counter()
        # What is free is free for one: memory is looked at before the new worker takes it.
        self._one_at_a_time = asyncio.Lock()

    @property
    def under_way(self) -> bool:
        """Whether a partition is just being given another share."""
        return self._one_at_a_time.locked()

    async def resize(
        self,
        name: str,
        cores: Sequence[int] | None = None,
        share_percent: int | None = None,
        asked: Asked = BY_CLIENT,
    ) -> Partition:
        """Give a partition these cores or this share of its GPU, after what is under way; returns when it serves there.

        Raises NotFoundError, RequestError for a share that it cannot have, and PartitionError when the new worker could
        not take over: then all is as it was.
        """
        async with self._one_at_a_time:
            return await self._resize(name, self._wanted(name, cores, share_percent), asked)

    async def _resize(self, name: str, wanted: Partition, asked: Asked) -> Partition:
        if wanted == self._states.all()[name].partition:
            return wanted
        others = [state.partition for other, state in self._states.all().items() if other != name]
        try:
            check_partitions([*others, *self._beside, wanted])
            check_capacity([*others, wanted], {})
            await asyncio.to_thread(check_spare_memory, wanted, self._deployment.memory_of(name))
        except PartitionError as error:
            raise RequestError(str(error)) from error
        entries = [entry for each in self._names.served.values() for entry in each.models if entry.backend != REMOTE]
        tables = await asyncio.to_thread(_tables, entries, wanted.profile_kind)
        try:
            await self._executor.resize(wanted, self._configure(wanted), tables, RESIZE_TIMEOUT_S)
        except PartitionError as error:
            raise PartitionError(f"partition {name} stays as it is: {error}") from error
        self.done[name, asked] += 1
        return wanted

    def _wanted(self, name: str, cores: Sequence[int] | None, share_percent: int | None) -> Partition:
        state = self._states.all().get(name)
        if state is None:
            known = ", ".join(self._states.all())
            raise NotFoundError(f"there is no partition '{name:.80}' of our workers; expected one of {known}")
        match state.partition, cores, share_percent:
            case CpuPartition(), [*numbers], None:
                return msgspec.structs.replace(state.partition, cores=tuple(sorted(set(numbers))))
            case MpsPartition(), None, int():
                if not 1 <= share_percent <= 100:
                    raise RequestError(f"'share_percent' must be from 1 to 100, got {share_percent}")
                if state.partition.mode is ShareMode.STATIC:
                    raise RequestError(f"partition {name} is a static set of multiprocessors, which has one size")
                return msgspec.structs.replace(state.partition, share_percent=share_percent)
            case CpuPartition(), _, _:
                raise RequestError(f"partition {name} is a set of cores; expected 'cores' alone, such as [0, 1]")
            case MpsPartition(), _, _:
                raise RequestError(f"partition {name} is a share of a GPU; expected 'share_percent' alone, such as 40")
            case _:
                raise RequestError(f"partition {name} is a MIG instance, which has one size; apply another layout")


def _tables(entries: Sequence[ModelEntry], kind: str) -> dict[str, LatencyTable]:
    """What stored profiles say of the models' speed on a kind of partition, by key."""
    found = {entry.spec.key: stored_tables(entry, stored_entries(entry, [kind])) for entry in entries}
    return {key: tables[kind] for key, tables in found.items() if kind in tables}
