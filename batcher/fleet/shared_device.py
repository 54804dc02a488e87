"""A device that partitions share by time: a partition above its promised share borrows only idle time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sluice.batcher.interface.config import DeviceShare
from sluice.batcher.state import PartitionState

SLOWDOWN_GAIN = 0.25
"""Weight of one batch in the smoothed slowdown of a partition that is throttled."""
LINGER = 0.1
"""An idle partition is expected to run again soon for this part of the time of its last batch."""


class DeviceAccount:
    """A partition's account of a device (weighted fair queueing).

    `overuse_ns` is the time that the partition has had per unit of its share, above the mean of all partitions with
    work; a partition with overuse has used up its share. `contended` is true while a partition without overuse runs,
    and until its `lingers_ns`. `slowdown` is the factor by which throttling lengthens the batches of this partition
    while it is contended.
    """

    __slots__ = (
        "_throttled_ns",
        "_waited_ns",
        "contended",
        "device",
        "lingers_ns",
        "overuse_ns",
        "part",
        "partition",
        "share",
        "slowdown",
    )

    def __init__(self, device: SharedDevice, partition: PartitionState, share: DeviceShare) -> None:
        self.device = device
        self.partition = partition
        self.share = share
        self.part = 0.0
        self.overuse_ns = 0.0
        self.lingers_ns = 0
        self.contended = False
        self.slowdown = 1.0
        self._throttled_ns: int | None = None
        self._waited_ns = 0

    @property
    def is_ahead(self) -> bool:
        """True if it has used up its share and may have more."""
        return self.overuse_ns >= 1 and self.share.elastic

    @property
    def present_slowdown(self) -> float:
        """The factor by which its work takes longer now."""
        return self.slowdown if self.contended else 1.0

    def wait(self, now_ns: int) -> None:
        """Record that the partition is throttled while idle."""
        if self._throttled_ns is None:
            self._throttled_ns = now_ns

    def go_on(self, now_ns: int) -> None:
        """Record that the partition is no longer throttled."""
        if self._throttled_ns is not None:
            self._waited_ns, self._throttled_ns = now_ns - self._throttled_ns, None

    def ran(self, took_ns: int, expected_ns: int, now_ns: int) -> None:
        """Learn the slowdown of throttled batches, waiting time included, from a batch that has ended."""
        self.lingers_ns = now_ns + int(LINGER * took_ns)
        if self._waited_ns:
            ratio = (self._waited_ns + took_ns) / max(expected_ns, 1)
            self.slowdown = max(self.slowdown + SLOWDOWN_GAIN * (ratio - self.slowdown), 1.0)
            self._waited_ns = 0


class SharedDevice:
    """The partitions of a device with at least one elastic partition.

    The device's time is shared by weighted fair queueing, with the shares as weights, without preemption of running
    batches. In any period, a partition with work gets its share, less one batch of each of the others. Idle time earns
    no credit: a partition that gets work again starts at the mean of the active ones, or at its old overuse if larger.
    """

    __slots__ = ("_active", "_since_ns", "accounts")

    def __init__(self) -> None:
        self.accounts: list[DeviceAccount] = []
        self._active: list[DeviceAccount] = []
        self._since_ns = 0

    def update(self, now_ns: int) -> Iterator[tuple[DeviceAccount, bool]]:
        """Record which partitions run batches now; yields each elastic partition and whether to throttle it.

        A partition is throttled while a partition without overuse runs a batch, if it has overuse itself or will have
        it after its running batch. O(partitions).
        """
        if now_ns > self._since_ns:
            self._pass_time(now_ns - self._since_ns)
            self._since_ns = now_ns
        running = [account for account in self.accounts if account.partition.batches]
        wanting = [account for account in self.accounts if account.partition.batches or account.lingers_ns > now_ns]
        self._active = [
            each for each in self.accounts if each.share.promised and (each in wanting or each.partition.throttled)
        ]
        for account in self.accounts:
            account.part = 0.0
        for account, part in zip(running, parts([account.share.cap for account in running]), strict=True):
            account.part = part
        entitled = [account for account in wanting if account.share.promised and not account.is_ahead]
        for account in self.accounts:
            if account.share.elastic:
                account.contended = len(entitled) > (account in entitled)
                yield (
                    account,
                    account.contended and (account.is_ahead or (account in running and account.overuse_ns > -1)),
                )

    def entitled_ns(self, account: DeviceAccount, now_ns: int) -> int:
        """When a throttled partition will be within its share again, if nothing changes."""
        waiting = account.share.promised if account not in self._active else 0.0
        wanted = waiting + sum(each.share.promised for each in self._active)
        used = sum(each.part for each in self._active) - account.part
        if not used:
            return max(each.lingers_ns for each in self.accounts)
        return now_ns + math.ceil(account.overuse_ns * wanted / used)

    def _pass_time(self, elapsed_ns: int) -> None:
        """Charge the time since the last change to the partitions that ran."""
        self._centre()
        for account in self._active:
            account.overuse_ns += account.part * elapsed_ns / account.share.promised
        self._centre()

    def _centre(self) -> None:
        """Measure overuse from the mean of the partitions with work; idle ones earn no credit."""
        if not self._active:
            return
        weights = sum(each.share.promised for each in self._active)
        mean_ns = sum(each.share.promised * each.overuse_ns for each in self._active) / weights
        for account in self.accounts:
            account.overuse_ns -= mean_ns
            if account not in self._active:
                account.overuse_ns = max(account.overuse_ns, 0.0)


def parts(caps: Sequence[float]) -> list[float]:
    """The part of a device that each running partition gets: an equal part, or its cap if that is less."""
    found = [0.0] * len(caps)
    left = 1.0
    for done, each in enumerate(sorted(range(len(caps)), key=caps.__getitem__)):
        found[each] = min(caps[each], left / (len(caps) - done))
        left -= found[each]
    return found
