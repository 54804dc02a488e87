"""A source whose workers are there already, at addresses that are listed somewhere; gateways share them."""

import asyncio
import logging
from collections.abc import Sequence

from sluice.gateway.cluster.leasing import Leasing
from sluice.gateway.cluster.source import Placed
from sluice.gateway.observability.logs import log

logger = logging.getLogger(__name__)


class AddressSource:
    """Puts addresses on the slots of a class of partitions.

    `place` says in log lines where the addresses are listed. All methods run on the event loop. What the workers at
    the addresses answer comes back by `leased`, `lost`, `refused` and `asked`.
    """

    def __init__(self, name: str, slots: Sequence[str], place: str) -> None:
        self._name = name
        self._place = place
        self._leasing = Leasing(slots)
        self._slots = len(slots)
        self._without_slot: tuple[str, ...] = ()
        self._placed: Placed | None = None
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.Handle | None = None

    def start(self, placed: Placed) -> None:
        """Begin, on the running event loop; see `WorkerSource`."""
        self._placed = placed
        self._loop = asyncio.get_running_loop()
        self._step()

    async def close(self) -> None:
        """Place nothing any more."""
        self._placed = None
        if self._timer is not None:
            self._timer.cancel()

    def offer(self, addresses: Sequence[str]) -> None:
        """These are the addresses of workers now, and no others."""
        self._leasing.offer(addresses)
        self._step()

    def want(self, count: int, leaving: tuple[str, ...] = ()) -> None:
        """Have workers for `count` slots; see `WorkerSource`."""
        self._leasing.want(count, leaving)
        self._step()

    def leased(self, slot: str) -> None:
        """The slot has the lease of its worker."""
        self._leasing.leased(slot)
        self._step_soon()

    def lost(self, slot: str) -> None:
        """The slot's lease ended, but not because `placed` took it away."""
        self._leasing.lost(slot, self._loop.time())
        self._step_soon()

    def refused(self, slot: str, holder: str) -> None:
        """The gateway `holder` has the lease of the slot's worker; `placed` says when and where to try next."""
        self._leasing.refused(slot, holder, self._loop.time())
        self._step_soon()

    @property
    def leases(self) -> int:
        """The number of workers of which we have the lease."""
        return self._leasing.leases

    def asked(self, slot: str, gateway: str, workers: int) -> None:
        """The gateway, which has that many workers, was refused by the slot's worker, because we have its lease."""
        self._leasing.asked(gateway, workers, self._loop.time())
        self._step_soon()

    def _step_soon(self) -> None:
        """Step once the present call has returned, since `placed` leads back to the caller."""
        if self._placed is not None:
            self._wake(self._loop.call_soon(self._step))

    def _step(self) -> None:
        if self._placed is None:
            return
        self._wake(None)
        now_s = self._loop.time()
        for slot, address, reason in self._leasing.step(now_s):
            self._placed(slot, address, reason)
        self._name_the_surplus()
        next_s = self._leasing.next_step_s(now_s)
        if self._timer is None and next_s is not None:
            self._wake(self._loop.call_at(next_s, self._step))

    def _wake(self, timer: asyncio.Handle | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def _name_the_surplus(self) -> None:
        """Log the addresses for which there is no slot, when they change."""
        surplus = self._leasing.without_slot
        if set(surplus) == set(self._without_slot):
            return
        self._without_slot = surplus
        if surplus:
            log(
                logger,
                logging.WARNING,
                "more workers than partitions",
                **{"class": self._name},
                partitions=self._slots,
                without=", ".join(surplus[:8]) + (f" and {len(surplus) - 8} more" if len(surplus) > 8 else ""),
                place=self._place,
            )
