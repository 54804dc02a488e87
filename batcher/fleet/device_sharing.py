"""Fair sharing of devices: throttles partitions above their share while others have work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from sluice.batcher.fleet.partition_group import throttle
from sluice.batcher.fleet.run_queue import RunQueue, WakeupQueue
from sluice.batcher.fleet.shared_device import DeviceAccount, SharedDevice
from sluice.batcher.interface.config import DeviceShare, PartitionConfig
from sluice.batcher.state import Batch, PartitionState, PlannedBatch


class DeviceSharing:
    """Keeps the `accounts` of partitions on devices with an elastic partition; there are none without such a device.

    A throttled partition is reconsidered once it is within its share, or earlier when something changes on its device,
    or when its planned batch has to start: what was promised counts for more than a share. The batches behind its
    running batch are revoked. `set_free` changes when an idle partition is free: throttled time
    counts as busy.
    """

    def __init__(
        self,
        configs: Sequence[PartitionConfig],
        partitions: Mapping[str, PartitionState],
        wakeups: WakeupQueue,
        set_free: Callable[[PartitionState, int], None],
    ) -> None:
        self._wakeups = wakeups
        self._set_free = set_free
        self._behind: list[Batch] = []
        self.accounts: dict[PartitionState, DeviceAccount] = {}
        shares = [each.device for each in configs if each.device is not None]
        devices = {share.name: SharedDevice() for share in shares if share.elastic}
        for config in configs:
            if (share := config.device) is not None and share.name in devices:
                device, partition = devices[share.name], partitions[config.name]
                account = self.accounts[partition] = DeviceAccount(device, partition, share)
                device.accounts.append(account)

    def order(self, due: list[RunQueue], now_ns: int) -> list[RunQueue]:
        """The run queues in `due`, with groups of partitions that borrow time last."""
        accounts = (self.accounts.get(each) for run_queue in due for each in run_queue.group.partitions.values())
        for device in dict.fromkeys(account.device for account in accounts if account is not None):
            self._settle(device, now_ns)
        return sorted(due, key=self._borrows)

    def started(self, partition: PartitionState, now_ns: int) -> None:
        """Record that a partition has one more batch."""
        if (account := self.accounts.get(partition)) is not None:
            self._settle(account.device, now_ns)

    def ended(self, batch: Batch, now_ns: int) -> None:
        """Record the end of a batch."""
        if (account := self.accounts.get(batch.partition)) is not None:
            account.ran(now_ns - batch.dispatched_ns, batch.expected_ns, now_ns)
            self._settle(account.device, now_ns)

    def resized(self, partition: PartitionState, share: DeviceShare | None, now_ns: int) -> None:
        """Record that a partition has another share of its device."""
        if share is not None and (account := self.accounts.get(partition)) is not None:
            self._settle(account.device, now_ns)
            account.share = share
            self._settle(account.device, now_ns)

    def take_unstarted(self) -> list[Batch]:
        """The batches that wait behind the running batch of partitions that were throttled since the last call."""
        behind = [batch for batch in self._behind if batch in batch.partition.batches[1:]]
        self._behind.clear()
        return behind

    def wake_throttled(self, due: Iterable[RunQueue], now_ns: int) -> None:
        """Reconsider groups when their throttled partitions will be within their share."""
        for run_queue in due:
            for partition in run_queue.group.partitions.values():
                if partition.throttled and not partition.batches:
                    account = self.accounts[partition]
                    wake_ns = account.device.entitled_ns(account, now_ns)
                    if partition.planned:
                        first_ns, last_ns = _starts_ns(partition.planned[0])
                        if now_ns < last_ns:
                            wake_ns = min(wake_ns, first_ns)
                    self._wakeups.wake(run_queue.group, max(wake_ns, now_ns + 1))

    def _settle(self, device: SharedDevice, now_ns: int) -> None:
        for account, is_over in device.update(now_ns):
            partition, group = account.partition, account.partition.group
            partition.slowdown = account.present_slowdown
            if group is None:
                continue
            if is_over and not _must_start(partition, now_ns):
                partition.throttled = True
                throttle(group, partition)
                if not partition.batches:
                    self._set_free(partition, device.entitled_ns(account, now_ns))
                    account.wait(now_ns)
                    self._wakeups.wake(group, partition.free_at_ns)
                for batch in partition.batches[1:]:
                    if not batch.revoking and not any(entry.request.pipeline.evicts for entry in batch.entries):
                        self._behind.append(batch)
                        self._wakeups.wake(group, now_ns)
            elif partition.throttled:
                partition.throttled = False
                if not partition.batches:
                    self._set_free(partition, now_ns)
                account.go_on(now_ns)
                run_queue = self._wakeups.run_queues[group]
                run_queue.partition_changed(partition)
                if run_queue.waiting:
                    self._wakeups.wake(group, now_ns)

    def _borrows(self, run_queue: RunQueue) -> bool:
        accounts = (self.accounts.get(partition) for partition in run_queue.group.partitions.values())
        return any(account is not None and account.is_ahead for account in accounts)


def _must_start(partition: PartitionState, now_ns: int) -> bool:
    """True if an idle partition has to start its planned batch now, so that it ends in time."""
    if partition.batches or not partition.planned:
        return False
    first_ns, last_ns = _starts_ns(partition.planned[0])
    return first_ns <= now_ns <= last_ns


def _starts_ns(batch: PlannedBatch) -> tuple[int, int]:
    """The latest start with which a planned batch is surely in time, and the latest with which it is so at best."""
    return batch.latest_ns - batch.length_ns, batch.limit_ns - batch.length_ns
