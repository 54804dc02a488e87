"""Recovery: decides when a lost worker is restarted, and which other workers must end with it."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from sluice.mps.daemon.control import MpsControl
from sluice.mps.nvidia.device_watch import DeviceWatch
from sluice.mps.partitions.partition import CpuPartition, MpsPartition
from sluice.mps.supervisor.fault_domain import end_client, end_clients, wait_until_answering
from sluice.mps.supervisor.process import WorkerProcess
from sluice.mps.supervisor.quarantine import Quarantine, Quarantined, QuarantineSettings
from sluice.mps.supervisor.worker_slot import WorkerSlot

LONGEST_DARK_S = 0.5
"""Longest delay before a worker is restarted that alone holds a model."""

logger = logging.getLogger(__name__)


class Recovery:
    """Restarts workers by `launch`, after a back-off or when their partition leaves quarantine.

    `slots` are all worker slots, `by_name` the slots whose workers are restarted; both may change at any time.
    `controls` are the controls of the MPS daemons, by device: all workers of a daemon are ended together when one loses
    its context.
    """

    def __init__(
        self,
        slots: Sequence[WorkerSlot],
        by_name: Mapping[str, WorkerSlot],
        launch: Callable[[WorkerSlot], None],
        settings: QuarantineSettings,
        controls: Mapping[str, MpsControl],
    ) -> None:
        self._slots = slots
        self._by_name = by_name
        self._launch = launch
        self._controls = controls
        self._quarantine = Quarantine(by_name, settings)
        self._expected_exits: set[str] = set()
        self._restarting: dict[str, asyncio.Task[None]] = {}
        self._hung: dict[WorkerProcess, asyncio.Task[None]] = {}
        self._postponed: dict[WorkerSlot, float] = {}
        self._watch: DeviceWatch | None = None

    def start(self) -> None:
        """Start watching the GPUs of the partitions, if there are any."""
        partitions = [slot.spec.partition for slot in self._by_name.values()]
        devices = {each.uuid for each in partitions if not isinstance(each, CpuPartition)}
        if devices:
            self._watch = DeviceWatch(devices, self.device_lost)
            self._watch.start()

    @property
    def quarantined(self) -> Mapping[str, Quarantined]:
        """The partitions in quarantine, by name."""
        return self._quarantine.partitions

    def worker_ready(self, partition: str) -> None:
        """The worker of a partition is ready."""
        self._quarantine.worker_ready(partition, asyncio.get_running_loop().time())

    def expect_exit(self, partition: str) -> None:
        """The worker of a partition is about to be ended on purpose: its loss does not count against the partition."""
        self._expected_exits.add(partition)

    def worker_lost(self, slot: WorkerSlot, reason: str, *, answered: bool = False, explained: bool = False) -> str:
        """A worker's process has ended: schedule its restart. Returns the reason, extended by the consequences.

        `answered` tells whether it has answered a batch since its start. A loss that is `explained` by the requests
        that the worker ran counts neither for the back-off nor for quarantine.
        """
        now_s = asyncio.get_running_loop().time()
        is_last = self._is_last(slot)
        delay_s = slot.back_off.lost(now_s, answered=answered or explained)
        if is_last:
            delay_s = min(delay_s, LONGEST_DARK_S)
        expected = slot.name in self._expected_exits
        self._expected_exits.discard(slot.name)
        if _daemon(slot) in self._restarting:
            self._postponed[slot] = delay_s
            return reason
        alone = self._quarantine.partitions.get(slot.name)
        if alone is None and not expected and not explained:
            self._quarantine.worker_lost(slot.name, reason, now_s, is_last=is_last)
            alone = self._quarantine.partitions.get(slot.name)
        if alone is not None:
            delay_s = alone.for_s
        slot.call_later(delay_s, lambda: self._start(slot))
        return self._explain(slot.name, reason)

    def end_worker(self, partition: str, process: WorkerProcess, reason: str) -> None:
        """End a worker that does not exit by itself; the contexts of an MPS client are destroyed first.

        `process` is as for `context_lost`.
        """
        control = self._controls.get(_daemon(self._by_name[partition]))
        if control is None:
            process.kill(reason)
        elif process not in self._hung:
            task = asyncio.get_running_loop().create_task(_end_client(process, control, reason))
            self._hung[process] = task
            task.add_done_callback(lambda _: self._hung.pop(process))

    def context_lost(self, partition: str, process: WorkerProcess, reason: str) -> dict[str, str]:
        """A worker's CUDA context is lost: end the worker and, on an MPS daemon, all the daemon's workers.

        `process` is the partition's worker or one that it has replaced. Returns the partitions whose workers end
        together, if they do, with the reasons; `worker_lost` follows for each.
        """
        slot = self._by_name[partition]
        device = _daemon(slot)
        control = self._controls.get(device)
        if control is None:
            process.kill(reason)
            return {}
        if device in self._restarting or process in self._hung:
            return {}
        now_s = asyncio.get_running_loop().time()
        self._quarantine.worker_lost(partition, reason, now_s, is_last=self._is_last(slot))
        domain = [other for other in self._by_name.values() if _daemon(other) == device]
        for other in domain:
            if other.process is None and other.name not in self._quarantine.partitions:
                other.cancel_timer()
                self._postponed[other] = 0.0
        self._restarting[device] = asyncio.get_running_loop().create_task(self._renew(device, control, reason))
        return {other.name: self._explain(other.name, reason) for other in domain if other.process is not None}

    def device_lost(self, devices: Collection[str], reason: str) -> None:
        """Devices have failed: their partitions are quarantined, longer each time."""
        for name, slot in self._by_name.items():
            partition = slot.spec.partition
            if isinstance(partition, CpuPartition) or partition.uuid not in devices:
                continue
            if name in self._quarantine.partitions:
                continue
            for_s = self._quarantine.device_lost(name, reason)
            if slot.process is not None:
                slot.process.kill(reason)
            else:
                slot.call_later(for_s, lambda slot=slot: self._start(slot))  # type: ignore[misc]

    async def close(self) -> None:
        """Stop restarting workers and watching devices."""
        for task in self._restarting.values():
            task.cancel()
        if self._watch is not None:
            await self._watch.close()

    async def _renew(self, device: str, control: MpsControl, reason: str) -> None:
        processes = [slot.process for slot in self._slots if _daemon(slot) == device and slot.process is not None]
        try:
            await end_clients(processes, control, reason)
            # A worker that starts while the daemon is away would silently run without MPS.
            await wait_until_answering(control)
        except Exception:  # no error may leave partitions without workers for good
            logger.exception("the MPS clients of %s could not be ended in order", device)
        del self._restarting[device]
        for slot in [each for each in self._postponed if _daemon(each) == device]:
            alone = self._quarantine.partitions.get(slot.name)
            delay_s = self._postponed.pop(slot)
            slot.call_later(delay_s if alone is None else alone.for_s, lambda slot=slot: self._start(slot))  # type: ignore[misc]

    def _is_last(self, slot: WorkerSlot) -> bool:
        """Return whether no other worker that is ready holds some model of this slot."""
        others = [other for other in self._by_name.values() if other is not slot and other.ready]
        return any(not any(key in other.tables for other in others) for key in slot.models)

    def _explain(self, partition: str, reason: str) -> str:
        """The reason for a loss, with the quarantine that follows, if one does."""
        alone = self._quarantine.partitions.get(partition)
        if alone is None:
            return reason
        return f"{reason}; the partition is in quarantine for {alone.for_s:g} s: {alone.reason}"

    def _start(self, slot: WorkerSlot) -> None:
        self._quarantine.release(slot.name)
        self._launch(slot)


async def _end_client(process: WorkerProcess, control: MpsControl, reason: str) -> None:
    await end_client(process, control, reason)
    # Before the kill, the worker may have reported its context as lost, which was intended.
    await process.exited.wait()


def _daemon(slot: WorkerSlot) -> str:
    """The device whose MPS daemon the worker is a client of; "" if there is none."""
    partition = slot.spec.partition
    return partition.uuid if isinstance(partition, MpsPartition) else ""
