"""Gives partitions other cores, or other shares of GPUs, as the plan or their load requires."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple, TypeVar

from sluice.batcher.planner.core_steps import Ask, Cores
from sluice.gateway.observability.logs import log
from sluice.gateway.partitions.inventory import Inventory
from sluice.gateway.resizing.plan_steps import PlanSteps
from sluice.gateway.resizing.resizing import ResizeCause, Resizing
from sluice.models.errors import ServingError
from sluice.models.units import NS_PER_S
from sluice.mps.partitions.balance import (
    BalanceSettings,
    CoreBalance,
    LoadChange,
    PartitionLoad,
    ResizeTrigger,
    ShareBalance,
)
from sluice.mps.partitions.capacity_check import WHOLE
from sluice.mps.partitions.cpu import available_cores
from sluice.mps.partitions.partition import CpuPartition, MpsPartition, Partition, ShareMode

logger = logging.getLogger(__name__)

_SECONDS_PER_HOUR = 3600
_Held = TypeVar("_Held", Cores, int)


class _WantedResize(NamedTuple):
    """The changes to make, in this order, with their cause and the figures behind it."""

    changes: tuple[LoadChange[Cores] | LoadChange[int], ...]
    cause: ResizeCause
    figures: Mapping[str, object]


class AutoResize:
    """Looks from time to time at the load of partitions, by the nanoseconds of `busy_ns`; `taken` cores are not used.

    With a `plan`, and where that knows the latencies on other sets of cores, the plan decides instead.
    """

    def __init__(
        self,
        settings: BalanceSettings,
        inventory: Inventory,
        resizing: Resizing,
        busy_ns: Callable[[], Mapping[str, int]],
        taken: Collection[int],
        plan: PlanSteps | None = None,
    ) -> None:
        self._plan = plan
        self._inventory = inventory
        self._resizing = resizing
        self._busy_ns = busy_ns
        self._taken = frozenset(taken)
        self._every_s = settings.every_s
        self._seen = self._held()
        self._cores = CoreBalance(settings, self._core_sets())
        self._shares = {device: ShareBalance(settings, self._shares_of(device)) for device in self._devices()}
        self._before: Mapping[str, int] = {}
        self._looked_s = 0.0

    async def run(self) -> None:
        """Look until cancelled."""
        self._measure_busy()
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.look()
            except ServingError as error:
                log(logger, logging.WARNING, "a partition could not be resized", reason=str(error))
            except Exception:  # whatever it is, the next look may do better
                logger.exception("partitions could not be resized")

    async def look(self) -> None:
        """Look once, and resize as required; raises as `Resizing.resize`."""
        busy = self._measure_busy()
        if self._resizing.under_way:
            return
        held = self._held()
        if held != self._seen:  # a client has resized a partition, which is not to be undone at once
            self._seen = held
            if self._plan is not None:
                self._plan.changed(self._looked_s)
            self._cores.note_change(self._looked_s)
            for balance in self._shares.values():
                balance.note_change(self._looked_s)
            return
        wanted = [*await self._wanted_cores(busy), *self._wanted_shares(busy)]
        if self._resizing.under_way or self._held() != held:  # meanwhile, as the plan took time
            return
        try:
            for each in wanted:
                await self._change(each)
        finally:
            self._seen = self._held()

    async def _wanted_cores(self, busy: Mapping[str, float]) -> list[_WantedResize]:
        partitions = self._core_partitions()
        cores = {core for each in self._partitions() for core in each.cores}
        spare = tuple(sorted({*available_cores()} - self._taken - cores))
        if self._plan is not None and (known := await self._plan.known(partitions, spare)):
            ask = await self._plan.look(self._looked_s, partitions, spare, known)
            return [] if ask is None else [_by_plan(ask)]
        change = self._cores.next_change(self._looked_s, _loads(self._core_sets(), busy), spare)
        return [] if change is None else [self._by_load(change, busy)]

    def _wanted_shares(self, busy: Mapping[str, float]) -> Iterator[_WantedResize]:
        for device, balance in self._shares.items():
            sharing = (each for each in self._partitions() if isinstance(each, MpsPartition) and each.uuid == device)
            unpromised = round(WHOLE) - sum(each.guaranteed_percent for each in sharing)
            change = balance.next_change(self._looked_s, _loads(self._shares_of(device), busy), unpromised)
            if change is not None:
                yield self._by_load(change, busy)

    def _by_load(self, change: LoadChange[Cores] | LoadChange[int], busy: Mapping[str, float]) -> _WantedResize:
        partition = self._inventory.statuses[change.partition].partition
        before = partition.share_percent if isinstance(partition, MpsPartition) else len(partition.cores)
        after = change.held if isinstance(change.held, int) else len(change.held)
        cause = ResizeCause(ResizeTrigger.LOAD, "busy" if after > before else "idle")
        return _WantedResize((change,), cause, {"busy": round(busy.get(change.partition, 0.0), 3)})

    async def _change(self, wanted: _WantedResize) -> None:
        """Change one partition after the other: some must release a share before others can get it."""
        for name, held in wanted.changes:
            share = {"share_percent": held} if isinstance(held, int) else {"cores": list(held)}
            why = {"by": wanted.cause.by, "reason": wanted.cause.reason, **wanted.figures}
            log(logger, logging.INFO, "partition to be resized", partition=name, **share, **why)
            if isinstance(held, int):
                await self._resizing.resize(name, share_percent=held, cause=wanted.cause)
            else:
                await self._resizing.resize(name, held, cause=wanted.cause)

    def _partitions(self) -> Iterator[Partition]:
        return iter(self._inventory.partitions)

    def _core_partitions(self) -> list[CpuPartition]:
        return [each for each in self._partitions() if isinstance(each, CpuPartition)]

    def _core_sets(self) -> dict[str, Cores]:
        return {each.name: each.cores for each in self._core_partitions()}

    def _devices(self) -> list[str]:
        """The GPUs whose shares have a cap, and so a size."""
        hard = (each for each in self._partitions() if isinstance(each, MpsPartition) and each.mode is ShareMode.HARD)
        return list(dict.fromkeys(each.uuid for each in hard))

    def _shares_of(self, device: str) -> dict[str, int]:
        return {
            each.name: each.share_percent
            for each in self._partitions()
            if isinstance(each, MpsPartition) and each.uuid == device and each.mode is ShareMode.HARD
        }

    def _held(self) -> list[object]:
        return [self._core_sets(), *map(self._shares_of, self._devices())]

    def _measure_busy(self) -> dict[str, float]:
        """The part of its time that each partition was busy since the last look."""
        now_s, now_ns = asyncio.get_running_loop().time(), dict(self._busy_ns())
        elapsed_ns = max((now_s - self._looked_s) * NS_PER_S, 1.0)
        busy = {name: min((ns - self._before.get(name, ns)) / elapsed_ns, 1.0) for name, ns in now_ns.items()}
        self._before, self._looked_s = now_ns, now_s
        return busy


def _loads(held: Mapping[str, _Held], busy: Mapping[str, float]) -> dict[str, PartitionLoad[_Held]]:
    return {name: PartitionLoad(each, busy.get(name, 0.0)) for name, each in held.items()}


def _by_plan(ask: Ask) -> _WantedResize:
    """A step of the plan, with the pipelines that miss their objectives, the busiest partition's load and the costs."""
    figures: dict[str, object] = {}
    for when, judged in (("", ask.before), ("_after", ask.after)):
        figures |= {
            f"missed{when}": list(judged.missed),
            f"busiest{when}": round(judged.busiest, 3),
            f"cost_per_hour{when}": float(f"{judged.cost * _SECONDS_PER_HOUR:.4g}"),
        }
    return _WantedResize(ask.step.changes, ResizeCause(ResizeTrigger.PLAN, ask.reason), figures)
