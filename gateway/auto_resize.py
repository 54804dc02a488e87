"""Lends cores that are nobody's to partitions that are busy, and takes them back."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from gateway.logs import log
from gateway.partition_states import PartitionStates
from gateway.resizing import Resizing
from models.errors import ServingError
from models.units import NS_PER_S
from mps.core_balance import BalanceSettings, CoreBalance, Loaded
from mps.cpu import available_cores
from mps.partition import CpuPartition

logger = logging.getLogger(__name__)


class AutoResize:
    """Looks from time to time at how busy partitions are, by the nanoseconds of `busy_ns`; `taken` cores stay so."""

    def __init__(
        self,
        settings: BalanceSettings,
        states: PartitionStates,
        resizing: Resizing,
        busy_ns: Callable[[], Mapping[str, int]],
        taken: Collection[int],
    ) -> None:
        self._states = states
        self._resizing = resizing
        self._busy_ns = busy_ns
        self._taken = frozenset(taken)
        self._every_s = settings.every_s
        self._seen = self._cores()
        self._balance = CoreBalance(settings, self._seen)
        self._before: Mapping[str, int] = {}
        self._looked_s = 0.0

    async def run(self) -> None:
        """Look until cancelled."""
        self._take()
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.look()
            except ServingError as error:
                log(logger, logging.WARNING, "a partition could not be resized", reason=str(error))
            except Exception:  # whatever it is, the next look may do better
                logger.exception("cores could not be lent")

    async def look(self) -> None:
        """Look once, and change what is to be changed; raises as `Resizing.resize`."""
        busy = self._take()
        cores = self._cores()
        loads = {name: Loaded(held, busy.get(name, 0.0)) for name, held in cores.items()}
        if self._resizing.under_way:
            return
        if cores != self._seen:  # somebody else has resized a partition, which is not to be undone at once
            self._seen = cores
            self._balance.changed(self._looked_s)
            return
        partitions = (state.partition for state in self._states.all().values())
        free = sorted({*available_cores()} - self._taken - {core for each in partitions for core in each.cores})
        change = self._balance.look(self._looked_s, loads, free)
        if change is not None:
            log(logger, logging.INFO, "partition to be resized", partition=change.partition, cores=list(change.cores))
            try:
                await self._resizing.resize(change.partition, change.cores)
            finally:
                self._seen = self._cores()

    def _cores(self) -> dict[str, tuple[int, ...]]:
        partitions = (state.partition for state in self._states.all().values())
        return {each.name: each.cores for each in partitions if isinstance(each, CpuPartition)}

    def _take(self) -> dict[str, float]:
        """The part of its time that each partition was busy since the last time."""
        now_s, now_ns = asyncio.get_running_loop().time(), dict(self._busy_ns())
        elapsed_ns = max((now_s - self._looked_s) * NS_PER_S, 1.0)
        busy = {name: min((ns - self._before.get(name, ns)) / elapsed_ns, 1.0) for name, ns in now_ns.items()}
        self._before, self._looked_s = now_ns, now_s
        return busy
