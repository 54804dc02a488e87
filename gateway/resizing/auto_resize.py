"""Automatic resizing: samples the partitions for the scheduler, and carries out the resizes that it orders."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping

import msgspec

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.interface.decisions import ResizePartition
from sluice.batcher.interface.events import AnyEvent, PartitionsSampled, ResizeFailed, SizesKnown
from sluice.gateway.deployment.known_sizes import KnownSizes
from sluice.gateway.observability.logs import log
from sluice.gateway.partitions.inventory import Inventory
from sluice.gateway.resizing.resizing import Resizing
from sluice.models.errors import ServingError
from sluice.models.units import NS_PER_S
from sluice.mps.partitions.balance import BalanceSettings, ResizeTrigger
from sluice.mps.partitions.capacity_check import WHOLE
from sluice.mps.partitions.cpu import spare_cores
from sluice.mps.partitions.partition import CpuPartition, MpsPartition, ShareMode

logger = logging.getLogger(__name__)


class AutoResize:
    """Reports samples to `report`: partitions are busy as `busy_ns` counts, and `taken` cores are not used.

    `known_sizes` has the latencies at other sizes of sets of cores, unless the settings have load decide. `configure`
    gives a partition as the scheduler is to know it.
    """

    def __init__(
        self,
        settings: BalanceSettings,
        inventory: Inventory,
        resizing: Resizing,
        busy_ns: Callable[[], Mapping[str, int]],
        taken: Collection[int],
        known_sizes: KnownSizes,
        configure: Callable[[CpuPartition], PartitionConfig],
        report: Callable[[AnyEvent], None],
    ) -> None:
        self._settings = settings
        self._inventory = inventory
        self._resizing = resizing
        self._busy_ns = busy_ns
        self._taken = frozenset(taken)
        self._known_sizes = known_sizes
        self._configure = configure
        self._report = report
        self._known = SizesKnown({}, {})
        self._orders: asyncio.Queue[ResizePartition] = asyncio.Queue()
        self._before: Mapping[str, int] = {}
        self._looked_s = 0.0

    async def run(self) -> None:
        """Sample, and carry out orders, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sample())
            tasks.create_task(self._carry_out())

    def order(self, order: ResizePartition) -> None:
        """Carry out an order after those before; it is answered."""
        self._orders.put_nowait(order)

    async def _sample(self) -> None:
        while True:
            try:
                await self._report_sizes()
            except Exception:  # whatever it is, the next look may do better
                logger.exception("the latencies at other sizes could not be read")
            busy = self._measure_busy()
            if not self._resizing.under_way:
                self._report(self._sampled(busy))
            await asyncio.sleep(self._settings.every_s)

    async def _carry_out(self) -> None:
        while True:
            order = await self._orders.get()
            share = {"cores": list(order.held)} if isinstance(order.held, tuple) else {"share_percent": order.held}
            figures = {"by": order.by.value, "reason": order.reason, **order.figures}
            log(logger, logging.INFO, "partition to be resized", partition=order.partition, **share, **figures)
            try:
                await self._resizing.carry_out(order)
            except ServingError as error:
                log(logger, logging.WARNING, "a partition could not be resized", reason=str(error))
                self._report(ResizeFailed(order.partition, str(error)))
            except Exception as error:  # whatever it is, the next order may succeed
                logger.exception("a partition could not be resized")
                self._report(ResizeFailed(order.partition, str(error)))

    async def _report_sizes(self) -> None:
        """Report the latencies at other sizes of sets of cores, if the plan decides and they have changed."""
        if self._settings.by is not ResizeTrigger.PLAN:
            return
        sampled = self._sampled({})
        partitions = [each for each in self._inventory.partitions if isinstance(each, CpuPartition)]
        most = sum(map(len, sampled.cores.values())) + len(sampled.spare)
        tables = await self._known_sizes.tables(partitions, most)
        every = [tuple(range(size + 1)) for size in range(most)]
        sizes = {
            each.name: tuple(self._configure(msgspec.structs.replace(each, cores=cores)) for cores in every)
            for each in partitions
            if tables
        }
        if (known := SizesKnown(tables, sizes)) != self._known:
            self._known = known
            self._report(known)

    def _sampled(self, busy: dict[str, float]) -> PartitionsSampled:
        partitions = self._inventory.partitions
        assigned = {core for each in partitions for core in each.cores}
        shares: dict[str, dict[str, int]] = {}
        unpromised: Counter[str] = Counter()
        for each in partitions:
            if isinstance(each, MpsPartition):
                unpromised[each.uuid] -= each.guaranteed_percent
                if each.mode is ShareMode.HARD:  # only such a share has a cap, and so a size
                    shares.setdefault(each.uuid, {})[each.name] = each.share_percent
        return PartitionsSampled(
            busy,
            {each.name: each.cores for each in partitions if isinstance(each, CpuPartition)},
            spare_cores(assigned.union(self._taken)),
            shares,
            {device: round(WHOLE) + unpromised[device] for device in shares},
        )

    def _measure_busy(self) -> dict[str, float]:
        """The part of its time that each partition was busy since the last look."""
        now_s, now_ns = asyncio.get_running_loop().time(), dict(self._busy_ns())
        elapsed_ns = max((now_s - self._looked_s) * NS_PER_S, 1.0)
        busy = {name: min((ns - self._before.get(name, ns)) / elapsed_ns, 1.0) for name, ns in now_ns.items()}
        self._before, self._looked_s = now_ns, now_s
        return busy
