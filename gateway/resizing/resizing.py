"""Gives partitions another share of the machine while they serve."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from prometheus_client.core import CounterMetricFamily, Metric

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import ResizePartition
from sluice.gateway.deployment.dependencies import DependencyGraph
from sluice.gateway.deployment.rollout import Rollout
from sluice.gateway.deployment.stored_profiles import stored_entries, stored_tables
from sluice.gateway.executors.mixed import MixedExecutor
from sluice.gateway.observability.metrics import MetricsSource
from sluice.gateway.partitions.inventory import Inventory
from sluice.models.errors import CapacityTaken, InfeasibleLayout, NotFoundError, PartitionError, RequestError
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.repository.scan import REMOTE, ModelEntry
from sluice.mps.nvidia.free_memory import check_spare_memory
from sluice.mps.partitions.capacity_check import check_capacity
from sluice.mps.partitions.cpu import check_partitions
from sluice.mps.partitions.partition import CpuPartition, MpsPartition, Partition, ShareMode

RESIZE_TIMEOUT_S = 300.0
"""Time for a new worker to load, warm and time all models."""


class ResizeCause(NamedTuple):
    """The origin of a resize: `client`, `plan` or `load`; and the reason, in a word."""

    by: str
    reason: str


CLIENT_REQUEST = ResizeCause("client", "request")


class Resizing:
    """Replaces workers by others on new shares.

    `beside` are partitions of other processes, and `configure` gives a partition of ours as the scheduler is to know
    it. `done` counts resizes by partition and cause.
    """

    def __init__(
        self,
        inventory: Inventory,
        dependencies: DependencyGraph,
        rollout: Rollout,
        executor: MixedExecutor,
        beside: Sequence[Partition],
        configure: Callable[[Partition], PartitionConfig],
    ) -> None:
        self._inventory = inventory
        self._dependencies = dependencies
        self._rollout = rollout
        self._executor = executor
        self._beside = beside
        self._configure = configure
        self.done: Counter[tuple[str, ResizeCause]] = Counter()
        # One at a time: free memory is measured before the new worker takes it.
        self._one_at_a_time = asyncio.Lock()

    @property
    def under_way(self) -> bool:
        """True while a partition is being resized."""
        return self._one_at_a_time.locked()

    async def resize(
        self,
        name: str,
        cores: Sequence[int] | None = None,
        share_percent: int | None = None,
        cause: ResizeCause = CLIENT_REQUEST,
    ) -> Partition:
        """Give a partition these cores or this share of its GPU; returns when it serves there.

        It waits for the resize that is under way. Raises NotFoundError, RequestError for a share that there is not,
        CapacityTaken for one that others have, and PartitionError when the new worker could not take over. Then nothing
        has changed.
        """
        async with self._one_at_a_time:
            return await self._resize(name, self._wanted(name, cores, share_percent), cause)

    async def carry_out(self, order: ResizePartition) -> None:
        """Resize a partition as the scheduler orders; raises as `resize`, also if it was resized meanwhile."""
        name, held = order.partition, order.held
        async with self._one_at_a_time:
            cores, share_percent = (held, None) if isinstance(held, tuple) else (None, held)
            wanted = self._wanted(name, cores, share_percent)
            present = next(each for each in self._inventory.partitions if each.name == name)
            before = present.share_percent if isinstance(present, MpsPartition) else present.cores
            if before != order.before:
                raise PartitionError(f"partition {name} was resized meanwhile")
            await self._resize(name, wanted, ResizeCause(order.by, order.reason))

    async def _resize(self, name: str, wanted: Partition, cause: ResizeCause) -> Partition:
        if wanted == self._inventory.statuses[name].partition:
            return wanted
        others = [each for each in self._inventory.partitions if each.name != name]
        try:
            check_partitions([*others, *self._beside, wanted])
            check_capacity([*others, wanted], {})
            await asyncio.to_thread(check_spare_memory, wanted, self._rollout.memory_of(name))
        except InfeasibleLayout as error:
            raise CapacityTaken(str(error)) from error
        except PartitionError as error:
            raise RequestError(str(error)) from error
        entries = [
            entry for each in self._dependencies.served.values() for entry in each.models if entry.backend != REMOTE
        ]
        tables = await asyncio.to_thread(_tables, entries, wanted.profile_kind)
        try:
            await self._executor.resize(wanted, self._configure(wanted), tables, RESIZE_TIMEOUT_S)
        except PartitionError as error:
            raise PartitionError(f"partition {name} stays as it is: {error}") from error
        self.done[name, cause] += 1
        return wanted

    def _wanted(self, name: str, cores: Sequence[int] | None, share_percent: int | None) -> Partition:
        status = self._inventory.statuses.get(name)
        if status is None:
            known = ", ".join(self._inventory.statuses)
            raise NotFoundError(f"there is no partition '{name:.80}' of our workers; expected one of {known}")
        if self._inventory.is_remote(name):
            raise RequestError(
                f"partition {name} is on another machine; it has the size that its worker was started with"
            )
        match status.partition, cores, share_percent:
            case CpuPartition(), [*numbers], None:
                return msgspec.structs.replace(status.partition, cores=tuple(sorted(set(numbers))))
            case MpsPartition(), None, int():
                if not 1 <= share_percent <= 100:
                    raise RequestError(f"'share_percent' must be from 1 to 100, got {share_percent}")
                if status.partition.mode is ShareMode.STATIC:
                    raise RequestError(f"partition {name} is a static set of multiprocessors, which has one size")
                return msgspec.structs.replace(status.partition, share_percent=share_percent)
            case CpuPartition(), _, _:
                raise RequestError(f"partition {name} is a set of cores; expected 'cores' alone, such as [0, 1]")
            case MpsPartition(), _, _:
                raise RequestError(f"partition {name} is a share of a GPU; expected 'share_percent' alone, such as 40")
            case _:
                raise RequestError(f"partition {name} is a MIG instance, which has one size; apply another layout")


class ResizeMetrics(MetricsSource):
    """Counts the resizes of each partition by their causes."""

    def __init__(self, done: Mapping[tuple[str, ResizeCause], int]) -> None:
        self._done = done

    def collect(self) -> Iterator[Metric]:
        """The family, for prometheus_client."""
        resizes = CounterMetricFamily(
            "sluice_partition_resizes",
            "Resizes of the partition, by who ordered them and why.",
            labels=["partition", "by", "reason"],
        )
        for (partition, cause), count in self._done.items():
            resizes.add_metric([partition, *cause], count)
        yield resizes


def _tables(entries: Sequence[ModelEntry], kind: str) -> dict[str, LatencyTable]:
    """The stored latencies of models on a kind of partition, by key."""
    found = {entry.spec.key: stored_tables(entry, stored_entries(entry, [kind])) for entry in entries}
    return {key: tables[kind] for key, tables in found.items() if kind in tables}
