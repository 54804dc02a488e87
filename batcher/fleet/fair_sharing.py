"""Sharing of devices: holds partitions back that are over their share of one while others have something to run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sluice.batcher.fleet.agenda import WakeupQueue
from sluice.batcher.fleet.shared_device import DeviceAccount, SharedDevice
from sluice.batcher.interface.config import DeviceShare, PartitionConfig
from sluice.batcher.interface.decisions import RevokeBatch
from sluice.batcher.state.model import PartitionState
from sluice.batcher.state.pool import PartitionGroup
from sluice.batcher.state.request import Batch


class Sharing:
    """Keeps the accounts of partitions on devices where one is elastic; others cost nothing.

    Who is held back is looked at again when it is within its share; whatever changes on its device may end that before.
    What its worker has behind the batch that runs is to be taken back.
    """

    def __init__(self, agenda: WakeupQueue) -> None:
        self._agenda = agenda
        self._behind: list[Batch] = []

    def order(self, due: list[PartitionGroup], now_ns: int) -> list[PartitionGroup]:
        """Groups that are to be looked at, those last of which some partition borrows."""
        devices = {
            account.device: None
            for group in due
            for each in group.partitions.values()
            if (account := each.account) is not None
        }
        for device in devices:
            self._settle(device, now_ns)
        return sorted(due, key=_borrows)

    def started(self, account: DeviceAccount, now_ns: int) -> None:
        """A partition has a batch more."""
        self._settle(account.device, now_ns)

    def ended(self, account: DeviceAccount, batch: Batch, now_ns: int) -> None:
        """A partition has a batch less."""
        account.ran(now_ns - batch.dispatched_ns, batch.median_ns, now_ns)
        self._settle(account.device, now_ns)

    def revocations(self) -> list[RevokeBatch]:
        """Orders to take back what has not started on partitions that are held back since."""
        orders = []
        for batch in self._behind:
            if batch in batch.partition.batches[1:] and not batch.revoking:
                batch.revoking = True
                orders.append(RevokeBatch(batch.identity))
        self._behind.clear()
        return orders

    def resized(self, partition: PartitionState, share: DeviceShare | None, now_ns: int) -> None:
        """A partition has another share of its device."""
        if partition.account is not None and share is not None:
            self._settle(partition.account.device, now_ns)
            partition.account.share = share
            self._settle(partition.account.device, now_ns)

    def remind(self, due: Iterable[PartitionGroup], now_ns: int) -> None:
        """Have groups looked at again when partitions of theirs that are held back will be within their share."""
        for group in due:
            for partition in group.partitions.values():
                if partition.held and not partition.batches and (account := partition.account) is not None:
                    self._agenda.wake(group, max(account.device.entitled_ns(account, now_ns), now_ns + 1))

    def _settle(self, device: SharedDevice, now_ns: int) -> None:
        for account, held in device.update(now_ns):
            partition, group = account.partition, account.partition.group
            if group is None:
                continue
            if held:
                partition.held = True
                group.hold(partition)
                if not partition.batches:
                    partition.free_at_ns = device.entitled_ns(account, now_ns)
                    account.wait(now_ns)
                    self._agenda.wake(group, partition.free_at_ns)
                for batch in partition.batches[1:]:
                    if not batch.revoking and not any(entry.request.pipeline.evicts for entry in batch.entries):
                        self._behind.append(batch)
                        self._agenda.wake(group, now_ns)
            elif partition.held:
                partition.held = False
                if not partition.batches:
                    partition.free_at_ns = now_ns
                account.go_on(now_ns)
                group.changed(partition)
                if group.waiting:
                    self._agenda.wake(group, now_ns)


def sharing(
    configs: Sequence[PartitionConfig], partitions: Mapping[str, PartitionState], agenda: WakeupQueue
) -> Sharing | None:
    """Gives partitions their accounts on the devices where one of them is elastic; None where none is."""
    elastic = {each.device.name for each in configs if each.device is not None and each.device.elastic}
    devices = {name: SharedDevice() for name in elastic}
    for config in configs:
        if (share := config.device) is not None and share.name in devices:
            device, partition = devices[share.name], partitions[config.name]
            partition.account = DeviceAccount(device, partition, share)
            device.accounts.append(partition.account)
    return Sharing(agenda) if devices else None


def _borrows(group: PartitionGroup) -> bool:
    return any(partition.account is not None and partition.account.is_ahead for partition in group.partitions.values())
