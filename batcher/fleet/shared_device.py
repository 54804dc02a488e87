"""A device that partitions share by time: who may use more than it is promised borrows only what is idle."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sluice.batcher.interface.config import DeviceShare

if TYPE_CHECKING:
    from sluice.batcher.state.model import PartitionState

PACE_GAIN = 0.25
LINGER = 0.1
"""For this part of its last batch's time whoever has nothing to run is taken to be about to have something."""


class DeviceAccount:
    """A partition's part of a device.

    `lead_ns` is how far it is ahead: the device's time that it has had, for each part of its share, above the mean of
    all that have something to run. Who is ahead has used up its share, and `contended` says whether another one that
    is not runs now. It counts as running until `lingers_ns`, too. `pace` is how many times as long its batches take,
    held back as they are then, as those that it gives to its worker at once.
    """

    __slots__ = (
        "_held_ns",
        "_waited_ns",
        "contended",
        "device",
        "lead_ns",
        "lingers_ns",
        "pace",
        "part",
        "partition",
        "share",
    )

    def __init__(self, device: SharedDevice, partition: PartitionState, share: DeviceShare) -> None:
        self.device = device
        self.partition = partition
        self.share = share
        self.part = 0.0
        self.lead_ns = 0.0
        self.lingers_ns = 0
        self.contended = False
        self.pace = 1.0
        self._held_ns: int | None = None
        self._waited_ns = 0

    @property
    def is_ahead(self) -> bool:
        """Whether it has used up its share, while it may have more."""
        return self.lead_ns >= 1 and self.share.elastic

    def paced_ns(self, work_ns: int) -> int:
        """How long it takes for work that lasts `work_ns` where nothing is held back."""
        return int(work_ns * self.pace) if self.contended else work_ns

    def wait(self, now_ns: int) -> None:
        """It is held back, and has nothing that runs."""
        if self._held_ns is None:
            self._held_ns = now_ns

    def go_on(self, now_ns: int) -> None:
        """It is held back no more."""
        if self._held_ns is not None:
            self._waited_ns, self._held_ns = now_ns - self._held_ns, None

    def ran(self, took_ns: int, expected_ns: int, now_ns: int) -> None:
        """Learn from a batch that has ended how fast batches follow each other that are held back."""
        self.lingers_ns = now_ns + int(LINGER * took_ns)
        if self._waited_ns:
            ratio = (self._waited_ns + took_ns) / max(expected_ns, 1)
            self.pace = max(self.pace + PACE_GAIN * (ratio - self.pace), 1.0)
            self._waited_ns = 0


class SharedDevice:
    """The partitions of a device of which one at least is elastic.

    Its time is shared as by weighted fair queueing, with the shares as weights, but for batches that are not taken off:
    whoever has something to run gets its share of any stretch of time but for a batch of each of the others. Nothing is
    remembered of what was idle: who comes back is as far as those who stayed, or where it was if that is further.
    """

    __slots__ = ("_active", "_since_ns", "accounts")

    def __init__(self) -> None:
        self.accounts: list[DeviceAccount] = []
        self._active: list[DeviceAccount] = []
        self._since_ns = 0

    def update(self, now_ns: int) -> Iterator[tuple[DeviceAccount, bool]]:
        """Take in which partitions run something now; each that is elastic, and whether it is to be held back.

        Held back is who has used up its share while another that has not runs something, and who will have done so with
        what it runs. O(partitions).
        """
        if now_ns > self._since_ns:
            self._pass_time(now_ns - self._since_ns)
            self._since_ns = now_ns
        running = [account for account in self.accounts if account.partition.batches]
        wanting = [account for account in self.accounts if account.partition.batches or account.lingers_ns > now_ns]
        self._active = [
            each for each in self.accounts if each.share.promised and (each in wanting or each.partition.held)
        ]
        for account in self.accounts:
            account.part = 0.0
        for account, part in zip(running, parts([account.share.cap for account in running]), strict=True):
            account.part = part
        entitled = [account for account in wanting if account.share.promised and not account.is_ahead]
        for account in self.accounts:
            if account.share.elastic:
                account.contended = len(entitled) > (account in entitled)
                yield account, account.contended and (account.is_ahead or (account in running and account.lead_ns > -1))

    def entitled_ns(self, account: DeviceAccount, now_ns: int) -> int:
        """When one that is held back will be within its share again, if all goes on as it is."""
        waiting = account.share.promised if account not in self._active else 0.0
        wanted = waiting + sum(each.share.promised for each in self._active)
        used = sum(each.part for each in self._active) - account.part
        if not used:
            return max(each.lingers_ns for each in self.accounts)
        return now_ns + math.ceil(account.lead_ns * wanted / used)

    def _pass_time(self, elapsed_ns: int) -> None:
        """Account for what has been as it was since the last change: within an instant nothing counts."""
        self._centre()
        for account in self._active:
            account.lead_ns += account.part * elapsed_ns / account.share.promised
        self._centre()

    def _centre(self) -> None:
        """Have leads be ahead of the mean of those that have something to run; nobody else falls behind."""
        if not self._active:
            return
        weights = sum(each.share.promised for each in self._active)
        mean_ns = sum(each.share.promised * each.lead_ns for each in self._active) / weights
        for account in self.accounts:
            account.lead_ns -= mean_ns
            if account not in self._active:
                account.lead_ns = max(account.lead_ns, 0.0)


def parts(caps: Sequence[float]) -> list[float]:
    """What each of those that run gets of a device: as much as the others, or its cap if that is less."""
    found = [0.0] * len(caps)
    left = 1.0
    for done, each in enumerate(sorted(range(len(caps)), key=caps.__getitem__)):
        found[each] = min(caps[each], left / (len(caps) - done))
        left -= found[each]
    return found
